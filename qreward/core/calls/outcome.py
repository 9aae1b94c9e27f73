"""How a try of a function can end, besides with an answer or by being stopped."""

from __future__ import annotations


class Raised:
    """It raised.

    Attributes:
        error: what the caller gets if this is the last word.
        again: it may be tried again, and counts as a failure of the function; if not, the error is none of ours.
        wait: seconds after which it may be, if the error or the user says so; what is negative or no number is 0.
        overloaded: it was turned away because there were too many: costs a retry, but says nothing of health.
        covered: it is one of the exceptions that a default may be returned for.
    """

    __slots__ = ("again", "covered", "error", "overloaded", "wait")

    def __init__(
        self, error: BaseException, *, again: bool = True, wait: float | None = None, overloaded: bool = False, covered: bool = False
    ) -> None:
        self.error = error
        self.covered = covered
        self.again = again
        self.wait = wait if wait is None or wait > 0 else 0.0
        self.overloaded = overloaded
