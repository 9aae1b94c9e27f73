"""The base of the trainers' adapters. An adapter turns rows of data into items, a rewarder scores them, and both know no trainer."""

from __future__ import annotations

import asyncio
import atexit
import dataclasses
import json
import logging
import os
import threading
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from copy import copy
from itertools import chain
from pathlib import Path
from time import monotonic
from typing import Any

from qreward.client import QRewardClient
from qreward.engine import background
from qreward.engine.portal import portal
from qreward.errors import TYPO, BadRequest, ConfigError, QRewardError, RequestTimeout, closest, did_you_mean
from qreward.functions.config import same
from qreward.functions.watcher import ConfigWatcher
from qreward.integrations.trainers.settings import (
    RESERVED,
    VARIABLE,
    Failure,
    RewardConfig,
    Source,
    check,
    fields_of,
    load_reward_config,
    name_source_in_errors,
)
from qreward.integrations.trainers.texts import plain
from qreward.integrations.trainers.verdicts import Scored, writable, write_verdicts
from qreward.judge import make_scorer
from qreward.judge.calls import encoded
from qreward.judge.prompts import check_columns, column_value, is_absent, present
from qreward.judge.types import Scorer, Verdict, Vote, check_finite
from qreward.runtime import runtime_of
from qreward.settings.client import CONFIG_VARIABLE, ClientConfig, config_from_env, read_config

LATE = 1.0
"""Seconds that the rewarder waits after the deadline for a scorer that ignores its ``timeout``."""
ENTRY_TYPO = 0.8
"""Minimum similarity (0 to 1) of an entry that a column does not have to one that it has, from which it is taken for a misspelling:
``anwser`` for ``answer``. Rows may lack entries, so the misspelling would not be seen otherwise."""
GRACE = 2.0
"""Seconds to wait, when the process ends, for the event loop of another thread to close its connections."""
_log = logging.getLogger("qreward.integrations.trainers")


