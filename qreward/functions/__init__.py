"""``@schedule`` adds retries, limits and hedges to functions. Its configuration can be changed while the program runs."""
