"""The client's calls for rewards, labels, rankings and vectors, which are merged on the wire.

An item waits in a ``Collector``, one for all that may share a request in one event loop. What the scheduler sees is a *carrier*, a task
that is empty until an endpoint takes it: only then is it filled from the head of what waits, with as much as that endpoint takes in one
request. So lists grow while requests are scarce (no slot, no rate token, a closed gate), and nothing waits for a timer.

``calls`` and ``blocking`` are what people call; ``asking`` turns arguments into items, ``bulk`` reads a batch of them; ``member`` and
``carrier`` are the tasks; ``stock`` is what waits, ``spread`` says how long a list should be, ``collector`` sends lists and shares out the
answers; ``lists`` and ``embedded`` know what items are. Knows the scheduler's tasks and the wire's codecs, neither HTTP nor any body.
"""
