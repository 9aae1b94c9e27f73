"""Two replicas of vLLM with a small generative model: what our client makes of their answers, and their answers to our mistakes."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from _vllm import BLOCK, KEY, Replica
from recording import SCHEMA, schema
from vllm_tools import GOES_ON, MODEL, check, client_of, counted, endpoint, said, settled, token, user

from qreward import AuthenticationFailed, BadRequest, Choice, Judge, QRewardClient, Score, YesNo
from qreward.codecs.decisions import asked, labels_of

pytestmark = [pytest.mark.timeout(900), pytest.mark.real_time]
Pair = tuple[Replica, Replica]
LONG = "word " * 5000
QUESTIONS = (
    YesNo("The answer is right.", name="right"),
    Score("How clear?", levels=["bad", "fair", "good"], name="clear"),
    Choice("Tone?", choices={"calm": "", "rude": ""}, name="tone"),
)
INPUTS = ("What is 7 x 8? The answer is 56.", "What is 31 x 2? The answer is 9.", "zzz")


# the command line


@pytest.mark.parametrize("kind", ["vllm", "openai"])
def test_check_finds_nothing_to_change(pair: Pair, folder: Path, kind: str) -> None:
    status, output = check(folder, "--call", base_url=pair[0].url, api_key=KEY, kind=kind, models=[MODEL])
    assert status == 0, output
    assert "ready" in output
    assert MODEL in output


def test_check_says_that_the_key_is_wrong(pair: Pair, folder: Path) -> None:
    for key in ("wrong", None):
        status, output = check(folder, base_url=pair[0].url, kind="vllm", **({"api_key": key} if key else {}))
        assert status == 1, output
        assert "key" in output, output


# replies


def test_a_reply_is_that_of_the_server(pair: Pair) -> None:
    body = {"messages": user("Say yes."), "max_tokens": 8, "temperature": 0}
    answer = said(pair[0], "/v1/chat/completions", body)
    wanted, counts = answer["choices"][0], answer["usage"]

    async def main() -> Any:
        async with client_of(*pair) as client:
            single = await client.chat_completion(**body, model=MODEL)
            stream = client.stream_chat_completion(**body, model=MODEL)
            tokens = [text async for text in stream]
            return single, tokens, await stream.final()

    single, tokens, final = asyncio.run(main())
    for reply in (single, final):
        assert (reply.choices[0].message.content, reply.choices[0].finish_reason) == (wanted["message"]["content"], wanted["finish_reason"])
        assert (reply.usage.prompt_tokens, reply.usage.completion_tokens) == (counts["prompt_tokens"], counts["completion_tokens"])
    assert "".join(tokens) == wanted["message"]["content"]


def test_a_batch_has_each_reply_at_its_place(pair: Pair) -> None:
    chats = [user(f"Question {number}: is {number} prime?") for number in range(200)]

    async def main() -> Any:
        async with client_of(*pair) as client, client_of(pair[0]) as single:
            batch = await client.batch_chat_completion(chats, model=MODEL, max_tokens=8, temperature=0)
            some = {at: await single.chat_completion(chats[at], model=MODEL, max_tokens=8, temperature=0) for at in range(0, 200, 20)}
            return batch, some, {name: each.sent for name, each in client.stats().items()}

    batch, some, sent = asyncio.run(main())
    assert not batch.errors
    assert [result.index for result in batch] == list(range(200))
    alike = [batch[at].value.choices[0].message.content == one.choices[0].message.content for at, one in some.items()]
    assert sum(alike) >= len(alike) - 2  # in another batch of the server, two tokens whose probabilities are near may change places
    assert min(sent.values()) > 0


def test_text_completions_are_those_of_the_server_alone_and_merged(pair: Pair) -> None:
    prompts = [f"The sky {number} is" for number in range(64)]
    wanted = said(pair[0], "/v1/completions", {"prompt": prompts[3], "max_tokens": 4, "temperature": 0})["choices"][0]["text"]

    async def main() -> Any:
        async with client_of(pair[0]) as client:
            single = await client.text_completion(prompts[3], model=MODEL, max_tokens=4, temperature=0)
            several = await client.text_completion(prompts[3], model=MODEL, max_tokens=4, n=3)
            assert len(several) == 3
            return single, await client.batch_text_completion(prompts, model=MODEL, max_tokens=4, temperature=0)

    single, batch = asyncio.run(main())
    assert [choice.text for choice in single] == [wanted]
    assert not batch.errors
    assert batch[3].value[0].text == wanted


def test_a_reply_keeps_to_its_schema(pair: Pair) -> None:
    async def main() -> Any:
        async with client_of(*pair) as client:
            chats = [user(f"Answer {number} with one JSON object, and nothing else") for number in range(20)]
            return await client.batch_chat_completion(chats, model=MODEL, max_tokens=60, response_format=schema(SCHEMA))

    for text in asyncio.run(main()).values():
        assert json.loads(text.choices[0].message.content)["score"] in (0, 1)


def test_usage_is_what_the_server_counted(pair: Pair) -> None:
    document = " ".join(f"Sentence {number} of a document." for number in range(150))
    chats = [user(f"{document}\nQuestion {number}?") for number in range(40)]

    async def main() -> Any:
        async with client_of(*pair) as client:
            batch, more = await counted(pair, lambda: client.batch_chat_completion(chats, model=MODEL, max_tokens=4, hedge=False))
            return batch, more, client.stats()

    batch, more, stats = asyncio.run(main())
    assert not batch.errors
    usages = [result.usage for result in batch]
    cached = sum(usage.prompt_tokens_details.cached_tokens or 0 for usage in usages if usage.prompt_tokens_details)
    assert sum(usage.prompt_tokens for usage in usages) == more["prompt_tokens_total"]
    assert sum(usage.completion_tokens for usage in usages) == more["generation_tokens_total"]
    assert cached == more["prompt_tokens_cached_total"]
    assert sum(each.cached_tokens for each in stats.values()) == cached > 30 * BLOCK


# mistakes


def test_each_mistake_is_the_right_error_at_once(pair: Pair) -> None:
    cases: dict[str, tuple[type[Exception], str, dict[str, Any], dict[str, Any]]] = {
        "overlong prompt": (BadRequest, "4096", {}, {"messages": user(LONG)}),
        "too large max_tokens": (BadRequest, "4096", {}, {"max_tokens": 100_000}),
        "unknown model": (BadRequest, "nope", {}, {"model": "nope"}),
        "wrong key": (AuthenticationFailed, "", {"api_key": "wrong"}, {}),
        "no key": (AuthenticationFailed, "", {"api_key": None}, {}),
        "negative temperature": (BadRequest, "temperature", {}, {"temperature": -1}),
        "invalid schema": (BadRequest, "", {}, {"response_format": schema({"type": "nonsense"})}),
        "body of 20 MB": (BadRequest, "4096", {}, {"messages": user("word " * 4_000_000)}),
    }

    async def main() -> dict[str, str]:
        wrong: dict[str, str] = {}
        for name, (kind, words, settings, body) in cases.items():
            for way in ("call", "stream", "batch"):
                async with client_of(pair[0], of=settings) as client:
                    options = {"model": MODEL, "max_tokens": 4, "timeout": 60} | body
                    messages = options.pop("messages", user("Say yes."))
                    error = await failure(client, way, messages, options)
                    sent = client.stats()["a"].sent
                    if type(error) is not kind or words not in str(error) or sent != 1 or "wrong" in str(error):
                        wrong[f"{name}, {way}"] = f"{type(error).__name__} after {sent}: {error}"
        return wrong

    assert asyncio.run(main()) == {}


async def failure(client: QRewardClient, way: str, messages: Any, options: dict[str, Any]) -> BaseException | None:
    if way == "batch":
        return (await client.batch_chat_completion([messages], **options))[0].error
    try:
        if way == "stream":
            await client.stream_chat_completion(messages, **options).final()
        else:
            await client.chat_completion(messages, **options)
    except Exception as error:
        return error
    return None


def test_a_list_with_one_overlong_prompt_loses_only_that_one(pair: Pair) -> None:
    prompts = [f"The sky {number} is" for number in range(20)]
    prompts[7] = LONG

    async def main() -> Any:
        async with client_of(pair[0]) as client:
            return await client.batch_text_completion(prompts, model=MODEL, max_tokens=4)

    batch = asyncio.run(main())
    assert list(batch.errors) == [7]
    assert isinstance(batch.errors[7], BadRequest)


def test_lists_for_an_unknown_model_are_not_split(pair: Pair) -> None:
    async def main() -> Any:
        async with client_of(*pair) as client:
            batch = await client.batch_text_completion([f"The sky {number} is" for number in range(300)], model="nope", max_tokens=4)
            return batch, sum(each.sent for each in client.stats().values())

    batch, sent = asyncio.run(main())
    assert {type(error) for error in batch.errors.values()} == {BadRequest}
    assert len(batch.errors) == 300
    assert sent < 300 / 8 * 2 + 2  # 8 prompts are the fewest of a list here, and each list may ask both replicas


def test_one_replica_with_a_wrong_key_loses_nothing(pair: Pair) -> None:
    async def main() -> Any:
        async with QRewardClient([endpoint(pair[0], api_key="wrong"), endpoint(pair[1])]) as client:
            return await client.batch_chat_completion([user(f"q {number}") for number in range(40)], model=MODEL, max_tokens=2)

    batch = asyncio.run(main())
    assert not batch.errors
    assert {result.endpoint for result in batch} == {"b"}


def test_a_priority_of_the_body_reaches_the_server(folder: Path) -> None:
    """The server has 16 places. Of what waits there, it takes the most urgent first."""

    async def main(replica: Replica) -> list[str]:
        ended: list[str] = []
        async with client_of(replica, of={"limits": {"adaptive": False, "max_concurrency": 64}}, hedge=None) as client:

            async def call(name: str, priority: int, length: int) -> None:
                body = GOES_ON | {"priority": priority}
                await client.chat_completion(user(name), model=MODEL, max_tokens=length, extra_body=body)
                ended.append(name)

            async with asyncio.TaskGroup() as group:
                for _ in range(16):
                    group.create_task(call("first", 0, 400))
                await settled(replica, lambda now: now["num_requests_running"] == 16)
                for number in range(32):
                    group.create_task(call("urgent" if number % 2 else "patient", 1 if number % 2 else 9, 100))
        return ended

    with Replica(MODEL, 1, folder, "--scheduling-policy", "priority") as replica:
        ended = [name for name in asyncio.run(main(replica)) if name != "first"]
    assert ended.count("urgent") == 16
    assert ended[:16].count("urgent") >= 14, ended


# decisions


@pytest.mark.parametrize("kind", ["vllm", "openai"])
@pytest.mark.parametrize("dialect", [None, "chat"])
def test_decisions_are_those_of_the_servers_own_log_probabilities(pair: Pair, kind: str, dialect: str | None) -> None:
    think = {"chat_template_kwargs": {"enable_thinking": False}} if kind == "vllm" else {}
    settings = {"kind": kind} | ({"decisions": dialect} if dialect else {})

    async def main() -> Any:
        async with client_of(*pair, of=settings) as client:
            return [(text, await client.decide(text, QUESTIONS, model=MODEL)) for text in INPUTS]

    for text, decision in asyncio.run(main()):
        for question in QUESTIONS:
            wanted, mass = exact(pair[0], question, text, think)
            found = decision[question.name]
            if found.error is None:
                assert list(found.probabilities.values()) == pytest.approx(wanted, abs=0.02), (text, question)
                assert found.label_mass == pytest.approx(mass, abs=0.02)
            else:
                assert mass < 0.9, (text, question, found.error)


def exact(replica: Replica, question: Any, text: str, more: dict[str, Any]) -> tuple[list[float], float]:
    """Return the probabilities of the labels from the server's log probabilities of exactly their tokens, and the sum before they are
    normalized."""
    labels = labels_of(question)
    spellings = {label: [label, f" {label}", label.capitalize(), f" {label.capitalize()}"] for label in labels}
    ids: dict[int, str] = {}
    for label, texts in spellings.items():
        for spelling in dict.fromkeys(texts):
            tokens = said(replica, "/tokenize", {"prompt": spelling, "add_special_tokens": False})["tokens"]
            if len(tokens) == 1:
                ids[tokens[0]] = label
    body = {"messages": user(f"{text}\n\n{asked(question)}"), "max_tokens": 1, "temperature": 1.0, "logprobs": True, "top_logprobs": 0}
    answer = said(replica, "/v1/chat/completions", body | {"logprob_token_ids": list(ids)} | more)
    entries = {each["token"]: each["logprob"] for each in answer["choices"][0]["logprobs"]["content"][0]["top_logprobs"]}
    sums = dict.fromkeys(labels, 0.0)
    for label, texts in spellings.items():
        for spelling in dict.fromkeys(texts):
            sums[label] += math.exp(entries[spelling]) if spelling in entries else 0.0
    whole = math.fsum(sums.values())
    return [value / whole for value in sums.values()], whole


def test_generative_scoring_decides_as_the_models_next_token(pair: Pair) -> None:
    labels = token(pair[0], " yes"), token(pair[0], " no")
    question = QUESTIONS[0]

    async def main() -> Any:
        async with client_of(pair[0], of={"decisions": "generative_scoring", "decision_labels": labels}) as client:
            return [(await client.decide(text, [question], model=MODEL))["right"] for text in INPUTS]

    for text, found in zip(INPUTS, asyncio.run(main()), strict=True):
        body = {"prompt": f"{text}\n\n{asked(question)}\nAnswer:", "max_tokens": 1, "logprobs": 0, "logprob_token_ids": list(labels)}
        entries: Sequence[float] = [
            said(pair[0], "/v1/completions", body)["choices"][0]["logprobs"]["top_logprobs"][0][name] for name in (" yes", " no")
        ]
        yes, no = map(math.exp, entries)
        assert list(found.probabilities.values()) == pytest.approx([yes / (yes + no), no / (yes + no)], abs=0.01)


def test_a_dialect_that_the_server_has_not_is_a_clear_error(pair: Pair) -> None:
    async def main() -> dict[str, Any]:
        found: dict[str, Any] = {}
        for dialect in ("openai", "vllm", "systemone"):
            async with client_of(pair[0], of={"decisions": dialect}) as client:
                try:
                    found[dialect] = (await client.decide(INPUTS[0], QUESTIONS[:1], model=MODEL, timeout=30))["right"].error
                except Exception as error:
                    found[dialect] = error
        return found

    for dialect, error in asyncio.run(main()).items():
        assert error is not None, dialect
        assert "decisions" in str(error), (dialect, str(error))


def test_a_judge_finds_a_method_that_works(pair: Pair) -> None:
    """The weights are random, so any total probability of the options will do."""

    async def main() -> Any:
        async with client_of(*pair) as client, Judge(client, model=MODEL, method="auto", scale=(0, 4), min_label_mass=0) as judge:
            return await judge.score("Rate: How clear?", "What is 7 x 8? The answer is 56.", timeout=60)

    verdict = asyncio.run(main())
    assert 0 <= verdict.score <= 4
