"""The scheduler of calls of decorated functions."""
