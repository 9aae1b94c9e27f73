"""Writes commented settings files: a client's configuration, and the settings of a judge."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from qreward.documentation import page

WIDEST = 48
"""Maximum column at which the comments of a section are aligned. The comment of a longer setting is further to the right."""


class Setting(NamedTuple):
    """One line of a file. If ``used`` is False, the line is a comment that shows what may be set."""

    name: str
    value: Any
    meaning: str = ""
    used: bool = True


class Document(NamedTuple):
    """A file: the lines of its heading, its settings, and its sections."""

    heading: Sequence[str]
    settings: Sequence[Setting]
    sections: Sequence[tuple[str, bool, Sequence[Setting]]]

    def content(self) -> dict[str, Any]:
        """Return the settings that are ``used``, in the form in which a program reads them from the file."""
        found: dict[str, Any] = _used(self.settings)
        for name, is_item, settings in self.sections:
            found[name] = [*found.get(name, ()), _used(settings)] if is_item else _used(settings)
        return found

    def render(self, ending: str) -> str:
        """Return the text of a file whose name has this ending, such as ``.yaml``."""
        if ending == ".json":
            return json.dumps(self.content(), indent=2, ensure_ascii=False) + "\n"
        between, previous = " = " if ending == ".toml" else ": ", None
        lines = [*(f"# {line}".rstrip() for line in self.heading), "", *_lines(self.settings, between)]
        for name, is_item, settings in self.sections:
            first, *others = _lines(settings, between)
            if ending == ".toml":
                lines += ["", f"[[{name}]]" if is_item else f"[{name}]", first, *others]
                continue
            if name != previous:
                lines += ["", f"{name}:"]
            previous, mark = name, "- " if is_item else ""
            lines += [f"  {mark}{first}", *(f"  {' ' * len(mark)}{line}" for line in others)]
        return "\n".join(lines) + "\n"


def _used(settings: Sequence[Setting]) -> dict[str, Any]:
    return {setting.name: setting.value for setting in settings if setting.used}


def _lines(settings: Sequence[Setting], between: str) -> list[str]:
    texts = [f"{'' if each.used else '# '}{each.name}{between}{_inline(each.value, between)}" for each in settings]
    width = max((len(text) for text in texts if len(text) <= WIDEST), default=0)
    pairs = zip(texts, settings, strict=True)
    return [f"{text.ljust(width)}  # {setting.meaning}" if setting.meaning else text for text, setting in pairs]


def _inline(value: Any, between: str) -> str:
    """Return a value on one line. Strings, numbers and lists are written as in JSON, which is valid YAML and TOML."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{name}{between}{_inline(inner, between)}" for name, inner in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(_inline(inner, between) for inner in value) + "]"
    return json.dumps(value, ensure_ascii=False)


_SEPARATORS = {".toml": " = ", ".json": ": "}
_VARIABLES = {"base_url": "OPENAI_BASE_URL", "api_key": "OPENAI_API_KEY"}


def form_of(file: str | Path | None) -> str:
    """Return the form in which hints write settings: the ending of the file, such as ``.toml``."""
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
    """Return the document of a client's configuration."""
    heading = (
        "The endpoints of qreward, and how they may be used.",
        f"Check them:    {check}",
        f"All settings:  {page('reference/configuration')}",
    )
    meaning = "timeout of one call in seconds, including time in the queue"
    whole = Setting("timeout", 600 if timeout is None else timeout, meaning, timeout is not None)
    return Document(heading, [whole], [("endpoints", True, _endpoint(each, not n)) for n, each in enumerate(endpoints)])


def _endpoint(given: dict[str, Any], is_first: bool) -> list[Setting]:
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
    """Return the document of a judge's settings, for ``qreward run --judge`` and for trainers."""
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
    return Document(("A judge that turns responses into rewards.", *trainer), settings, [("judge", False, judge)])
