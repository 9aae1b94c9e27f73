"""``default_result`` is returned instead of an exception: a value, None, or a function of the call's arguments.

For rewards, prefer a value that cannot be taken for a score, such as None.
"""

from __future__ import annotations

from qreward import schedule


@schedule(retry_times=1, retry_interval=0.01, default_result=None, exception_types=ConnectionError)
def judge(answer: str) -> float | None:
    if answer == "?":
        raise ConnectionError("the judge is away")
    return 1.0


def by_length(answer: str, weight: float = 1.0) -> float:
    """What to do without the judge."""
    return -weight * len(answer)


@schedule(default_result=by_length)
def judge_or_guess(answer: str, weight: float = 1.0) -> float:
    raise ConnectionError(f"nobody judges {answer!r} with weight {weight}")


@schedule(default_result=None, exception_types=ConnectionError)
def mistaken(answer: str) -> int:
    return int(answer)


if __name__ == "__main__":
    print(judge("42"), judge("?"))
    print(judge_or_guess("forty-two", weight=0.5))
    try:
        mistaken("a mistake of the program is not hidden")
    except ValueError as error:
        print(error)
