"""Bulks from files: requests are read, sent and written as streams, and a journal lets the same run go on where it stopped."""
