"""A circuit breaker stops calls to a judge after three failures in a row, until a test call succeeds. Each judge has its own circuit.

Run it: ``python examples/schedule_circuit_breaker.py``.
"""

from __future__ import annotations

import time

from qreward import CircuitOpen, schedule

CALLED: list[str] = []
DOWN = {"judge-b"}


@schedule(circuit_breaker_threshold=3, circuit_breaker_recovery=0.2, key_func=lambda judge, _answer: judge)
def ask(judge: str, answer: str) -> float:
    CALLED.append(judge)
    if judge in DOWN:
        raise ConnectionError(f"{judge} is down")
    return float(len(answer))


def outcome(judge: str) -> str:
    """The score, or the name of the error."""
    try:
        return str(ask(judge, "42"))
    except (CircuitOpen, ConnectionError) as error:
        return type(error).__name__


if __name__ == "__main__":
    print("judge-b:", [outcome("judge-b") for _ in range(6)])
    print(f"judge-b was called {CALLED.count('judge-b')} times; judge-a is not affected: {outcome('judge-a')}")
    DOWN.clear()
    time.sleep(0.25)
    print("judge-b after the recovery time:", outcome("judge-b"), outcome("judge-b"))
    print("open circuits:", ask.stats().open_circuits)
