"""Decisions of a client: find the dialect of each endpoint, and divide requests with too many questions."""
