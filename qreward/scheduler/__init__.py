"""The scheduler is pure: it receives events and the time, and returns commands. It uses no asyncio, does no I/O, reads no clock, and gets
its random generator from outside.
"""
