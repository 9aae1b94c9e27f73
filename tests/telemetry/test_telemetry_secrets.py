"""No key, no header and no content in anything that telemetry tells, whatever goes wrong; content only where it is asked for."""

from __future__ import annotations

import contextlib
import json
import logging
import random
from typing import Any

import pytest
from opentelemetry.sdk.trace import ReadableSpan
from scale import SCALE
from shared_tools import each
from telemetry_server import KEY, MODEL, Do, Judges, chat, client_of
from telemetry_tools import Seen, attributes

from qreward import Hedge, QRewardError, Retry

PROMPT = "the patient's name is Ottilie Wirsing"
HEADER = "header-value-7f3a9c"
ECHO = "you said: " + PROMPT + " with " + KEY + " and " + HEADER
SEEDS = 30 * SCALE
SECRETS = (PROMPT, "Ottilie", KEY, HEADER)


def texts(seen: Seen) -> str:
    """Everything that was told to anybody."""
    spans = [span_text(span) for span in seen.spans]
    metrics = [str(metric) + "".join(str(point) for point in metric.data.data_points) for metric in seen.metrics().values()]
    return "\n".join([*spans, *metrics])


def span_text(span: ReadableSpan) -> str:
    return str(span.to_json()) + str([(event.name, event.attributes) for event in span.events]) + str(span.status.description)


def random_step(rng: random.Random) -> Do:
    status = rng.choice([200, 400, 401, 403, 404, 413, 422, 429, 500, 502, 503, 529])
    bodies = [json.dumps({"error": {"message": ECHO, "type": ECHO, "code": ECHO}}), ECHO, f"<html>{ECHO}</html>", f'{{"broken": "{ECHO}']
    headers = rng.choice([(), (("retry-after", "1"),), (("x-request-id", "r1"), ("server", HEADER))])
    return Do(rng.uniform(0.01, 3.0), status, rng.random() < 0.2, headers, rng.choice(bodies))


async def test_whatever_goes_wrong_no_key_no_header_and_no_content_is_told(caplog: pytest.LogCaptureFixture) -> None:
    async def play(seed: int) -> None:
        rng = random.Random(seed)
        script = {name: [random_step(rng) for _ in range(6)] for name in "abc"}
        with Seen() as seen:
            settings: dict[str, Any] = {"retry": Retry(base=0.01), "hedge": Hedge(after=0.5), "telemetry": seen.telemetry, "timeout": 8}
            async with client_of(Judges(script), "abc", **settings) as client:
                for _ in range(3):
                    with contextlib.suppress(QRewardError):
                        await client.chat_completion(chat(PROMPT), MODEL, extra_headers={"x-secret": HEADER}, user=PROMPT)
                await client.batch_chat_completion([chat(PROMPT)] * 3, MODEL, extra_headers={"x-secret": HEADER}, deadline=4)
                try:
                    async for _ in client.stream_chat_completion(chat(PROMPT), MODEL):
                        pass
                except QRewardError:
                    pass
            told = texts(seen) + caplog.text
            assert [secret for secret in SECRETS if secret in told] == [], f"seed {seed}"
            assert seen.spans
        caplog.clear()

    with caplog.at_level(logging.DEBUG):
        for seed in range(SEEDS):
            await play(seed)


async def ask_with_content(seen: Seen, prompt: Any = None) -> None:
    messages = prompt or [{"role": "system", "content": f"be strict, {KEY}"}, {"role": "user", "content": "word " * 50}]
    async with client_of(Judges(), "a", telemetry=seen.telemetry) as client:
        await client.chat_completion(messages, MODEL, extra_headers={"x-secret": HEADER})


OUTPUT = [{"role": "assistant", "parts": [{"type": "text", "content": "the answer is 7"}], "finish_reason": "stop"}]


async def test_content_is_captured_on_spans_where_the_variable_says_so_cut_short_and_without_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT", "SPAN_ONLY")
    with Seen(content_length=20) as seen:
        await ask_with_content(seen)
        found = attributes(seen.span("chat"))
        assert json.loads(found["gen_ai.system_instructions"]) == [{"type": "text", "content": "be strict, ***"}]
        assert json.loads(found["gen_ai.input.messages"]) == [{"role": "user", "parts": [{"type": "text", "content": ("word " * 50)[:20]}]}]
        assert json.loads(found["gen_ai.output.messages"]) == OUTPUT


@each("capture, expected", [("span_and_event", True), ("event_only", False), ("yes please", False), ("", False)])
async def test_content_is_captured_only_if_a_known_word_asks_for_it_on_spans(
    capture: str, expected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT", capture)
    with Seen() as seen:
        await ask_with_content(seen)
        found = attributes(seen.span("chat"))
        assert bool([name for name in found if "messages" in name or "instructions" in name]) == expected


async def test_of_images_and_sounds_only_the_kind_is_captured() -> None:
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    with Seen(capture_content=True) as seen:
        await ask_with_content(seen, [{"role": "user", "content": [{"type": "text", "text": "see"}, image]}])
        (message,) = json.loads(attributes(seen.span("chat"))["gen_ai.input.messages"])
        assert message["parts"] == [{"type": "text", "content": "see"}, {"type": "image_url"}]
