"""The client's methods for rewards, labels, rankings, embeddings, completions and moderations, whose items share requests.

Items that may share a request wait in one ``RequestMerger`` per event loop. The scheduler queues a ``MergedRequest``, a task that is empty
until an endpoint takes it. Only then is it filled from the head of the waiting items, with as many as that endpoint accepts in one request.
Requests therefore grow while sending is limited (no free slot, no rate token, a cooldown), and batches wait for no timer. Single items may
wait a fraction of a response time for others (``sizing.pause``).

``methods`` holds the client's methods, ``formats`` turns arguments into items and items into requests, and ``batch`` reads a batch.
``items`` defines the tasks, ``merge_queue`` holds the waiting items, ``sizing`` decides how many go into a request, ``endpoint_limits``
learns how many an endpoint accepts, and ``merger`` sends requests and distributes the answers. The package uses the scheduler's tasks and
the codecs. It knows neither HTTP nor request bodies.
"""
