"""Writes commented settings files: a client's configuration, and the settings of a judge.

A file is described once, as a ``Document``, and rendered as YAML, TOML or JSON. JSON has no comments. This module asks no questions and
sends no requests.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from qreward.documentation import page

WIDEST = 48
"""Maximum column at which the comments of a section are aligned. The comment of a longer setting is further to the right."""


class Setting(msgspec.Struct, frozen=True):
    """One setting, which is one line of a file. If ``used`` is False, the line is a comment that shows what may be set."""

    name: str
    value: Any
    meaning: str = ""
    used: bool = True


class Section(msgspec.Struct, frozen=True):
    """A section of a file: a mapping, or one item of a list of mappings. ``name`` is the name of the mapping or of the list.

    The first setting must be ``used``.
    """

    name: str
    settings: Sequence[Setting]
    is_item: bool = False


class Document(msgspec.Struct, frozen=True):
    """A file: the lines of its heading, its settings, and its sections. The items of one list must be adjacent."""

    heading: Sequence[str]
    settings: Sequence[Setting]
    sections: Sequence[Section]

    def content(self) -> dict[str, Any]:
        """Return the settings that are ``used``, in the form in which a program reads them from the file."""
        found: dict[str, Any] = _used(self.settings)
        for section in self.sections:
            if section.is_item:
                found.setdefault(section.name, []).append(_used(section.settings))
            else:
                found[section.name] = _used(section.settings)
        return found

    def render(self, ending: str) -> str:
        """Return the text of a file whose name has this ending, such as ``.yaml``."""
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
    """Return a value on one line. Strings, numbers and lists are written as in JSON, which is valid YAML and TOML.

    In a mapping, the text ``between`` is written between each name and its value.
    """
    if isinstance(value, dict):
        return "{" + ", ".join(f"{name}{between}{_inline(inner, between)}" for name, inner in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(_inline(inner, between) for inner in value) + "]"
    return json.dumps(value, ensure_ascii=False)


_SEPARATORS = {".toml": " = ", ".json": ": "}
_VARIABLES = {"base_url": "OPENAI_BASE_URL", "api_key": "OPENAI_API_KEY"}


def form_of(file: str | Path | None) -> str:
    """Return the form in which hints write settings: the ending of the file, such as ``.toml``. The form is empty if there is no file,
    because the settings are then environment variables.
    """
    return Path(file).suffix.lower() if file else ""


def written(name: str, value: Any, form: str) -> str:
    """Return one setting as a user writes it in a file of this form, or as an environment variable if the form is empty.

    Example:
        >>> written("kind", "vllm", ".toml"), written("kind", "vllm", ".yaml"), written("base_url", "http://gpu-0:8000/v1", "")
        ('kind = "vllm"', 'kind: "vllm"', 'OPENAI_BASE_URL=http://gpu-0:8000/v1')
    """
    if not form:
        variable = _VARIABLES.get(name)
        return f"{variable}={value}" if variable else f"{written(name, value, '.toml')} in a configuration file"
    between = _SEPARATORS.get(form, ": ")
    return f"{json.dumps(name) if form == '.json' else name}{between}{_inline(value, between)}"


KEY_EXAMPLE = "JUDGE_KEY"
_LIMITS = "concurrent requests, requests per minute, tokens per minute; measured if not set"


def client_document(endpoints: Sequence[dict[str, Any]], check: str, timeout: float | None = None) -> Document:
    """Return the document of a client's configuration.

    Args:
        endpoints: the settings of each endpoint; ``api_key`` is a string such as ``${JUDGE_KEY}``.
        check: the command that checks the file.
        timeout: timeout of one call in seconds. None writes the default as a comment.
    """
    heading = (
        "The endpoints of qreward, and how they may be used.",
        f"Check them:    {check}",
        f"All settings:  {page('reference/configuration')}",
    )
    meaning = "timeout of one call in seconds, including time in the queue"
    whole = Setting("timeout", 600 if timeout is None else timeout, meaning, timeout is not None)
    return Document(heading, [whole], [Section("endpoints", _endpoint(each, not n), is_item=True) for n, each in enumerate(endpoints)])


def _endpoint(given: dict[str, Any], is_first: bool) -> list[Setting]:
    """Return the lines of one endpoint. The first endpoint of a file also has comments that show all other settings."""
    examples = {
        "base_url": ("", "root of the API, without /chat/completions"),
        "name": ("gpu-0", "name in results and errors; default: host and port"),
        "kind": ("vllm", "openai (default), vllm, sglang, tei, openrlhf or nim"),
        "models": (["judge-*"], "patterns of the models that it serves; default: any model"),
        "api_key": (f"${{{KEY_EXAMPLE}}}", "read from the environment; do not write the key itself here"),
        "limits": ({"max_concurrency": 64, "rpm": 600, "tpm": 200000}, _LIMITS),
        "price": ([0.15, 0.6], "US dollars per million prompt and completion tokens, to report costs"),
    }
    return [
        Setting(name, given.get(name, value), meaning if is_first else "", name in given)
        for name, (value, meaning) in examples.items()
        if is_first or name in given
    ]


def judge_document(model: str, client: str, trainer: Sequence[str] = ()) -> Document:
    """Return the document of a judge's settings, for ``qreward run --judge`` and for trainers.

    Args:
        model: name of the judge model.
        client: name of the configuration file of the client, which is in the same folder.
        trainer: lines about the trainer that uses the file.
    """
    settings = [
        Setting("client", client, "the file with the endpoints, in the folder of this file"),
        Setting("deadline", 60, "timeout of one reward in seconds, including time in the queue and retries", used=False),
        Setting("on_failure", "raise", "for a missing reward: raise an error, none (if the trainer supports it), or a number", used=False),
        Setting("columns", {"reference": "solution"}, "field of the prompt -> column of your data, if the names differ", used=False),
    ]
    prompt = "{answer_form}\n\nQuestion: {prompt}\nReference answer: {reference}\nCandidate answer: {response}"
    judge = [
        Setting("model", model, "the model that judges"),
        Setting("prompt", prompt, "default: a built-in prompt", used=False),
        Setting("scale", [0, 10], "lowest and highest score that the judge may give"),
        Setting("range", [0, 1], "the rewards for the lowest and the highest score"),
        Setting("samples", 3, "number of answers for each item; the majority decides", used=False),
        Setting("params", {"temperature": 0.6, "max_tokens": 1024}, "parameters of each request", used=False),
    ]
    return Document(("A judge that turns responses into rewards.", *trainer), settings, [Section("judge", judge)])
