"""Model servers in virtual time, and what drives the real scheduler through them. No sockets, one seed.

``steps`` and ``agenda`` are time; ``laws``, ``engine``, ``doors``, ``specs`` and ``server`` are the far side; ``stage`` is what
they are played on: by ``world``, which drives ``qreward.scheduler``, or by ``shell_world``, which with ``pump`` drives the whole of
``qreward.engine`` on an event loop in virtual time. ``controllers`` are the windows that are compared; ``models`` with
``closed_loop`` ask how much of one endpoint is found, ``fleets`` with ``bounds`` how near to the bound a bulk finishes.
``report`` makes the tables.
"""
