"""The requests of ``decide`` and ``batch_decide``: make them from the arguments, and send the parts of one decision."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from qreward.codecs.base import WireRequest
from qreward.codecs.decisions.base import DecisionInput
from qreward.codecs.decisions.operation import Decide
from qreward.deciding.parts import Outcome, divided, joined, smaller
from qreward.decisions import Decision, check_questions
from qreward.errors import BadRequest, ConfigError, QRewardError
from qreward.options import Arguments, preparer
from qreward.results import Result
from qreward.scheduler.task import RequestOptions

Send = Callable[[WireRequest, RequestOptions], Awaitable[Result[Any]]]
"""A function that sends one request and returns its result. If the request failed, the result has the error."""


def decision_preparer(
    decide: Decide, given: Arguments, model: str, min_label_mass: float, questions: object = None
) -> Callable[[Any], WireRequest]:
    """Return a function that makes the request for one item. The arguments that all items share are checked once, here."""
    if type(min_label_mass) not in (int, float) or not 0 <= min_label_mass <= 1:
        raise ConfigError(f"min_label_mass must be a number from 0 to 1, not {min_label_mass!r}")
    options = given.options
    group: Any = options.get("group")
    of_input = (lambda inputs: group(inputs[0])) if callable(group) else group
    prepare = preparer(decide, model, given.params, options.get("extra_headers"), options.get("extra_body"), of_input)
    checked = None if questions is None else check_questions(questions)

    def request(item: Any) -> WireRequest:
        if checked is not None:
            return prepare(DecisionInput(item, checked, min_label_mass))
        if not isinstance(item, tuple | list) or len(item) != 2:
            found = f"{len(item)} values" if isinstance(item, tuple) else f"a {type(item).__name__}"
            told = "pass questions= if all items have the same ones"
            raise BadRequest(f"without questions= an item is (input, questions), not {found}; {told}")
        return prepare(DecisionInput(item[0], check_questions(item[1]), min_label_mass))

    return request


async def send_divided(
    send: Send,
    call: WireRequest,
    failed: Result[Any] | None,
    *,
    most: Callable[[], int],
    options: RequestOptions,
    clock: Callable[[], float],
    began: float,
) -> Decision:
    """Send one decision as several requests, because it has too many questions, or because the server rejected a question."""

    async def part(call: WireRequest) -> Outcome:
        left = options if options.timeout is None else options._replace(timeout=max(began + options.timeout - clock(), 1e-3))
        try:
            result = await send(call, left)
        except QRewardError as error:
            return error
        return result.value if result.error is None else await again(call, result)

    async def again(call: WireRequest, result: Result[Any]) -> Outcome:
        assert result.error is not None
        calls = smaller(call, result.error, result.attempts, most())
        return await parts(calls) if calls else result.error

    async def parts(calls: list[WireRequest]) -> Outcome:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(part(call)) for call in calls]
        return joined(calls, [task.result() for task in tasks])

    outcome = await (parts(divided(call, most())) if failed is None else again(call, failed))
    if isinstance(outcome, QRewardError):
        raise outcome
    return outcome
