"""One rewarder a process and its settings: scores within a deadline, and says of each reward whether it could be had.

Needs no loop to be made, and serves any number of loops and threads. Knows no trainer.

What a reward is that could not be had: never a number, unless the user chose one. Knows no trainer.
"""

from __future__ import annotations

import asyncio
import atexit
import json
import logging
import os
import threading
import weakref
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import Any

from qreward.engine.portal import portal
from qreward.errors import BadRequest, ConfigError, QRewardError, RequestTimeout
from qreward.integrations.trainers.clients import close_clients, shared_client
from qreward.integrations.trainers.settings import VARIABLE, Failure, RewardConfig, load_reward_config
from qreward.integrations.trainers.validation import check, told_with_place
from qreward.judge import make_scorer
from qreward.judge.types import Scorer, Verdict

LATE = 1.0
"""Seconds after the deadline at which a scorer that does not keep it is left."""

_log = logging.getLogger("qreward.integrations.trainers")


@dataclass(frozen=True, slots=True)
class Scored:
    """A reward, or why there is none.

    Attributes:
        verdict: None if it failed.
        error: None if it did not.
        seconds: from asking to knowing.
    """

    verdict: Verdict | None
    error: QRewardError | None
    seconds: float

    @property
    def ok(self) -> bool:
        return self.verdict is not None

    def score(self, failure: float | None) -> float | None:
        """The reward, or ``failure``: what the user chose for one that could not be had."""
        return failure if self.verdict is None else self.verdict.score

    @property
    def tokens(self) -> int:
        """Of all answers to the item, those that could not be read among them; 0 if no server told."""
        outcome = self.error if self.verdict is None else self.verdict
        usage = None if outcome is None else outcome.usage
        if usage is None:
            return 0
        return usage.total_tokens or (usage.prompt_tokens or 0) + (usage.completion_tokens or 0)

    @property
    def reason(self) -> str:
        """Why there is no reward, in one short line without secrets; ``""`` if there is one."""
        if self.error is None:
            return ""
        return _writable(f"{type(self.error).__name__}: {self.error}".splitlines()[0][:300])


def _writable(text: str) -> str:
    """The text of an error, which may quote an item, without what no file or table takes."""
    return text.encode(errors="backslashreplace").decode()


class Rewarder:
    """Scores with one scorer, within one deadline.

    Args:
        scorer: a judge, a reward model, or an object of the user's with their methods.
        deadline: seconds for one reward in all.
        priority: of all requests.
        config: the settings it was made from, if it was: adapters read their columns and their failure there.
    """

    def __init__(self, scorer: Scorer, deadline: float, priority: int | str = 5, config: RewardConfig | None = None) -> None:
        self.scorer = scorer
        self.deadline = deadline
        self.config = config
        self._priority = priority
        self._unfits: frozenset[str] = frozenset()

    async def score(self, prompt: Any, response: Any = None, *, reference: Any = None, **fields: Any) -> Scored:
        """Score one response; what goes wrong with it is in the result.

        So is what is wrong with the item itself: ``BadRequest`` if it has no response (which is not asked about), or if the scorer
        cannot take its text (a ``ValueError``, such as a lone surrogate's ``UnicodeEncodeError``, which is logged, too).

        Raises:
            ConfigError: the settings do not fit the data, such as a field that the prompt names and no item has: a fault of no judge.
            CancelledError, and what is a fault of code.
        """
        begun = monotonic()
        if response is None:
            return Scored(None, BadRequest("there is no response to score: it is None"), 0.0)
        _end_before(asyncio.get_running_loop())
        try:
            async with asyncio.timeout(self.deadline + LATE):
                verdict = await self.scorer.score(
                    prompt, response, reference=reference, timeout=self.deadline, priority=self._priority, **fields
                )
        except ConfigError:
            raise
        except QRewardError as error:
            return Scored(None, error, monotonic() - begun)
        except TimeoutError:
            return Scored(None, RequestTimeout(f"no reward within {self.deadline:g} s"), monotonic() - begun)
        except ValueError as error:
            return Scored(None, self._unfit(error), monotonic() - begun)
        return Scored(verdict, None, monotonic() - begun)

    def _unfit(self, error: ValueError) -> BadRequest:
        """An item's own failure. It may be a fault of the scorer's code after all, so the first of a kind is logged with its traceback."""
        kind = type(error).__name__
        first, self._unfits = kind not in self._unfits, self._unfits | {kind}
        failure = BadRequest(f"the scorer could not take the item: {kind}: {_writable(str(error))}")
        failure.__cause__ = error
        _log.warning("no reward: %s", failure, exc_info=error if first else None)
        return failure

    async def score_many(self, items: Iterable[Mapping[str, Any]]) -> list[Scored]:
        """Score many at once, in their order."""
        return list(await asyncio.gather(*(self.score(**item) for item in items)))

    def score_blocking(self, items: Iterable[Mapping[str, Any]]) -> list[Scored]:
        """Score many from code that does not await, in the thread that all blocking calls share. From any thread."""
        return portal().call(self.score_many, list(items))

    async def aclose(self) -> None:
        """Close the scorer.

        A scorer made by :func:`rewarder` shares its client with other rewarders of the process. The client stays open for them until the
        process ends, and this rewarder may be used again.
        """
        await self.scorer.aclose()


