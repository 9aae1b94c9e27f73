"""Codecs of GPU reward servers and of the OpenAI APIs that take lists: rewards, labels, rankings, embeddings, completions, moderations.

They know the APIs of vLLM, SGLang, TEI, OpenRLHF, NIM and OpenAI. They know nothing of queues, of when a list is filled, or of sockets.
Usage::

    from qreward.codecs.rewards.registry import CLASSIFY, COMPLETE, EMBED, MODERATE, RERANK, SCORE, codec_of, settings_of

    items = SCORE.validate([("2 + 2?", "4"), ("2 + 2?", "5")])       # once, before anything is sent; raises BadRequest
    call = WireRequest(SCORE, "rm-7b", items, {}, None)               # inputs is always a list of items; no server is chosen yet
    outcome = await backend.send(endpoint, call)                      # the backend binds the call to the endpoint's API
    outcome.value.shares()                                            # an ItemAnswer, or an InvalidResponse, for each item

**Before an endpoint is chosen** (``Operation``): ``item`` and ``validate`` check items, ``check`` checks parameters, ``estimate_tokens``
estimates tokens to reserve, and calls with equal ``merge_key`` may share a request.

**When an endpoint can take a request** (``codec_of(endpoint.kind, operation, settings_of(endpoint))`` returns a ``ListCodec``, or raises
``ConfigError`` if that kind of server does not support the operation): ``mergeable`` is False for an item that must be sent alone (a
conversation, of which vLLM takes one per request), ``limits.fitting(items)`` is how many waiting items fit into one body, and ``measure``
is what an item counts against the limits. If the endpoint is probed (``probe``), the limits that its ``/info`` reports are used instead.

**After the response** (``ListAnswer``): ``items`` are values or errors by item. A response without any value raises ``Malformed``, so that
a single item is retried like any other request. ``shares()`` adds the usage of each item: reported by the server (SGLang), exact (for one
item), or divided by size and marked ``estimated``. For the ``Failure`` of a list, ``base.splits`` decides: if one item may be the cause,
the list is sent again in halves; after an overload, the whole list returns to the head of its queue.

Results are assigned to items by ``index`` if the server sends one, else by position, never by score. A list of another length is
``Malformed``. A score that is null, NaN, infinite or not a number is an error of its item, never 0.
"""
