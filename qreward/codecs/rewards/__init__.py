"""Rewards, labels, rankings, vectors: what GPU reward endpoints and the list-taking routes of the OpenAI API are asked, and answer.

Knows the dialects of vLLM, SGLang, TEI, OpenRLHF, NIM and OpenAI; knows nothing of queues, of when a list is filled, or of sockets.
How it is used::

    from qreward.codecs.rewards.registry import CLASSIFY, COMPLETE, EMBED, MODERATE, RERANK, SCORE, codec_of, settings_of

    items = SCORE.validate([("2 + 2?", "4"), ("2 + 2?", "5")])       # once, before anything is sent; raises BadRequest
    call = Call(SCORE, "rm-7b", items, {}, None)                      # inputs is always a list of items; it names no server
    outcome = await wire.send(endpoint, call)                         # bound to the endpoint's dialect here
    outcome.value.shares()                                            # an ItemAnswer, or an InvalidResponse, for each item

**Before an endpoint is known** (``Operation``): ``item`` and ``validate`` check, ``check`` looks at the parameters, ``estimate_tokens``
reserves, ``merge_key`` says which calls may share a request.

**When an endpoint has room** (``codec_of(endpoint.kind, operation, settings_of(endpoint))``, a ``ListCodec``; raises ``ConfigError`` if
that kind of server is not asked that): ``mergeable`` is False for an item that has to go alone (a conversation, as vLLM takes one a
request), ``limits.fitting(items)`` says how many of those that wait go into one body, ``measure`` what an item counts against the limits.
What ``/info`` of a server says of its limits counts instead, where its endpoint is looked at (``probe``).

**After it** (``ListAnswer``): ``items`` are values or errors by item; an answer without any value is none and raises ``Malformed``, so that
an item alone is tried again as any request is. ``shares()`` is the same with each item's usage: told by the server (SGLang), exact (one
item), or shared out by size and marked ``estimated``. A ``Failure`` of a list is looked at by ``merging.splits``: if it may be the
fault of one item, the list goes out again in halves; if it is an overload, the whole list goes back to the head of its queue.

Items are mapped by ``index`` where the server gives one, else by position, never by score; a list of another length is ``Malformed``, and
a score that is null, NaN, infinite or no number is an error of its item, never 0.
"""