class Rewarder:
    """Scores with one scorer, within one deadline.

    Args:
        scorer: a judge, a reward model, or a user's object with the same methods.
        deadline: seconds for one reward, which may need several requests, if the settings do not say it.
        config: the settings. Adapters read ``columns`` and ``on_failure`` from them.
    """

    def __init__(self, scorer: Scorer, deadline: float, config: RewardConfig | None = None) -> None:
        self.scorer = scorer
        self.config = config or RewardConfig(reward_model="scorer")  # the name is a placeholder, because the scorer exists already
        self.deadline = self.config.deadline or deadline
        if self.config.rank is not None and not hasattr(scorer, "rank"):
            raise ConfigError(f"{self.config.place}: rank: only a judge compares responses; set judge, or leave out rank")
        self._unfits: frozenset[str] = frozenset()
        self.waiting: Callable[[], Mapping[str, int]] = dict

    async def score(self, prompt: Any, response: Any = None, **fields: Any) -> Scored:
        """Score one response, as :meth:`score_many` does."""
        (scored,) = await self.score_many([{"prompt": prompt, "response": response, **fields}])
        return scored

    async def score_many(self, items: Iterable[Mapping[str, Any]], *, step: int | None = None) -> list[Scored]:
        """Score many items concurrently. The results are in the order of the items. If scoring fails, the error is in the result.

        An item is a mapping with ``prompt``, ``response`` and the other fields that the data has, also if a field has no value: None, NaN,
        or a blank reference. A field that one of the items has is missing in each item that does not have it. With ``rank`` in the
        settings, the items that differ only in their responses are a group, whose responses are ranked. ``step`` is the trainer's step, for
        the file of verdicts.

        Raises ``ConfigError`` if the settings do not fit the data, such as a prompt with a field that no item has. An exception of the
        scorer that is neither a ``QRewardError`` nor a ``ValueError`` propagates, because it is a bug in code.
        """
        if (loop := asyncio.get_running_loop()) not in _LOOPS:  # connections can be closed only while their loop runs
            _LOOPS.add(loop)
            atexit.unregister(close_all)
            atexit.register(close_all)  # before the trainer stops the loop at exit
        rows = list(items)
        names = frozenset().union(*rows)
        groups: dict[object, list[int]] = {}
        for place, row in enumerate(rows):
            others = present(row)
            if others.pop("response", None) is not None:
                groups.setdefault(encoded(others) if self.config.rank else place, []).append(place)
        scored = await asyncio.gather(*(self._score([rows[place] for place in places], names) for places in groups.values()))
        by_place = dict(zip(chain(*groups.values()), chain(*scored), strict=True))
        absent = Scored(None, BadRequest("there is no response to score: it is None"), 0.0)
        found = [by_place.get(place, absent) for place in range(len(rows))]
        if self.config.verdicts is not None:
            write_verdicts(self.config.verdicts, zip(rows, found, strict=True), step)
        return found

    async def _score(self, items: Sequence[Mapping[str, Any]], names: frozenset[str]) -> list[Scored]:
        """Score an item, or rank the items of a group. ``names`` are the fields of all items of the call."""
        begun, filled = monotonic(), present(items[0])
        fields = {"prompt": None, "reference": None, **dict.fromkeys(items[0]), **filled}
        prompt, response = fields.pop("prompt"), fields.pop("response")
        options: dict[str, Any] = {"timeout": self.deadline, "priority": self.config.priority}
        error: QRewardError | None = None
        try:
            async with asyncio.timeout(self.deadline + LATE):
                if self.config.rank is None:
                    verdicts = [await self.scorer.score(prompt, response, **fields, **options)]
                else:
                    verdicts = await self._rank(prompt, [item["response"] for item in items], **fields, **options)
            for verdict in verdicts:
                check_finite(verdict)
        except ConfigError as failure:
            if fields_of(self.config)[0] - names or names <= filled.keys():
                raise
            error = failure  # a value is missing in this row
        except QRewardError as failure:
            error = failure
        except TimeoutError:
            error = RequestTimeout(f"no reward within {self.deadline:g} s")
        except ValueError as failure:
            kind = type(failure).__name__
            error = BadRequest(f"the scorer could not take the item: {kind}: {writable(str(failure))}")
            error.__cause__ = failure
            first, self._unfits = kind not in self._unfits, self._unfits | {kind}
            _log.warning("no reward: %s", error, exc_info=failure if first else None)  # perhaps a bug in the scorer
        seconds, waiting = monotonic() - begun, self.waiting()
        if error is None:
            return [Scored(verdict, None, seconds, waiting) for verdict in verdicts]
        errors = [error, *(copy(error) for _ in items[1:])]
        for other in errors[1:]:
            other.usage = None  # the tokens of a group count once
        return [Scored(None, each, seconds, waiting) for each in errors]

    async def _rank(self, prompt: Any, responses: Sequence[Any], **fields: Any) -> list[Verdict]:
        """Rank the responses of a group. The first verdict has the tokens of the group."""
        if len(responses) < 2:
            raise BadRequest("a response cannot be ranked alone: no other response has the same prompt and the same values of all fields")
        ranking = await self.scorer.rank(prompt, responses, **fields)  # type: ignore[attr-defined]
        usages = (ranking.usage, *[None] * (len(responses) - 1))
        rewards = ranking.scores if self.config.rank == "scores" else ranking.advantages
        pairs = zip(rewards, usages, strict=True)
        return [Verdict(reward, (Vote(reward),), usage=usage, cached=ranking.cached) for reward, usage in pairs]

    def score_blocking(self, items: Iterable[Mapping[str, Any]]) -> list[Scored]:
        """Score many items from blocking code, in any thread. The work runs in the event loop that all blocking calls share."""
        return portal().call(self.score_many, list(items))

    async def aclose(self) -> None:
        """Close the scorer. A client that other rewarders of the process share stays open, and this rewarder may be used again."""
        await self.scorer.aclose()


