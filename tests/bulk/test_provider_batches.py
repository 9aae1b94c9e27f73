"""Bulks that go through a provider's Batch API, on virtual time: every line has its answer once, and is paid once, whatever happens."""

from __future__ import annotations

import asyncio
import errno
import json
import tracemalloc
from collections.abc import Callable
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import httpx
import msgspec
import pytest
from bulk_fakes import line as chat
from provider_tools import (
    KEY,
    FakeProvider,
    answers,
    client_of,
    endpoint,
    expected,
    limit_lines,
    paid_once,
    rows,
    run,
    service,
)

from qreward import ConfigError, Endpoint, NoEndpoint, QRewardError
from qreward.bulk import provider
from qreward.bulk.budget import Spent
from qreward.bulk.inputs import Line, digest_of
from qreward.bulk.journal import Journal
from qreward.bulk.provider import BatchApi
from qreward.bulk.provider_batches import IN_FLIGHT, Batch
from qreward.bulk.requests import BulkSettings, RequestReader

CHAT = [{"role": "user", "content": "hi"}]


class Ordinary(httpx.AsyncBaseTransport):
    """An endpoint of kind ``openai``."""

    def __init__(self, seconds: float = 0.0) -> None:
        self.paths: list[str] = []
        self._seconds = seconds

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        self.paths.append(request.url.path)
        await asyncio.sleep(self._seconds)
        message = {"role": "assistant", "content": "ordinary"}
        choice = {"index": 0, "finish_reason": "stop", "message": message}
        usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
        return httpx.Response(
            200, json={"id": "c", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice], "usage": usage}
        )


def failed(fake: FakeProvider, name: str, *faults: dict[str, Any]) -> None:
    """From now on the provider says that it has refused the file of a batch."""

    def after(method: str, path: str) -> httpx.Response | None:
        if (method, path) != ("GET", f"/v1/batches/{name}"):
            return None
        shown = fake.service.batches[name].shown
        return httpx.Response(200, json={**shown, "status": "failed", "errors": {"object": "list", "data": list(faults)}})

    fake.after = after


def ordinary(transport: Ordinary) -> Endpoint:
    return Endpoint("http://gpu-0/v1", http_client=transport)


# the usual way


