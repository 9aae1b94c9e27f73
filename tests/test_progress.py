"""What is shown of a batch: the counts, how often, where (a bar, the log, a function, nowhere), and that it harms nothing."""

from __future__ import annotations

import importlib.util
import io
import logging
import subprocess
import sys
import threading
import types
from itertools import count, pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qreward import ConfigError, ServerError
from qreward.progress import Progress, ProgressMeter, details, start_progress
from qreward.records import AttemptRecord, PromptTokensDetails, Usage
from qreward.results import Result, RouteState


class Said:
    def __init__(self, usage: Usage | None) -> None:
        self.usage = usage

    def build(self) -> str:
        return "good"

    text = build


class Clock:
    """Seconds that pass when told to."""

    now = 1000.0

    def __call__(self) -> float:
        return self.now


def tried(outcome: str, *, hedge: bool = False) -> AttemptRecord:
    return AttemptRecord("a", outcome, 0.1, hedge=hedge)


def good(*trail: AttemptRecord, endpoint: str = "a", seconds: float = 1.0, usage: Usage | None = None) -> Result[Any]:
    return Result(0, Said(usage), None, endpoint, seconds, 0.0, trail)


def bad(*outcomes: str) -> Result[Any]:
    return Result(0, None, ServerError("it broke"), "a", 0.0, 0.0, tuple(map(tried, outcomes)))


class Screen(io.StringIO):
    """Standard error: a terminal, or not."""

    broken = terminal = False

    def write(self, text: str) -> int:
        if self.broken:
            raise BrokenPipeError
        return super().write(text)

    def isatty(self) -> bool:
        return self.terminal

    @property
    def drawn(self) -> list[str]:
        """What was drawn, one line over the other."""
        return [line.strip() for line in self.getvalue().replace("\n", "\r").split("\r") if line.strip()]


@pytest.fixture(autouse=True)
def one_process(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "LOCAL_RANK", "TQDM_DISABLE"):
        monkeypatch.delenv(name, raising=False)


def screen(monkeypatch: pytest.MonkeyPatch, *, terminal: bool) -> Screen:
    """Standard error from here on. No fixture: pytest changes it when the test begins."""
    made = Screen()
    made.terminal = terminal
    monkeypatch.setattr(sys, "stderr", made)
    return made


def no_logging(monkeypatch: pytest.MonkeyPatch) -> None:
    """Logging is not set up from here on: pytest's own handlers are at the root when the test begins."""
    monkeypatch.setattr(logging.getLogger("qreward"), "propagate", False)


def in_ipython(monkeypatch: pytest.MonkeyPatch, config: dict[str, Any] | None, *, widgets: bool) -> None:
    """Run in an IPython shell with this configuration, or in none."""
    shell = None if config is None else types.SimpleNamespace(config=config)
    monkeypatch.setitem(sys.modules, "IPython", types.SimpleNamespace(get_ipython=lambda: shell))
    found = importlib.util.find_spec
    monkeypatch.setattr("importlib.util.find_spec", lambda name: (widgets or None) if name == "ipywidgets" else found(name))


def meter_of(wanted: Any, total: int | None = None, **settings: Any) -> ProgressMeter:
    meter = start_progress(wanted, total, **settings)
    assert meter is not None
    return meter


def test_a_function_gets_the_counts_of_all_results_at_the_end() -> None:
    seen: list[Progress] = []
    clock = Clock()
    load = RouteState(3, 8, 1, 2)
    meter = meter_of(seen.append, clock=clock, route=lambda *_: load, prices={"a": (2.0, 10.0), "b": (0.0, 0.0)})
    meter.total = 10
    meter.add(good(usage=Usage(1000, 200, 1200, PromptTokensDetails(400))))
    meter.add(good(endpoint="b", usage=Usage(10, None, 10)))
    meter.add(good(endpoint="free"))
    meter.add(good(tried("overloaded"), tried("overloaded")))
    meter.add(good(tried("cancelled", hedge=True), tried("cancelled", hedge=True)))
    meter.add(good(tried("cancelled")))
    meter.add(bad("transient", "overloaded"))
    meter.add(bad("refused"))
    clock.now += 2.5
    meter.close()
    last = seen[-1]
    assert (last.done, last.total, last.ok, last.failed) == (8, 10, 6, 2)
    assert (last.retried, last.hedged, last.rejected) == (1, 2, 2)  # of the rejected ones only the one that had failed before
    assert (last.prompt_tokens, last.completion_tokens, last.cached_tokens) == (1010, 200, 400)
    assert last.cost == pytest.approx(0.004)
    assert (last.in_flight, last.window, last.down, last.endpoints, last.elapsed) == (3, 8, 1, 2, 2.5)
    assert last.p95 == pytest.approx(1.0, rel=0.06)
    meter = meter_of(seen.append)
    meter.add(bad("refused"))
    meter.close()
    assert (seen[-1].total, seen[-1].p95, seen[-1].cost, seen[-1].in_flight, seen[-1].window) == (None, None, None, 0, 0)


