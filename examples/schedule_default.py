"""``default_result`` is returned when a call fails: a value, None, or a function of the arguments. Other exceptions are raised.

Run it: ``python examples/schedule_default.py``.
"""

from __future__ import annotations

from qreward import schedule


@schedule(retry_times=1, retry_interval=0.01, default_result=None, exception_types=ConnectionError)
def judge(answer: str) -> float | None:  # None is not mistaken for a reward, as 0.0 would be
    if answer == "?":
        raise ConnectionError("the judge is down")
    return float(answer)


def by_length(answer: str, weight: float = 1.0) -> float:
    """The reward without the judge."""
    return -weight * len(answer)


@schedule(default_result=by_length)
def judge_or_length(answer: str, weight: float = 1.0) -> float:
    raise ConnectionError(f"the judge of {answer!r} with weight {weight} is down")


if __name__ == "__main__":
    print("a score, and a default:", judge("42"), judge("?"))
    print("a default from a function:", judge_or_length("forty-two", weight=0.5))
    try:
        judge("forty-two")
    except ValueError as error:
        print("not one of exception_types:", error)
