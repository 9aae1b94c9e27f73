"""Model servers in virtual time, and what drives the real scheduler through them. No asyncio, no sockets, one seed.

``steps`` and ``agenda`` are time; ``laws``, ``engine``, ``doors``, ``specs`` and ``server`` are the far side; ``world`` is what
stands between it and ``qreward.core``; ``controllers`` are the windows that are compared; ``models`` with ``closed_loop`` ask how
much of one endpoint is found, ``fleets`` with ``bounds`` how near to the bound a bulk finishes. ``report`` makes the tables.
"""
