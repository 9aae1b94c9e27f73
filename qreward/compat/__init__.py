"""The import paths and names of QReward 0.1.7. Each use of one is a ``DeprecationWarning`` that says what to write instead.

``names`` has the table of the old names. ``functions`` and ``proxies`` have the classes and functions whose parameters or results have
changed. The modules at the old paths (``qreward.utils``, ``qreward.client.manager``, ...) only look up names in the table.
"""
