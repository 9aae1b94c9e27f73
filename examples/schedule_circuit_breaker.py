"""A circuit breaker: after three failures in a row nobody waits for a dead judge any more, until one call finds it well."""

from __future__ import annotations

import time

from qreward import CircuitOpen, schedule

ASKED: list[str] = []
DEAD = {"judge-b"}


@schedule(circuit_breaker_threshold=3, circuit_breaker_recovery=0.2, key_func=lambda judge, _answer: judge)
def ask(judge: str, answer: str) -> float:
    ASKED.append(judge)
    if judge in DEAD:
        raise ConnectionError(f"{judge} is away")
    return float(len(answer))


def attempt(judge: str) -> str:
    """What a caller sees."""
    try:
        return str(ask(judge, "42"))
    except (CircuitOpen, ConnectionError) as error:
        return type(error).__name__


if __name__ == "__main__":
    print("judge-b:", [attempt("judge-b") for _ in range(6)])
    print(f"it was asked {ASKED.count('judge-b')} times; judge-a is not affected: {attempt('judge-a')}")
    DEAD.clear()
    time.sleep(0.25)
    print("after the recovery time:", attempt("judge-b"), attempt("judge-b"))
    print("open circuits:", ask.stats().open_circuits)
