"""The settings of a bulk run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field, field_validator

from qreward.settings.base import Policy, Seconds, default
from qreward.settings.policies import Level, Priority


class BulkSettings(Policy):
    """Settings of a bulk run.

    Args:
        model: the model for lines without a ``model`` field.
        params: parameters of the JSON body, such as ``{"max_tokens": 512}``, for lines that do not set them.
        template: the prompt for a row of a table. ``{column}`` is replaced with the row's value.
        system: the system message for plain lines and rows.
        columns: name of an item's field, such as ``prompt``, ``response`` or ``reference``, -> name of the column with its value; ``a.b``
            means entry ``b`` of the mapping in column ``a``. Other fields are read from the columns of their names. Only with a scorer.
        timeout: seconds per line, counted from when an endpoint takes the line. None sets no limit.
        priority, tenant: as in :meth:`QRewardClient.batch_chat_completion`.
        deadline: seconds after which the run sends no further requests. The run waits for the requests in flight.
        max_cost: limit in US dollars for all runs on one journal together. It needs ``Endpoint(price=...)``, and ``max_tokens`` in each
            line or in ``params``. A request is sent only if its maximum cost is within the limit. Requests are not hedged.
        max_tokens: limit of prompt and completion tokens for all runs on one journal together, under the same conditions, without a price.
            With a scorer, the cost of an item is not known in advance: the run stops when the next item would probably pass a limit.
        sample: number of lines after which the run stops. The next run continues with the remaining lines.
        shard: ``(i, n)`` sends only the i-th of every n lines, counted from 1.
        retry_failed: True sends lines again that failed in an earlier run.
        resume: ``auto`` refuses a journal that belongs to another input or to other settings; ``force`` accepts the journal.
        provider_batches: ``auto`` prefers endpoints of kind ``openai_batch``, which answer within a day at a lower price; ``never`` uses
            only other endpoints.
        progress: as in :meth:`QRewardClient.batch_chat_completion`.

    Example:
        >>> BulkSettings(model="judge-7b", shard=(1, 4)).shard
        (1, 4)
    """

    model: str | None = None
    params: dict[str, Any] = Field(default_factory=dict)
    template: str | None = None
    system: str | None = None
    columns: dict[str, str] = Field(default_factory=dict)
    timeout: Seconds | None = 600.0
    priority: Level = default(Priority.NORMAL)
    tenant: str | None = None
    deadline: Seconds | None = None
    max_cost: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    max_tokens: int | None = Field(default=None, gt=0)
    sample: int | None = Field(default=None, gt=0)
    shard: tuple[int, int] | None = None
    retry_failed: bool = False
    resume: Literal["auto", "force"] = "auto"
    provider_batches: Literal["auto", "never"] = "auto"
    progress: Any = None  # checked where it is shown

    @field_validator("shard")
    @classmethod
    def _within(cls, value: tuple[int, int] | None) -> tuple[int, int] | None:
        if value is not None and not 1 <= value[0] <= value[1]:
            raise ValueError(f"must be (i, n) with i from 1 to n, not {value}")
        return value

    @property
    def is_limited(self) -> bool:
        return self.max_cost is not None or self.max_tokens is not None

    def in_shard(self, ordinals: range) -> range:
        """Return the ordinals in this range that belong to the shard of this run."""
        index, count = self.shard or (1, 1)
        return range(ordinals.start + (index - 1 - ordinals.start) % count, ordinals.stop, count)

    def shared_settings(self, names: tuple[str, ...], scorer: str | None) -> Mapping[str, Any]:
        """Return the settings that all runs on one journal must share: the input, the scorer, and the settings that shape the requests."""
        shared = {name: getattr(self, name) for name in ("model", "params", "template", "system", "columns", "shard")}
        return {"input": list(names), "scorer": scorer, **{name: value for name, value in shared.items() if value}}
