"""Embeddings that were merged into one request: each caller gets what it would have got alone."""

from __future__ import annotations

import asyncio
import base64
import json
import struct
from itertools import product
from typing import Any

import httpx

from qreward import Endpoint, Limits, QRewardClient
from qreward.codecs.embeddings import EmbeddingsAnswer
from qreward.scoring.merge_spec import parts_of

MODEL = "embedder"


class Server(httpx.AsyncBaseTransport):
    """Gives each input a vector of its own; the order of the answer, its form and its usage can be set."""

    def __init__(self, *, backwards: bool = False, extra: bool = True, usage: bool = True) -> None:
        self.backwards, self.extra, self.usage = backwards, extra, usage
        self.bodies: list[dict[str, Any]] = []

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        body = json.loads(request.content)
        self.bodies.append(body)
        await asyncio.sleep(0.01)
        given = body["input"]
        inputs = [given] if isinstance(given, str) or isinstance(given[0], int) else given
        if any("refuse" in str(each) for each in inputs):
            return httpx.Response(400, json={"error": {"message": "no", "code": 400}})
        rows = [{"object": "embedding", "index": index, "embedding": self.vector(each, body)} for index, each in enumerate(inputs)]
        document: dict[str, Any] = {"object": "list", "model": "served-as", "data": rows[::-1] if self.backwards else rows}
        if self.extra:
            document["id"] = "embd-1"
        if self.usage:
            document["usage"] = {"prompt_tokens": 4 * len(inputs), "total_tokens": 4 * len(inputs)}
        return httpx.Response(200, json=document)

    @staticmethod
    def vector(given: Any, body: dict[str, Any]) -> Any:
        floats = [float(len(str(given))), 0.5]
        return base64.b64encode(struct.pack("<2f", *floats)).decode() if body.get("encoding_format") == "base64" else floats


def client_of(server: Server, **settings: Any) -> QRewardClient:
    limits = Limits(max_concurrency=1, adaptive=False)
    return QRewardClient([Endpoint("http://gpu-0.example/v1", name="gpu-0", http_client=server, limits=limits, **settings)])


def embedded(server: Server, inputs: list[Any], **params: Any) -> list[Any]:
    async def main() -> list[Any]:
        async with client_of(server) as client:
            return await asyncio.gather(*(client.embeddings(each, MODEL, **params) for each in inputs), return_exceptions=True)

    return asyncio.run(main())


def test_each_call_gets_its_own_vectors_numbered_from_0_and_its_share_of_the_usage() -> None:
    inputs: list[Any] = ["a", ["bb", "ccc"], ["dddd"], "ee"]
    for backwards, form in product((False, True), ({}, {"encoding_format": "base64"})):
        server = Server(backwards=backwards)
        found = embedded(server, inputs, **form)
        assert [body["input"] for body in server.bodies] == [["a", "bb", "ccc", "dddd", "ee"]]
        assert [[item.embedding[0] for item in each.data] for each in found] == [[1.0], [2.0, 3.0], [4.0], [2.0]]
        assert [[item.index for item in each.data] for each in found] == [[0], [0, 1], [0], [0]]
        assert {(each.model, each.id) for each in found} == {("served-as", "embd-1")}
        assert sum(each.usage.prompt_tokens for each in found) == sum(each.usage.total_tokens for each in found) == 20
        assert found[1].usage.prompt_tokens > found[0].usage.prompt_tokens, "by the size of the inputs"


def test_a_call_alone_is_sent_as_it_was_given_and_its_usage_is_exact() -> None:
    async def main() -> None:
        server = Server()
        async with client_of(server) as client:
            for given in ("text", ["text"], [1, 2, 3], [[1, 2], [3]]):
                await client.embeddings(given, MODEL, dimensions=2)
            batch = await client.batch_embeddings(["one"], MODEL)
            assert batch[0].usage is not None
            assert (batch[0].usage.prompt_tokens, batch[0].usage_is_estimated) == (4, False)
        assert [body["input"] for body in server.bodies] == ["text", ["text"], [1, 2, 3], [[1, 2], [3]], "one"]
        assert server.bodies[0] == {"model": MODEL, "input": "text", "dimensions": 2}

    asyncio.run(main())


