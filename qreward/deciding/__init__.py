"""Sends the decisions of a client. This package finds the dialect of each endpoint, and divides requests with too many questions."""
