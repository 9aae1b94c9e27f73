"""The scheduler of calls of decorated functions. It enforces exact, configured limits, where ``scheduler.scheduler`` learns the capacity of
endpoints.

It has the same kinds of inputs and commands, so that the same engine drives it. It does not know exception types, threads or event loops.
"""
