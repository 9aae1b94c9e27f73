"""How a reward model is to be asked, and which of its numbers is the reward: settings only, each written once.

Knows no paths, no JSON and no HTTP; what the settings come to on the wire is in ``qreward.wire.rewards``.
"""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import BeforeValidator, field_validator

from qreward.policy import Policy

_PLACE = re.compile(r"\{(prompt|response)\}")


def _not_a_bool(value: object) -> object:
    if isinstance(value, bool):
        raise ValueError("must be a name or a position, not true or false")
    return value


class RewardModel(Policy):
    """What a reward model behind an endpoint is, as far as its server does not tell.

    Args:
        route: what the server is asked by: ``classify`` (a sequence classifier; the default of vLLM, SGLang and TEI), ``pooling``
            (vLLM: token and process reward models, whose last row counts), ``score`` (vLLM: cross-encoders, which take pairs) or
            ``embeddings`` (servers that give the reward as a vector of one number). None is the usual one of the endpoint's kind.
        label: which number is the reward, where there are several: a name (of a class, or of an attribute such as
            ``helpfulness``) or a position among them, from 0, or from the end if negative. None takes the only one; of the classes
            of vLLM's ``classify`` and ``pooling`` the last, as verl does.
        labels: names of the classes in the model's order, for servers that do not tell them.
        activation: let the server squeeze scores by a sigmoid or softmax. By default they come raw, as reward models are trained.
        activation_field: what vLLM calls that: ``use_activation`` since 0.11.2, before that ``activation``, earlier still ``softmax``.
            A server ignores a name it does not know, and would squeeze.
        template: how prompt and response become one text, with ``{prompt}`` and ``{response}`` in it. None sends them apart, or as
            a conversation to a server with a chat template of its own; such conversations cannot share a request.

    Example:
        >>> RewardModel(template="<user>{prompt}<assistant>{response}").render("2 + 2?", "4")
        '<user>2 + 2?<assistant>4'
    """

    route: Literal["classify", "pooling", "score", "embeddings"] | None = None
    label: Annotated[int | str, BeforeValidator(_not_a_bool)] | None = None
    labels: tuple[str, ...] = ()
    activation: bool = False
    activation_field: Literal["use_activation", "activation", "softmax"] = "use_activation"
    template: str | None = None

    @field_validator("labels", mode="before")
    @classmethod
    def _several(cls, value: object) -> object:
        if isinstance(value, str):
            raise ValueError("must be a list of names, such as ['bad', 'good']")
        return value

    @field_validator("labels")
    @classmethod
    def _unique(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if len(set(value)) < len(value):
            raise ValueError("names a class twice; each needs a name of its own")
        return value

    @field_validator("template")
    @classmethod
    def _has_both(cls, value: str | None) -> str | None:
        if value is not None and set(_PLACE.findall(value)) != {"prompt", "response"}:
            raise ValueError("must hold {prompt} and {response}, such as '{prompt}{response}'")
        return value

    def render(self, prompt: str, response: str) -> str:
        """The one text of a pair; without a template, one after the other. Braces in the texts mean nothing."""
        if self.template is None:
            return prompt + response
        texts = {"prompt": prompt, "response": response}
        return _PLACE.sub(lambda place: texts[place[1]], self.template)
