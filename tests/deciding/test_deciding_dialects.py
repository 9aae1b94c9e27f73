"""Finding out which dialect an endpoint speaks: one small decision, shared by all callers, and then the decisions themselves."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import httpx
import pytest
from deciding_tools import MODEL, DecisionServer, client_of, endpoint, expected, now, questions, read, refused

from qreward import AuthenticationFailed, BadRequest, ClientClosed, ConnectionFailed, Judge, QRewardClient, RequestTimeout
from qreward.deciding import TIMEOUT

NO_ANSWER = 1e6
CHAT = ["/decisions", "/systemone", "/chat/completions"]
"""Paths of the requests that find out that a server speaks ``chat``."""


async def test_one_small_decision_is_sent_however_many_calls_begin_together_and_other_endpoints_show_their_dialect_themselves() -> None:
    servers = {"a": DecisionServer("openai"), "b": DecisionServer("chat"), "c": DecisionServer("openai")}
    async with client_of(servers) as client:
        decisions = await asyncio.gather(*(client.decide("text", questions(1), model=MODEL) for _ in range(30)))
        await client.batch_decide(["text"] * 30, questions(1), model=MODEL)
    assert [server.probes for server in servers.values()] == [["/decisions"], [], []]
    assert all(read(decision) == expected(1) for decision in decisions)
    assert {path for name in "ac" for path, _ in servers[name].asked} == {"/decisions"}
    paths = [path for path, _ in servers["b"].asked]
    assert paths == sorted(paths, key=CHAT.index), "until it has answered, a request is sent in one dialect after the other"


async def test_models_are_found_out_apart_because_a_server_may_serve_them_differently() -> None:
    server = DecisionServer(
        "openai", reply=lambda path, body: httpx.Response(501) if path == "/decisions" and body["model"] == "b" else None
    )
    async with client_of({"a": server}) as client:
        for model in ("a", "b", "a", "b"):
            await client.decide("text", questions(2), model=model)
    assert server.probes == ["/decisions", *CHAT]
    assert server.asked == [("/decisions", 2), *[("/chat/completions", 1)] * 2] * 2


async def test_an_endpoint_that_does_not_answer_delays_nothing_once_another_one_is_known() -> None:
    servers = {"well": DecisionServer(), "hangs": DecisionServer(seconds=NO_ANSWER)}
    async with client_of(servers) as client:
        client.mark_unhealthy("hangs")
        await client.batch_decide(["text"] * 8, questions(3), model=MODEL)
        assert now() == 2.0


async def test_where_no_endpoint_answers_a_call_goes_on_after_ten_seconds() -> None:
    server = DecisionServer(reply=lambda path, body: None)
    server.seconds = NO_ANSWER
    async with client_of({"a": server}) as client:
        call = asyncio.ensure_future(client.decide("text", questions(2), model=MODEL))
        await asyncio.sleep(TIMEOUT + 1)
        assert server.asked == [("/decisions", 2)]
        call.cancel()
        await asyncio.wait([call])


async def test_the_timeout_of_a_call_and_the_deadline_of_a_batch_include_finding_out() -> None:
    server = DecisionServer(seconds=NO_ANSWER)
    async with client_of({"a": server}) as client:
        with pytest.raises(RequestTimeout, match=r"timeout of 2 s: which dialect of decisions .\*. speaks is not known yet"):
            await client.decide("text", questions(2), model=MODEL, timeout=2)
        assert now() == 2.0
        batch = await client.batch_decide(["text"] * 3, questions(2), model=MODEL, deadline=5)
        assert now() == 7.0
        assert {str(error).partition(";")[0] for error in batch.errors.values()} == {"not done within the batch's deadline of 5 s"}


async def test_a_batch_whose_client_is_closed_while_it_finds_out_reads_and_sends_nothing() -> None:
    makers: list[Callable[[QRewardClient, Any], Any]] = [
        lambda client, items: client.batch_decide(items, questions(2), model=MODEL),
        lambda client, items: Judge(client, model=MODEL, method="decide").batch_score(items),
    ]
    for make in makers:
        server, items = DecisionServer(), iter([("prompt", "response")] * 1000)
        client = client_of({"a": server})
        call = asyncio.ensure_future(make(client, items))
        await asyncio.sleep(0.5)
        await client.aclose()
        with pytest.raises(ClientClosed, match="make a new one"):
            await call
        assert (len(list(items)), server.asked) == (1000, [])


async def test_what_cannot_be_found_out_is_not_asked_again_but_shown_by_the_first_decision() -> None:
    for status in (401, 403, 429, 500, 503):
        answers = iter([httpx.Response(status, json={"error": {"message": "not now"}})])
        servers = {"chat": DecisionServer("chat", seconds=0.1), "later": DecisionServer("chat", reply=lambda *_, a=answers: next(a, None))}
        async with client_of(servers, most=1) as client:
            for _ in range(2):
                batch = await client.batch_decide(["text"] * 12, questions(2), model=MODEL)
                assert not batch.errors, status
        paths = [path for path, _ in servers["later"].asked]
        assert len(paths) < 14, (status, paths)


async def test_an_endpoint_that_could_not_be_reached_is_asked_by_a_later_call_if_nothing_is_known() -> None:
    class Refuses(DecisionServer):
        refuses = True

        async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
            if self.refuses:
                raise httpx.ConnectError("refused")
            return await super().handle_async_request(request)

    server = Refuses("chat")
    async with client_of({"a": server}) as client:
        with pytest.raises(ConnectionFailed):
            await client.decide("text", questions(1), model=MODEL)
        server.refuses = False
        assert read(await client.decide("text", questions(2), model=MODEL)) == expected(2)
    assert server.probes == CHAT
    assert server.asked == [("/chat/completions", 1)] * 2


async def test_when_a_server_is_replaced_the_request_is_sent_again_once_in_the_new_dialect_divided_if_need_be() -> None:
    for count in (1, 5):
        server = DecisionServer("openai")
        async with client_of({"a": server}) as client:
            await client.decide("text", questions(1), model=MODEL)
            server.speaks, server.asked = "chat", []
            assert read(await client.decide("text", questions(count), model=MODEL)) == expected(count)
            batch = await client.batch_decide(["text"], questions(count), model=MODEL)
            assert read(batch[0].value) == expected(count)
        assert server.asked[:2] == [("/decisions", count), ("/systemone", count)]
        assert server.asked[2:] == [("/chat/completions", 1)] * count * 2
        assert server.probes == ["/decisions"]


async def test_a_server_without_any_known_path_is_an_error_that_says_how_to_name_its_dialect() -> None:
    server = DecisionServer(None)
    async with client_of({"gpu-3": server}) as client:
        with pytest.raises(BadRequest) as caught:
            await client.decide("text", questions(2), model=MODEL)
    assert "endpoint 'gpu-3' answered 404 for model 'judge-7b'" in str(caught.value)
    assert "sent in the dialect 'chat'" in str(caught.value)
    assert "set decisions= of endpoint 'gpu-3'" in str(caught.value)


async def test_a_path_that_is_missing_may_be_told_with_status_200_or_by_a_gateway_with_403() -> None:
    def no_path(status: int, body: dict[str, str], path: str, _: object) -> httpx.Response | None:
        return None if path == "/chat/completions" else httpx.Response(status, json=body)

    missing = {200: {"error": "Unexpected endpoint or method. (POST /v1/decisions)"}, 403: {"message": "Missing Authentication Token"}}
    for status, body in missing.items():
        server = DecisionServer("chat", reply=partial(no_path, status, body))
        async with client_of({"a": server}) as client:
            assert read(await client.decide("text", questions(1), model=MODEL)) == expected(1)
        assert server.probes == CHAT, status


async def test_a_wrong_key_is_the_error_of_every_dialect_and_does_not_change_one_that_is_known() -> None:
    for known, paths in ((False, CHAT), (True, ["/decisions"])):
        server = DecisionServer("openai")
        async with client_of({"a": server}) as client:
            if known:
                await client.decide("text", questions(1), model=MODEL)
            server.asked, server.reply = [], lambda *_: httpx.Response(403, json={"message": "wrong key"})
            with pytest.raises(AuthenticationFailed, match="wrong key"):
                await client.decide("text", questions(1), model=MODEL)
        assert [path for path, _ in server.asked] == paths


async def test_a_server_that_refuses_every_dialect_is_an_error_until_it_answers_in_one() -> None:
    server = DecisionServer(reply=lambda path, _: refused("no") if path == "/chat/completions" else httpx.Response(404, json={}))
    async with client_of({"a": server}) as client:
        for _ in range(2):
            batch = await client.batch_decide(["text"] * 10, questions(1), model=MODEL)
            assert {type(result.error) for result in batch} == {BadRequest}
        server.reply = None
        assert read(await client.decide("text", questions(2), model=MODEL)) == expected(2)


async def test_a_server_that_answers_only_with_a_parameter_of_the_caller_is_found_out_by_the_first_answer() -> None:
    def reply(path: str, body: dict[str, Any]) -> httpx.Response | None:
        return refused("use max_completion_tokens") if path == "/chat/completions" and "max_tokens" in body else None

    server = DecisionServer("chat", reply=reply)
    async with client_of({"a": server}) as client:
        for _ in range(3):
            assert read(await client.decide("text", questions(1), model=MODEL, max_completion_tokens=4)) == expected(1)
    assert set(server.probes) == set(CHAT)
    assert server.asked == [("/decisions", 1), ("/systemone", 1), *[("/chat/completions", 1)] * 3]


async def test_a_server_that_is_not_ready_when_it_is_found_out_is_asked_in_the_dialects_with_the_first_decision() -> None:
    starting = iter([httpx.Response(503, json={"error": {"message": "starting"}})])
    server = DecisionServer("chat", reply=lambda *_: next(starting, None))
    async with client_of({"a": server}) as client:
        assert read(await client.decide("text", questions(1), model=MODEL)) == expected(1)
        assert read(await client.decide("text", questions(2), model=MODEL)) == expected(2)
    assert server.probes == ["/decisions", *CHAT], "it is sent again, as any request"
    assert [path for path, _ in server.asked] == ["/chat/completions"] * 3


async def test_a_server_that_returns_few_log_probabilities_is_asked_for_fewer_by_every_call_that_follows() -> None:
    def most_five(path: str, body: dict[str, Any]) -> httpx.Response | None:
        most = body.get("top_logprobs", 0)
        asked.append(most)
        return refused(f"Requested sample logprobs of {most}, which is greater than max allowed: 5") if most > 5 else None

    for named in (None, "chat"):
        asked = list[int]()
        server = DecisionServer("chat", reply=most_five)
        async with client_of({"a": server}, decisions=named) as client:
            assert read(await client.decide("text", questions(2), model=MODEL)) == expected(2)
            batch = await client.batch_decide(["text"] * 5, questions(1), model=MODEL)
            assert [read(result.value) for result in batch] == [expected(1)] * 5
        assert asked[-5:] == [5] * 5, named
        assert asked.count(20) <= 2, named


async def test_a_server_that_returns_no_log_probabilities_at_all_is_an_error_that_says_what_to_set() -> None:
    server = DecisionServer("chat", reply=lambda path, _: refused("logprobs: max allowed: 0") if "chat" in path else None)
    async with client_of({"a": server}) as client:
        with pytest.raises(BadRequest, match=r"let the server return 20 of them \(vLLM: --max-logprobs 20\)"):
            await client.decide("text", questions(1), model=MODEL)


async def test_the_setting_of_an_endpoint_stands_whatever_its_responses_point_to() -> None:
    server = DecisionServer("chat")
    async with client_of({"a": server}, decisions="openai") as client:
        for _ in range(2):
            with pytest.raises(BadRequest, match="sent in the dialect 'openai'"):
                await client.decide("text", questions(2), model=MODEL)
    assert {path for path, _ in server.asked} == {"/decisions"}
    assert server.probes == []


async def test_an_endpoint_that_is_added_is_found_out_by_the_next_call() -> None:
    servers = {"a": DecisionServer("openai"), "b": DecisionServer("chat")}
    async with client_of({"a": servers["a"]}) as client:
        await client.decide("text", questions(1), model=MODEL)
        client.add_endpoint(endpoint("b", servers["b"]))
        client.mark_unhealthy("a")
        assert read(await client.decide("text", questions(2), model=MODEL)) == expected(2)
    assert (servers["a"].probes, servers["b"].probes) == (["/decisions"], [])
    assert [path for path, _ in servers["b"].asked][-2:] == ["/chat/completions"] * 2


async def test_a_reload_that_sets_the_dialect_or_moves_the_endpoint_takes_effect() -> None:
    first, second = DecisionServer("openai"), DecisionServer("chat")
    async with client_of({"a": first}) as client:
        await client.decide("text", questions(1), model=MODEL)
        set_to = client.config.model_copy(update={"endpoints": (endpoint("a", first, decisions="chat"),)})
        client.reload(set_to)
        await client.decide("text", questions(1), model=MODEL)
        assert first.asked == [("/decisions", 1), ("/chat/completions", 1)]
        moved = endpoint("a", second).model_copy(update={"base_url": "http://elsewhere.example/v1"})
        client.reload(client.config.model_copy(update={"endpoints": (moved,)}))
        await client.decide("text", questions(1), model=MODEL)
    assert second.probes == CHAT
    assert second.asked == [("/chat/completions", 1)]


async def test_a_caller_that_is_cancelled_takes_the_finding_out_from_no_other() -> None:
    server = DecisionServer("openai")
    async with client_of({"a": server}) as client:
        first = asyncio.ensure_future(client.decide("text", questions(1), model=MODEL))
        await asyncio.sleep(0.5)
        second = asyncio.ensure_future(client.decide("text", questions(1), model=MODEL))
        await asyncio.sleep(0)
        first.cancel()
        assert read(await second) == expected(1)
        assert now() == 2.0
    assert server.probes == ["/decisions"]
    assert server.asked == [("/decisions", 1)]


async def test_closing_the_client_ends_the_finding_out() -> None:
    server = DecisionServer(seconds=NO_ANSWER)
    client = client_of({"a": server})
    call = asyncio.ensure_future(client.decide("text", questions(1), model=MODEL))
    await asyncio.sleep(1)
    await client.aclose()
    await asyncio.wait([call])
    assert type(call.exception()).__name__ == "ClientClosed"
    assert (server.live, now()) == (0, 1.0)


async def test_what_was_found_out_is_in_the_log_and_no_secret_is(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "qreward")
    secret = "key-of-the-endpoint"
    servers = {"a": DecisionServer("openai"), "b": DecisionServer("openai", reply=lambda *_: refused(f"the key {secret} is wrong", 401))}
    clients = [endpoint(name, server, api_key=secret) for name, server in servers.items()]
    async with QRewardClient(clients, clock=asyncio.get_running_loop().time) as client:
        await client.batch_decide(["text"] * 4, questions(1), model=MODEL)
        await asyncio.sleep(2)
        await client.decide("text", questions(1), model=MODEL)
    assert "endpoint 'a', model 'judge-7b': speaks the dialect 'openai' of decisions" in caplog.text
    assert secret not in caplog.text


@pytest.mark.real_time(20.0)
async def test_threads_share_what_was_found_out() -> None:
    server = DecisionServer("chat", seconds=0.05)
    client, read_by = client_of({"a": server}), list[object]()
    gate = threading.Barrier(4)

    async def decide() -> None:
        gate.wait()
        read_by.append(read(await client.decide("text", questions(2), model=MODEL)))

    threads = [threading.Thread(target=asyncio.run, args=[decide()]) for _ in range(4)]
    for thread in threads:
        thread.start()
    await asyncio.gather(*(asyncio.to_thread(thread.join) for thread in threads))
    await client.aclose()
    assert read_by == [expected(2)] * 4
    assert server.probes.count("/chat/completions") <= 4
    assert server.asked == [("/chat/completions", 1)] * 8


async def test_a_decision_that_is_wrong_itself_does_not_make_an_endpoint_speak_another_dialect() -> None:
    servers = {"a": DecisionServer("openai"), "b": DecisionServer("openai")}
    async with client_of(servers) as client:
        client.mark_unhealthy("b")
        await client.decide("text", questions(1), model=MODEL)
        client.mark_healthy("b")
        client.mark_unhealthy("a")
        with pytest.raises(BadRequest, match="cannot be read"):
            await client.decide("text", questions(1, frozenset({0})), model=MODEL)
        assert read(await client.decide("text", questions(2), model=MODEL)) == expected(2)
    assert (servers["b"].probes, {path for path, _ in servers["b"].asked}) == (["/decisions"], {"/decisions"})
