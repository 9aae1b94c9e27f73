"""Parameters that change while a function is in use: all at once or not at all, from any thread; callbacks are called in order."""

from __future__ import annotations

import gc
import logging
import os
import subprocess
import sys
import threading
from typing import Any
from weakref import ref

import pytest

from qreward import ConfigError, schedule
from qreward.functions.config import ScheduleConfig

Heard = list[tuple[dict[str, Any], frozenset[str]]]


def listening(config: ScheduleConfig) -> Heard:
    heard: Heard = []
    config.on_change(lambda changed, names: heard.append((changed.snapshot(), names)))
    return heard


def test_an_update_changes_what_it_names_and_says_so_and_one_that_changes_nothing_calls_no_callback() -> None:
    config = ScheduleConfig(timeout=30, retry_times=2)
    assert config.update(timeout=10, retry_times=2, limit_size=5) == {"timeout", "limit_size"}
    assert config == ScheduleConfig(timeout=10, retry_times=2, limit_size=5)
    assert config.model_fields_set == {"timeout", "retry_times", "limit_size"}
    heard = listening(config)
    assert config.update() == config.update(timeout=10.0) == config.update(timeout="10", debug=False) == frozenset()
    assert heard == []


def test_an_update_that_is_wrong_changes_nothing_and_calls_no_callback() -> None:
    fixed = "cannot be changed while the function is in use; set it in code"
    table: list[tuple[dict[str, Any], str]] = [
        ({"timeout": 5, "retry_times": -1}, "retry_times: "),
        ({"timeout": 5, "adaptive_limit_min": 501}, "adaptive_limit_min is larger than adaptive_limit_max"),
        ({"timeout": 5, "pool": "others"}, f"pool: {fixed}"),
        ({"timeout": 5, "key_func": len}, f"key_func: {fixed}"),
        ({"_callbacks": 3}, "unknown setting '_callbacks'"),
    ]
    config = ScheduleConfig(timeout=30, pool="judges")
    heard, before = listening(config), config.snapshot()
    for changes, said in table:
        with pytest.raises(ConfigError) as caught:
            config.update(**changes)
        assert str(caught.value).startswith(f"ScheduleConfig: {said}")
        assert config.snapshot() == before, changes
    assert heard == []


def test_a_callback_is_called_once_after_the_change_in_the_thread_that_makes_it_until_it_is_removed() -> None:
    config = ScheduleConfig()
    heard: list[tuple[Any, ...]] = []

    def listen(changed: object, names: frozenset[str]) -> None:
        heard.append((changed is config, config.timeout, names, threading.current_thread()))

    remove, _ = config.on_change(listen), config.on_change(listen)
    thread = threading.Thread(target=config.update, kwargs={"timeout": 3, "debug": True})
    thread.start()
    thread.join()
    assert heard == [(True, 3.0, {"timeout", "debug"}, thread)] * 2
    remove()
    remove()
    config.update(timeout=2)
    assert len(heard) == 3, "one of the two was removed"


def test_a_callback_that_raises_is_logged_and_the_others_are_called(caplog: pytest.LogCaptureFixture) -> None:
    config = ScheduleConfig()
    config.on_change(lambda *_: 1 / 0)
    heard = listening(config)
    with caplog.at_level(logging.ERROR, "qreward.schedule"):
        assert config.update(timeout=3) == {"timeout"}
    assert (config.timeout, len(heard)) == (3.0, 1)
    assert caplog.messages == ["an on_change callback raised; the change of timeout stands"]


def test_a_callback_may_remove_others_and_itself_and_change_the_configuration_again() -> None:
    config = ScheduleConfig()
    heard: list[str] = []

    def first(*_: object) -> None:
        heard.append("first")
        remove_first()
        remove_second()
        config.update(retry_times=1)

    remove_first = config.on_change(first)
    remove_second = config.on_change(lambda *_: heard.append("second"))
    config.update(timeout=3)
    assert heard == ["first"]
    assert (config.timeout, config.retry_times) == (3.0, 1)


def race(*jobs: Any) -> None:
    """Run all jobs at once, each in a thread; what one raises is raised."""
    barrier, failures = threading.Barrier(len(jobs)), []

    def run(job: Any) -> None:
        barrier.wait()
        try:
            job()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=run, args=(job,)) for job in jobs]
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(before)
    assert failures == []


def test_a_shared_config_keeps_no_function_alive_and_is_followed_by_those_that_live() -> None:
    for pool in (None, "shared"):
        config, dead = ScheduleConfig(pool=pool), []
        for number in range(20):
            decorated = schedule(config)(lambda value, number=number: (value, number))
            assert decorated(1) == (1, number)
            dead.append(ref(decorated))
        del decorated
        gc.collect()
        assert [each() for each in dead] == [None] * 20
        assert config._callbacks == {}

        tries: list[int] = []

        def flaky(tries: list[int] = tries) -> int:
            tries.append(1)
            raise ConnectionError

        living = schedule(config)(flaky)
        config.update(retry_times=2, retry_interval=0)
        with pytest.raises(ConnectionError):
            living()
        assert len(tries) == 3


def test_readers_see_the_old_or_the_new_set_and_never_a_mix() -> None:
    """Each update gives all parameters one number."""
    config = ScheduleConfig(timeout=1, retry_times=1, limit_size=1, max_concurrency=1, retry_interval=1)
    names = ("timeout", "retry_times", "limit_size", "max_concurrency", "retry_interval")
    done = threading.Event()

    def write() -> None:
        for number in range(2, 300):
            config.update(**dict.fromkeys(names, number))
        done.set()

    def read() -> None:
        last = 0
        while not done.is_set():
            for seen in (config.snapshot(), config.model_dump(), dict(config)):
                (value,) = {seen[name] for name in names}
                assert value >= last, "it never goes back"
                last = value

    race(write, read, read)
    assert config.timeout == 299.0


def test_no_update_is_lost_when_threads_race_and_callbacks_are_called_in_the_order_of_the_changes() -> None:
    config = ScheduleConfig()
    heard = listening(config)

    def change(name: str) -> Any:
        return lambda: [config.update(**{name: number}) for number in range(2, 60)]

    changed = ("retry_times", "limit_size", "max_concurrency", "speed_up_max_multiply")
    race(*(change(name) for name in changed))
    assert [getattr(config, name) for name in changed] == [59] * 4
    assert len(heard) == 4 * 58
    state = ScheduleConfig().snapshot()
    for after, names in heard:
        assert {name for name in after if after[name] != state[name]} == names, "each change leads from what was told before"
        state = after
    assert state == config.snapshot()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
def test_a_forked_child_can_change_its_configuration_although_the_parent_was_changing_it() -> None:
    script = """
import os, threading
from qreward.functions.config import ScheduleConfig
config, held, release = ScheduleConfig(), threading.Event(), threading.Event()
remove = config.on_change(lambda *_: (held.set(), release.wait()))
thread = threading.Thread(target=config.update, kwargs={"timeout": 3})
thread.start()
held.wait()
if (child := os.fork()) == 0:
    remove()
    config.update(retry_times=5)
    os._exit(config.retry_times)
status = os.waitpid(child, 0)[1]
release.set()
thread.join()
print(os.waitstatus_to_exitcode(status), config.timeout, config.retry_times)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout == "5 3.0 0\n", done.stderr
