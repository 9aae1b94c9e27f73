"""Progress of a batch: a bar, lines in the log, or calls of a function."""

from __future__ import annotations

import importlib
import importlib.util
import logging
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import inf
from time import monotonic
from typing import Any, Literal

from qreward.callables import FunctionKind, kind_of
from qreward.errors import ConfigError
from qreward.records import retries
from qreward.render import number, seconds
from qreward.results import Result, RouteState, dollars
from qreward.scheduler.stats import Quantiles

VARIABLE = "QREWARD_PROGRESS"
"""Environment variable. If it is 1, a call with ``progress=None`` shows its progress."""

QUIET = 5.0
"""Seconds without a result after which the progress says why."""

Route = Callable[[int, bool], RouteState]
"""Function that returns the state of a batch's routes. It takes the number of items that are left, and whether a reason is wanted."""

INTERVAL = 0.25
"""Seconds between two drawings of a bar, and between two calls of a function."""

_log = logging.getLogger("qreward")


@dataclass(frozen=True, slots=True)
class Progress:
    """The progress of a batch at one moment. A count is a number of items, unless its description names something else.

    Attributes:
        done: items that have a result.
        ok: items that succeeded.
        failed: items that failed.
        total: number of items, or None if the input has no length.
        in_flight: requests in flight at the endpoints of the route, including the requests of other batches.
        window: maximum number of requests that the endpoints in service may have in flight now.
        retried: items that were sent again after a failure. A 429 or another rejection for overload does not count as a failure.
        hedged: items sent to two endpoints at once.
        rejected: items that an overloaded endpoint rejected (429, 503, 529) before they had a result.
        prompt_tokens, completion_tokens: tokens, as reported by the servers.
        elapsed: seconds since the batch began.
        p95: 95th percentile of the latency in seconds, over about the last thousand responses. None if there are no responses.
        cost: US dollars for the responses of endpoints that have a price, or None if no endpoint has a price.
        down: number of endpoints of the route that are out of service now.
        endpoints: number of endpoints of the route.
        cached_tokens: prompt tokens that servers read from their prefix caches, as reported by the servers.
        eta: least and most seconds in which the rest is expected to be done, as the scheduler estimates. None if that is unknown.
        why: why no item has ended for 5 seconds; ``""`` while items end.
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
    down: int = 0
    endpoints: int = 0
    cached_tokens: int = 0
    eta: tuple[float, float] | None = None
    why: str = ""


View = Callable[[Progress, bool], float]
"""Shows the progress, for the last time if the second argument is True. Returns the seconds until it is to be shown again."""


def start_progress(
    wanted: bool | Literal["plain"] | Callable[[Progress], object] | None,
    total: int | None = None,
    *,
    title: str = "qreward",
    route: Route | None = None,
    prices: Mapping[str, tuple[float, float]] | None = None,
    clock: Callable[[], float] = monotonic,
) -> ProgressMeter | None:
    """Return a meter for one batch, or None if nothing is shown. ``wanted`` is the option ``progress`` of calls. Raises ``ConfigError``."""
    view = _view(wanted, title)
    return None if view is None else ProgressMeter(view, total, route, prices or {}, clock)


@dataclass(eq=False)
class ProgressMeter:
    """Counts the results of one batch and shows the counts. An exception from the view is logged once; the batch continues."""

    view: View
    total: int | None  # may be set later, if it was not known at the start
    route: Route | None
    prices: Mapping[str, tuple[float, float]]
    clock: Callable[[], float]

    def __post_init__(self) -> None:
        self._counts = dict.fromkeys(
            ("ok", "failed", "retried", "hedged", "rejected", "prompt_tokens", "completion_tokens", "cached_tokens"), 0
        )
        self._cost = 0.0
        self._latencies = Quantiles(fade_after=1000)
        self._troubled = self._closed = False
        self._interval = INTERVAL
        self._began = self._due = self._moved_at = self.clock()
        self._quiet_since: float | None = None  # when the last item had ended at the time at which the reason was shown

    def add(self, result: Result[Any]) -> None:
        """Count an item that has a result. Show the counts if ``interval`` seconds have passed since they were last shown."""
        counts = self._counts
        if result.error is None:
            counts["ok"] += 1
            self._latencies.add(result.latency)
            if (usage := result.usage) is not None:
                prompt, completion = usage.prompt_tokens or 0, usage.completion_tokens or 0
                counts["prompt_tokens"] += prompt
                counts["completion_tokens"] += completion
                counts["cached_tokens"] += usage.cached_tokens or 0
                if (price := self.prices.get(result.endpoint or "")) is not None:
                    self._cost += dollars(price, prompt, completion)
        else:
            counts["failed"] += 1
        if result.has_trail:
            attempts = result.attempts
            counts["hedged"] += any(attempt.hedge for attempt in attempts)
            counts["retried"] += any(True for _ in retries(attempts))
            counts["rejected"] += any(attempt.outcome == "overloaded" for attempt in attempts)
        self._moved_at = now = self.clock()
        if now >= self._due:
            self._show(now)

    def refresh(self) -> None:
        """Show the counts if ``interval`` seconds have passed since they were last shown, or if nothing has ended for ``QUIET`` seconds."""
        now = self.clock()
        is_quiet = self.route is not None and now >= self._moved_at + QUIET and self._quiet_since != self._moved_at
        if now >= self._due or is_quiet:
            self._quiet_since = self._moved_at if is_quiet else self._quiet_since
            self._show(now)

    def _show(self, now: float, *, last: bool = False) -> None:
        if self._closed:
            return
        self._closed = last
        try:
            self._interval = self.view(self.snapshot(), last)
        except Exception:  # a closed terminal or the user's function must not end the batch
            if not self._troubled:
                self._troubled = True
                _log.warning("progress could not be shown; the batch goes on (logged once per batch)", exc_info=True)
        self._due = now + self._interval

    def close(self) -> None:
        """Show the final counts. Further calls do nothing."""
        self._show(self.clock(), last=True)

    def snapshot(self) -> Progress:
        now = self.clock()
        elapsed, quiet = now - self._began, now - self._moved_at
        done = self._counts["ok"] + self._counts["failed"]
        left = 0 if self.total is None else max(0, self.total - done)
        state = RouteState() if self.route is None else self.route(left, quiet >= QUIET)
        counts: dict[str, Any] = self._counts | state._asdict()
        counts["eta"] = _widened(state.eta, left * elapsed / done if done else None, quiet) if left else None
        return Progress(
            **counts,
            done=done,
            total=self.total,
            elapsed=elapsed,
            p95=self._latencies.at(0.95),
            cost=self._cost if self.prices else None,
        )


def _widened(eta: tuple[float, float] | None, so_far: float | None, quiet: float) -> tuple[float, float] | None:
    """Return the band of the scheduler's estimate, widened to the speed so far, and to the time for which nothing has ended."""
    least, most = eta or (inf, 0.0)
    if so_far is not None:
        least, most = min(least, so_far) if not most else least, max(most, so_far)
    return (least if quiet < most else quiet, max(most, quiet)) if most else None


