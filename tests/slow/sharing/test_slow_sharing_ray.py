"""Eight actors share a key through a broker that is an actor, too. It is killed once; then two of the eight are."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path
from typing import Any

import pytest
from sharing_trial import PROCESSES, Trial, trial
from sharing_worker import work

from qreward.integrations.ray.limit_actor import NAMESPACE

SETTLE, SPAN = 10.0, 60.0


class Worker:
    """A process that sends all that its share allows."""

    def __init__(self, number: int, spec: str) -> None:
        self.number, self.spec = number, json.loads(Path(spec).read_text())

    def run(self) -> None:
        asyncio.run(work(self.number, self.spec))


def brokers(ray: Any) -> list[str]:
    named = ray.util.list_named_actors(all_namespaces=True)
    return [each["name"] for each in named if each["namespace"] == NAMESPACE and each["name"].startswith("share-")]


def a_span(run: Trial, processes: set[int]) -> dict[str, Any]:
    begin = time.monotonic()
    time.sleep(SPAN)
    return run.spans(begin, time.monotonic(), processes)


@pytest.mark.timeout(500)
def test_eight_actors_keep_to_one_limit_and_go_on_when_the_broker_and_then_two_of_them_are_killed(cluster: Any, tmp_path: Path) -> None:
    ray = cluster
    with trial(tmp_path, "ray") as run:
        make = ray.remote(num_cpus=0)(Worker).remote
        workers = {number: make(number, str(run.spec)) for number in range(PROCESSES)}
        everybody = set(workers)
        for each in workers.values():
            each.run.remote()
        run.wait_for_all(everybody)
        time.sleep(SETTLE)
        spans = {"eight": a_span(run, everybody)}

        names = brokers(ray)
        assert len(names) == 3
        for name in names:
            ray.kill(ray.get_actor(name, namespace=NAMESPACE))
        time.sleep(SETTLE)
        spans["after the broker's death"] = a_span(run, everybody)
        assert sorted(brokers(ray)) == sorted(names), "who came next has made them again"

        for number in (6, 7):  # the processes; whoever made a broker takes it along
            ray.kill(workers.pop(number))
        time.sleep(SETTLE)
        spans["six"] = a_span(run, set(workers))
        last = [run.notes(number)[-1] for number in workers]
        for each in workers.values():
            ray.kill(each)
    print(last[0]["sharing"], "cpu", last[0]["cpu"])
    run.check(spans)
    assert all(words.startswith("one of 6 processes: ") for note in last for words in note["sharing"].values())
    assert all(note["failed"] == 0 for note in last)
