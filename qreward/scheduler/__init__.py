"""The pure scheduler. No asyncio, no I/O, no clock, no randomness of its own: events and ``now`` in, commands out."""
