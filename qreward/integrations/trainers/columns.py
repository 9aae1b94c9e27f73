"""From the columns of a trainer's row to the fields of an item that is scored. Knows no trainer; each adapter says what is usual in its."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from qreward.errors import ConfigError
from qreward.integrations.trainers.config import TAKEN, RewardConfig
from qreward.judge.templates import Template

Usual = Mapping[str, tuple[str, ...]]
"""Field -> columns of which the first that is there has it, where the settings name none."""

ITEM = frozenset({"prompt", "response", "reference"})
"""Fields that each item has."""


def named_in_prompts(config: RewardConfig) -> frozenset[str]:
    """Fields that the judge's templates name; without a prompt of the user's, the three that each item has are among them."""
    judge = config.judge
    if judge is None:
        return ITEM
    return _names(judge.prompt or "", judge.system or "") | (ITEM if judge.prompt is None else frozenset())


@lru_cache(maxsize=64)
def _names(prompt: str, system: str) -> frozenset[str]:
    return (Template(prompt, "prompt").names | Template(system, "system").names) - {"answer_form"}  # which the judge itself fills


def item_of(row: Mapping[str, Any], columns: Mapping[str, str], usual: Usual, named: frozenset[str]) -> dict[str, Any]:
    """What ``Scorer.score`` is given for a row.

    Args:
        row: column -> value. ``a.b`` is column ``b`` of the mapping in column ``a``.
        columns: field -> column, as the user wrote; each must be there.
        usual: as in :data:`Usual`.
        named: fields that the judge's templates name: these are filled by columns of the same name.

    Raises:
        ConfigError: a column that was named is not there, or no column has the prompt; says which there are.

    Example:
        >>> item_of({"question": "2 + 2?", "text": "4"}, {"prompt": "question"}, {"response": ("text",)}, frozenset())
        {'prompt': '2 + 2?', 'response': '4'}
    """
    item = {field: _column(row, column, field) for field, column in columns.items()}
    for field, candidates in usual.items():
        column = next((name for name in candidates if row.get(name) is not None), None)
        if column is not None:
            item.setdefault(field, row[column])
    for field in named - item.keys() - TAKEN:
        if field in row:
            item[field] = row[field]
    if "prompt" not in item:
        if "prompt" in named:
            raise ConfigError(
                f"the data has no column with the prompt; name it in columns, such as {{prompt: question}}. {_there_are(row)}"
            )
        item["prompt"] = ""
    return item


def _column(row: Mapping[str, Any], path: str, field: str) -> Any:
    value: Any = row
    for name in (path,) if path in row else path.split("."):
        if not isinstance(value, Mapping) or name not in value:
            raise ConfigError(f"columns: {field} is mapped to {path!r}, which the data does not have. {_there_are(row)}")
        value = value[name]
    return value


def _there_are(row: Mapping[str, Any]) -> str:
    return f"There are {', '.join(map(repr, sorted(row)))}."
