"""Scores OpenRLHF's queries and returns the rewards in its format. Does not import OpenRLHF.

OpenRLHF 0.11 handles missing values as follows. A sample without ``rewards`` stops the run where its experience is made. A sample whose
``scores`` is NaN is dropped with its whole group, and replaced by a new prompt, if ``--algo.dynamic_filtering_enable`` is set. A sample
that could not be scored therefore has no reward and the score NaN, unless the settings name a number.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Mapping
from typing import Any

from qreward.errors import BadRequest
from qreward.integrations.trainers.rewarder import Rewarder, Scored, reward_of, rewarder
from qreward.integrations.trainers.settings import item_of, prompt_fields
from qreward.integrations.trainers.texts import response_in, without_end

DEADLINE = 180.0
"""Default number of seconds for one reward, as OpenRLHF allows a remote reward model per attempt. Functions and executors have no limit."""
DEFAULT_COLUMNS = {"prompt": ("prompt",), "response": ("response",), "reference": ("label",)}

_log = logging.getLogger("qreward.openrlhf")


async def results(queries: Iterable[str], prompts: Iterable[str], labels: Iterable[Any]) -> list[dict[str, Any]]:
    """Return what OpenRLHF takes for each sample: ``rewards``, ``scores`` and ``extra_logs``, always with the same keys.

    Args:
        queries: prompts and responses as the tokenizer decodes them, with special tokens.
        prompts: the prompts as they were sent to the model.
        labels: the labels of the data; ``""`` if there are none.

    Raises:
        ConfigError: the settings are missing or wrong.
        QRewardError: a reward is missing, and the settings say ``on_failure: raise``.
    """
    here = rewarder(deadline=DEADLINE)
    items = [_item(here, *sample) for sample in zip(queries, prompts, labels, strict=True)]
    scored = iter(await here.score_many(item for item in items if item is not None))
    return [_result(here, _NOT_FOUND if item is None else next(scored)) for item in items]


_NOT_FOUND = Scored(
    None,
    BadRequest("the prompt is not found at the beginning of the query, so where the response begins is unknown; to have the whole query "
               "judged, set columns: {response: query}"),
    0.0,
)  # fmt: skip


def _item(here: Rewarder, query: str, prompt: str, label: Any) -> Mapping[str, Any] | None:
    """Return the item to score; None if the response cannot be separated from the prompt."""
    response = response_in(query, prompt)
    row = {"query": query, "prompt": prompt, "label": None if label == "" else label}
    if response is not None:
        row["response"] = without_end(response)
    assert here.config is not None  # it was made from settings
    item = item_of(row, here.config.columns, DEFAULT_COLUMNS, prompt_fields(here.config))
    return item if "response" in item else None


def _result(here: Rewarder, scored: Scored) -> dict[str, Any]:
    assert here.config is not None
    logs = {"judge_ok": float(scored.ok), "judge_seconds": scored.seconds}
    reward = reward_of(scored, here.config.on_failure, "none")
    if not scored.ok:
        _log.warning("no reward: %s. It becomes %s (on_failure: %s)", scored.reason, _said(reward), here.config.on_failure)
    return {"rewards": reward, "scores": math.nan if reward is None else reward, "extra_logs": logs}


def _said(reward: float | None) -> str:
    return "a sample without reward: dropped with its group under --algo.dynamic_filtering_enable, else the run stops" if reward is None \
        else f"{reward:g}"  # fmt: skip
