"""The scheduler of function calls: exact promises of one caller, where ``scheduler.scheduler`` learns what endpoints can take.

It has the same inputs and commands, so that the same engine runs it. Knows nothing of exceptions' types, threads or loops.
"""