_MADE: dict[str, Rewarder] = {}
_GIVEN: dict[tuple[str, float], tuple[object, Rewarder]] = {}
"""By what an adapter gave (which is kept, for its ``id`` may stand for it), so that asking again for each reward reads no file."""
_INHERITED: list[object] = []
_LOCK = threading.Lock()
_LOOPS: weakref.WeakSet[asyncio.AbstractEventLoop] = weakref.WeakSet()


def rewarder(source: str | Path | Mapping[str, Any] | RewardConfig | None = None, *, deadline: float) -> Rewarder:
    """The rewarder of this process for these settings; made when first asked for, closed when the process ends.

    Args:
        source: as :func:`~qreward.integrations.trainers.settings.load_reward_config` takes it.
        deadline: seconds for one reward where the settings say nothing: the adapter's.

    Raises:
        ConfigError: the settings are missing or wrong.
    """
    given = (_name(source), deadline)
    known = _GIVEN.get(given)
    if known is None:
        known = _GIVEN[given] = source, _made(load_reward_config(source), deadline)
    return known[1]


def _name(source: str | Path | Mapping[str, Any] | RewardConfig | None) -> str:
    if isinstance(source, RewardConfig):
        return f"{id(source):x}"
    return json.dumps(source if isinstance(source, Mapping) else str(source or os.environ.get(VARIABLE)), sort_keys=True, default=repr)


def _made(config: RewardConfig, deadline: float) -> Rewarder:
    client = shared_client(config.client)
    key = json.dumps([id(client), config.model_dump(mode="json", exclude={"client"}), deadline], sort_keys=True, default=repr)
    with _LOCK:
        made = _MADE.get(key)
        if made is None:
            with told_with_place(config):
                check(config, client)
                scorer = make_scorer(client, config.judge or config.reward_model, owns_client=False)  # others share it
            made = _MADE[key] = Rewarder(scorer, config.deadline or deadline, config.priority, config)
        return made


def close_all() -> None:
    """Close what was made, in whatever loops it is used: a process that ends leaves no open connections behind."""
    with _LOCK:
        made = list(_MADE.values())
        _MADE.clear()
        _GIVEN.clear()
    close_clients()
    for each in made:
        with suppress(Exception):  # the process ends in any case
            portal().call(each.aclose)


def _end_before(loop: asyncio.AbstractEventLoop) -> None:
    """A trainer may stop its loop when the process ends. What is registered last is called first: ours, for connections close in a loop."""
    if loop not in _LOOPS:
        _LOOPS.add(loop)
        atexit.unregister(close_all)
        atexit.register(close_all)


def _after_fork() -> None:
    global _LOCK, _MADE, _GIVEN  # what the parent made stays as it was, for some of it may be under way there
    _INHERITED.append((_MADE, _GIVEN))
    _LOCK, _MADE, _GIVEN = threading.Lock(), {}, {}


atexit.register(close_all)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def reward_of(scored: Scored, on_failure: Failure, default: Failure) -> float | None:
    """The reward as a finite float, or what stands for it.

    Args:
        scored: what came of it.
        on_failure: the user's choice: a number, ``none`` (which is None), ``raise`` or ``default``.
        default: what ``default`` means to this adapter.

    Raises:
        QRewardError: why there is no reward, if that was chosen.

    Example:
        >>> from qreward.errors import RequestTimeout
        >>> reward_of(Scored(None, RequestTimeout("no reward within 5 s"), 5.0), -1.0, "raise")
        -1.0
    """
    if scored.verdict is not None:
        return float(scored.verdict.score)
    chosen: Any = default if on_failure == "default" else on_failure
    if chosen == "none":
        return None
    if chosen == "raise" and scored.error is not None:
        raise scored.error
    return float(chosen)
