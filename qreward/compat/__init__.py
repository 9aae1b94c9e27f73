"""The import paths and names of QReward 0.1.7. Each use is a ``DeprecationWarning`` that says what to write instead.

``names`` is the table of the old names. ``functions`` and ``proxies`` hold those whose parameters or results have changed. The modules at
the old paths (``qreward.utils``, ``qreward.client.manager``, ...) only look names up.
"""
