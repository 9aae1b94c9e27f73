"""Stores what a real server answers, as data that the fast tests hold the fake servers against (``tests/testing/recordings``).

A file holds ``{"server", "command", "recorded", "exchanges"}``. An exchange has a name, the request and the response: status, headers that
a client reads, and a body (``body``, or ``text`` if it is not JSON, ``events`` of a stream, ``metrics`` with type and labels by name).
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
from _vllm import KEY, Replica, models

FOLDER = Path(__file__).parents[2] / "testing" / "recordings"
VERSION = "0.32.0"
HEADERS = ("content-type", "retry-after", "www-authenticate", "x-request-id", "allow")
HELLO = [{"role": "user", "content": "Say yes."}]
CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
OVERLONG = "word " * 4200
SCHEMA = {
    "type": "object",
    "properties": {"score": {"type": "integer", "enum": [0, 1]}},
    "required": ["score"],
    "additionalProperties": False,
}
Exchange = dict[str, Any]


def exchange(client: httpx.Client, name: str, method: str, path: str, body: Any = None, key: str | None = KEY, **headers: str) -> Exchange:
    """Send one request and return it with the answer."""
    sent = {"authorization": f"Bearer {key}"} if key else {}
    sent |= {name.replace("_", "-"): value for name, value in headers.items()}
    content = body if isinstance(body, str | None) else json.dumps(body)
    more = {} if content is None else {"content-type": "application/json"}
    answer = client.request(method, path, content=content, headers=sent | more)
    shown = {name: value.replace(KEY, "KEY") for name, value in sent.items()}
    return {"name": name, "request": {"method": method, "path": path, "headers": shown, "body": body}, "response": response(path, answer)}


def response(path: str, answer: httpx.Response) -> dict[str, Any]:
    said: dict[str, Any] = {
        "status": answer.status_code,
        "headers": {name: answer.headers[name] for name in HEADERS if name in answer.headers},
    }
    kind = answer.headers.get("content-type", "")
    if path == "/metrics" and answer.status_code == 200:
        return said | {"metrics": metrics(answer.text)}
    if "event-stream" in kind:
        events = [line.removeprefix("data: ") for line in answer.text.splitlines() if line.startswith("data: ")]
        return said | {"events": [event if event == "[DONE]" else json.loads(event) for event in events]}
    return said | ({"body": answer.json()} if "json" in kind and answer.content else {"text": answer.text})


def metrics(text: str) -> dict[str, Any]:
    """Return the type and the labels of each of the server's own metrics by name."""
    found: dict[str, Any] = {
        name: {"type": kind, "labels": []} for name, kind in re.findall(r"^# TYPE (vllm:\S+) (\w+)", text, re.MULTILINE)
    }
    for name, labels in re.findall(r"^(vllm:[\w:]+)\{(.*?)\} ", text, re.MULTILINE):
        base = name if name in found else re.sub("_(total|sum|count|bucket|created)$", "", name)
        found.setdefault(base, {"labels": []})["labels"] = re.findall(r'(\w+)="', labels)
    return found


def everywhere(client: httpx.Client, model: str) -> Iterator[Exchange]:
    """Yield what every kind of server is asked."""
    for path in ("/health", "/v1/models", "/version", "/load", "/ping", "/metrics", "/nope", "/v1/nope", "/server_info", "/slots"):
        yield exchange(client, f"GET {path}", "GET", path)
    for path in ("/health", "/v1/models", "/metrics", "/version", "/nope", "/v1/nope"):
        yield exchange(client, f"GET {path} without a key", "GET", path, key=None)
    yield exchange(client, "GET where POST is wanted", "GET", CHAT)
    body = {"model": model, "messages": HELLO, "max_tokens": 4, "temperature": 0}
    yield exchange(client, "chat", "POST", CHAT, body)
    yield exchange(client, "chat with a wrong key", "POST", CHAT, body, key="wrong")
    yield exchange(client, "chat without a key", "POST", CHAT, body, key=None)
    yield exchange(
        client, "text completion", "POST", COMPLETIONS, {"model": model, "prompt": "The sky is", "max_tokens": 2, "temperature": 0}
    )
    yield exchange(client, "embeddings", "POST", "/v1/embeddings", {"model": model, "input": ["a", "b c"]})
    yield exchange(client, "embeddings of an unknown model", "POST", "/v1/embeddings", {"model": "nope", "input": ["a"]})
    yield exchange(client, "embeddings of an overlong text", "POST", "/v1/embeddings", {"model": model, "input": [OVERLONG]})
    pair = {"model": model, "text_1": ["q", "r"], "text_2": ["a", "b"]}
    for prefix in ("", "/v1"):
        yield exchange(client, f"{prefix}/score", "POST", f"{prefix}/score", pair | {"use_activation": False})
        yield exchange(client, f"{prefix}/rerank", "POST", f"{prefix}/rerank", {"model": model, "query": "q", "documents": ["a", "b c d"]})
    for path in ("/classify", "/pooling"):
        text = {"model": model, "input": ["a", "b c"], "use_activation": False}
        yield exchange(client, path, "POST", path, text)
        yield exchange(client, f"{path} of a chat", "POST", path, {"model": model, "messages": HELLO, "use_activation": False})
        yield exchange(client, f"{path} without a key", "POST", path, text, key=None)
        yield exchange(client, f"{path} of an unknown model", "POST", path, text | {"model": "nope"})
        yield exchange(client, f"{path} of an overlong text among others", "POST", path, text | {"input": ["a", OVERLONG]})
        yield exchange(client, f"{path} of an empty list", "POST", path, text | {"input": []})
        yield exchange(client, f"{path} of an empty text", "POST", path, text | {"input": [""]})
    question = [{"type": "yes_no", "instructions": "right?"}]
    yield exchange(client, "decisions", "POST", "/v1/decisions", {"model": model, "input": "2 + 2 = 4", "questions": question})
    yield exchange(client, "systemone", "POST", "/v1/systemone", {"model": model, "input": "2 + 2 = 4"})
    items = {"query": "Is it right?", "items": [" 2+2=4", " 2+2=5"], "label_token_ids": [5, 6], "apply_softmax": True}
    yield exchange(client, "generative scoring", "POST", "/generative_scoring", {"model": model, **items})
    yield exchange(client, "tokenize", "POST", "/tokenize", {"model": model, "prompt": "yes", "add_special_tokens": False})