def _view(wanted: object, title: str) -> View | None:
    if wanted is None:
        wanted = is_on(VARIABLE)
    if callable(wanted) and kind_of(wanted) is FunctionKind.THREADED:
        function = wanted

        def call(progress: Progress, _last: bool) -> float:
            function(progress)
            return INTERVAL

        return call
    if not isinstance(wanted, bool) and wanted != "plain":
        raise ConfigError(f"progress must be True, False, None or a plain function that takes a Progress, not {wanted!r}")
    ranks = (os.environ.get(name, "") for name in ("RANK", "LOCAL_RANK"))
    if not wanted or any(rank.isdecimal() and int(rank) > 0 for rank in ranks):  # of the ranks of a training, only the first shows it
        return None
    if wanted == "plain":
        return _Lines(title)
    shown = importlib.util.find_spec("ipywidgets") is not None if is_notebook() else sys.stderr is not None and sys.stderr.isatty()
    if not shown:
        return _Lines(title)
    bar = _bar()
    return _Lines(title, hint="; pip install 'qreward[progress]' for a bar") if bar is None else _Bar(bar, title)


class _Lines:
    """Writes a line 2 seconds after the start, and then every 10 seconds."""

    def __init__(self, title: str, hint: str = "") -> None:
        self._title, self._hint = title, hint
        self._begun = False

    def __call__(self, progress: Progress, last: bool) -> float:
        begun, self._begun = self._begun, True
        if not (begun or last or progress.why):  # at the start there is nothing to report
            return 2.0
        text, self._hint = _line(self._title, progress) + self._hint, ""
        if _log.hasHandlers():
            _log.info("%s", text)
        elif sys.stderr is not None:
            sys.stderr.write(f"{text}\n")
        return 10.0


