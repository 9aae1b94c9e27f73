"""Answers to single items that are given out as openai's types, made when they are asked for."""

from __future__ import annotations

from typing import Any

from qreward.wire.rewards.answers import ItemAnswer


class Choices(ItemAnswer, gc=False):
    """The choices of one prompt."""

    def build(self) -> Any:
        """A list of openai's ``CompletionChoice``."""
        from openai.types import CompletionChoice  # noqa: PLC0415 - takes most of a second, and many never ask

        return [CompletionChoice.construct(**{"logprobs": None, **choice}) for choice in self.value]


class Moderated(ItemAnswer, gc=False):
    """What was found of one input."""

    def build(self) -> Any:
        """Openai's ``Moderation``."""
        from openai.types import Moderation  # noqa: PLC0415

        return Moderation.construct(**self.value)
