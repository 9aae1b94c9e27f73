"""How far a batch is: a bar, lines in the log, or a function of the user's.

It is told each result and shows what it counted at most a few times a second. It must not know who sends requests, or how:
no asyncio, no engine. tqdm is an extra, and imported only for a bar.
"""

from __future__ import annotations

import importlib
import logging
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from inspect import iscoroutinefunction
from time import monotonic
from typing import Any, Protocol

from qreward.core.latency import Quantiles
from qreward.errors import ConfigError
from qreward.results import Result, dollars

VARIABLE = "QREWARD_PROGRESS"
"""Set to 1, this environment variable shows progress where a program does not say what it wants."""

_log = logging.getLogger("qreward")


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a batch is. All counts are items, unless it says otherwise.

    Attributes:
        done: items that have a result; ``ok`` of them an answer, ``failed`` an error.
        total: items in all, or None if the input cannot tell.
        in_flight: requests under way at the endpoints of the route, also those of other batches.
        window: requests that these endpoints may have in flight now.
        retried: needed more than one attempt.
        hedged: were sent to two endpoints at once.
        rejected: were turned away by an overloaded endpoint on their way.
        prompt_tokens, completion_tokens: tokens, as far as the servers tell.
        elapsed: seconds since the batch began.
        p95: seconds within which 95 % of about the last thousand answers came, or None without answers.
        cost: US dollars for the answers of endpoints that have a price, or None if none has one.
    """

    done: int
    total: int | None
    ok: int
    failed: int
    in_flight: int
    window: int
    retried: int
    hedged: int
    rejected: int
    prompt_tokens: int
    completion_tokens: int
    elapsed: float
    p95: float | None
    cost: float | None


class View(Protocol):
    """Something that shows progress.

    Attributes:
        interval: seconds between two showings.
    """

    interval: float

    def show(self, progress: Progress) -> None: ...

    def close(self, progress: Progress) -> None:
        """Show it for the last time."""


def start_progress(
    wanted: bool | Callable[[Progress], object] | None,
    total: int | None = None,
    *,
    title: str = "qreward",
    load: Callable[[], tuple[int, int]] | None = None,
    prices: Mapping[str, tuple[float, float]] | None = None,
    clock: Callable[[], float] = monotonic,
) -> Meter | None:
    """A meter for one batch, or None if nothing is to be shown. Nothing is drawn before its first ``add`` or ``refresh``.

    Args:
        wanted: True for a bar if standard error is a terminal or this is a notebook (and tqdm is installed), else for a line
            every 10 seconds: at level INFO of the logger ``qreward``, or on standard error where logging is not set up.
            False for nothing. None for what ``QREWARD_PROGRESS`` says, by default nothing. A function is called with a
            :class:`Progress` at most four times a second, and once at the end. Processes whose ``RANK`` or ``LOCAL_RANK``
            is above 0 show nothing, but call the function.
        total: number of items, if it is known.
        title: what is counted, such as the model.
        load: gives requests in flight and the window.
        prices: endpoint -> US dollars for a million prompt and completion tokens.
        clock: monotonic seconds.

    Raises:
        ConfigError: ``wanted`` is something else.

    Example:
        >>> seen = []
        >>> meter = start_progress(seen.append, total=2)
        >>> meter.add(Result(0, None, ConfigError("?"), None, 0.0, 0.0))
        >>> meter.close()
        >>> seen[-1].failed, seen[-1].total
        (1, 2)
    """
    view = _view(wanted, title)
    return None if view is None else Meter(view, total, load, prices or {}, clock)


class Meter:
    """Counts the results of one batch and has them shown. What goes wrong with showing is logged once and harms nothing."""

    __slots__ = (
        "_began", "_clock", "_closed", "_completion", "_cost", "_due", "_failed", "_hedged", "_latencies", "_load", "_ok",
        "_prices", "_prompt", "_rejected", "_retried", "_total", "_troubled", "_view",
    )  # fmt: skip

    def __init__(
        self,
        view: View,
        total: int | None,
        load: Callable[[], tuple[int, int]] | None,
        prices: Mapping[str, tuple[float, float]],
        clock: Callable[[], float],
    ) -> None:
        self._view, self._total, self._load, self._prices, self._clock = view, total, load, prices, clock
        self._ok = self._failed = self._retried = self._hedged = self._rejected = self._prompt = self._completion = 0
        self._cost = 0.0
        self._latencies = Quantiles(fade_after=1000)
        self._troubled = self._closed = False
        self._began = self._due = clock()

    def add(self, result: Result[Any]) -> None:
        """Count an item that is done, and show it if it is time."""
        if result.error is None:
            self._ok += 1
            self._latencies.add(result.latency)
            if (usage := result.usage) is not None:
                self._add_tokens(result.endpoint, usage.prompt_tokens or 0, usage.completion_tokens or 0)
        else:
            self._failed += 1
        if result.has_trail:
            self._add_trail(result)
        if (now := self._clock()) >= self._due:
            self._show(now)

    def refresh(self) -> None:
        """Show it if it is time: to be called now and then, for what is under way moves although nothing is done."""
        if (now := self._clock()) >= self._due:
            self._show(now)

    def close(self) -> None:
        """Show it for the last time. May be called again."""
        if not self._closed:
            self._closed = True
            self._safely(self._view.close)

    def snapshot(self) -> Progress:
        """What was counted up to now."""
        in_flight, window = self._load() if self._load is not None else (0, 0)
        return Progress(
            done=self._ok + self._failed,
            total=self._total,
            ok=self._ok,
            failed=self._failed,
            in_flight=in_flight,
            window=window,
            retried=self._retried,
            hedged=self._hedged,
            rejected=self._rejected,
            prompt_tokens=self._prompt,
            completion_tokens=self._completion,
            elapsed=self._clock() - self._began,
            p95=self._latencies.at(0.95),
            cost=self._cost if self._prices else None,
        )

    def _add_tokens(self, endpoint: str | None, prompt: int, completion: int) -> None:
        self._prompt += prompt
        self._completion += completion
        if endpoint is not None and (price := self._prices.get(endpoint)) is not None:
            self._cost += dollars(price, prompt, completion)

    def _add_trail(self, result: Result[Any]) -> None:
        attempts = result.attempts
        hedges = sum(attempt.hedge for attempt in attempts)
        self._hedged += hedges > 0
        self._retried += len(attempts) - hedges > 1
        self._rejected += any(attempt.outcome == "overloaded" for attempt in attempts)

    def _show(self, now: float) -> None:
        self._due = now + self._view.interval
        if not self._closed:
            self._safely(self._view.show)

    def _safely(self, show: Callable[[Progress], None]) -> None:
        try:
            show(self.snapshot())
        except Exception:  # a terminal that is gone, a function of the user's: not worth a batch
            if not self._troubled:
                self._troubled = True
                _log.warning("progress could not be shown; the batch goes on, and this is said once", exc_info=True)


def _view(wanted: object, title: str) -> View | None:
    if wanted is None:
        wanted = os.environ.get(VARIABLE, "").strip().lower() in ("1", "true", "yes", "on")
    if callable(wanted) and not iscoroutinefunction(wanted):
        return _Function(wanted)
    if not isinstance(wanted, bool):
        raise ConfigError(f"progress must be True, False, None or a plain function that takes a Progress, not {wanted!r}")
    if not wanted or _is_another_rank():
        return None
    bar = _bar() if _is_terminal() or is_notebook() else None
    return _Lines(title) if bar is None else _Bar(bar, title)


class _Function:
    """The user's own."""

    interval = 0.25

    def __init__(self, function: Callable[[Progress], object]) -> None:
        self._function = function

    def show(self, progress: Progress) -> None:
        self._function(progress)

    close = show


