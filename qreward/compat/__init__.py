"""The import paths and names of QReward 0.1.7. The use of an old name causes a ``DeprecationWarning`` that says what to write instead.

The module ``names`` has the table of the old names. ``functions`` and ``proxies`` have the classes and functions whose parameters or
results have changed. The modules at the old paths, such as ``qreward.utils`` and ``qreward.client.manager``, only look up names in the
table.
"""
