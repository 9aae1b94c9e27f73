"""The pure scheduler: events and the time go in, commands come out. No asyncio, no I/O, no clock, no randomness of its own."""
