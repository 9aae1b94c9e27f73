"""Functions that are called with care: ``@schedule``, its configuration, and how that is changed while the program runs."""