def test_the_usage_of_merged_items_is_marked_as_estimated_and_adds_up() -> None:
    async def main() -> None:
        server = Server()
        async with client_of(server) as client:
            batch = await client.batch_embeddings([f"text {number}" for number in range(30)], MODEL)
            assert all(result.usage_is_estimated for result in batch)
            assert sum(result.usage.prompt_tokens or 0 for result in batch if result.usage) == 120
            assert batch.stats.endpoints["gpu-0"].prompt_tokens == 120
            assert client.stats()["gpu-0"].prompt_tokens == 120
            assert (client.stats()["gpu-0"].sent, batch.stats.endpoints["gpu-0"].sent) == (len(server.bodies), 30)

    asyncio.run(main())


def test_texts_and_tokens_do_not_share_a_request() -> None:
    server = Server()
    found = embedded(server, ["text", [1, 2, 3], ["a", "b"], [[4, 5], [6]]])
    assert sorted(map(str, (body["input"] for body in server.bodies))) == sorted(map(str, [["text", "a", "b"], [[1, 2, 3], [4, 5], [6]]]))
    assert [len(each.data) for each in found] == [1, 1, 2, 2]


def test_a_call_with_more_inputs_than_a_list_may_have_goes_alone_and_whole() -> None:
    server = Server()
    many = [f"text {number}" for number in range(600)]
    found = embedded(server, ["a", many, "b"])
    assert many in [body["input"] for body in server.bodies]
    assert [len(each.data) for each in found] == [1, 600, 1]


def test_an_answer_that_is_too_odd_to_take_apart_is_an_error_for_each() -> None:
    for body in (b'{"data": [{"embedding": [NaN]}, {"embedding": [1]}]}', b'{"data": [1, 2]}', b"[]", b"\xff"):
        parts = parts_of(EmbeddingsAnswer(body, MODEL, None), [1, 1], [1.0, 1.0])
        assert all(isinstance(part, Exception) for part in parts), body


def test_a_text_without_a_valid_vector_fails_its_own_call_alone() -> None:
    class Nan(Server):
        @staticmethod
        def vector(given: Any, body: dict[str, Any]) -> Any:
            return [None, 0.5] if given == "bad" else Server.vector(given, body)

    for backwards in (False, True):
        server = Nan(backwards=backwards)
        found = embedded(server, ["a", ["bb", "bad"], "ccc"])
        assert [type(each).__name__ for each in found] == ["CreateEmbeddingResponse", "InvalidResponse", "CreateEmbeddingResponse"]
        assert [found[place].data[0].embedding[0] for place in (0, 2)] == [1.0, 3.0]
        assert {str(body["input"]) for body in server.bodies[1:]} == {"['bb', 'bad']"}, "only this call is sent again"


def test_rows_without_an_index_count_by_their_place() -> None:
    body = json.dumps({"data": [{"embedding": [float(number)]} for number in range(4)], "model": "m"}).encode()
    first, second = parts_of(EmbeddingsAnswer(body, MODEL, None), [3, 1], [3.0, 1.0])
    assert isinstance(first, EmbeddingsAnswer)
    assert isinstance(second, EmbeddingsAnswer)
    assert [item.embedding for item in first.build().data] == [[0.0], [1.0], [2.0]]
    assert [item.embedding for item in second.build().data] == [[3.0]]


def test_token_ids_may_be_tuples() -> None:
    server = Server()
    found = embedded(server, [(1, 2, 3), [(4,), (5, 6)], [7]])
    assert [len(each.data) for each in found] == [1, 2, 1]
    assert [body["input"] for body in server.bodies] == [[[1, 2, 3], [4], [5, 6], [7]]]
    assert len(embedded(server, [(1, 2, 3)])[0].data) == 1
