"""The fake Batch API: its files, batches and faults, and what it counts."""

from __future__ import annotations

import json
from typing import Any

import pytest
from fakes.batch_api import BatchEndpoint, Batching, BatchService, Served, line_server

from qreward.testing import FakeFleet, echo_of
from qreward.testing.kinds import ErrorResponse

MESSAGES = [{"role": "user", "content": "hi"}]


def line(name: str, url: str = "/v1/chat/completions", **body: Any) -> dict[str, Any]:
    return {"custom_id": name, "method": "POST", "url": url, "body": {"model": "m", "messages": MESSAGES, **body}}


def upload(service: BatchService, content: bytes, now: float = 0.0, purpose: str = "batch") -> dict[str, Any]:
    form = b'--b\r\nContent-Disposition: form-data; name="purpose"\r\n\r\n%b\r\n' % purpose.encode()
    form += b'--b\r\nContent-Disposition: form-data; name="file"; filename="x.jsonl"\r\n\r\n%b\r\n--b--\r\n' % content
    return call(service, "POST", "/v1/files", form, now, content_type="multipart/form-data; boundary=b")


def call(service: BatchService, method: str, path: str, body: bytes = b"", now: float = 0.0, content_type: str = "", **query: str) -> Any:
    found = service.respond(method, path, query, content_type, body, now)
    assert found is not None
    return json.loads(found) if not path.endswith("/content") else found


def create(service: BatchService, lines: list[Any], now: float = 0.0, **more: Any) -> dict[str, Any]:
    content = b"".join(each if isinstance(each, bytes) else json.dumps(each).encode() + b"\n" for each in lines)
    wanted = {"input_file_id": upload(service, content, now)["id"], "endpoint": "/v1/chat/completions", "completion_window": "24h", **more}
    found: dict[str, Any] = call(service, "POST", "/v1/batches", json.dumps(wanted).encode(), now)
    return found


def service_of(**batching: Any) -> BatchService:
    return BatchService(Batching(**batching), lambda _url, body: Served(200, body), takes=lambda model: model == "m")


def results(service: BatchService, batch: dict[str, Any], which: str) -> list[dict[str, Any]]:
    file = batch.get(f"{which}_file_id")
    return [] if file is None else [json.loads(row) for row in call(service, "GET", f"/v1/files/{file}/content").splitlines()]


def test_a_batch_is_at_work_until_its_time_is_over_and_then_has_its_results() -> None:
    service = service_of(duration=10.0)
    made = create(service, [line("a"), line("b")], now=5.0, metadata={"k": "v"})
    assert (made["status"], made["metadata"], call(service, "GET", "/v1/batches/batch_1", now=14.9)["status"]) == (
        "in_progress",
        {"k": "v"},
        "in_progress",
    )
    assert sum(service.worked.values()) == 0
    done = call(service, "GET", "/v1/batches/batch_1", now=15.0)
    assert (done["status"], done["request_counts"]) == ("completed", {"total": 2, "completed": 2, "failed": 0})
    assert sorted(row["custom_id"] for row in results(service, done, "output")) == ["a", "b"]
    assert all(row["response"]["status_code"] == 200 and row["error"] is None for row in results(service, done, "output"))
    assert results(service, done, "error") == []
    assert sum(service.worked.values()) == 2


def test_batches_are_listed_newest_first_and_by_pages() -> None:
    service = service_of()
    for number in range(5):
        create(service, [line(str(number))])
    first = call(service, "GET", "/v1/batches", limit="2")
    assert ([batch["id"] for batch in first["data"]], first["has_more"]) == (["batch_5", "batch_4"], True)
    last = call(service, "GET", "/v1/batches", limit="3", after="batch_4")
    assert ([batch["id"] for batch in last["data"]], last["has_more"]) == (["batch_3", "batch_2", "batch_1"], False)


