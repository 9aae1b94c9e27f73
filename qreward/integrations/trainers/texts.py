"""What is judged: the last message of a conversation, or the text between the prompt and the special tokens at the end of a query."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from qreward.codecs.chat import is_missing
from qreward.errors import ConfigError

_END = re.compile(r"(?:<[|\uff5c][^<>|\uff5c\s]{1,40}[|\uff5c]>|</?s>|<(?:eos|pad|end_of_turn|unk)>|\[(?:PAD|EOS|/INST)\])\Z")
"""A special token of a common model family at the end of a text, such as ``<|im_end|>``, ``</s>``, and DeepSeek's with full-width bars."""
_LONGEST = 44
"""Maximum number of characters of a token that ``_END`` matches."""
SHORTEST = 16
"""Minimum number of non-whitespace characters that must be left of a prompt that was truncated on the left."""


def without_end(text: str) -> str:
    """Return a text without the special tokens at its end.

    Example:
        >>> without_end("The answer is 4.<|im_end|>\\n<|endoftext|>")
        'The answer is 4.'
    """
    whole = found = text.rstrip()
    while token := _END.search(found, max(0, len(found) - _LONGEST)):
        found = found[: token.start()].rstrip()
    return text if found == whole else found


def response_in(query: str, prompt: str) -> str | None:
    """Return the response, which follows the prompt in ``query``; None if ``query`` does not begin with the prompt.

    The whitespace of ``query`` and ``prompt`` may differ, because some tokenizers do not restore whitespace. A special token may stand
    before the prompt. The prompt may have been truncated on the left to fit the model's context.

    Example:
        >>> response_in("<s> User: 2 + 2? Assistant: 4</s>", "User: 2 + 2?\\nAssistant:")
        ' 4</s>'
    """
    if query.startswith(prompt):
        return query[len(prompt) :]
    query = query.lstrip("\ufffd")  # the truncation split a character
    shown, wanted = "".join(query.split()), "".join(prompt.split())
    begin = shown.find(wanted)
    if begin >= 0 and not without_end(shown[:begin]):  # only special tokens stand before the prompt
        left = begin + len(wanted)
    else:
        left = _overlap(wanted, shown, min(SHORTEST, len(wanted)))
        if not left:
            return None
    for at, character in enumerate(query):
        if left == 0:
            return query[at:].removeprefix(prompt[len(prompt.rstrip()) :])
        left -= not character.isspace()
    return ""


def _overlap(left: str, right: str, shortest: int) -> int:
    """Return the length of the longest suffix of ``left`` that is a prefix of ``right``; 0 if that suffix is shorter than ``shortest``."""
    begin = left.find(right[:shortest]) if 0 < shortest <= len(right) else -1
    while begin >= 0 and not right.startswith(left[begin:]):
        begin = left.find(right[:shortest], begin + 1)
    return len(left) - begin if begin >= 0 else 0


def rows_of(
    prompts: Sequence[Any], completions: Sequence[Any], columns: Mapping[str, Any], *, whole: bool = False
) -> Iterator[dict[str, Any]]:
    """Yield a row for each completion: its values in the columns (lists, arrays or series), and ``prompt`` and ``response``.

    ``whole`` is that of :func:`conversation`.

    Raises ``ConfigError`` if a column has another length.
    """
    listed = {name: values.tolist() if hasattr(values, "tolist") else values for name, values in columns.items()}
    lists = {name: values for name, values in listed.items() if isinstance(values, Sequence) and not isinstance(values, str | bytes)}
    for name, values in lists.items():
        if len(values) != len(completions):
            raise ConfigError(f"the column {name!r} has {len(values)} values for {len(completions)} completions; it needs one for each")
    for at, (prompt, completion) in enumerate(zip(prompts, completions, strict=True)):
        before, response = conversation(prompt, completion, whole=whole)
        yield {**{name: values[at] for name, values in lists.items()}, "prompt": before, "response": response}


def conversation(prompt: Any, completion: Any, *, whole: bool = False) -> tuple[Any, Any]:
    """Return the prompt and the last assistant message. Messages in between, such as tool results, join the prompt.

    The message is its text, or a list with the message if it also has tool calls or other parts than texts. It is None if the completion
    is None or has no assistant message, or if the last assistant message has neither content nor tool calls.

    With ``whole``, the prompt stays as it is, and several messages are the response together, so that responses to one prompt are compared.
    """
    if completion is None or isinstance(completion, str):
        return prompt, completion
    messages: list[Mapping[str, Any]] = list(completion)
    spoken = [(at, message) for at, message in enumerate(messages) if message.get("role") == "assistant"]
    last, message = spoken[-1] if spoken else (0, {})
    if whole and messages[1:]:
        return prompt, None if is_missing(message) else messages
    if last:
        prompt = [*([{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt), *messages[:last]]
    content: Any = message.get("content")
    if is_missing(message):
        return prompt, None
    if message.get("tool_calls") or message.get("function_call"):
        return prompt, [message]
    if isinstance(content, str):
        return prompt, content
    texts = [part["text"] for part in content if isinstance(part, Mapping) and isinstance(part.get("text"), str)]
    return prompt, "\n".join(texts) if len(texts) == len(content) else [message]


def plain(value: Any) -> Any:
    """Return arrays and OmegaConf containers as lists and dicts, and all other values unchanged."""
    if type(value) is str:
        return value
    if isinstance(value, Mapping):
        return {str(name): plain(inner) for name, inner in value.items()}
    if hasattr(value, "tolist"):
        return plain(value.tolist())
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        return [plain(inner) for inner in value]
    return value
