"""Decisions of a client: which endpoint speaks which dialect, and requests in parts."""
