"""Streamed responses for callers: one stream, a batch of streams, and blocking versions of both.

The package reads the engine's stream waiters (the objects that receive the events of a stream), and converts the events into texts, chunks
or results. This package does not depend on scheduling or HTTP.
"""
