"""The dry run of a bulk run reads the whole input and reports the requests that the run would send."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from qreward.bulk.budget import highest, upper_bound
from qreward.bulk.inputs import Input, Inputs
from qreward.bulk.provider import URLS, url_of
from qreward.bulk.requests import Entry, RequestReader
from qreward.bulk.settings import BulkSettings
from qreward.codecs.base import WireRequest
from qreward.errors import ConfigError, QRewardError
from qreward.runtime import Client, Runtime, runtime_of

SHOWN = 20
"""Maximum number of bad lines whose error messages are kept."""


@dataclass(slots=True)
class ModelPlan:
    endpoints: tuple[str, ...]
    requests: int = 0
    prompt_tokens: float = 0.0
    output_tokens: float = 0.0
    cost: float | None = None
    unlimited: int = 0

    def __str__(self) -> str:
        cost = "" if self.cost is None else f", at most ${self.cost:.4f}"
        unlimited = f", {self.unlimited} without max_tokens (their cost has no limit)" if self.unlimited else ""
        tokens = f"about {self.prompt_tokens:.0f} prompt tokens, at most {self.output_tokens:.0f} output tokens"
        return f"{self.requests} requests, {tokens}{cost}{unlimited}; to {', '.join(self.endpoints)}"


@dataclass(slots=True)
class DryRun:
    lines: int = 0
    bad: int = 0
    faults: list[str] = field(default_factory=list)
    items: int = 0
    models: dict[str, ModelPlan] = field(default_factory=dict)

    def __str__(self) -> str:
        found = [f"lines         {self.lines}, {self.bad} of them bad"]
        found += [f"bad line      {fault}" for fault in self.faults]
        if self.bad > len(self.faults):
            found.append(f"              and {self.bad - len(self.faults)} others")
        if self.items:
            found.append(f"items         {self.items}, for the scorer")
        found += [f"{model:13} {plan}" for model, plan in self.models.items()]
        return "\n".join([*found, "nothing was sent"])


def dry_run(client: Client, source: Inputs, settings: Mapping[str, Any], *, is_scored: bool = False) -> DryRun:
    """Read the whole input and return a report of the requests that a run would send. Raises ``ConfigError``."""
    checked = BulkSettings(**settings)
    runtime, reader, found = runtime_of(client), RequestReader(checked, is_scored=is_scored), DryRun()
    for ordinal, line in enumerate(Input(source).lines()):
        if not checked.in_shard(range(ordinal, ordinal + 1)):
            continue
        if found.lines - found.bad == checked.sample:
            break
        found.lines += 1
        try:
            entry = Entry(line.digest, line.place)
            reader.read(line, entry)
            if is_scored:
                found.items += 1
            else:
                _add(found, runtime, entry.content, takes_batches=checked.provider_batches == "auto")
        except QRewardError as error:
            found.bad += 1
            if len(found.faults) < SHOWN:
                text = str(error)
                found.faults.append(text if text.startswith(line.place) else f"{line.place}: {text}")
    return found


def _add(found: DryRun, runtime: Runtime, call: WireRequest, *, takes_batches: bool) -> None:
    plan = found.models.get(call.model)
    if plan is None:
        at_provider = runtime.fleet.batch_endpoints(call.model) if takes_batches and url_of(call) in URLS else ()
        plan = found.models[call.model] = ModelPlan(tuple(each.name for each in at_provider or runtime.fleet.pool(call.model).sources))
    prompt, output = call.codec.estimate_tokens(call)
    plan.requests += 1
    plan.prompt_tokens += prompt
    plan.output_tokens += output
    price = highest(runtime.prices[name] for name in plan.endpoints if name in runtime.prices)
    try:
        most = upper_bound(call, price)
    except ConfigError:
        plan.unlimited += 1
        return
    if price is not None:
        plan.cost = (plan.cost or 0.0) + most.cost