def test_expired_and_cancelled_batches_have_the_results_that_were_ready() -> None:
    service = service_of(duration=10.0, expires=0.5)
    create(service, [line(str(number)) for number in range(9)])
    expired = call(service, "GET", "/v1/batches/batch_1", now=10.0)
    assert (expired["status"], len(results(service, expired, "output"))) == ("expired", 5)
    assert {row["error"]["code"] for row in results(service, expired, "error")} == {"batch_expired"}
    service = service_of(duration=10.0)
    create(service, [line(str(number)) for number in range(10)])
    cancelled = call(service, "POST", "/v1/batches/batch_1/cancel", now=3.0)
    assert (cancelled["status"], len(results(service, cancelled, "output"))) == ("cancelled", 3)
    assert {row["error"]["code"] for row in results(service, cancelled, "error")} == {"batch_cancelled"}


def test_a_file_that_is_not_valid_is_refused_with_the_lines_that_are_at_fault() -> None:
    cases: dict[str, tuple[list[Any], str, int | None]] = {
        "no JSON": ([line("a"), b"{\n"], "invalid_json_line", 2),
        "the same name twice": ([line("a"), line("b"), line("a")], "duplicate_custom_id", 3),
        "another route": ([line("a", url="/v1/embeddings")], "invalid_url", 1),
        "another model": ([line("a", model="x")], "model_not_found", 1),
        "no lines": ([b""], "invalid_file", None),
    }
    for case, (lines, code, number) in cases.items():
        made = create(service_of(), lines)
        assert made["status"] == "failed", case
        assert (made["errors"]["data"][0]["code"], made["errors"]["data"][0]["line"]) == (code, number), case
    service = service_of(duration=5.0, queue_tokens=40)
    assert [create(service, [line("a")])["status"] for _ in range(4)].count("failed") >= 1
    assert create(service, [line("a")], now=6.0)["status"] == "in_progress"


def test_failures_are_drawn_anew_for_server_faults_and_stay_for_bad_requests() -> None:
    for status, stays in ((500, False), (429, False), (400, True)):
        service = service_of(failures={status: 0.5})
        failed = []
        for _ in range(2):
            made = create(service, [line(str(number), seed=number) for number in range(40)])
            failed.append({row["custom_id"] for row in results(service, made, "error")})
        assert 8 <= len(failed[0]) <= 32, status
        assert (failed[0] == failed[1]) is stays, status


def test_what_does_not_exist_is_an_error() -> None:
    service = service_of()
    for method, path in (("GET", "/v1/batches/batch_9"), ("GET", "/v1/files/file-9/content"), ("POST", "/v1/batches/batch_9/cancel")):
        with pytest.raises(ErrorResponse):
            service.respond(method, path, {}, "", b"", 0.0)
    with pytest.raises(ErrorResponse):
        upload(service, b"{}", purpose="fine-tune")
    assert service.respond("DELETE", "/v1/files/file-1", {}, "", b"", 0.0) is None


def test_lines_get_the_responses_of_the_endpoint_and_are_counted() -> None:
    counted: list[tuple[str | None, int]] = []
    fake = BatchEndpoint("p")
    serve = line_server(fake, lambda messages, _: echo_of(messages), lambda problem, _, tokens: counted.append((problem, tokens)))
    served = serve("/v1/chat/completions", json.dumps(line("a")["body"]).encode())
    assert json.loads(served.body)["choices"][0]["message"]["content"] == echo_of(MESSAGES)
    assert [serve(url, b"{}").status for url in ("/v1/chat/completions", "/v1/nothing")] == [400, 404]
    assert [problem for problem, _ in counted] == [None, "bad_request", "not_found"]
    assert counted[0][1] > 0

    def broken(_messages: list[Any], _digest: bytes) -> str:
        raise ValueError

    assert line_server(fake, broken, lambda *_: None)("/v1/chat/completions", json.dumps(line("a")["body"]).encode()).status == 500


def test_a_fleet_can_change_how_batches_are_worked_on() -> None:
    with FakeFleet([BatchEndpoint("p")]) as fleet:
        fleet.set("p", batching={"duration": 9.0})
        assert fleet.endpoints[0].kind == "openai_batch"
        assert fleet.seen("p").answered == 0
