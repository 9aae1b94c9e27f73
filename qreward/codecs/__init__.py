"""Encodes requests and decodes responses, for each API. The codecs work on bytes and do no I/O."""
