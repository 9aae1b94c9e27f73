"""Codecs of GPU reward servers and of the OpenAI APIs that take lists.

``base`` defines items, operations, codecs and the record of a kind of server. Each kind of server has a module with its record, and
``registry`` lists the kinds.

Results are assigned to items by ``index`` if the server sends an ``index``, and otherwise by position. Results are never assigned by score.
A list of the wrong length is ``Malformed``. If a score is null, NaN, infinite or not a number, its item fails. An invalid score never
becomes 0.
"""
