"""Encodes requests and decodes responses, for each API."""
