"""Streamed responses for callers: one stream, a batch of streams, and blocking versions of both."""
