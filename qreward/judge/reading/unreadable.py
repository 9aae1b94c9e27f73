"""What is raised where an answer is no verdict. Knows nothing of forms."""

from __future__ import annotations


class Unreadable(ValueError):
    """An answer that is not taken for a verdict.

    Attributes:
        why: one short sentence about the answer that can be shown to the judge when it is asked again. It quotes nothing of the
            answer, so that what a judged text says does not travel on in it.

    Example:
        >>> Unreadable("The answer is empty.").why
        'The answer is empty.'
    """

    def __init__(self, why: str) -> None:
        super().__init__(why)
        self.why = why
