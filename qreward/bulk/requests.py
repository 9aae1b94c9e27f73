"""The settings of a bulk run, and how a line of its input becomes a request."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from math import isfinite
from typing import Any, Literal

from pydantic import Field, field_validator

from qreward.bulk.budget import COPIES, LIMITS
from qreward.bulk.inputs import Line
from qreward.codecs.base import WireRequest
from qreward.codecs.chat import CHAT, passthrough
from qreward.codecs.embeddings import EMBEDDINGS
from qreward.errors import BadRequest, ConfigError, did_you_mean
from qreward.judge.prompts import Prompt, check_columns, column_value
from qreward.options import check_params
from qreward.settings.base import Policy, Seconds, default
from qreward.settings.policies import Level, Priority

CHATS, EMBEDDED = "/v1/chat/completions", "/v1/embeddings"
BATCH_FIELDS = ("custom_id", "method", "url", "body")
IDS = ("custom_id", "id")
"""Fields of a line that can hold its identifier. If a line has both fields, ``custom_id`` counts."""
NUMBERS = (*LIMITS, *COPIES, "seed", "temperature", "top_p", "top_k", "min_p", "presence_penalty", "frequency_penalty")
"""Parameters that a plain line may give as a text, because every value of a CSV file is a text."""


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
            raise ValueError(f"must be part i of n, with i from 1 to n, not {value}")
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


def _number(text: str) -> int | float | str:
    """Return the number in a text, such as 3 for ``3.0``; the text if it is no number."""
    for kind in (int, float):  # a float would lose digits of a large seed
        with suppress(ValueError):
            number = kind(text)
            return int(number) if number % 1 == 0 else number if isfinite(number) else text
    return text


class RequestReader:
    """Makes requests from lines, or items for a scorer. Raises ``ConfigError`` for a wrong template, ``params`` or ``columns``."""

    def __init__(self, settings: BulkSettings, *, is_scored: bool = False) -> None:
        check_params(settings.params)
        check_columns(settings.columns)
        self._model, self._params, self._system, self._columns = settings.model, settings.params, settings.system, settings.columns
        self._is_scored = is_scored
        text = settings.template
        self._template = None if text is None else Prompt(text, self._system, needed=(), known=None, what="template")
        if self._template is not None and not self._template.names:
            raise ConfigError("the template names no column; write {column} where its value goes")

    def read(self, line: Line) -> None:
        """Find the identifier of a line, and replace its text with its request or item. Raises ``BadRequest`` with the place."""
        try:
            fields = line.fields()
            found = [(dict.get if self._is_scored else dict.pop)(fields, name, None) for name in IDS]
            line.name = next((str(value) for value in found if value is not None), None)
            line.content = self._item(fields) if self._is_scored else self._request(fields)
        except (ValueError, BadRequest, ConfigError) as error:
            raise BadRequest(f"{line.place}: {error}") from None

    def _item(self, fields: dict[str, Any]) -> dict[str, Any]:
        others = {name: value for name, value in fields.items() if name not in self._columns.values()}
        for field, column in self._columns.items():
            try:
                others[field] = column_value(fields, column)
            except KeyError:
                there = ", ".join(map(repr, sorted(fields)))
                raise BadRequest(f"it has no {column!r}, which columns names; it has {there}") from None
        return others

    def _request(self, fields: dict[str, Any]) -> WireRequest:
        is_plain = "messages" in fields or "prompt" in fields
        if self._template is None and ("body" in fields or ("url" in fields and not is_plain)):
            return self._batch_line(fields)
        if self._template is not None:
            messages, fields = self._template.messages(fields, extra=True), {name: fields[name] for name in ("model",) if name in fields}
        elif is_plain:
            prompt, given = fields.pop("prompt", None), fields.pop("messages", None) or None
            if (prompt is None) == (given is None):
                raise ValueError(f"it needs either messages or prompt; {'both are empty' if prompt is None else 'leave one of them out'}")
            if not isinstance(prompt, str | list | None):
                raise ValueError(f"prompt is a {type(prompt).__name__}; it must be a text or a list of messages")
            messages = CHAT.validate([{"role": "user", "content": prompt}] if isinstance(prompt, str) else given or prompt)
            messages = messages if self._system is None else [{"role": "system", "content": self._system}, *messages]
            for name in NUMBERS:
                if isinstance(text := fields.get(name), str):
                    if not text.strip():  # an empty cell
                        del fields[name]
                        continue
                    fields[name] = _number(text)
        else:
            hint = "give the line messages or prompt, or the run a template that names its columns"
            raise ValueError(f"it has {', '.join(map(repr, sorted(fields))) or 'no fields'}; {hint}")
        return self._call(CHATS, {"messages": messages, **fields})

    def _batch_line(self, fields: dict[str, Any]) -> WireRequest:
        if unknown := sorted(fields.keys() - {*BATCH_FIELDS}):
            raise ValueError(f"unknown field {unknown[0]!r}; {did_you_mean(unknown[0], BATCH_FIELDS)}")
        if str(fields.get("method", "POST")).upper() != "POST":
            raise ValueError(f"method is {fields['method']!r}; only POST is possible")
        url, body = fields.get("url", CHATS), fields.get("body")
        if not isinstance(url, str) or not url.startswith("/"):
            raise ValueError(f"url is {url!r}; it must be the route of the server, such as {CHATS!r}")
        if not isinstance(body, dict):
            raise ValueError(f"body is a {type(body).__name__}; it must be an object")
        return self._call(url, body)

    def _call(self, url: str, body: dict[str, Any]) -> WireRequest:
        params = {**self._params, **body}
        model = params.pop("model", None) or self._model
        if not isinstance(model, str):
            raise ValueError("it names no model; add one to the line, or set one for the run (--model NAME, in Python model=)")
        if params.get("stream"):
            raise ValueError("stream is true; a bulk run does not stream, so leave it out")
        if url == CHATS:
            messages = params.pop("messages", None)
            return WireRequest(CHAT, model, CHAT.validate(messages), params, None)
        if url == EMBEDDED:
            return WireRequest(EMBEDDINGS, model, EMBEDDINGS.validate(params.pop("input", None)), params, None)
        text = next((params[name] for name in ("input", "prompt", "query") if isinstance(params.get(name), str)), "")
        return WireRequest(passthrough(url), model, text, params, None)