class _Lines:
    """A line of the log now and then."""

    interval = 10.0

    def __init__(self, title: str) -> None:
        self._title = title
        self._begun = False

    def show(self, progress: Progress) -> None:
        if self._begun:  # a line that says that nothing is done yet helps nobody
            self.close(progress)
        self._begun = True

    def close(self, progress: Progress) -> None:
        text = f"{self._title}: {', '.join((*_counted(progress), *details(progress)))}"
        if _log.hasHandlers():
            _log.info("%s", text)
        elif sys.stderr is not None:  # it was asked for, and nobody would see it
            sys.stderr.write(f"{text}\n")


class _Bar:
    """tqdm's bar, with more after its own rate. One inside another bar goes away when it is done."""

    interval = 0.25

    def __init__(self, kind: Any, title: str) -> None:
        self._kind, self._title = kind, title
        self._bar: Any = None

    def show(self, progress: Progress) -> None:
        if self._bar is None:  # it decides itself when to draw: each time it is told
            self._bar = self._kind(total=progress.total, desc=self._title, unit="req", dynamic_ncols=True, mininterval=0, miniters=0)
            self._bar.leave = not self._bar.pos
        self._bar.set_postfix_str(", ".join(details(progress)), refresh=False)
        if new := progress.done - self._bar.n:
            self._bar.update(new)
        else:
            self._bar.refresh()

    def close(self, progress: Progress) -> None:
        try:
            self.show(progress)
        finally:
            if self._bar is not None:
                self._bar.close()