@given(steps=st.lists(st.tuples(st.sampled_from([0.0, 0.01, 0.1, 0.24, 0.3, 2.0]), st.sampled_from(["ok", "bad", "refresh"])), max_size=60))
def test_a_function_is_called_at_most_four_times_a_second_and_once_at_the_end(steps: list[tuple[float, str]]) -> None:
    """A refresh shows what is under way while nothing is done."""
    clock, loads = Clock(), count()
    calls: list[tuple[float, Progress]] = []
    meter = meter_of(lambda progress: calls.append((clock.now, progress)), clock=clock, route=lambda *_: RouteState(next(loads), 100))
    for seconds, what in steps:
        clock.now += seconds
        if what == "refresh":
            meter.refresh()
        else:
            meter.add(good() if what == "ok" else bad("refused"))
    before_the_end = len(calls)
    meter.close()
    meter.close()
    meter.refresh()
    assert len(calls) == before_the_end + 1
    assert [progress.in_flight for _, progress in calls] == list(range(len(calls)))
    times = [at for at, _ in calls[:-1]]
    assert all(later - earlier >= 0.25 - 1e-9 for earlier, later in pairwise(times))
    done = [progress.done for _, progress in calls]
    assert done == sorted(done)
    last = calls[-1][1]
    assert (last.ok, last.failed) == (sum(what == "ok" for _, what in steps), sum(what == "bad" for _, what in steps))


def test_nothing_is_shown_unless_it_is_asked_for_by_the_program_or_else_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = screen(monkeypatch, terminal=True)
    assert [start_progress(wanted, 10) for wanted in (False, None)] == [None, None]
    assert terminal.drawn == []
    for value, shown in {"1": True, "true": True, "0": False, "": False, "no": False}.items():
        monkeypatch.setenv("QREWARD_PROGRESS", value)
        assert (start_progress(None) is not None) is shown, value
        assert start_progress(False) is None
        assert start_progress(True) is not None


async def async_function(_: Progress) -> None:
    raise AssertionError("never awaited")


def test_only_the_first_of_many_ranks_shows_something_and_what_cannot_be_shown_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    screen(monkeypatch, terminal=True)
    for name, rank, shown in (("RANK", "1", False), ("LOCAL_RANK", "3", False), ("RANK", "0", True), ("RANK", "x", True)):
        with monkeypatch.context() as patch:
            patch.setenv(name, rank)
            assert (start_progress(True) is not None) is shown, (name, rank)
            assert start_progress(lambda _: None) is not None
    refused: list[Any] = [1, 0, "yes", [], async_function]
    for wanted in refused:
        with pytest.raises(ConfigError, match="progress must be True, False, None or a plain function"):
            start_progress(wanted)


