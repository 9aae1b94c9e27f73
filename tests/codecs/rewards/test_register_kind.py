"""A kind of reward server that a user adds: from its record to scores, over real HTTP."""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest
from aiohttp import web
from shared_tools import serving

from qreward import ConfigError, Endpoint, ListCodec, MergeLimits, QRewardClient, RewardModel, ServerKind, register_kind
from qreward.codecs.base import EmbeddedError, Malformed, WireRequest
from qreward.codecs.rewards import kinds
from qreward.codecs.rewards.server_info import Load
from qreward.settings.policies import SERVER_KINDS
from qreward.transport.backend import HttpBackend


class AcmeReward(ListCodec):
    """``POST /reward {"texts": ["a", "b"]} -> {"rewards": [0.5, 0.25]}``"""

    path = "/reward"
    native = True
    member = "texts"
    rows_in = "rewards"
    limits = MergeLimits(items=4)


class AcmeAspects(ListCodec):
    """``POST /aspects {"pairs": [{"q", "a"}]} -> {"tables": {"good": [...], "bad": [...]}}``"""

    path = "/aspects"
    native = True
    pairs = True
    texts = False

    def body(self, items: list[Any]) -> dict[str, Any]:
        return {"pairs": [{"q": item.prompt, "a": item.response} for item in items]}

    def rows(self, document: Any, call: Any) -> list[Any]:
        return [{"score": good - bad} for good, bad in zip(document["tables"]["good"], document["tables"]["bad"], strict=True)]


def info(body: bytes) -> Load:
    return Load(items=json.loads(body)["most"])


ACME = ServerKind("acme", {"score": {"": AcmeReward, "pooling": AcmeAspects}}, probe=("/ready",), info="/limits", readers={"/limits": info})


def forget() -> None:
    kinds._KINDS.pop("acme")
    SERVER_KINDS.remove("acme")


@pytest.fixture(autouse=True)
def acme() -> Iterator[None]:
    register_kind(ACME)
    yield
    forget()


class Acme:
    """A small server of this kind."""

    def __init__(self) -> None:
        self.lists: list[int] = []

    async def serve(self, request: web.BaseRequest) -> web.Response:
        if request.path == "/ready":
            return web.Response()
        if request.path == "/limits":
            return web.json_response({"most": 2})
        body = await request.json()
        if request.path == "/aspects":
            lengths = [len(pair["a"]) for pair in body["pairs"]]
            return web.json_response({"tables": {"good": lengths, "bad": [1] * len(lengths)}})
        assert request.path == "/reward", request.path
        self.lists.append(len(body["texts"]))
        return web.json_response({"rewards": [float(len(text)) for text in body["texts"]]})

    def running(self) -> AbstractAsyncContextManager[str]:
        return serving(self.serve)


async def test_its_name_is_a_kind_of_endpoint_and_its_server_gives_scores_in_lists() -> None:
    server, texts = Acme(), ["a" * length for length in range(1, 11)]
    async with server.running() as url, QRewardClient([Endpoint(url, kind="acme", proxy="")]) as client:
        batch = await client.batch_score(texts, model="rm")
        assert batch.scores() == [float(len(text)) for text in texts]
        assert max(server.lists) == 4
        assert await client.score("abc", model="rm") == 3.0
        with pytest.raises(ConfigError, match="does not support rerank"):
            await client.rerank("q", ["a"], model="rm")


async def test_a_route_of_it_may_take_pairs_in_a_body_of_its_own() -> None:
    async with Acme().running() as url:
        endpoint = Endpoint(url, kind="acme", proxy="", reward=RewardModel(route="pooling"))
        async with QRewardClient([endpoint]) as client:
            assert await client.score("q", "answer", model="rm") == 5.0


def test_a_reply_in_another_form_than_the_codec_expects_is_no_answer() -> None:
    replies: list[tuple[str, list[Any], list[bytes]]] = [
        ("", ["a", "b"], [b'{"rewards": [1]}', b'{"rewards": null}', b'{"rewards": ["x", "y"]}', b"{}", b"[1.0, 2.0]", b'{"error": "x"}']),
        ("pooling", [("q", "a")], [b"[]", b"{}", b'{"tables": {"good": [1]}}', b'{"tables": {"good": [1], "bad": ["x"]}}']),
    ]
    for route, items, bodies in replies:
        codec = kinds.codec_of("acme", kinds.SCORE, RewardModel(route=route or None))  # type: ignore[arg-type]
        call = WireRequest(codec, "rm", list(map(kinds.SCORE.item, items)), {}, None)
        for body in bodies:
            with pytest.raises((Malformed, EmbeddedError), match="another form than AcmeAspects expects" if route else None):
                codec.decode(body, call)


async def test_its_probe_finds_readiness_and_limits() -> None:
    backend = HttpBackend()
    async with Acme().running() as url:
        found = await backend.look(Endpoint(url, kind="acme", proxy=""))
    await backend.aclose()
    assert (found.ready, found.items, found.trouble) == (True, 2, None)


def test_an_unknown_kind_is_an_error_with_the_closest_name() -> None:
    with pytest.raises(ConfigError, match=r"kind: must be 'openai', .* or 'acme', not 'acmee'; did you mean 'acme'\?"):
        Endpoint("http://gpu-0", kind="acmee")


def test_a_record_that_cannot_be_meant_is_refused() -> None:
    class NoPath(ListCodec):
        pass

    class NoCodec:
        path = "/reward"

    for kind, message in (
        (ServerKind("tei", {"score": AcmeReward}), "'tei' is built in"),
        (ServerKind("", {"score": AcmeReward}), "takes a ServerKind"),
        ("acme", "takes a ServerKind"),
        (ServerKind("other", {"scores": AcmeReward}), "did you mean 'score'?"),
        (ServerKind("other", {"score": NoPath}), "a path such as '/reward'"),
        (ServerKind("other", {"score": NoCodec}), "must be a ListCodec"),  # type: ignore[dict-item]
    ):
        with pytest.raises(ConfigError, match=message):
            register_kind(kind)  # type: ignore[arg-type]
    assert "other" not in SERVER_KINDS


def test_a_kind_that_is_registered_again_is_replaced() -> None:
    class Other(AcmeReward):
        path = "/other"

    assert kinds.codec_of("acme", kinds.SCORE).path == "/reward"
    register_kind(ServerKind("acme", {"score": Other}))
    assert kinds.codec_of("acme", kinds.SCORE).path == "/other"
    assert SERVER_KINDS.count("acme") == 1


async def test_a_process_that_gets_a_pickled_client_has_to_register_the_kind_as_well() -> None:
    async with Acme().running() as url:
        pickled = pickle.dumps(QRewardClient([Endpoint(url, kind="acme", proxy="")]))
        forget()  # as in another process
        with pytest.raises(ConfigError, match="call register_kind"):
            async with pickle.loads(pickled) as client:
                await client.score("abc", model="rm")
        register_kind(ACME)
        async with pickle.loads(pickled) as client:
            assert await client.score("abc", model="rm") == 3.0
