"""More than fifty streams as servers send them, byte by byte: what OpenAI's API documents, and what its imitators add or omit."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

HEAD: dict[str, Any] = {"id": "chatcmpl-9", "object": "chat.completion.chunk", "created": 1_700_000_000, "model": "judge-7b"}
USAGE = {"prompt_tokens": 12, "completion_tokens": 3, "total_tokens": 15}
DONE = b"data: [DONE]\n\n"
Chunk = dict[str, Any]


def chunk(delta: Any = None, *, index: int = 0, finish: str | None = None, choice: Any = None, **members: Any) -> Chunk:
    """A chunk with one choice; ``choice`` and ``members`` are added to the choice and to the chunk."""
    return {**HEAD, "choices": [{"index": index, "delta": delta or {}, "finish_reason": finish, **(choice or {})}], **members}


def role(**delta: Any) -> Chunk:
    return chunk({"role": "assistant", "content": "", **delta})


def words(*texts: str, **members: Any) -> list[Chunk]:
    return [chunk({"content": text}, **members) for text in texts]


def used(**members: Any) -> Chunk:
    return {**HEAD, "choices": [], "usage": {**USAGE, **members}}


def call(index: int, arguments: str = "", **members: Any) -> Chunk:
    """A piece of a tool call; with a ``name`` its beginning."""
    function = {"arguments": arguments} | ({"name": members.pop("name")} if "name" in members else {})
    return {"index": index, "function": function, **members}


def calls(*pieces: Any, **members: Any) -> Chunk:
    return chunk({"tool_calls": list(pieces)}, **members)


def logprob(token: str) -> Any:
    top = {"token": token, "logprob": -0.125, "bytes": list(token.encode())}
    return {**top, "top_logprobs": [top, {"token": "x", "logprob": -3.5, "bytes": None}]}


def logprobs(*tokens: str, part: str = "content") -> Any:
    return {"logprobs": {"content": None, "refusal": None, part: [logprob(token) for token in tokens]}}


def sse(chunks: Iterable[Any], end: str = "\n\n", before: str = "data: ", done: bytes = DONE) -> bytes:
    """Chunks as events; a text among them is sent as it is."""
    return b"".join(one.encode() if isinstance(one, str) else (before + json.dumps(one) + end).encode() for one in chunks) + done


def utf8(chunks: Iterable[Any]) -> bytes:
    """As ``sse``, with characters as they are and not escaped."""
    return b"".join(b"data: " + json.dumps(one, ensure_ascii=False).encode() + b"\n\n" for one in chunks) + DONE


STOP = chunk(finish="stop")
YES = [role(), *words("Yes", ", it", " is."), STOP]
A, B = {"id": "call_a", "type": "function"}, {"id": "call_b", "type": "function"}
BEGUN = [calls(call(0, name="get", **A)), calls(call(0, '{"city": ')), calls(call(0, '"Paris"}'))]
FILTERS = {"hate": {"filtered": False, "severity": "safe"}, "jailbreak": {"filtered": False, "detected": False}}
CALLED = chunk(finish="tool_calls")

TEXTS = {
    "text": sse(YES),
    "empty": sse([role(), STOP]),
    "nothing but null": sse([chunk({"role": "assistant", "content": None}), STOP]),
    "one chunk": sse([chunk({"role": "assistant", "content": "Yes."}, finish="stop")]),
    "no role": sse([*words("a", "b"), STOP]),
    "role only, then the rest": sse([chunk({"role": "assistant"}), *words("a", "b"), STOP]),
    "role in every chunk": sse([*(chunk({"role": "assistant", "content": text}) for text in "abc"), STOP]),
    "characters of many bytes": utf8([role(), *words("日本語", " über", " 👩‍🔬🎈", "\u2028 é\u0301"), STOP]),
    "characters in two chunks": utf8([role(), *words("e", "\u0301 👩", "\u200d", "🔬"), STOP]),
    "escaped characters": sse([role(), *words("\ud83c\udf88", "日", "\u2028\u2029\x85\x0b\x0c", "\x00\x7f"), STOP]),
    "many lines": sse([role(), *words("line\n", "\n\n", "data: no\r\n", "\t: end\n"), STOP]),
    "many empty pieces": sse([role(), *words("", "", "a", "", "b", ""), STOP]),
    "cut off by length": sse([role(), *words("a", "b"), chunk(finish="length")]),
    "a refusal": sse([role(refusal=None), *(chunk({"refusal": text}) for text in ("I ", "won't.")), STOP]),
    "log probabilities": sse([role(), *(chunk({"content": text}, choice=logprobs(*text)) for text in ("a", "bc", "日")), STOP]),
    "log probabilities of a refusal": sse([role(), chunk({"refusal": "no"}, choice=logprobs("no", part="refusal")), STOP]),
    "two choices, mixed": sse(
        [
            *(chunk({"role": "assistant", "content": ""}, index=index) for index in (0, 1)),
            *(chunk({"content": text}, index=index) for index, text in ((1, "x"), (0, "a"), (0, "b"), (1, "y"))),
            *(chunk(index=index, finish=finish) for index, finish in ((1, "length"), (0, "stop"))),
        ]
    ),
    "three choices in each chunk": sse(
        [
            {**HEAD, "choices": [chunk({"role": "assistant", "content": text}, index=at)["choices"][0] for at, text in enumerate("abc")]},
            {**HEAD, "choices": [chunk({"content": text}, index=at)["choices"][0] for at, text in enumerate("xyz")]},
            {**HEAD, "choices": [chunk(index=at, finish="stop")["choices"][0] for at in range(3)]},
        ]
    ),
}

TOOLS = {
    "a tool call": sse([chunk({"role": "assistant", "content": None}), *BEGUN, CALLED]),
    "a tool call in one piece": sse([calls(call(0, "{}", name="get", **A)), CALLED]),
    "two tool calls": sse([role(), *BEGUN, calls(call(1, name="put", **B)), calls(call(1, "[1")), calls(call(1, ", 2]")), CALLED]),
    "two tool calls, mixed": sse(
        [
            calls(call(0, "{", name="get", **A), call(1, "[", name="put", **B)),
            calls(call(1, "1"), call(0, '"a": ')),
            calls(call(0, "2}"), call(1, "]")),
            CALLED,
        ]
    ),
    "arguments byte by byte": sse([role(), calls(call(0, name="get", **A)), *(calls(call(0, one)) for one in '{"é": "\\n"}'), CALLED]),
    "words, then a tool call": sse([role(), *words("Let me", " look."), *BEGUN, CALLED]),
    "tool calls of two choices": sse(
        [
            *(calls(call(0, "{", name=name, **A), index=index) for index, name in enumerate(("get", "put"))),
            *(calls(call(0, "}"), index=index, finish="tool_calls") for index in (1, 0)),
        ]
    ),
    "a function call": sse(
        [
            chunk({"role": "assistant", "content": None, "function_call": {"name": "get", "arguments": ""}}),
            *(chunk({"function_call": {"arguments": text}}) for text in ('{"a"', ": 1}")),
            chunk(finish="function_call"),
        ]
    ),
}

MEMBERS = {
    "usage at the end": sse([*YES, used(prompt_tokens_details={"cached_tokens": 4}, completion_tokens_details={"reasoning_tokens": 0})]),
    "usage null until the end": sse([*({**one, "usage": None} for one in YES), used()]),
    "usage with every chunk": sse([*({**one, "usage": {**USAGE, "completion_tokens": at}} for at, one in enumerate(YES)), used()]),
    "usage with the last choice": sse([*YES[:-1], {**STOP, "usage": USAGE}]),
    "fingerprint and tier": sse({**one, "system_fingerprint": "fp_1", "service_tier": "default"} for one in YES),
    "null members and padding": sse({**one, "system_fingerprint": None, "service_tier": None, "obfuscation": "aGk"} for one in YES),
    "reasoning_content": sse([role(reasoning_content=None), *(chunk({"reasoning_content": one}) for one in ("hm", ", so")), *YES[1:]]),
    "reasoning": sse([role(reasoning=""), *(chunk({"reasoning": one, "content": ""}) for one in ("hm", ", so")), *YES[1:]]),
    "a field nobody knows": sse([role(mood={"now": "calm"}), chunk({"mood": {"now": "er"}}), *YES[1:], {**used(), "extra": [1, None]}]),
    "a chunk without choices": sse([role(), {**HEAD, "choices": []}, *YES[1:]]),
}

VENDORS = {
    "vLLM": sse(
        [
            {**role(), "prompt_token_ids": None, "usage": {**USAGE, "completion_tokens": 0, "total_tokens": 12}},
            *words("Yes", "."),
            chunk({"content": ""}, finish="stop", choice={"stop_reason": 151_645, "token_ids": None, "logprobs": None}),
            used(prompt_tokens_details=None),
        ]
    ),
    "SGLang": sse(
        [
            chunk(
                {"role": "assistant", "content": "", "reasoning_content": None, "tool_calls": None}, choice={"logprobs": None}, usage=None
            ),
            *words("Yes", ".", usage=None),
            chunk({"content": None}, finish="stop", choice={"matched_stop": 128_009, "hidden_states": None}, usage=None),
            used(reasoning_tokens=0, prompt_tokens_details=None),
        ]
    ),
    "DeepSeek": sse(
        [
            ": keep-alive\n\n",
            chunk({"role": "assistant", "content": None, "reasoning_content": ""}, system_fingerprint="fp_ds"),
            *(chunk({"content": None, "reasoning_content": text}, system_fingerprint="fp_ds") for text in ("Well", ".")),
            ": keep-alive\n\n",
            *(chunk({"content": text, "reasoning_content": None}, system_fingerprint="fp_ds") for text in ("Yes", ".")),
            chunk({"content": "", "reasoning_content": None}, finish="stop", usage={**USAGE, "prompt_cache_hit_tokens": 8}),
        ]
    ),
    "OpenRouter": sse(
        [
            *[": OPENROUTER PROCESSING\n\n"] * 3,
            *(chunk({"role": "assistant", "content": one}, provider="Acme", choice={"native_finish_reason": None}) for one in ("Yes", ".")),
            chunk({"role": "assistant", "content": ""}, finish="stop", provider="Acme", choice={"native_finish_reason": "STOP"}),
            {**used(cost=0.00014, is_byok=False), "provider": "Acme"},
        ]
    ),
    "Azure": sse(
        [
            {
                "choices": [],
                "created": 0,
                "id": "",
                "model": "",
                "object": "",
                "prompt_filter_results": [{"prompt_index": 0, "content_filter_results": FILTERS}],
            },
            role(refusal=None),
            *words("Yes", ".", choice={"content_filter_results": FILTERS, "logprobs": None}),
            chunk(finish="stop", choice={"content_filter_results": {}}),
            used(),
        ]
    ),
    "Groq": sse(
        [{**role(), "x_groq": {"id": "req_1"}}, *words("Yes."), {**STOP, "x_groq": {"id": "req_1", "usage": {"queue_time": 0.02}}}]
    ),
    "llama.cpp": sse(
        [chunk({"role": "assistant", "content": None}), *words("Yes."), {**STOP, "timings": {"prompt_n": 5, "predicted_ms": 1.5}}]
    ),
    "Text Generation Inference": sse([*words("Yes", "."), chunk({"content": ""}, finish="stop")], before="data:"),
    "Perplexity": sse({**one, "citations": ["https://example.com/1"], "search_results": [{"title": "one", "date": None}]} for one in YES),
    "Gemini": sse(
        [calls(call(0, "{}", name="get", **A) | {"extra_content": {"google": {"thought_signature": "c2ln"}}}, finish="tool_calls")]
    ),
}

FORMS = {
    "carriage returns and line feeds": sse(YES, end="\r\n\r\n", done=b"data: [DONE]\r\n\r\n"),
    "comments, ids and unknown fields": sse([": hello\n\n", YES[0], "id: 7\nretry: 10\n:\nnonsense\nx: y\n", *YES[1:]]),
    "events of several lines": b"".join(
        b"".join(b"data: " + line + b"\n" for line in json.dumps(one, indent=1).encode().splitlines()) + b"\n" for one in YES
    )
    + DONE,
    "no blank line at the end": sse(YES, done=b"data: [DONE]"),
    "no DONE": sse(YES, done=b""),
    "missing ids": sse([{"choices": one["choices"]} for one in YES]),
    "a byte order mark": b"\xef\xbb\xbf" + sse(YES),
}

SHAPES: dict[str, bytes] = {**TEXTS, **TOOLS, **MEMBERS, **VENDORS, **FORMS}
"""Name -> body of the answer."""
