"""Streamed answers as callers hold them: one stream, a batch of streams, both for blocking code, and the calls that give them.

Nothing is decided here, nothing is known of HTTP: the engine's outlets are read, and pieces become what the caller asked for.
"""
