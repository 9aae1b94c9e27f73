"""Codecs of GPU reward servers and of the OpenAI APIs that take lists. They know nothing of queues or of sockets.

``base`` defines items, operations, codecs and the record of a kind of server; each kind has a file with its record, and ``registry`` lists
them.

Results are assigned to items by ``index`` if the server sends one, else by position, never by score. A list of another length is
``Malformed``. A score that is null, NaN, infinite or not a number is an error of its item, never 0.
"""