@dataclasses.dataclass(frozen=True, slots=True)
class Adapter:
    """Describes how one trainer differs from other trainers.

    Attributes:
        trainer: name of the trainer. The logger of the adapter is ``qreward.<trainer>``.
        deadline: default number of seconds for one reward; below the trainer's own limit, if it has one.
        columns: field of an item -> default columns, of which the first that is present fills the field.
        missing: meaning of ``on_failure: default``.
        none_unsupported: why ``on_failure: none`` is not possible, and what to use instead; ``""`` if it is possible.
        no_groups: why the responses to one prompt cannot be ranked, and what to use instead; ``""`` if each call of :meth:`score` has all
            responses to its prompts.
        effect: what the trainer does with an item whose reward is None. It is the end of a log message.
        logs: a missing reward is logged. False for a trainer whose metrics count missing rewards.
    """

    trainer: str
    deadline: float
    columns: Mapping[str, tuple[str, ...]]
    missing: Failure = "raise"
    none_unsupported: str = ""
    no_groups: str = "which does not pass the responses to one prompt together; leave it out"
    effect: str = ""
    logs: bool = True

    def checked(self, config: RewardConfig) -> RewardConfig:
        """Return the settings unchanged. Raises ``ConfigError`` if this trainer does not support them."""
        if self.none_unsupported and config.on_failure == "none":
            raise ConfigError(f"{config.place}: on_failure: none is not possible with {self.trainer}, {self.none_unsupported}")
        if self.no_groups and config.rank is not None:
            raise ConfigError(f"{config.place}: rank: {config.rank} is not possible with {self.trainer}, {self.no_groups}")
        with name_source_in_errors(config):
            check_columns(config.columns, self.columns["response"], self.columns.get("reference", ()))
        return config

    def rewarder(self, source: Source = None, load: Callable[[Any], RewardConfig] = load_reward_config) -> Rewarder:
        """Return the rewarder of this process for these settings. Raises ``ConfigError`` if the settings are missing or wrong."""
        made = rewarder(source, deadline=self.deadline, load=load)
        self.checked(made.config)
        return made

    def item(self, row: Mapping[str, Any], config: RewardConfig) -> dict[str, Any]:
        """Return the arguments of ``Rewarder.score`` for a row, which is a mapping column -> value.

        The column of a field is the one that the settings name, else the first default column with a value, else the column with the name
        of the field. A field whose column or entry has no value in this row is in the item as None, so that its value is known to be
        missing. Raises ``ConfigError`` if a configured column does not exist, or no column holds the prompt.

        Example:
            >>> adapter = Adapter("mine", 60.0, {"response": ("text",)})
            >>> adapter.item({"question": "2 + 2?", "text": "4"}, RewardConfig(reward_model="rm", columns={"prompt": "question"}))
            {'prompt': '2 + 2?', 'response': '4'}
        """
        _, named = fields_of(config)
        item: dict[str, Any] = {}
        for field, column in config.columns.items():
            try:
                item[field] = column_value(row, column)
            except KeyError:
                name, _, entry = column.partition(".")
                near: list[str] = []
                if isinstance(entries := row.get(name), Mapping):
                    near = [f"{name}.{one}" for one in closest(entry, entries, cutoff=ENTRY_TYPO)]
                    if not near:
                        item[field] = None  # this row does not have the entry
                        continue
                others = sorted(row.keys() - {*self.columns["response"]} if field == "reference" else row)
                usual = [name for name in self.columns.get(field, ()) if name in others]
                near = near or closest(column, others, cutoff=TYPO) or usual
                hint = f"did you mean {near[0]!r}?" if near else did_you_mean(column, others, otherwise="there are")
                raise ConfigError(f"columns: {field} is mapped to {column!r}, which the data does not have; {hint}") from None
        for field, candidates in self.columns.items():
            values = [row[name] for name in candidates if name in row]
            if values and field not in item:
                item[field] = next((value for value in values if not is_absent(field, value)), None)
        item |= {field: row[field] for field in named - item.keys() - RESERVED if field in row}
        if "prompt" not in item:
            if "prompt" in named:
                listed = ", ".join(map(repr, sorted(row)))
                raise ConfigError(
                    f"the data has no column with the prompt; name it in columns, such as {{prompt: question}}. There are {listed}."
                )
            item["prompt"] = ""
        return {field: plain(value) for field, value in item.items()}

    async def score(self, made: Rewarder, rows: Iterable[Mapping[str, Any]], *, step: int | None = None) -> list[Scored]:
        """Score the items of all rows, as :meth:`Rewarder.score_many`."""
        return await made.score_many([self.item(row, made.config) for row in rows], step=step)

    async def score_in_portal(self, made: Rewarder, rows: Iterable[Mapping[str, Any]], *, step: int | None = None) -> list[Scored]:
        """Score rows in the event loop of the portal, for callers whose own loop ends soon. Connections are then kept for the next call."""
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(self.score(made, list(rows), step=step), portal().loop))

    def reward(self, scored: Scored, config: RewardConfig) -> float | None:
        """Return the reward. A missing reward is logged if the adapter ``logs``, and replaced or raised as the settings say."""
        if scored.verdict is not None:
            return float(scored.verdict.score)
        chosen: Any = self.missing if config.on_failure == "default" else config.on_failure
        if self.logs:
            log, effect = logging.getLogger(f"qreward.{self.trainer}"), self.effect if chosen == "none" else ""
            log.warning("no reward: %s (on_failure: %s)%s", scored.reason, config.on_failure, effect)
        if chosen == "raise" and scored.error is not None:
            raise scored.error
        return None if chosen == "none" else float(chosen)