def generative(client: httpx.Client, model: str) -> Iterator[Exchange]:
    """Yield what a server of a generative model is asked beyond that."""

    def chat(name: str, body: dict[str, Any], **more: Any) -> Exchange:
        return exchange(client, name, "POST", CHAT, {"model": model, "messages": HELLO, "temperature": 0} | body, **more)

    yield chat("chat with an id and a priority", {"max_tokens": 2, "priority": 5}, x_request_id="abc123")
    yield chat("chat that the length ends", {"max_tokens": 3, "ignore_eos": True})
    yield chat("two choices", {"max_tokens": 2, "n": 2, "temperature": 1.0})
    yield chat("three log probabilities", {"max_tokens": 1, "logprobs": True, "top_logprobs": 3})
    yield chat("twenty log probabilities", {"max_tokens": 1, "logprobs": True, "top_logprobs": 20, "temperature": 1.0})
    yield chat("too many log probabilities", {"max_tokens": 1, "logprobs": True, "top_logprobs": 21})
    yield chat("top_logprobs without logprobs", {"max_tokens": 1, "top_logprobs": 5})
    yield chat("log probabilities of tokens", {"max_tokens": 1, "logprobs": True, "top_logprobs": 0, "logprob_token_ids": [5, 6]})
    yield chat("stream with usage", {"max_tokens": 3, "ignore_eos": True, "stream": True, "stream_options": {"include_usage": True}})
    yield chat("stream without usage", {"max_tokens": 3, "ignore_eos": True, "stream": True})
    yield chat("stream that a stop ends", {"max_tokens": 30, "stream": True, "stream_options": {"include_usage": True}})
    yield chat("stream with log probabilities", {"max_tokens": 2, "stream": True, "logprobs": True, "top_logprobs": 2})
    completion = {"model": model, "max_tokens": 2, "ignore_eos": True, "temperature": 0}
    for name, prompt in (("one prompt in a list", ["The sky is"]), ("several prompts", ["a b", "c d"])):
        yield exchange(client, name, "POST", COMPLETIONS, completion | {"prompt": prompt, "n": 2, "logprobs": 1, "temperature": 1.0})
    body = completion | {"prompt": "The sky is", "stream": True, "stream_options": {"include_usage": True}}
    yield exchange(client, "stream of a text completion", "POST", COMPLETIONS, body)
    yield exchange(client, "overlong text completion", "POST", COMPLETIONS, {"model": model, "prompt": OVERLONG, "max_tokens": 2})
    yield chat("unknown model", {"model": "nope"})
    yield chat("stream of an unknown model", {"model": "nope", "stream": True})
    yield chat("overlong chat", {"messages": [{"role": "user", "content": OVERLONG}], "max_tokens": 4})
    yield chat("overlong chat as a stream", {"messages": [{"role": "user", "content": OVERLONG}], "max_tokens": 4, "stream": True})
    yield chat("too large max_tokens", {"max_tokens": 100_000})
    yield exchange(client, "broken JSON", "POST", CHAT, '{"model": ')
    yield exchange(client, "no body", "POST", CHAT, "")
    for name, wrong in (
        ("messages that are no list", {"messages": "x"}),
        ("no messages", {"messages": []}),
        ("a role that does not exist", {"messages": [{"role": "nobody", "content": "x"}]}),
        ("temperature of a wrong type", {"temperature": "hot"}),
        ("negative temperature", {"temperature": -1}),
        ("max_tokens of 0", {"max_tokens": 0}),
        ("unknown member", {"max_tokens": 1, "nonsense": 1}),
        ("invalid schema", {"max_tokens": 4, "response_format": schema({"type": "nonsense"})}),
        ("response_format of an unknown type", {"max_tokens": 4, "response_format": {"type": "nonsense"}}),
    ):
        yield chat(name, wrong)
    yield chat("reply in a schema", {"max_tokens": 40, "response_format": schema(SCHEMA)})
    yield chat("reply in JSON", {"max_tokens": 8, "response_format": {"type": "json_object"}})


def schema(value: dict[str, Any]) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "verdict", "strict": True, "schema": value}}


def record(replica: Replica, generates: bool) -> dict[str, Any]:
    """Ask a server everything, and return the recording."""
    with httpx.Client(base_url=replica.root, timeout=120, trust_env=False) as client:
        exchanges = [*everywhere(client, replica.model), *(generative(client, replica.model) if generates else ())]
    return {"server": f"vllm {VERSION}", "command": replica.command, "recorded": time.strftime("%Y-%m-%d"), "exchanges": exchanges}


def store(name: str, recording: dict[str, Any]) -> None:
    path = FOLDER / f"vllm-{VERSION}" / f"{name}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    *about, (_, exchanges) = recording.items()
    head = "".join(f"{json.dumps(key)}: {json.dumps(value)},\n" for key, value in about)
    lines = ",\n".join(json.dumps(each, ensure_ascii=False) for each in exchanges)  # a line each
    text = f'{{{head}"exchanges": [\n{lines}\n]}}\n'
    path.write_text(text.replace(str(models()), "MODELS"), encoding="utf-8")
