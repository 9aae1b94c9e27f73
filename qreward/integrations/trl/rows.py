"""Converts the arguments of a TRL reward function to rows, and conversations to a prompt and a response. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from qreward.codecs.chat import is_missing

HANDLES = frozenset({"trainer_state", "log_extra", "log_metric", "environments"})
"""Arguments that TRL passes besides the columns of the dataset."""


def rows_of(prompts: Sequence[Any], completions: Sequence[Any], columns: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield one row for each completion: its columns, and ``prompt`` and ``response``.

    Columns are lists with one value for each completion; TRL has already repeated them.

    Example:
        >>> list(rows_of(["2 + 2?"], ["4"], {"solution": ["four"]}))
        [{'solution': 'four', 'prompt': '2 + 2?', 'response': '4'}]
    """
    lists = {name: values for name, values in columns.items() if name not in HANDLES and _is_list(values)}
    for at, (prompt, completion) in enumerate(zip(prompts, completions, strict=True)):
        asked, said = conversation(prompt, completion)
        yield {**{name: values[at] for name, values in lists.items() if at < len(values)}, "prompt": asked, "response": said}


def conversation(prompt: Any, completion: Any) -> tuple[Any, str | None]:
    """Return the prompt and the text of the last assistant message. Messages in between, such as tool results, join the prompt.

    The text is None, which means no reward, if nothing was generated: the completion is None, it has no assistant message, or its last
    assistant message has neither content nor tool calls. The text of a message with only tool calls is ``""``.

    Example:
        >>> conversation([{"role": "user", "content": "2 + 2?"}], [{"role": "assistant", "content": "4"}])
        ([{'role': 'user', 'content': '2 + 2?'}], '4')
    """
    if completion is None or isinstance(completion, str):
        return prompt, completion
    messages = list(completion)
    last = next((at for at in reversed(range(len(messages))) if messages[at].get("role") == "assistant"), None)
    if last is None:
        return prompt, None
    said = messages[last]
    return _before(prompt, messages[:last]), None if is_missing(said) else _text(said.get("content"))


def _before(prompt: Any, between: list[Any]) -> Any:
    if not between:
        return prompt
    return [*([{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt), *between]


def _text(content: Any) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    return "\n".join(str(part.get("text") or "") for part in content if isinstance(part, Mapping))


def _is_list(values: Any) -> bool:
    return isinstance(values, Sequence) and not isinstance(values, str | bytes)