# what a process shares


class _Shared:
    """A client, and the places where its settings stand. Changes of files are applied when all places have them, as they move the requests
    of all rewarders with this client."""

    def __init__(self, client: QRewardClient) -> None:
        self.client = client
        self.watcher: ConfigWatcher | None = None
        self._places: dict[str, Callable[[], ClientConfig | None]] = {}  # a place -> reads the settings there

    def add(self, file: Path | None, read: Callable[[], ClientConfig | None]) -> None:
        self._places["the settings in code" if file is None else str(file)] = read
        if file is not None and self.watcher is None:
            self.watcher = ConfigWatcher(self.client, callback=self._read)
            self.watcher.start()

    def _read(self) -> Any:
        (first, wanted), *others = [(place, read()) for place, read in [*self._places.items()]]
        for place, config in others:
            if config != wanted:
                raise ConfigError(f"{first} and {place} share a client, and its settings differ there now; change both alike")
        return wanted


_MADE: dict[tuple[str, float], list[tuple[Any, Rewarder]]] = {}
"""Text of the settings' source and default deadline -> the sources with this text and their rewarders. A text may contain the ``id`` of its
source, which is thereby kept alive."""
_CLIENTS: list[_Shared] = []
_LOCK = threading.RLock()
_LOOPS: weakref.WeakSet[asyncio.AbstractEventLoop] = weakref.WeakSet()


def rewarder(source: Source = None, *, deadline: float, load: Callable[[Any], RewardConfig] = load_reward_config) -> Rewarder:
    """Return the rewarder of this process for these settings, which is created by the first call and closed when the process ends.

    ``source`` are settings as :func:`~qreward.integrations.trainers.load_reward_config` takes them. ``deadline`` is the number of seconds
    for one reward if the settings have none. ``load`` is for an adapter whose ``source`` has another form. Raises ``ConfigError`` if the
    settings are missing or wrong.
    """
    given: Any = source
    if isinstance(source, RewardConfig):
        name = f"{id(source):x}"
    else:
        found = source or os.environ.get(VARIABLE)  # a mapping is copied, and a path made absolute: both may change their meaning later
        given = plain(found) if isinstance(found, Mapping) else found and str(Path(found).absolute())
        name = json.dumps(given, sort_keys=True, default=repr)

    def known() -> Rewarder | None:  # settings with the same text may differ, because it shows no key and no function
        return next((made for other, made in _MADE.get((name, deadline), ()) if same(other, given)), None)

    if (made := known()) is None:  # a known one is there at once while another thread makes one
        with _LOCK:
            if (made := known()) is None:
                config = load(source)
                client = shared_client(config.client, config.place, config.client_file)
                made = Rewarder(scorer_of(config, client), deadline, config)
                made.waiting = runtime_of(client).look.waiting_for
                _MADE.setdefault((name, deadline), []).append((given, made))
    return made