def _bar() -> Any:
    """tqdm's class for where we are, or None if it is not installed."""
    try:
        tqdm = importlib.import_module("tqdm.auto").tqdm
    except ImportError:
        return None
    return type("Bar", (tqdm,), {"monitor_interval": 0})  # no thread of tqdm's: we draw in time


def _is_another_rank() -> bool:
    ranks = (os.environ.get(name, "") for name in ("RANK", "LOCAL_RANK"))
    return any(rank.isdecimal() and int(rank) > 0 for rank in ranks)


def _is_terminal() -> bool:
    return sys.stderr is not None and sys.stderr.isatty()


def is_notebook() -> bool:
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return shell is not None and "IPKernelApp" in shell.config


def details(progress: Progress) -> list[str]:
    """What is worth saying besides how many are done; what is nothing is left out."""
    done, tokens = progress.done, progress.prompt_tokens + progress.completion_tokens
    shares = {"retried": progress.retried, "hedged": progress.hedged, "err": progress.failed}
    return [
        *([f"p95 {_seconds(progress.p95)}"] if progress.p95 is not None else []),
        *([f"fly {progress.in_flight}/{progress.window}"] if progress.window else []),
        *(f"{name} {_percent(count / done)}" for name, count in shares.items() if count),
        *([f"{_short(tokens / progress.elapsed)} tok/s"] if tokens and progress.elapsed > 0 else []),
        *([f"${progress.cost:.{2 if progress.cost >= 0.1 else 4}f}"] if progress.cost is not None else []),
    ]


def _counted(progress: Progress) -> list[str]:
    """What a bar would say by itself."""
    done, total, elapsed = progress.done, progress.total, progress.elapsed
    rate = done / elapsed if elapsed > 0 else 0.0
    left = total - done if total is not None else 0
    return [
        f"{done}/{total} ({_percent(done / total)})" if total else str(done),
        f"{elapsed:.0f} s",
        *([f"{_short(rate)}/s"] if rate else []),
        *([f"about {left / rate:.0f} s left"] if rate and left else []),
    ]


def _seconds(value: float) -> str:
    return f"{1000 * value:.0f}ms" if value < 1 else f"{value:.1f}s" if value < 10 else f"{value:.0f}s"


def _percent(share: float) -> str:
    return f"{100 * share:.1f}".removesuffix(".0") + "%" if not 0 < share < 0.0005 else "<0.1%"


def _short(number: float) -> str:
    for unit in ("", "k", "M"):
        if number < 999.5:
            return (f"{number:.1f}" if number < 99.5 else f"{number:.0f}").removesuffix(".0") + unit
        number /= 1000
    return f"{number:.1f}G"