class _Bar:
    """A tqdm bar with those details after the rate that fit into the line. tqdm cuts off what is too long."""

    def __init__(self, kind: Any, title: str) -> None:
        self._kind, self._title = kind, title
        self._bar: Any = None

    def __call__(self, progress: Progress, last: bool) -> float:
        try:
            self._draw(progress)
        finally:
            if last and self._bar is not None:
                self._bar.close()
        return INTERVAL

    def _draw(self, progress: Progress) -> None:
        if self._bar is None:  # if mininterval and miniters are 0, tqdm draws on each update
            self._bar = self._kind(total=progress.total, desc=self._title, unit="req", dynamic_ncols=True, mininterval=0, miniters=0)
            self._bar.leave = not self._bar.pos
        self._bar.total = progress.total
        self._bar.bar_format = None
        if progress.why:
            self._bar.bar_format = "{l_bar} {n_fmt}/{total_fmt} [{elapsed}{postfix}]"
        elif progress.eta is not None:  # in place of tqdm's estimate
            left = f"[{{elapsed}}<{_band(progress.eta)}, {{rate_fmt}}{{postfix}}]"
            self._bar.bar_format = f"{{l_bar}}{{bar}}| {{n_fmt}}/{{total_fmt}} {left}"
        line = self._bar.format_dict | {"n": progress.done, "ncols": None}
        columns, parts = self._bar.format_dict["ncols"], details(progress)
        while parts and columns and len(self._bar.format_meter(**line | {"postfix": ", ".join(parts)})) >= columns:
            parts.pop()
        self._bar.set_postfix_str(progress.why or ", ".join(parts), refresh=False)
        if new := progress.done - self._bar.n:
            self._bar.update(new)
        else:
            self._bar.refresh()


def _bar() -> Any:
    """Return tqdm's class for a terminal or a notebook, or None if tqdm is not installed."""
    try:
        tqdm = importlib.import_module("tqdm.auto").tqdm
    except ImportError:
        return None
    return type("Bar", (tqdm,), {"monitor_interval": 0})  # tqdm's thread is not needed: the meter draws regularly


def is_on(variable: str) -> bool:
    return os.environ.get(variable, "").strip().lower() in ("1", "true", "yes", "on")


def is_notebook() -> bool:
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return shell is not None and "IPKernelApp" in shell.config


def details(progress: Progress) -> list[str]:
    """Return the details of a progress line, most important first. Details that are zero or unknown are left out."""
    done, tokens = progress.done, progress.prompt_tokens + progress.completion_tokens
    texts = (
        f"{progress.down} of {progress.endpoints} down" if progress.down else "",
        f"err {_percent(progress.failed / done)}" if progress.failed else "",
        f"{progress.in_flight}/{progress.window} in flight" if progress.window else "",
        f"${progress.cost:.{2 if progress.cost >= 0.1 else 4}f}" if progress.cost is not None else "",
        f"p95 {seconds(progress.p95)}" if progress.p95 is not None else "",
        f"retried {_percent(progress.retried / done)}" if progress.retried else "",
        f"hedged {_percent(progress.hedged / done)}" if progress.hedged else "",
        f"{number(tokens / progress.elapsed)} tok/s" if tokens and progress.elapsed > 0 else "",
        f"cached {_percent(progress.cached_tokens / progress.prompt_tokens)}" if progress.cached_tokens else "",
    )
    return list(filter(None, texts))


def _line(title: str, progress: Progress) -> str:
    """Return what a tqdm bar shows by itself, the details, and why nothing ends."""
    done, total, elapsed = progress.done, progress.total, progress.elapsed
    parts = [f"{done}/{total} ({_percent(done / total)})" if total else f"{done} done", f"{elapsed:.0f} s"]
    if elapsed > 0 and done:
        parts.append(f"{number(done / elapsed)}/s")
    if progress.eta:
        parts.append(f"about {_band(progress.eta)} left")
    line = f"{title}: {', '.join((*parts, *details(progress)))}"
    return f"{line}; {progress.why}" if progress.why else line


def _band(eta: tuple[float, float]) -> str:
    least, most = (f"{each:.0f}" for each in eta)
    return f"{most} s" if eta[1] <= 1.25 * eta[0] or least == most else f"{least} to {most} s"


def _percent(share: float) -> str:
    return f"{100 * share:.1f}".removesuffix(".0") + "%" if not 0 < share < 0.0005 else "<0.1%"
