"""``@schedule`` adds retries, limits and hedges to functions. The package also holds its configuration, which can change at run time."""
