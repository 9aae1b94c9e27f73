"""The settings of a bulk run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field, field_validator

from qreward.settings.base import Policy, Seconds
from qreward.settings.policies import Level, Priority


class BulkSettings(Policy):
    """Settings of a bulk run.

    Args:
        model: the model of lines that name none.
        params: parameters of the body for lines that do not set them, such as ``{"max_tokens": 512}``.
        template: makes the prompt of a row; ``{column}`` is replaced with its value.
        system: system message of plain lines and rows.
        columns: field of an item (``prompt``, ``response``, ``reference`` or one that the judge's prompt names) -> the column that holds
            it. For a scorer only; a field that is not listed has the name of its column.
        timeout: seconds per line, measured from when an endpoint takes it. None sets no limit.
        priority, tenant: as in :meth:`QRewardClient.batch_chat_completion`.
        deadline: seconds after which nothing more is sent. What is in flight then is finished.
        max_cost: US dollars that all runs on one journal may cost together; needs ``Endpoint(price=...)``. A request is sent only if the
            limit holds even if it uses all of its ``max_tokens``, which each line or ``params`` must set. Requests are not hedged.
        max_tokens: prompt and completion tokens that they may use, as for ``max_cost``.
        sample: number of lines after which the run stops. The next run goes on with the others.
        shard: ``(i, n)``: only the i-th of every n lines, from 1.
        order: ``input`` writes the output in the order of the input, ``any`` in that in which the lines were done.
        retry_failed: send lines again that failed in an earlier run.
        resume: ``auto`` refuses a journal that belongs to another input or other settings; ``force`` goes on, and sends a line again only
            if it has changed.
        provider_batches: ``auto`` sends what it can by the endpoints of kind ``openai_batch`` that serve a model, at the price of their
            ``Endpoint.price`` and within a day; ``never`` uses only other endpoints.
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
    priority: Level = Priority.NORMAL
    tenant: str | None = None
    deadline: Seconds | None = None
    max_cost: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    max_tokens: int | None = Field(default=None, gt=0)
    sample: int | None = Field(default=None, gt=0)
    shard: tuple[int, int] | None = None
    order: Literal["input", "any"] = "input"
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
        """True if the run may spend only so much."""
        return self.max_cost is not None or self.max_tokens is not None

    def of_the_shard(self, ordinals: range) -> range:
        """Return those of consecutive ordinals that belong to the shard of this run.

        Example:
            >>> list(BulkSettings(shard=(2, 4)).of_the_shard(range(6, 15)))
            [9, 13]
        """
        index, count = self.shard or (1, 1)
        return range(ordinals.start + (index - 1 - ordinals.start) % count, ordinals.stop, count)

    def scheduling(self) -> dict[str, Any]:
        """The options of each request."""
        return {"timeout": self.timeout, "priority": self.priority, "tenant": self.tenant}

    def of_the_journal(self, names: tuple[str, ...], scorer: str | None) -> Mapping[str, Any]:
        """What all runs on one journal have in common: the input, the scorer, and what makes the requests."""
        shared = {name: getattr(self, name) for name in ("model", "params", "template", "system", "columns", "shard")}
        return {"input": list(names), "scorer": scorer, **{name: value for name, value in shared.items() if value}}