async def test_a_bulk_goes_through_files_and_gets_the_lines_of_the_provider(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    limit_lines(monkeypatch, 4)
    fake, output = FakeProvider(service(duration=3600.0)), tmp_path / "out.jsonl"
    report = await run(fake, [chat(number) for number in range(10)], output)
    assert (report.exit_code, report.done, report.sent, report.failed) == (0, 10, 10, 0)
    assert answers(output) == expected(10)
    assert list(answers(output)) == list(expected(10))
    assert all(row["id"].startswith("batch_req_") and row["error"] is None for row in rows(output))
    assert [len(batch.lines) for batch in fake.service.batches.values()] == [4, 4, 2]
    paid_once(fake.service, 10)
    assert report.endpoints["provider"].won == 10
    assert report.tokens > 0


async def test_looks_at_a_batch_become_rarer_up_to_the_setting(tmp_path: Path) -> None:
    loop = asyncio.get_running_loop()
    for probe, most in ((None, 60.0), (7.0, 7.0)):
        fake = FakeProvider(service(duration=1000.0))
        times: list[float] = []
        fake.on_call = lambda fake=fake, times=times: (
            times.append(loop.time()) if fake.calls[-1] == ("GET", "/v1/batches/batch_1") else None
        )  # type: ignore[misc]
        await run(fake, [chat(0)], tmp_path / f"{most}.jsonl", client_of(endpoint(fake, probe=probe)))
        looks = times[::2]
        gaps = [after - before for before, after in pairwise(looks)]
        assert gaps[-1] == pytest.approx(most, abs=0.1)
        assert all(after >= before - 0.1 for before, after in pairwise(gaps))
        assert min(gaps) >= 5.0


async def test_each_file_has_one_model_and_one_url(tmp_path: Path) -> None:
    fake, output = FakeProvider(service(duration=10.0)), tmp_path / "out.jsonl"
    lines = [chat(0), {**chat(1), "body": {**chat(1)["body"], "model": "judge-8b"}}, chat(2)]
    lines += [{"custom_id": f"e-{n}", "url": "/v1/embeddings", "body": {"model": "embed-1", "input": ["a", "b"]}} for n in range(2)]
    report = await run(fake, lines, output)
    assert report.exit_code == 0
    assert sorted((batch.shown["endpoint"], len(batch.lines)) for batch in fake.service.batches.values()) == [
        ("/v1/chat/completions", 1),
        ("/v1/chat/completions", 2),
        ("/v1/embeddings", 2),
    ]
    assert [row["custom_id"] for row in rows(output)] == ["id-0", "id-1", "id-2", "e-0", "e-1"]
    assert len(rows(output)[3]["response"]["body"]["data"]) == 2


async def test_files_are_split_by_bytes_and_by_inputs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(provider, "FILE_BYTES", 400)
    fake = FakeProvider(service())
    await run(fake, [chat(number) for number in range(7)], tmp_path / "bytes.jsonl")
    sizes = [len(content) for shown, content in fake.service.files.values() if shown["purpose"] == "batch"]
    assert len(sizes) == 4
    assert max(sizes) <= 400
    monkeypatch.setattr(provider, "FILE_BYTES", 10_000)
    monkeypatch.setattr(provider, "INPUTS", 5)
    fake = FakeProvider(service())
    lines = [{"custom_id": f"{n}", "url": "/v1/embeddings", "body": {"model": "embed-1", "input": ["a"] * n}} for n in (3, 2, 3, 6)]
    report = await run(fake, lines, tmp_path / "inputs.jsonl")
    assert sorted(len(batch.lines) for batch in fake.service.batches.values()) == [1, 2]
    assert report.failed == 1
    assert "6 inputs" in rows(tmp_path / "inputs.failed.jsonl")[0]["error"]["message"]


async def test_two_endpoints_take_files_in_turn_each_with_its_own_name_of_the_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit_lines(monkeypatch, 2)
    one, two = FakeProvider(service()), FakeProvider(service())
    client = client_of(endpoint(one, "one"), endpoint(two, "two", model_names={"judge-7b": "judge-7b-2026"}))
    report = await run(one, [chat(number) for number in range(8)], tmp_path / "out.jsonl", client)
    assert report.exit_code == 0
    assert [len(fake.service.batches) for fake in (one, two)] == [2, 2]
    models = [{line["body"]["model"] for batch in fake.service.batches.values() for line in batch.lines} for fake in (one, two)]
    assert models == [{"judge-7b"}, {"judge-7b-2026"}]


# what goes there


async def test_only_bulks_use_such_an_endpoint(tmp_path: Path) -> None:
    fake = FakeProvider(service())
    async with client_of(endpoint(fake)) as client:
        for call in (
            lambda: client.chat_completion(CHAT, model="judge-7b"),
            lambda: client.batch_chat_completion([CHAT], model="judge-7b"),
        ):
            with pytest.raises(NoEndpoint, match=r"openai_batch.*qreward run"):
                await call()
    assert fake.calls == []


async def test_beside_ordinary_endpoints_it_takes_the_lines_of_bulks_unless_the_run_says_never(tmp_path: Path) -> None:
    settings: tuple[tuple[Literal["auto", "never"], int], ...] = (("auto", 2), ("never", 0))
    for setting, at_provider in settings:
        fake, other = FakeProvider(service()), Ordinary()
        async with client_of(endpoint(fake), ordinary(other)) as client:
            assert (await client.chat_completion(CHAT, model="judge-7b")).choices[0].message.content == "ordinary"
            report = await client.run([chat(0), chat(1)], output=tmp_path / f"{setting}.jsonl", progress=False, provider_batches=setting)
        assert report.exit_code == 0, setting
        assert sum(fake.service.worked.values()) == at_provider, setting
        assert len(other.paths) == 1 + 2 - at_provider, setting


async def test_lines_that_a_batch_cannot_hold_go_to_ordinary_endpoints_or_fail_with_the_reason(tmp_path: Path) -> None:
    score = {"custom_id": "s", "url": "/v1/score", "body": {"model": "judge-7b", "text_1": "a", "text_2": "b"}}
    fake, other = FakeProvider(service()), Ordinary()
    report = await run(fake, [score], tmp_path / "both.jsonl", client_of(endpoint(fake), ordinary(other)))
    assert (report.exit_code, other.paths) == (0, ["/v1/score"])
    await run(fake, [score], tmp_path / "alone.jsonl")
    assert "takes no requests for /v1/score" in rows(tmp_path / "alone.failed.jsonl")[0]["error"]["message"]
    await run(fake, [chat(0)], tmp_path / "never.jsonl", provider_batches="never")
    assert "provider_batches is 'never'" in rows(tmp_path / "never.failed.jsonl")[0]["error"]["message"]
    assert fake.calls == []


# lines that fail


async def test_finished_answers_of_an_expired_batch_are_taken_and_the_rest_is_sent_again(tmp_path: Path) -> None:
    fake, output = FakeProvider(service(duration=50.0, expires=0.4)), tmp_path / "out.jsonl"
    report = await run(fake, [chat(number) for number in range(10)], output)
    assert report.exit_code == 0
    assert answers(output) == expected(10)
    assert [len(batch.lines) for batch in fake.service.batches.values()] == [10, 4, 1]
    paid_once(fake.service, 10)


async def test_lines_with_a_fault_of_the_server_are_sent_again_and_refused_ones_fail(tmp_path: Path) -> None:
    fake, output = FakeProvider(service(failures={500: 0.2, 429: 0.2, 400: 0.1}, seed=3)), tmp_path / "out.jsonl"
    report = await run(fake, [chat(number) for number in range(60)], output, client_of(endpoint(fake), retry={"attempts": 9}))
    failed = rows(tmp_path / "out.failed.jsonl")
    assert report.exit_code == 1
    assert {row["error"]["status_code"] for row in failed} == {400}
    assert len(failed) + len(rows(output)) == 60
    assert 2 <= len(failed) <= 12
    assert report.endpoints["provider"].retried > 0
    assert max(fake.service.worked.values()) == 1


async def test_a_line_fails_when_its_attempts_are_used_up(tmp_path: Path) -> None:
    fake = FakeProvider(service(failures={500: 1.0}))
    report = await run(fake, [chat(0), chat(1)], tmp_path / "out.jsonl", client_of(endpoint(fake), retry={"attempts": 3}))
    failed = rows(tmp_path / "out.failed.jsonl")
    assert report.failed == 2
    assert [(row["error"]["code"], row["error"]["status_code"], len(row["error"]["attempts"])) for row in failed] == [
        ("ServerError", 500, 3)
    ] * 2
    assert len(fake.service.batches) == 3


async def test_many_lines_that_fail_in_a_batch_beside_others_do_not_stop_the_run(tmp_path: Path) -> None:
    for status, share in ((404, 0.3), (403, 0.3), (500, 0.6)):  # a provider lists all failures of a batch one after another
        fake = FakeProvider(service(failures={status: share}))
        report = await run(fake, [chat(number) for number in range(500)], tmp_path / f"{status}.jsonl", client_of(endpoint(fake)))
        assert (report.done, report.failed > 100 or status == 500, report.exit_code) == (500, True, 1), status


async def test_each_line_of_a_batch_that_brings_nothing_has_an_error_of_its_own(tmp_path: Path) -> None:
    fake = FakeProvider(service(expires=1.0))
    await run(fake, [chat(number) for number in range(3)], tmp_path / "out.jsonl", client_of(endpoint(fake), retry={"attempts": 1}))
    messages = [row["error"]["message"] for row in rows(tmp_path / "out.failed.jsonl")]
    assert [message.split(": ")[0] for message in messages] == ["item:1", "item:2", "item:3"]
    assert all(message.count("item:") == 1 and "completion window expired" in message for message in messages)


async def test_a_line_of_an_earlier_batch_is_known_by_its_number_in_the_file(tmp_path: Path) -> None:
    fake, output = FakeProvider(service(duration=50.0, failures={500: 0.5}, faulty=1, seed=1)), tmp_path / "out.jsonl"
    lines = [chat(number) for number in range(12)]
    await run(fake, lines, output, deadline=100.0)
    sent = [line["body"]["messages"][-1]["content"] for line in fake.service.batches["batch_2"].lines]
    assert sent != sorted(sent, key=lambda text: int(text.split()[-1])), "choose another seed"
    failed(fake, "batch_2", {"code": "refused", "line": 1, "message": "no"})
    await run(fake, lines, output)
    (line,) = rows(tmp_path / "out.failed.jsonl")
    assert line["custom_id"] == sent[0].replace("item ", "id-")


async def test_lines_that_the_validation_names_fail_and_the_others_are_sent_without_them(tmp_path: Path) -> None:
    fake, output, good = FakeProvider(service(duration=1e6)), tmp_path / "out.jsonl", service(duration=1.0)
    failed(fake, "batch_1", {"code": "invalid_thing", "line": 2, "message": f"bad {KEY}", "param": None})
    fake.before = lambda method, path: setattr(fake.service, "settings", good.settings) if fake.service.batches else None
    report = await run(fake, [chat(0), chat(1), chat(2)], output)
    (line,) = rows(tmp_path / "out.failed.jsonl")
    assert (report.exit_code, line["custom_id"], line["error"]["code"]) == (1, "id-1", "BadRequest")
    assert line["error"]["message"].startswith("item:2: ")
    assert "invalid_thing" in line["error"]["message"]
    assert KEY not in json.dumps(line)
    assert sorted(answers(output)) == ["id-0", "id-2"]
    assert [len(batch.lines) for batch in fake.service.batches.values()] == [3, 2]


async def test_a_model_that_the_provider_does_not_offer_fails_its_lines(tmp_path: Path) -> None:
    fake = FakeProvider(service())
    lines = [{**chat(number), "body": {**chat(number)["body"], "model": "unknown"}} for number in range(3)]
    report = await run(fake, [*lines, chat(3)], tmp_path / "out.jsonl")
    assert (report.done, report.failed) == (4, 3)
    assert "model_not_found" in rows(tmp_path / "out.failed.jsonl")[0]["error"]["message"]


async def test_a_file_that_is_refused_as_a_whole_stops_the_run_and_loses_nothing(tmp_path: Path) -> None:
    fake = FakeProvider(service())
    failed(fake, "batch_1", {"code": "billing", "message": "no credit"}, {"code": "odd", "line": 99, "message": "no such line"})
    fake.service.settings = fake.service.settings.model_copy(update={"duration": 1e6})
    report = await run(fake, [chat(0)], tmp_path / "out.jsonl")
    assert report.exit_code == 75
    assert "billing: no credit" in str(report.reason)
    again = FakeProvider(service())
    assert (await run(again, [chat(0)], tmp_path / "out.jsonl")).exit_code == 0
    paid_once(again.service, 1)


async def test_a_queue_that_takes_fewer_tokens_gets_smaller_files(tmp_path: Path) -> None:
    fake, output = FakeProvider(service(duration=20.0, queue_tokens=100)), tmp_path / "out.jsonl"
    report = await run(fake, [chat(number) for number in range(12)], output)
    assert report.exit_code == 0
    assert answers(output) == expected(12)
    paid_once(fake.service, 12)


async def test_a_line_that_the_budget_does_not_allow_beside_an_earlier_batch_waits_for_the_next_run(tmp_path: Path) -> None:
    fake, output = FakeProvider(service(duration=100.0)), tmp_path / "out.jsonl"
    lines = [chat(number, max_tokens=200) for number in range(4)]
    assert (await run(fake, lines[1:], output, max_tokens=2000, deadline=20.0)).at_provider == (3, 1)
    report = await run(fake, lines, output, max_tokens=900)
    assert (report.exit_code, report.done) == (75, 3)
    assert "1 lines could pass max_cost or max_tokens beside the provider batches" in str(report.reason)
    assert (await run(fake, lines, output, max_tokens=900)).exit_code == 0
    assert answers(output) == expected(4)
    paid_once(fake.service, 4)


# the network


async def test_calls_are_repeated_while_the_provider_cannot_be_reached(tmp_path: Path) -> None:
    faults: list[Any] = [
        httpx.ConnectError("no"),
        httpx.Response(500),
        httpx.Response(429, headers={"retry-after": "20"}),
        httpx.ReadError("x"),
    ]
    for place in ("/v1/files", "/v1/batches", "/v1/batches/batch_1", "/v1/files/file-2/content"):
        fake, left, output = FakeProvider(service(duration=30.0)), list(faults), tmp_path / f"{place.replace('/', '-')}.jsonl"
        fake.before = lambda _method, path, place=place, left=left: left.pop(0) if path == place and left else None  # type: ignore[misc]
        report = await run(fake, [chat(number) for number in range(3)], output)
        assert (report.exit_code, left) == (0, []), place
        assert answers(output) == expected(3), place
        paid_once(fake.service, 3)


def test_a_batch_without_counts_in_the_list_of_the_provider_is_read() -> None:
    shown = {"id": "old", "status": "completed", "output_file_id": "f", "request_counts": {"completed": None, "failed": None}}
    (batch,) = msgspec.json.decode(json.dumps({"data": [shown]}), type=provider.BatchPage).data
    assert batch.files == [("f", 0)]


async def test_a_batch_whose_creation_was_not_confirmed_is_found_and_not_created_twice(tmp_path: Path) -> None:
    for fault in (httpx.ReadError("gone"), httpx.Response(502), httpx.Response(200, content=b"<html>")):
        fake, once, output = FakeProvider(service(duration=30.0)), [fault], tmp_path / f"{type(fault).__name__}{id(fault)}.jsonl"
        fake.after = lambda method, path, once=once: once.pop() if (method, path) == ("POST", "/v1/batches") and once else None  # type: ignore[misc]
        report = await run(fake, [chat(0), chat(1)], output)
        assert (report.exit_code, once, len(fake.service.batches)) == (0, [], 1), fault
        paid_once(fake.service, 2)


class BrokenStream(httpx.AsyncByteStream):
    def __init__(self, content: bytes) -> None:
        self._content = content

    async def __aiter__(self) -> Any:
        yield self._content
        raise httpx.ReadError("broken")


async def test_a_download_that_breaks_or_lacks_lines_is_read_again_before_anything_is_sent_again(tmp_path: Path) -> None:
    cases: dict[str, Callable[[bytes], httpx.Response]] = {
        "breaks": lambda whole: httpx.Response(200, stream=BrokenStream(whole[:1000])),
        "half": lambda whole: httpx.Response(200, content=whole[: len(whole) // 2]),
        "other": lambda _: httpx.Response(200, content=b"<html>"),
        "one line less": lambda whole: httpx.Response(200, content=whole[: whole.rfind(b"\n", 0, -1) + 1]),
    }
    for name, response in cases.items():
        fake, once, output = FakeProvider(service(duration=30.0)), [response], tmp_path / f"{name}.jsonl"

        def after(_: str, path: str, fake: FakeProvider = fake, once: list[Any] = once) -> httpx.Response | None:
            return once.pop()(fake.service.files["file-2"][1]) if path.endswith("/content") and once else None

        fake.after = after
        report = await run(fake, [chat(number) for number in range(9)], output)
        assert (report.exit_code, once) == (0, []), name
        assert answers(output) == expected(9), name
        paid_once(fake.service, 9)


async def test_results_that_are_never_complete_cost_another_attempt_and_end(tmp_path: Path) -> None:
    fake = FakeProvider(service())
    fake.after = lambda _, path: httpx.Response(200, content=b"") if path.endswith("/content") else None
    report = await run(fake, [chat(0), chat(1)], tmp_path / "out.jsonl", client_of(endpoint(fake), retry={"attempts": 2}))
    assert (report.failed, len(fake.service.batches)) == (2, 2)
    messages = [row["error"]["message"] for row in rows(tmp_path / "out.failed.jsonl")]
    assert all("completed, without a result for this line" in message and message.count("item:") == 1 for message in messages)


async def test_a_batch_whose_results_do_not_fit_on_the_disk_is_read_again_by_the_next_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake, output, put = FakeProvider(service()), tmp_path / "out.jsonl", Journal._put

    def full(self: Journal) -> None:
        if any(record.startswith(b'["D"') for record in self._unwritten.splitlines()):
            raise OSError(errno.ENOSPC, "No space left on device")
        put(self)

    monkeypatch.setattr(Journal, "_put", full)
    with suppress(QRewardError):
        await run(fake, [chat(0), chat(1)], output)
    monkeypatch.setattr(Journal, "_put", put)
    assert not output.exists()
    assert (await run(fake, [chat(0), chat(1)], output)).exit_code == 0
    assert answers(output) == expected(2)
    paid_once(fake.service, 2)


async def test_a_wrong_key_stops_the_run_with_an_error_that_does_not_show_it(tmp_path: Path) -> None:
    fake = FakeProvider(service())
    wrong = "sk-another-secret-key"
    client = client_of(Endpoint("http://provider/v1", name="provider", kind="openai_batch", api_key=wrong, http_client=fake))
    report = await run(fake, [chat(0)], tmp_path / "out.jsonl", client)
    assert report.exit_code == 75
    assert "api_key" in str(report.reason)
    assert wrong not in str(report)
    assert wrong not in (tmp_path / "out.jsonl.journal").read_text()
    assert (await run(fake, [chat(0)], tmp_path / "out.jsonl")).exit_code == 0


async def test_a_provider_that_is_away_for_an_hour_stops_the_run_and_the_next_one_goes_on(tmp_path: Path) -> None:
    fake = FakeProvider(service(duration=30.0))
    fake.before = lambda method, path: httpx.ConnectError("away") if method == "GET" else None
    report = await run(fake, [chat(0)], tmp_path / "out.jsonl")
    assert (report.exit_code, report.at_provider) == (75, (1, 1))
    assert "no connection" in str(report.reason)
    fake.before = lambda _method, _path: None
    assert (await run(fake, [chat(0)], tmp_path / "out.jsonl")).exit_code == 0
    paid_once(fake.service, 1)


# stopping and going on


async def test_a_run_that_is_killed_at_any_step_goes_on_without_loss_and_pays_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    limit_lines(monkeypatch, 3)
    lines, count = [chat(number) for number in range(7)], 7
    fake, output = FakeProvider(service(duration=8.0, expires=0.4, faulty=1)), tmp_path / "first.jsonl"
    journal = tmp_path / "first.jsonl.journal"
    killed: list[tuple[str, bytes, FakeProvider]] = []

    def kill(step: str) -> None:
        if journal.exists() and b"qreward journal" in (content := journal.read_bytes()):
            killed.append((step, content, fake.restored()))

    put = Journal._put

    def noted(self: Journal) -> None:
        records = [record[:40] for record in bytes(self._unwritten).splitlines()]
        kill(f"before {records}")
        put(self)
        kill(f"after {records}")

    monkeypatch.setattr(Journal, "_put", noted)
    fake.on_call = lambda: kill(f"{fake.calls[-1]}")
    assert (await run(fake, lines, output)).exit_code == 0
    monkeypatch.setattr(Journal, "_put", put)
    assert len(killed) > 40
    for number, (step, content, restored) in enumerate(killed):
        output = tmp_path / f"{number}.jsonl"
        output.with_name(f"{number}.jsonl.journal").write_bytes(content)
        report = await run(restored, lines, output)
        assert report.exit_code == 0, (number, step, str(report))
        assert answers(output) == expected(count), (number, step)
        worked = restored.service.worked
        assert (len(worked), max(worked.values())) == (count, 1), (number, step)


async def test_the_first_interrupt_leaves_batches_running_and_says_so(tmp_path: Path) -> None:
    fake, output = FakeProvider(service(duration=500.0)), tmp_path / "out.jsonl"
    report = await run(fake, [chat(number) for number in range(4)], output, deadline=100.0)
    assert (report.exit_code, report.at_provider, report.in_flight) == (75, (4, 1), 0)
    assert "4 lines are in 1 provider batches that still run" in str(report)
    report = await run(fake, [chat(number) for number in range(4)], output)
    assert (report.exit_code, report.at_provider, report.sent, report.sent_again) == (0, (0, 0), 0, 0)
    assert answers(output) == expected(4)
    paid_once(fake.service, 4)


async def test_a_file_that_was_uploaded_when_the_run_stops_becomes_no_batch(tmp_path: Path) -> None:
    fake, other, output = FakeProvider(service()), Ordinary(seconds=100.0), tmp_path / "out.jsonl"
    fake.seconds = lambda _, path: 30.0 if path == "/v1/files" else 0.0
    ordinary_line = {**chat(0), "body": {**chat(0)["body"], "model": "other"}}
    endpoints = endpoint(fake, models=["judge-*"]), Endpoint("http://gpu-0/v1", http_client=other, models=["other"])
    report = await run(fake, [ordinary_line, chat(1)], output, client_of(*endpoints), deadline=10.0)
    assert (report.exit_code, report.done, report.at_provider) == (75, 1, (0, 0))
    assert fake.calls == [("POST", "/v1/files")]
    report = await run(fake, [ordinary_line, chat(1)], output, client_of(*endpoints))
    assert (report.exit_code, report.sent) == (0, 1)


async def test_a_batch_that_was_being_created_when_the_run_was_killed_is_looked_for_twice(tmp_path: Path) -> None:
    fake, output, journal = FakeProvider(service(duration=20.0)), tmp_path / "out.jsonl", tmp_path / "out.jsonl.journal"
    killed: list[tuple[bytes, FakeProvider, bytes]] = []
    fake.on_call = lambda: (
        killed.append((journal.read_bytes(), fake.restored(), fake.last_body)) if fake.calls[-1] == ("POST", "/v1/batches") else None
    )
    await run(fake, [chat(0), chat(1)], output)
    content, restored, body = killed[0]
    journal.write_bytes(content)
    loop = asyncio.get_running_loop()
    loop.call_later(3.0, lambda: restored.service.respond("POST", "/v1/batches", {}, "", body, loop.time()))
    report = await run(restored, [chat(0), chat(1)], output)
    assert (report.exit_code, report.sent) == (0, 0)
    assert list(restored.service.batches) == ["batch_1"]
    paid_once(restored.service, 2)


async def test_a_sample_takes_up_the_batches_of_an_earlier_one(tmp_path: Path) -> None:
    fake, output, lines = FakeProvider(service(duration=500.0)), tmp_path / "out.jsonl", [chat(number) for number in range(9)]
    report = await run(fake, lines, output, sample=6, deadline=100.0)
    assert report.at_provider == (6, 1)
    report = await run(fake, lines, output, sample=2)
    assert (report.exit_code, report.done) == (75, 2)
    report = await run(fake, lines, output)
    assert (report.exit_code, report.done) == (0, 9)
    assert answers(output) == expected(9)
    paid_once(fake.service, 9)


async def test_a_missing_endpoint_is_refused_and_a_changed_line_is_sent_while_its_batch_still_runs(tmp_path: Path) -> None:
    fake, output = FakeProvider(service(duration=500.0)), tmp_path / "out.jsonl"
    await run(fake, [chat(0), chat(1)], output, deadline=100.0)
    other = FakeProvider(service())
    with pytest.raises(ConfigError, match="endpoint 'provider', which is not in the settings"):
        await run(other, [chat(0), chat(1)], output, client_of(endpoint(other, "elsewhere")))
    report = await run(fake, [chat(0), chat(7)], output)
    assert report.exit_code == 0
    assert list(answers(output).values()) == ["re: item 0", "re: item 7"]


async def test_a_batch_that_the_provider_does_not_know_stops_the_run_and_force_sends_its_lines_again(tmp_path: Path) -> None:
    fake, output = FakeProvider(service(duration=500.0)), tmp_path / "out.jsonl"
    await run(fake, [chat(0)], output, deadline=100.0)
    fresh = FakeProvider(service())
    report = await run(fresh, [chat(0)], output)
    assert report.exit_code == 75
    assert "batch_1" in str(report.reason)
    assert (await run(fresh, [chat(0)], output, resume="force")).exit_code == 0
    assert answers(output) == expected(1)


async def test_lines_at_the_provider_are_taken_there_although_the_run_says_never(tmp_path: Path) -> None:
    fake, other, output = FakeProvider(service(duration=500.0)), Ordinary(), tmp_path / "out.jsonl"
    await run(fake, [chat(0), chat(1)], output, client_of(endpoint(fake), ordinary(other)), sample=1, deadline=100.0)
    report = await run(fake, [chat(0), chat(1)], output, client_of(endpoint(fake), ordinary(other)), provider_batches="never")
    assert report.exit_code == 0
    assert list(answers(output).values()) == ["re: item 0", "ordinary"]
    paid_once(fake.service, 1)


# costs


async def test_max_cost_is_never_passed_and_nearly_used_although_batches_expire(tmp_path: Path) -> None:
    fake, output = FakeProvider(service(duration=100.0, expires=0.3)), tmp_path / "out.jsonl"
    lines = [chat(number, max_tokens=220) for number in range(400)]
    report = await run(fake, lines, output, client_of(endpoint(fake, price=(1.0, 1.0))), max_cost=0.02)
    assert report.cost is not None
    spent = sum(fake.service.worked.values()) * report.cost / report.done
    assert report.exit_code == 75
    assert spent == pytest.approx(report.cost)
    assert 0.97 * 0.02 <= report.cost <= 0.02


async def test_an_attempt_that_may_have_been_paid_counts_in_full(tmp_path: Path) -> None:
    line = chat(0, max_tokens=1000)
    for status, exit_code in ((500, 75), (429, 0)):
        fake = FakeProvider(service(failures={status: 1.0}, faulty=1))
        report = await run(fake, [line], tmp_path / f"{status}.jsonl", max_tokens=1500)
        assert report.exit_code == exit_code, status
        assert (report.reason is None) == (status == 429), status
        assert len(fake.service.batches) == (1 if status == 500 else 2), status


async def test_costs_are_those_of_the_endpoint(tmp_path: Path) -> None:
    fake = FakeProvider(service(duration=10.0))
    report = await run(fake, [chat(number) for number in range(5)], tmp_path / "out.jsonl", client_of(endpoint(fake, price=(1.0, 2.0))))
    usages = [row["response"]["body"]["usage"] for row in rows(tmp_path / "out.jsonl")]
    assert report.cost == pytest.approx(sum(usage["prompt_tokens"] + 2 * usage["completion_tokens"] for usage in usages) / 1e6)


def test_the_lines_that_are_at_a_provider_at_once_take_less_than_200_megabytes(tmp_path: Path) -> None:
    reader, count = RequestReader(BulkSettings(model="judge-7b")), 2000  # the index of 10 million lines takes 1.24 of the 1.5 GB
    batch = Batch(BatchApi(endpoint(FakeProvider(service())), "judge-7b"), tmp_path, "/v1/chat/completions")
    tracemalloc.start()
    for number in range(count):
        content = json.dumps(chat(number)).encode()
        line = Line(f"/a/folder/with/requests.jsonl:{number}", digest_of(content), content)
        reader.read(line)
        line.reserved = Spent(1000 + number, 0.1 * number)
        batch.add(line, content, 1)
    taken = tracemalloc.get_traced_memory()[0] / count
    tracemalloc.stop()
    batch.file.close()
    assert taken * provider.LINES * (IN_FLIGHT + 1) < 200e6
