"""Requests and answers of each API as pure functions: bytes in and out, no I/O."""
