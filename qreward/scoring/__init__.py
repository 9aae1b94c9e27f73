"""Merge the items of many calls and batches into requests: scores, labels, rankings, embeddings, completions and moderations.

Items that may share a request wait in one ``RequestMerger`` per event loop. The scheduler queues a ``MergedRequest``, a task that is empty
until an endpoint takes it. The request is then filled with the first waiting items, at most as many as this endpoint accepts in one
request. Therefore, requests become larger while sending is limited (no free slot, no rate token, a cooldown).

The items of a batch never wait for a timer. Single items may wait for other items for a fraction of a response time (``sizing.pause``).
This package does not depend on HTTP. Codecs write the request bodies.
"""
