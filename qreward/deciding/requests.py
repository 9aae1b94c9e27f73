"""Make the requests of ``decide`` and ``batch_decide`` from their arguments. This module must not send anything."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from qreward.codecs.base import WireRequest
from qreward.codecs.decisions.base import DecisionInput
from qreward.codecs.decisions.operation import Decide
from qreward.decisions import check_questions
from qreward.errors import BadRequest
from qreward.options import Arguments, preparer


def decision_preparer(decide: Decide, given: Arguments, model: str, questions: object = None) -> Callable[[Any], WireRequest]:
    """Return a function that makes the request for one item. The arguments that all items share are checked once, here.

    Args:
        decide: the codec of the client's decisions.
        given: options and parameters of the call.
        model: name of the model.
        questions: the questions for all items; None if each item is ``(input, questions)``.

    Raises:
        ConfigError: the questions, the model or the parameters are invalid.
    """
    options = given.options
    group: Any = options.get("group")
    of_input = (lambda inputs: group(inputs[0])) if callable(group) else group
    prepare = preparer(decide, model, given.params, options.get("extra_headers"), options.get("extra_body"), of_input)
    if questions is None:
        return lambda item: prepare(_pair(item))
    checked = check_questions(questions)
    return lambda item: prepare(DecisionInput(item, checked))


def _pair(item: object) -> object:
    if not isinstance(item, tuple | list) or len(item) != 2:
        given = f"{len(item)} values" if isinstance(item, tuple) else f"a {type(item).__name__}"
        raise BadRequest(f"without questions= an item is (input, questions), not {given}; pass questions= if all items have the same ones")
    return item
