"""The asyncio shell around the scheduler: runs its commands and tells it what became of them.

The only room of the engine that knows asyncio and threads. It reaches the wire through a callable it is given.
"""
