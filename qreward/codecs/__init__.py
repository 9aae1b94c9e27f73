"""Encoding of requests and decoding of responses for each API. Pure functions on bytes, without I/O."""