def test_a_bar_is_drawn_on_a_terminal_also_while_nothing_gets_done(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal, threads = screen(monkeypatch, terminal=True), threading.active_count()
    meter_of(True).close()
    assert "0req" in terminal.drawn[-1]  # without a total, and although nothing was done
    terminal, clock, load = screen(monkeypatch, terminal=True), Clock(), RouteState(1, 96)
    meter = meter_of(True, 40, title="judge-7b", clock=clock, route=lambda *_: load, prices={"a": (100.0, 100.0)})
    assert terminal.drawn == []
    meter.refresh()
    assert "judge-7b:   0%" in terminal.drawn[0]
    for _ in range(10):
        clock.now += 0.1
        meter.add(good(seconds=1.9, usage=Usage(100, 42, 142)))
    load = RouteState(64, 96)
    clock.now += 1.0
    meter.refresh()
    assert "64/96 in flight" in terminal.drawn[-1]
    meter.close()
    last = terminal.drawn[-1]
    parts = ("judge-7b:  25%", "10/40", "req/s", "p95 1.9", "64/96 in flight", "710 tok/s", "$0.14")
    assert [part for part in parts if part not in last] == []
    assert len(terminal.drawn) < 10  # not one for each item
    assert threading.active_count() == threads


def test_a_bar_inside_another_goes_away_when_it_is_done_and_the_outer_one_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = screen(monkeypatch, terminal=True)
    tqdm: Any = __import__("tqdm.auto", fromlist=["tqdm"]).tqdm

    def run_one() -> Any:
        meter = meter_of(True, 1, title="rewards")
        meter.add(good())
        bar = meter.view._bar  # type: ignore[union-attr, attr-defined]
        meter.close()
        assert bar.disable  # tqdm's word for closed
        return bar

    with type("Quiet", (tqdm,), {"monitor_interval": 0})(total=2, desc="steps", file=terminal) as outer:
        assert [run_one().leave, run_one().leave] == [False, False]
        outer.update()
    assert run_one().leave
    assert terminal.getvalue().endswith("\n")


def test_without_a_terminal_a_line_is_logged_after_two_seconds_then_every_ten_and_at_the_end(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipe = screen(monkeypatch, terminal=False)
    caplog.set_level(logging.INFO, "qreward")
    clock = Clock()
    meter = meter_of(True, 400, title="judge-7b", clock=clock, route=lambda *_: RouteState(5, 8))
    for second in range(35):
        clock.now = 1000.0 + second
        meter.refresh()
        for _ in range(10):
            meter.add(good(usage=Usage(50, 50, 100)))
    meter.add(bad("transient", "transient"))
    meter.close()
    assert [record.levelname for record in caplog.records] == ["INFO"] * 5
    assert caplog.messages[0].startswith("judge-7b: 20/400 (5%), 2 s, 10/s, about 38 s left, 5/8 in flight, p95 ")
    assert caplog.messages[-1].startswith("judge-7b: 351/400 (87.8%), 34 s, 10.3/s, about 5 s left, err 0.3%, 5/8 in flight, p95 ")
    assert caplog.messages[-1].endswith(", retried 0.3%, 1,029 tok/s")
    assert pipe.drawn == []


def test_lines_go_to_standard_error_where_logging_is_not_set_up_and_nowhere_if_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    no_logging(monkeypatch)
    for wanted, terminal in ((True, False), ("plain", True)):
        pipe = screen(monkeypatch, terminal=terminal)
        meter = meter_of(wanted, title="judge-7b")
        meter.add(good())
        meter.close()
        (line,) = pipe.drawn
        assert line.startswith("judge-7b: 1 done, 0 s, ")
    complaints = Screen()
    monkeypatch.setattr(logging, "lastResort", logging.StreamHandler(complaints))
    monkeypatch.setattr(sys, "stderr", None)
    meter = meter_of(True)
    meter.add(good())
    meter.close()
    assert complaints.drawn == []


def test_a_terminal_without_tqdm_has_a_line_within_two_seconds_that_says_how_to_get_the_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    no_logging(monkeypatch)
    terminal = screen(monkeypatch, terminal=True)
    monkeypatch.setitem(sys.modules, "tqdm.auto", None)
    clock = Clock()
    meter = meter_of(True, title="judge-7b", clock=clock)
    meter.refresh()
    shown_at: list[Any] = []
    for _ in range(60):
        clock.now += 0.25
        meter.add(good())
        shown_at += [clock.now - 1000.0] * (len(terminal.drawn) - len(shown_at))
    meter.close()
    assert shown_at == [2.0, 12.0]
    assert terminal.drawn[0].startswith("judge-7b: 8 done, 2 s, 4/s")
    assert [("pip install 'qreward[progress]'" in line) for line in terminal.drawn] == [True, False, False]


def test_a_bar_keeps_both_its_ends_in_a_terminal_of_any_width(monkeypatch: pytest.MonkeyPatch) -> None:
    every = ["1 of 3 down", "8/17 in flight", "p95 ", "retried ", "hedged ", "err ", "tok/s"]
    wanted: dict[int, list[str]] = {60: [], 80: every[:1], 100: every[:1], 200: every}
    for columns, parts in wanted.items():
        terminal = screen(monkeypatch, terminal=True)
        monkeypatch.setattr("tqdm.std._screen_shape_wrapper", lambda columns=columns: lambda _: (columns, 24))
        clock = Clock()
        meter = meter_of(True, 2000, title="x", clock=clock, route=lambda *_: RouteState(8, 17, 1, 3))
        for number in range(600):
            clock.now += 0.01
            trail = (tried("transient"),) if number % 3 else (tried("cancelled", hedge=True),)
            meter.add(good(*trail, seconds=0.125, usage=Usage(100, 42, 142)))
        meter.add(bad("transient"))
        meter.close()
        last = terminal.drawn[-1]
        assert (last[:8], last[-1]) == ("x:  30%|", "]")
        assert len(last) <= columns
        assert [part for part in parts if part not in last] == []


def test_a_notebook_has_a_bar_and_without_widgets_lines_in_the_log(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    configs: list[tuple[Any, bool]] = [({"IPKernelApp": {}}, True), ({"TerminalIPythonApp": {}}, False), (None, False)]
    for config, bar in configs:
        pipe = screen(monkeypatch, terminal=False)
        in_ipython(monkeypatch, config, widgets=True)
        meter = meter_of(True, 2)
        meter.refresh()
        assert bool(pipe.drawn) is bar, config
        meter.close()
    pipe = screen(monkeypatch, terminal=False)
    caplog.set_level(logging.INFO, "qreward")
    caplog.clear()
    in_ipython(monkeypatch, {"IPKernelApp": {}}, widgets=False)
    meter = meter_of(True, 2, title="judge-7b")
    meter.add(good())
    meter.add(good())
    meter.close()
    assert ([message[:13] for message in caplog.messages], pipe.getvalue()) == (["judge-7b: 2/2"], "")


def test_a_function_or_a_load_that_raises_is_logged_once_and_still_called(caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock()
    calls: list[Any] = []

    def breaks(*progress: Progress) -> Any:
        calls.append(progress)
        raise LookupError("the dashboard is gone")

    for meter in (meter_of(breaks, clock=clock), meter_of(lambda _: None, clock=clock, route=breaks)):
        calls.clear()
        caplog.clear()
        for _ in range(5):
            clock.now += 1.0
            meter.add(good())
        meter.close()
        assert len(calls) == 6
        (message,) = caplog.messages
        assert "the batch goes on" in message
        assert "the dashboard is gone" in caplog.text


def test_a_function_may_stop_the_program() -> None:
    def leaves(_: Progress) -> None:
        raise SystemExit(3)

    with pytest.raises(SystemExit):
        meter_of(leaves).add(good())


def test_a_terminal_that_breaks_does_no_harm_and_the_bar_is_closed(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    for mended in (True, False):
        caplog.clear()
        terminal = screen(monkeypatch, terminal=True)
        clock = Clock()
        meter = meter_of(True, 3, clock=clock)
        meter.refresh()
        bar = meter.view._bar  # type: ignore[union-attr, attr-defined]
        terminal.broken = True
        for _ in range(3):
            clock.now += 1.0
            meter.add(good())
        terminal.broken = not mended
        meter.close()
        assert len(caplog.records) == 1
        assert bar.disable
        assert ("3/3" in terminal.drawn[-1]) is mended


WORDS: list[tuple[dict[str, Any], list[str]]] = [
    ({"done": 10, "ok": 10}, []),
    ({"p95": 0.0421}, ["p95 42 ms"]),
    ({"p95": 1.94}, ["p95 1.94 s"]),
    ({"p95": 75.2}, ["p95 75.2 s"]),
    ({"down": 1, "endpoints": 3, "in_flight": 2, "window": 8}, ["1 of 3 down", "2/8 in flight"]),
    ({"in_flight": 0, "window": 96}, ["0/96 in flight"]),
    ({"done": 1000, "retried": 12, "hedged": 30, "failed": 4}, ["err 0.4%", "retried 1.2%", "hedged 3%"]),
    ({"done": 100_000, "failed": 1}, ["err <0.1%"]),
    ({"done": 4, "failed": 4}, ["err 100%"]),
    ({"prompt_tokens": 100_000, "completion_tokens": 42_000, "elapsed": 10.0}, ["14,200 tok/s"]),
    ({"prompt_tokens": 400, "cached_tokens": 100}, ["cached 25%"]),
    ({"completion_tokens": 500, "elapsed": 1.0}, ["500 tok/s"]),
    ({"completion_tokens": 25_000_000, "elapsed": 10.0}, ["2,500,000 tok/s"]),
    ({"completion_tokens": 500}, []),
    ({"cost": 0.614}, ["$0.61"]),
    ({"cost": 0.0042}, ["$0.0042"]),
    ({"cost": 0.0}, ["$0.0000"]),
]


def test_only_what_says_something_is_said() -> None:
    nothing: dict[str, Any] = dict.fromkeys(Progress.__dataclass_fields__, 0) | {"total": None, "p95": None, "cost": None}
    assert [(settings, details(Progress(**nothing | settings))) for settings, _ in WORDS] == WORDS


def test_neither_tqdm_nor_asyncio_is_imported_unless_a_bar_is_drawn() -> None:
    script = (
        "import sys; before = set(sys.modules)\n"
        "from qreward.progress import start_progress\n"
        "start_progress(False); start_progress(lambda _: None).close(); start_progress(True).close()\n"
        "print(*sorted(name for name in set(sys.modules) - before if name.partition('.')[0] in ('tqdm', 'asyncio', 'aiohttp')))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (0, "\n"), done.stderr
