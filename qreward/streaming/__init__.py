"""Streamed responses for callers: one stream, a batch of streams, and blocking versions of both.

The package reads the engine's stream waiters and converts their events into texts, chunks or results. This package must know neither
scheduling nor HTTP.
"""
