"""``@schedule`` adds retries, limits and hedges to functions. Its settings can be changed while the program runs."""