def scorer_of(config: RewardConfig, client: QRewardClient) -> Scorer:
    """Make the scorer of the settings. A ``ConfigError`` names their source. Closing the scorer does not close the client."""
    with name_source_in_errors(config):
        check(config, [route.pattern for route in client.list_routes()])
        return make_scorer(client, config.scorer, owns_client=False)


def shared_client(
    config: ClientConfig | None = None, file: str | Path | None = None, client_file: str | Path | None = None
) -> QRewardClient:
    """Return the client of this process for a configuration, which is created by the first call. The caller must not close it.

    Changes of the ``file`` of an adapter that contains or names ``config`` are applied to the client, or else those of the ``client_file``
    that settings in code name. Without ``config``, the settings are those that ``QRewardClient.from_env`` finds, and the file that
    ``QREWARD_CONFIG`` names is watched. If several files have these settings, a change is applied when all of them have it.
    """
    wanted = config
    if wanted is None:
        wanted, file, client_file = config_from_env(), None, os.environ.get(CONFIG_VARIABLE)
    paths = [Path(named).expanduser().absolute() if named else None for named in (file, client_file)]
    of_adapter, of_client = (path if path is not None and path.is_file() else None for path in paths)  # or the place of settings in code

    def read() -> ClientConfig | None:
        if of_adapter is not None:
            return load_reward_config(of_adapter).client
        return wanted if of_client is None else read_config(of_client)[0]

    with _LOCK:
        for shared in _CLIENTS:
            if wanted == shared.client.config and not runtime_of(shared.client).closed:
                break
        else:
            shared = _Shared(QRewardClient.from_config(wanted))
            _CLIENTS.append(shared)
        shared.add(of_adapter or of_client, read)
    return shared.client


def close_all() -> None:
    """Close all rewarders and clients, in all event loops that use them, so that no connection stays open when the process ends."""
    with _LOCK:
        made, clients = [each for alike in _MADE.values() for _, each in alike], list(_CLIENTS)
        _MADE.clear()
        _CLIENTS.clear()
    for shared in clients:
        if shared.watcher is not None:
            shared.watcher.stop()
        engine = runtime_of(shared.client).engine
        for loop in [driver.loop for driver in engine.drivers()]:  # ``aclose`` does not wait for the event loops of other threads
            with suppress(Exception):  # the process is ending
                if loop.is_running():
                    asyncio.run_coroutine_threadsafe(engine.leave(), loop).result(GRACE)
                elif not loop.is_closed():
                    loop.run_until_complete(asyncio.wait_for(engine.leave(), GRACE))
    closing: list[QRewardClient | Rewarder] = [*(shared.client for shared in clients), *made]
    for each in closing:
        with suppress(Exception):
            portal().call(each.aclose)


def _after_fork(_: object) -> object:
    global _LOCK, _MADE, _CLIENTS  # the parent's may have requests in flight, and another thread of it may have held the lock
    inherited = _MADE, _CLIENTS
    for shared in _CLIENTS:
        if shared.watcher is not None:
            shared.watcher.stop()  # the child makes clients of its own
    _LOCK, _MADE, _CLIENTS = threading.RLock(), {}, []
    return inherited


atexit.register(close_all)
background.watch(Rewarder, _after_fork)
