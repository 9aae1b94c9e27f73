"""Writes commented settings files: a client's configuration, and the settings of a judge.

A file is described once, as a ``Document``, and rendered as YAML, TOML or JSON. JSON has no comments. This module asks nothing and sends
nothing.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from qreward.documentation import page

WIDEST = 48
"""Column before which the comments of a section are aligned; a longer setting pushes its own comment to the right."""


class Setting(msgspec.Struct, frozen=True):
    """One line of a file. A setting that is not ``used`` is written as a comment, as an example of what may be set."""

    name: str
    value: Any
    meaning: str = ""
    used: bool = True


class Section(msgspec.Struct, frozen=True):
    """A mapping, or an item of a list of mappings with that name. Its first setting is used."""

    name: str
    settings: Sequence[Setting]
    is_item: bool = False


class Document(msgspec.Struct, frozen=True):
    """A file: the lines of its heading, its settings, and its sections. The items of one list are next to each other."""

    heading: Sequence[str]
    settings: Sequence[Setting]
    sections: Sequence[Section]

    def content(self) -> dict[str, Any]:
        """The settings in use, as a program reads them."""
        found: dict[str, Any] = _used(self.settings)
        for section in self.sections:
            if section.is_item:
                found.setdefault(section.name, []).append(_used(section.settings))
            else:
                found[section.name] = _used(section.settings)
        return found

    def render(self, ending: str) -> str:
        """The text of a file whose name has this ending, such as ``.yaml``."""
        if ending == ".json":
            return json.dumps(self.content(), indent=2, ensure_ascii=False) + "\n"
        lines = _toml(self) if ending == ".toml" else _yaml(self)
        return "\n".join([*(f"# {line}".rstrip() for line in self.heading), *lines]) + "\n"


def _used(settings: Sequence[Setting]) -> dict[str, Any]:
    return {setting.name: setting.value for setting in settings if setting.used}


def _yaml(document: Document) -> Iterator[str]:
    yield ""
    yield from _lines(document.settings, ": ")
    previous = None
    for section in document.sections:
        if section.name != previous:
            yield from ("", f"{section.name}:")
        previous = section.name
        first, *others = _lines(section.settings, ": ")
        yield f"  - {first}" if section.is_item else f"  {first}"
        yield from (f"{'    ' if section.is_item else '  '}{line}" for line in others)


def _toml(document: Document) -> Iterator[str]:
    yield ""
    yield from _lines(document.settings, " = ")
    for section in document.sections:
        yield from ("", f"[[{section.name}]]" if section.is_item else f"[{section.name}]")
        yield from _lines(section.settings, " = ")


def _lines(settings: Sequence[Setting], between: str) -> Iterator[str]:
    texts = [f"{'' if each.used else '# '}{each.name}{between}{_inline(each.value, between)}" for each in settings]
    width = max((len(text) for text in texts if len(text) <= WIDEST), default=0)
    for text, setting in zip(texts, settings, strict=True):
        yield f"{text.ljust(width)}  # {setting.meaning}" if setting.meaning else text


def _inline(value: Any, between: str) -> str:
    """A value on one line. What JSON writes for a text, a number or a list is YAML and TOML too; a mapping differs."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{name}{between}{_inline(inner, between)}" for name, inner in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(_inline(inner, between) for inner in value) + "]"
    return json.dumps(value, ensure_ascii=False)


KEY_EXAMPLE = "JUDGE_KEY"
_LIMITS = "most requests at one time, requests and tokens a minute; learned if not set"


def client_document(endpoints: Sequence[dict[str, Any]], check: str, timeout: float | None = None) -> Document:
    """The configuration of a client.

    Args:
        endpoints: the settings of each endpoint; ``api_key`` is a text such as ``${JUDGE_KEY}``.
        check: the command that checks the file.
        timeout: seconds of one call; None writes the default as an example.
    """
    heading = (
        "The endpoints of qreward, and how they may be used.",
        f"Check them:    {check}",
        f"All settings:  {page('reference/configuration')}",
    )
    whole = Setting("timeout", 600 if timeout is None else timeout, "seconds of one call, time in the queue included", timeout is not None)
    return Document(heading, [whole], [Section("endpoints", _endpoint(each, not n), is_item=True) for n, each in enumerate(endpoints)])


def _endpoint(given: dict[str, Any], is_first: bool) -> list[Setting]:
    """The lines of one endpoint; those of the first also show what else may be set."""
    examples = {
        "base_url": ("", "root of the API, without /chat/completions"),
        "name": ("gpu-0", "name in results and errors; without it host and port"),
        "kind": ("vllm", "openai if it is not set, vllm, sglang, tei, openrlhf or nim"),
        "models": (["judge-*"], "patterns of the models that it serves; without them any model"),
        "api_key": (f"${{{KEY_EXAMPLE}}}", "taken from the environment; never write the key itself here"),
        "limits": ({"max_concurrency": 64, "rpm": 600, "tpm": 200000}, _LIMITS),
        "price": ([0.15, 0.6], "US dollars for a million prompt tokens and completion tokens, to report costs"),
    }
    return [
        Setting(name, given.get(name, value), meaning if is_first else "", name in given)
        for name, (value, meaning) in examples.items()
        if is_first or name in given
    ]


def judge_document(model: str, client: str, trainer: Sequence[str] = ()) -> Document:
    """The settings of a judge, for ``qreward run --judge`` and for trainers.

    Args:
        model: name of the judge model.
        client: name of the configuration file of the client, which is in the same folder.
        trainer: lines about the trainer that uses the file.
    """
    settings = [
        Setting("client", client, "the file with the endpoints, in the folder of this file"),
        Setting("deadline", 60, "seconds for one reward, time in the queue and retries included", used=False),
        Setting("on_failure", "raise", "what a missing reward becomes: raise, none where the trainer can, or a number", used=False),
        Setting("columns", {"reference": "solution"}, "field of the prompt -> column of your data, where the names differ", used=False),
    ]
    prompt = "{answer_form}\n\nQuestion: {prompt}\nReference answer: {reference}\nAnswer: {response}"
    judge = [
        Setting("model", model, "the model that judges"),
        Setting("prompt", prompt, "without it a built-in prompt", used=False),
        Setting("scale", [0, 10], "lowest and highest score that the judge may give"),
        Setting("range", [0, 1], "the rewards to which the ends of the scale are mapped"),
        Setting("samples", 3, "answers for each item, of which the majority counts", used=False),
        Setting("params", {"temperature": 0.6, "max_tokens": 1024}, "parameters of each request", used=False),
    ]
    return Document(("A judge that turns responses into rewards.", *trainer), settings, [Section("judge", judge)])
