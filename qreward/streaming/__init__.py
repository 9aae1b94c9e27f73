"""Streamed responses for callers: one stream, a batch of streams, and blocking versions of both.

The package reads the engine's stream waiters and converts their events into texts, chunks or results. It makes no scheduling decisions and
knows no HTTP.
"""
