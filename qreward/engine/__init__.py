"""The asyncio driver of the scheduler: runs the scheduler's commands and reports the outcomes of attempts to the scheduler.

This package owns the event loops and threads. It must not import the transport: it receives a factory that makes a backend.
"""
