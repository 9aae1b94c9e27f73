"""Simulation of the real scheduler against model servers, in virtual time and with one seed. Uses no sockets.

``steps`` and ``agenda`` represent time. ``laws``, ``engine``, ``doors``, ``specs`` and ``server`` simulate the servers. ``stage`` holds
the servers and sources of a run. A run is driven by ``world``, which runs ``qreward.scheduler``, or by ``shell_world``, which runs the
whole of ``qreward.engine`` on an event loop in virtual time, with ``pump``. ``controllers`` are the limiters to compare. ``models`` and
``closed_loop`` measure how much of the capacity of one endpoint is used, ``fleets`` and ``bounds`` how near a batch comes to its lower
bound. ``report`` makes the tables.
"""
