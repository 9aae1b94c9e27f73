"""Items of many calls and batches share requests: scores, labels, rankings, embeddings, completions and moderations.

Items that may share a request wait in one ``RequestMerger`` per event loop. The scheduler queues a ``MergedRequest``, a task that is empty
until an endpoint takes it. Only then is it filled from the head of the waiting items, with as many as that endpoint accepts in one request.
Requests therefore grow while sending is limited (no free slot, no rate token, a cooldown), and batches wait for no timer. Single items may
wait a fraction of a response time for others (``sizing.pause``). The package knows neither HTTP nor request bodies.
"""
