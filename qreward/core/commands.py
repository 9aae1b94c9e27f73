"""What the scheduler asks of the shell: plain tuples, so that a simulation or a replay can read them.

``(SEND, attempt)``          start it, and report its end by exactly one ``event``;
``(CANCEL, attempt)``        stop it, and report ``CANCELLED`` once its connection is closed;
``(FINISH, task, outcome, source, seconds)``
                             tell the caller: an ``Answer``, its source and how long the attempt took, or an error;
``(MORE, feed)``             read more input into the feed's buffer, then call ``refill``.
"""

from __future__ import annotations

from typing import Any, Final

SEND: Final = 0
CANCEL: Final = 1
FINISH: Final = 2
MORE: Final = 3

Command = tuple[Any, ...]
