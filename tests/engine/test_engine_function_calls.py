"""Blocking calls of scheduled functions: every try that was sent is reported, also if its caller has left before it is started."""

from __future__ import annotations

from typing import Any

import pytest

from qreward import RequestTimeout
from qreward.engine.function_calls import BlockingCall
from qreward.functions.config import ScheduleConfig
from qreward.functions.function import FunctionPool, ScheduledFunction
from qreward.scheduler.functions.state import Call


class Scene:
    """One function that runs one try at a time, in the thread of its caller, and a clock that is set by hand."""

    def __init__(self, **settings: Any) -> None:
        self.now = 0.0
        self.member = ScheduledFunction(lambda: "done", ScheduleConfig(max_concurrency=1, **settings), FunctionPool())
        self.driver = self.member.pool.thread_driver
        self.member.pool.engine.clock = lambda: self.now
        self.call = Call(self.member.function, None, self.member.settings.options, None)
        self.call.waiter = BlockingCall(self.driver, lambda: "done", self.member.settings.judge, inline=True)

    def slots(self) -> int:
        return self.driver.scheduler.group.inflight


def test_a_try_that_is_started_after_its_caller_has_left_gives_its_slot_back(monkeypatch: pytest.MonkeyPatch) -> None:
    scene, start = Scene(), BlockingCall.start

    def late(self: BlockingCall, attempt: Any) -> None:
        scene.driver.do(scene.driver.scheduler.withdraw, [attempt.task])  # what the caller's own thread does meanwhile
        start(self, attempt)

    monkeypatch.setattr(BlockingCall, "start", late)
    scene.driver.do(scene.driver.scheduler.submit, scene.call)
    assert scene.call.done
    assert scene.slots() == 0


def test_a_try_that_is_started_when_its_call_has_just_timed_out_gives_its_slot_back(monkeypatch: pytest.MonkeyPatch) -> None:
    scene, start = Scene(timeout=1.0), BlockingCall.start

    def times_out(self: BlockingCall, attempt: Any) -> None:
        start(self, attempt)
        scene.now = 10.0
        scene.driver.do(scene.driver.scheduler.tick)  # another caller leads, and keeps the time

    monkeypatch.setattr(BlockingCall, "start", times_out)
    assert isinstance(scene.call.waiter.result(scene.call), RequestTimeout)
    assert scene.slots() == 0
