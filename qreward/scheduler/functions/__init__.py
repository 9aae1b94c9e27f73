"""The scheduler of calls of decorated functions. It enforces configured limits exactly; ``scheduler.scheduler`` learns the capacity of
endpoints instead.

Both schedulers have the same kinds of inputs and commands, so that one engine drives both. This package does not depend on exception types,
threads or event loops.
"""
