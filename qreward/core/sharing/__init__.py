"""One key's limits, shared by many processes: who gets how much of them, and how a process keeps to what it got.

``ledger`` is what all share, ``minute`` and ``pot`` are its two kinds of limits, ``words`` what a member and the ledger say to each other;
``tenure`` and ``demand`` are the member's side. Where the ledger lies, and how words reach it, is nobody's business here.
"""
