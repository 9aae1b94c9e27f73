"""A run, from the first line to the output: it goes on where it stopped, refuses what has changed, and stops when told."""

from __future__ import annotations

import asyncio
import errno
import os
import random
from pathlib import Path
from typing import Any

import pytest
from bulk_fakes import (
    MODEL,
    Backend,
    Folder,
    Sent,
    answers,
    broken,
    client_of,
    endpoint,
    failures,
    line,
    lines,
    overloaded,
    read,
    refused,
    unreachable,
    write,
)
from scale import seeds

from qreward import Hedge
from qreward.bulk.batches import ALL_FAILED, ALL_REJECTED, MOST_BATCHES, WAITING
from qreward.bulk.inputs import digest_of
from qreward.bulk.outputs import OutputFile
from qreward.bulk.run import BulkRun, run_bulk
from qreward.engine.batch import BatchWaiter
from qreward.errors import AuthenticationFailed, ConfigError, InvalidResponse
from qreward.live.channel import Order, steer
from qreward.scheduler.outcome import Failure, FailureKind


def expected(count: int) -> dict[str, str]:
    return {f"id-{number}": f"re: item {number}" for number in range(count)}


def forbidden() -> Failure:
    return Failure(FailureKind.UNSUITABLE, AuthenticationFailed("not with this key", endpoint="a", status_code=403), misconfigured=True)


def stop_after(seconds: float, *, now: bool = False) -> Any:
    """Stop the run at a time of the loop."""

    def on_start(run: BulkRun) -> asyncio.TimerHandle:
        stop = run.stop_now if now else lambda: run.stop("it was interrupted")
        return asyncio.get_running_loop().call_later(seconds, stop)

    return on_start


# from the first line to the output


async def test_every_line_is_sent_once_and_written_in_the_order_of_the_input(tmp_path: Path) -> None:
    dice = random.Random(1)

    async def script(sent: Sent) -> Any:
        await asyncio.sleep(dice.random())
        return f"re: {sent.text}"

    folder, backend = Folder(tmp_path, lines(300)), Backend(script)
    report = await folder.run(backend)
    assert (report.lines, report.done, report.failed, report.sent, report.exit_code) == (300, 300, 0, 300, 0)
    assert (report.resumed, report.in_flight, report.sent_again, report.torn, report.reason) == (0, 0, 0, 0, None)
    assert (report.tokens, report.prompt_tokens, report.cost) == (4500, 3000, None)
    assert (report.output, report.failures) == (folder.output, None)
    assert list(answers(folder.output).items()) == list(expected(300).items())
    assert [row["id"] for row in read(folder.output)] == [
        f"qreward-{digest_of(text):015x}" for text in folder.source.read_bytes().splitlines()
    ]
    assert set(backend.served.values()) == {1}
    assert sorted(path.name for path in folder.source.parent.glob("*")) == ["in.jsonl", "out.jsonl", "out.jsonl.journal"]


async def test_a_finished_run_sends_nothing_again_and_writes_the_same_output(tmp_path: Path) -> None:
    folder, backend = Folder(tmp_path, lines(20)), Backend()
    await folder.run(backend)
    first = folder.output.read_bytes()
    folder.output.unlink()
    report = await folder.run(backend)
    assert (report.sent, report.resumed, report.exit_code, len(backend.sent)) == (0, 20, 0, 20)
    assert folder.output.read_bytes() == first


async def test_equal_identifiers_and_equal_lines_are_kept_apart(tmp_path: Path) -> None:
    rows = [line(1, "x"), line(1, "y"), line(1, "x")]
    folder, backend = Folder(tmp_path, rows), Backend()
    report = await folder.run(backend)
    assert (report.done, backend.served) == (3, {"x": 2, "y": 1})
    found = [(row["id"], row["custom_id"], row["response"]["body"]["choices"][0]["message"]["content"]) for row in read(folder.output)]
    assert [each[1:] for each in found] == [("id-1", "re: x"), ("id-1", "re: y"), ("id-1", "re: x")]
    assert len({each[0] for each in found}) == 3


async def test_an_empty_input_is_done_at_once_and_leaves_no_output(tmp_path: Path) -> None:
    folder = Folder(tmp_path, [])
    report = await folder.run(Backend())
    assert (report.lines, report.exit_code, report.output) == (0, 0, None)
    assert not folder.output.exists()


async def test_several_models_and_routes_run_at_once(tmp_path: Path) -> None:
    async def script(sent: Sent) -> Any:
        await asyncio.sleep(1)
        if sent.path == "/v1/score":
            return {"data": [{"index": 0, "score": 0.5}], "usage": {"prompt_tokens": 7, "total_tokens": 7}}
        if sent.path.endswith("/embeddings"):
            return {"object": "list", "data": [{"index": 0, "embedding": [1.0]}], "usage": {"prompt_tokens": 3, "total_tokens": 3}}
        return f"{sent.body['model']} at {sent.endpoint}"

    score = {"custom_id": "s", "url": "/v1/score", "body": {"model": "rm-7b", "text_1": "q", "text_2": "d"}}
    embedding = {"custom_id": "e", "url": "/v1/embeddings", "body": {"model": "e5", "input": "text"}}
    rows = [line(0), line(1, model="judge-70b"), score, embedding]
    folder, backend = Folder(tmp_path, rows), Backend(script)
    report = await folder.run(backend, endpoint("a", models=[MODEL, "e5"]), endpoint("b", models=["judge-70b", "rm-7b"]))
    bodies = {row["custom_id"]: row["response"]["body"] for row in read(folder.output)}
    assert (report.done, report.failed, report.tokens) == (4, 0, 40)
    assert bodies["id-1"]["choices"][0]["message"]["content"] == "judge-70b at b"
    assert bodies["s"]["data"] == [{"index": 0, "score": 0.5}]
    assert bodies["e"]["data"][0]["embedding"] == [1.0]
    assert {sent.at for sent in backend.sent} == {backend.sent[0].at}
    assert {name: (stats.won, stats.p50) for name, stats in report.endpoints.items()} == {name: (2, pytest.approx(1, 0.1)) for name in "ab"}


# lines that fail


async def test_a_line_that_fails_is_written_beside_the_others_and_tried_again_only_on_demand(tmp_path: Path) -> None:
    async def script(sent: Sent) -> Any:
        await asyncio.sleep(1)
        return refused() if sent.text == "item 3" and bad else f"re: {sent.text}"

    bad, folder, backend = True, Folder(tmp_path, lines(6)), Backend(script)
    report = await folder.run(backend)
    assert (report.done, report.failed, report.exit_code, report.failures) == (6, 1, 1, folder.failed)
    assert list(failures(folder.failed)) == ["id-3"]
    assert "in.jsonl:4: " in failures(folder.failed)["id-3"]
    assert "id-3" not in answers(folder.output)
    bad = False
    report = await folder.run(backend)
    assert (report.sent, report.failed, report.exit_code) == (0, 1, 1)
    report = await folder.run(backend, retry_failed=True)
    assert (report.sent, report.done, report.failed, report.exit_code) == (1, 6, 0, 0)
    assert answers(folder.output) == expected(6)
    assert not folder.failed.exists()


async def test_a_bad_line_is_its_own_failure_with_file_and_line_and_its_identifier(tmp_path: Path) -> None:
    unknown = line(4, model="judge-8b")
    rows: list[Any] = [line(0), "{not json", "", "[1]", unknown, {"custom_id": "x", "url": "/v1/chat/completions"}, line(1)]
    folder, backend = Folder(tmp_path, rows), Backend()
    report = await folder.run(backend, endpoint(models=[MODEL]))
    assert (report.lines, report.done, report.failed, report.sent) == (6, 6, 4, 2)
    found = failures(folder.failed)
    invented = [f"qreward-{digest_of(text):015x}" for text in (b"{not json", b"[1]")]
    assert list(found) == [*invented, "id-4", "x"]
    places = [str(folder.source) + number for number in (":2: it is not JSON", ":4: it is a JSON list", ":5: ", ":6: body is a NoneType")]
    for message, place in zip(found.values(), places, strict=True):
        assert message.startswith(place), message
    assert {kind: times for kind, (times, _) in report.errors.items()} == {"BadRequest": 3, "NoEndpoint": 1}
    printed = [text for text in str(report).splitlines() if ", such as: " in text]
    assert printed == [f"errors        3 BadRequest, such as: {found[invented[0]]}", f"{'':14}1 NoEndpoint, such as: {found['id-4']}"]
    assert "judge-8b" in found["id-4"]


async def test_if_all_of_the_first_lines_fail_the_run_stops_and_says_how_to_go_on(tmp_path: Path) -> None:
    async def script(_sent: Sent) -> Any:
        await asyncio.sleep(1)
        return refused()

    folder, backend = Folder(tmp_path, lines(2000)), Backend(script)
    report = await folder.run(backend)
    assert report.exit_code == 75
    assert ALL_FAILED <= report.failed < ALL_FAILED + 50
    assert report.reason is not None
    assert "have all failed; the last one: " in report.reason
    assert "too strange" in report.reason
    report = await folder.run(Backend(), retry_failed=True)
    assert (report.done, report.failed, report.exit_code) == (2000, 0, 0)


async def test_many_bad_lines_among_good_ones_fail_alone(tmp_path: Path) -> None:
    folder = Folder(tmp_path, [f"{{bad {number}" if number % 8 == 7 else line(number) for number in range(2000)])
    report = await folder.run(Backend(), endpoint(slots=256))
    assert (report.done, report.failed, report.sent, report.exit_code) == (2000, 250, 1750, 1)


async def test_answers_that_a_server_withholds_do_not_stop_the_run(tmp_path: Path) -> None:
    async def script(sent: Sent) -> Any:
        await asyncio.sleep(1)
        return withheld if int(sent.text.split()[1]) >= 20 else f"re: {sent.text}"

    withheld = Failure(FailureKind.REFUSED, InvalidResponse("finish_reason 'content_filter'", endpoint="a", status_code=200))
    report = await Folder(tmp_path, lines(20 + 2 * ALL_FAILED)).run(Backend(script))
    assert (report.done, report.failed, report.exit_code) == (20 + 2 * ALL_FAILED, 2 * ALL_FAILED, 1)


async def test_lines_of_a_model_that_cannot_be_sent_are_left_to_the_next_run_and_those_of_other_models_are_sent(tmp_path: Path) -> None:
    async def script(sent: Sent) -> Any:
        await asyncio.sleep(1)
        return failure() if down and sent.body["model"] == "big" else f"re: {sent.text}"

    big = [line(number, model="big") for number in range(3000)]
    one_route, two = [endpoint(slots=64)], [endpoint("a", slots=64, models=[MODEL]), endpoint("b", models=["big"])]
    for failure, count, endpoints, most in (
        (unreachable, 1, two, 0),
        (unreachable, 40, two, 0),
        (unreachable, 3000, two, 0),  # more than a queue holds
        (overloaded, 40, two, ALL_REJECTED),
        (forbidden, 3000, one_route, ALL_FAILED + 64),
    ):
        case = failure.__name__, count
        path = tmp_path / f"{failure.__name__}{count}"
        path.mkdir()
        rows = [*big[:count], *(line(number) for number in range(3000, 6000))]
        down, folder = True, Folder(path, rows)
        for run in (1, 2):
            report = await folder.run(Backend(script), *endpoints, timeout=30)
            assert (report.done - report.failed, report.exit_code, report.in_flight) == (3000, 75, 0), (case, run)
            assert report.failed <= run * most, (case, run)
            assert "model 'big': " in str(report.reason), case
        down = False
        report = await folder.run(Backend(script), *endpoints)
        assert (report.done, report.failed, report.exit_code, report.sent_again) == (3000 + count, 0, 0, 0), case
        assert len(answers(folder.output)) == 3000 + count, case


async def test_lines_of_very_many_models_share_batches(tmp_path: Path) -> None:
    found: list[BulkRun] = []
    folder = Folder(tmp_path, [line(number, model=f"adapter-{number % 200}") for number in range(1000)])
    report = await folder.run(Backend(), endpoint(slots=64), on_start=found.append)
    assert (report.done, report.exit_code, len(found[0]._batches)) == (1000, 0, MOST_BATCHES + 1)


async def test_of_models_that_share_a_batch_that_of_the_last_error_is_named(tmp_path: Path) -> None:
    async def script(sent: Sent) -> Any:
        await asyncio.sleep(1)
        return unreachable() if sent.body["model"] == "last" else f"re: {sent.text}"

    rows = [line(number, model=f"adapter-{number}") for number in range(100)]
    report = await Folder(tmp_path, [*rows, line(100, model="last")]).run(Backend(script), timeout=20)
    assert (report.done, report.exit_code) == (100, 75)
    assert str(report.reason).startswith("model 'last': no line can be sent: ")


async def test_the_lines_that_are_read_ahead_are_limited_for_all_models_together(tmp_path: Path) -> None:
    found: list[BulkRun] = []
    folder = Folder(tmp_path, [line(number, model=f"adapter-{number % 20}") for number in range(4000)])
    report = await folder.run(Backend(), endpoint(slots=64), on_start=found.append, deadline=0.5)
    assert (report.sent, report.done) == (64, 64)
    assert found[0]._taken < 2 * WAITING


async def test_a_budget_is_free_again_for_other_models_when_a_model_is_given_up(tmp_path: Path) -> None:
    async def script(sent: Sent) -> Any:
        await asyncio.sleep(1)
        return unreachable() if sent.body["model"] == "big" else f"re: {sent.text}"

    rows = [line(number, model="big" if number < 1500 else MODEL, max_tokens=100) for number in range(1600)]
    report = await Folder(tmp_path, rows).run(Backend(script), timeout=30, max_tokens=1_000_000)
    assert (report.done, report.failed, report.exit_code) == (100, 0, 75)
    assert "model 'big': no line can be sent: " in str(report.reason)


async def test_lines_whose_model_a_key_may_not_use_stay_failed_when_all_have_failed_twice(tmp_path: Path) -> None:
    async def script(sent: Sent) -> Any:
        await asyncio.sleep(1)
        return forbidden() if sent.body["model"] == "big" else f"re: {sent.text}"

    folder = Folder(tmp_path, [line(number, model="big" if number % 2 else MODEL) for number in range(500)])
    exit_codes: list[int] = []
    while not exit_codes or exit_codes[-1] == 75:
        report = await folder.run(Backend(script))
        exit_codes.append(report.exit_code)
        assert (report.done - report.failed, len(exit_codes) < 5) == (250, True)
    assert (report.failed, report.exit_code) == (250, 1)
    report = await folder.run(Backend())
    assert (report.failed >= 2 * ALL_FAILED, report.failed + report.sent) == (True, 250), "those that failed once are sent again"


async def test_if_no_endpoint_serves_the_model_the_run_stops_before_it_has_read_everything(tmp_path: Path) -> None:
    folder = Folder(tmp_path, lines(3000))
    report = await folder.run(Backend(), endpoint(models=["other"]))
    assert (report.exit_code, report.failed) == (75, ALL_FAILED)


async def test_an_outage_of_all_endpoints_stops_the_run_and_the_next_one_sends_every_line(tmp_path: Path) -> None:
    async def script(sent: Sent) -> Any:
        works = len(backend.sent) <= before
        await asyncio.sleep(1)
        return f"re: {sent.text}" if works else outage()

    for outage, before in ((unreachable, 0), (unreachable, 50), (overloaded, 0), (overloaded, 50)):
        path, case = tmp_path / f"{outage.__name__}{before}", (outage, before)
        path.mkdir()
        folder, backend = Folder(path, lines(200)), Backend(script)
        report = await folder.run(backend, timeout=30)
        assert (report.exit_code, report.done - report.failed) == (75, before), case
        assert report.failed == (ALL_REJECTED if outage is overloaded else 0), case
        assert before < report.sent <= before + 16, case
        assert "no line can be sent: " in str(report.reason), case
        report = await folder.run(Backend())
        assert (report.done, report.failed, report.exit_code, report.sent_again) == (200, 0, 0, 0), case
        assert answers(folder.output) == expected(200), case


async def test_an_outage_after_a_run_whose_key_was_refused_ends_a_run_soon_and_fails_few_lines_for_good(tmp_path: Path) -> None:
    async def script(sent: Sent) -> Any:
        await asyncio.sleep(1)
        return outage() if outage else f"re: {sent.text}"

    folder = Folder(tmp_path, lines(300))
    for outage in (forbidden, overloaded, overloaded, None):
        report = await folder.run(Backend(script), timeout=60)
        assert report.seconds <= 130, outage
    assert (report.done, report.exit_code, report.sent_again) == (300, 1, 0)
    assert 0 < report.failed <= 2 * ALL_REJECTED


async def test_a_failed_line_that_no_server_has_processed_fails_alone_and_the_next_run_sends_it_again(tmp_path: Path) -> None:
    async def script(sent: Sent) -> Any:
        if sent.text == "item 3":
            return failure()
        await asyncio.sleep(1)
        return f"re: {sent.text}"

    for failure in (overloaded, forbidden):
        path = tmp_path / failure.__name__
        path.mkdir()
        folder = Folder(path, lines(500))
        report = await folder.run(Backend(script), timeout=30)
        assert (report.done, report.failed, report.sent, report.exit_code) == (500, 1, 500, 1), failure
        assert list(failures(folder.failed)) == ["id-3"], failure
        report = await folder.run(Backend())
        assert (report.done, report.failed, report.sent, report.exit_code) == (500, 0, 1, 0), failure


async def test_a_key_that_expires_stops_the_run_and_with_a_new_key_the_same_command_goes_on(tmp_path: Path) -> None:
    async def script(sent: Sent) -> Any:
        works = len(backend.sent) <= answered
        await asyncio.sleep(1)
        return f"re: {sent.text}" if works else forbidden()

    answered, folder, backend = 60, Folder(tmp_path, lines(2000)), Backend(script)
    await folder.run(backend, sample=10)
    for number in (1, 2, 3):  # each run sends the lines of the one before again, and as many others
        report = await folder.run(backend)
        assert (report.done - report.failed, report.exit_code) == (60, 75)
        assert number * ALL_FAILED <= report.failed < number * (ALL_FAILED + 16)
        assert "have all failed; the last one: " in str(report.reason)
    answered = 10_000
    report = await folder.run(backend)
    assert (report.resumed, report.done, report.failed, report.exit_code) == (60, 2000, 0, 0)


async def test_lines_that_fail_one_after_another_stop_the_run_unless_their_content_is_at_fault(tmp_path: Path) -> None:
    async def script(sent: Sent) -> Any:
        await asyncio.sleep(1)
        return f"re: {sent.text}" if int(sent.text.split()[1]) < 20 else failure()

    for failure, exit_code in ((refused, 1), (broken, 75)):
        path = tmp_path / failure.__name__
        path.mkdir()
        folder = Folder(path, lines(20 + 2 * ALL_FAILED))
        report = await folder.run(Backend(script), client={"retry": {"attempts": 1}})
        assert (report.exit_code, report.done - report.failed) == (exit_code, 20), failure


async def test_a_line_that_hangs_fails_alone_and_the_run_goes_on(tmp_path: Path) -> None:
    async def script(sent: Sent) -> Any:
        await asyncio.sleep(1e6 if sent.text == "item 3" else 1)
        return f"re: {sent.text}"

    price: dict[str, Any] = {"price": (1.0, 1.0)}
    cases: dict[str, tuple[list[Any], dict[str, Any]]] = {
        "one": ([endpoint(**price)], {}),
        "three": ([endpoint(name, **price) for name in "abc"], {}),
        "three and a limit": ([endpoint(name, **price) for name in "abc"], {"max_cost": 1.0}),
    }
    for case, (endpoints, options) in cases.items():
        path = tmp_path / case
        path.mkdir()
        folder, backend = Folder(path, lines(20, max_tokens=100)), Backend(script)
        report = await folder.run(backend, *endpoints, timeout=60, **options)
        assert (report.done, report.failed, report.exit_code) == (20, 1, 1), (case, str(report))
        assert list(failures(folder.failed)) == ["id-3"], case
        assert answers(folder.output) == {name: text for name, text in expected(20).items() if name != "id-3"}, case


# stopping


async def test_a_run_that_is_stopped_finishes_what_is_in_flight_and_goes_on_later(tmp_path: Path) -> None:
    folder, backend = Folder(tmp_path, lines(100)), Backend()
    report = await folder.run(backend, on_start=stop_after(2.5))
    assert (report.exit_code, report.reason, report.in_flight) == (75, "it was interrupted", 0)
    assert report.done == report.sent == len(backend.sent) == 24
    assert (backend.cancelled, report.output) == ([], None)
    assert not folder.output.exists()
    report = await folder.run(backend)
    assert (report.resumed, report.sent, report.sent_again, report.exit_code) == (24, 76, 0, 0)
    assert answers(folder.output) == expected(100)
    assert set(backend.served.values()) == {1}


async def test_a_run_that_is_stopped_now_cancels_what_is_in_flight_and_counts_what_is_sent_again(tmp_path: Path) -> None:
    folder, backend = Folder(tmp_path, lines(100)), Backend()
    report = await folder.run(backend, on_start=stop_after(2.5, now=True))
    assert (report.exit_code, report.done, report.sent, report.in_flight) == (75, 16, 24, 8)
    assert len(backend.cancelled) == 8
    report = await folder.run(backend)
    assert (report.resumed, report.sent, report.sent_again) == (16, 84, 8)
    assert answers(folder.output) == expected(100)
    assert sum(backend.served.values()) == 108


async def test_a_run_whose_batch_an_operator_cancels_leaves_its_lines_to_the_next_run(tmp_path: Path) -> None:
    folder, backend = Folder(tmp_path, lines(100)), Backend()

    def cancel(run: BulkRun) -> None:
        (batch,) = [each for each in run.runtime.engine.driver().waiters if isinstance(each, BatchWaiter)]
        steer({1: run.runtime}, Order("cancel", str(batch.number), reason="wrong prompt"))

    report = await folder.run(backend, on_start=lambda run: asyncio.get_running_loop().call_later(2.5, cancel, run))
    assert (report.exit_code, report.done, report.failed, report.sent) == (75, 16, 0, 24)
    assert "wrong prompt" in str(report.reason)
    report = await folder.run(backend)
    assert (report.resumed, report.done, report.exit_code) == (16, 100, 0)
    assert answers(folder.output) == expected(100)


async def test_a_line_that_waits_for_its_retry_is_left_to_the_next_run_after_a_stop(tmp_path: Path) -> None:
    async def script(sent: Sent) -> Any:
        works = len(backend.sent) <= 4
        await asyncio.sleep(1)
        return f"re: {sent.text}" if works else failure(after=40)

    for failure, seconds in ((broken, 2.5), (broken, 1.5), (overloaded, 2.5), (overloaded, 1.5)):
        path, case = tmp_path / f"{failure.__name__}{seconds}", (failure, seconds)
        path.mkdir()
        folder, backend = Folder(path, lines(50, max_tokens=10)), Backend(script)
        report = await folder.run(backend, endpoint(slots=4, price=(1.0, 1.0)), on_start=stop_after(seconds))
        assert (report.exit_code, report.done, report.failed, report.in_flight) == (75, 4, 0, 0), case
        assert max(sent.at for sent in backend.sent) - backend.sent[0].at < seconds < report.seconds < 4, case
        assert ((report.cost or 0.0) > 4 * 15.1e-6) == (failure is broken), "an attempt that a server may have processed counts"
        report = await folder.run(Backend(), endpoint(slots=4))
        assert (report.done, report.sent, report.sent_again, answers(folder.output)) == (50, 46, 0, expected(50)), case


async def test_after_its_deadline_nothing_more_is_sent(tmp_path: Path) -> None:
    folder, backend = Folder(tmp_path, lines(100)), Backend()
    report = await folder.run(backend, deadline=3.5)
    assert (report.reason, report.exit_code, report.done) == ("its deadline of 3.5 s has come", 75, 32)
    assert max(sent.at for sent in backend.sent) < 3.5
    assert backend.cancelled == []


async def test_a_sample_stops_after_so_many_lines_and_the_next_one_goes_on(tmp_path: Path) -> None:
    folder, backend = Folder(tmp_path, lines(25)), Backend()
    for done in (10, 20):
        report = await folder.run(backend, sample=10)
        assert (report.reason, report.sent, report.done, report.exit_code) == ("its sample of 10 lines is done", 10, done, 75)
    report = await folder.run(backend, sample=5)
    assert (report.reason, report.done, report.exit_code) == (None, 25, 0)
    assert answers(folder.output) == expected(25)


async def test_shards_divide_the_input_among_them(tmp_path: Path) -> None:
    backend = Backend()
    found: dict[str, Any] = {}
    for index in (1, 2, 3):
        folder = Folder(tmp_path, lines(10))
        folder.output = tmp_path / f"out-{index}.jsonl"
        report = await folder.run(backend, shard=(index, 3))
        assert (report.lines, report.done, report.exit_code) == (10, 4 if index == 1 else 3, 0)
        found |= answers(folder.output)
    assert found == expected(10)
    assert set(backend.served.values()) == {1}


async def test_a_run_whose_task_is_cancelled_leaves_a_journal_with_which_the_next_goes_on(tmp_path: Path) -> None:
    folder, backend = Folder(tmp_path, lines(100)), Backend()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(2.5):
            await folder.run(backend)
    assert len(backend.cancelled) == 8
    report = await folder.run(backend)
    assert (report.resumed, report.sent_again, report.done) == (16, 8, 100)


async def test_a_run_stopped_before_it_begins_sends_nothing(tmp_path: Path) -> None:
    folder, backend = Folder(tmp_path, lines(10)), Backend()
    report = await folder.run(backend, on_start=lambda run: run.stop("never mind"))
    assert (report.reason, report.sent, backend.sent) == ("never mind", 0, [])


async def test_a_crash_at_any_moment_loses_no_line_and_pays_only_twice_for_what_was_in_flight(tmp_path: Path) -> None:
    for seed in range(5):
        dice, path = random.Random(seed), tmp_path / str(seed)
        path.mkdir()

        async def script(sent: Sent, dice: random.Random = dice) -> Any:
            await asyncio.sleep(dice.expovariate(1))
            return broken() if dice.random() < 0.05 else f"re: {sent.text}"

        folder, backend, paid = Folder(path, lines(60)), Backend(script), 0
        while True:
            before = len(backend.sent)
            report = await folder.run(backend, on_start=stop_after(dice.uniform(0.1, 6), now=True), retry_failed=True)
            paid += report.sent_again
            assert report.sent <= len(backend.sent) - before, seed
            if report.exit_code != 75:
                break
        assert answers(folder.output) | dict.fromkeys(failures(folder.failed) if report.failed else {}, "") != {}, seed
        assert len(answers(folder.output)) + report.failed == 60, seed
        assert set(backend.served) == {f"item {number}" for number in range(60)}, seed


# what has changed


async def test_a_line_that_has_changed_is_another_line_and_its_earlier_result_is_kept(tmp_path: Path) -> None:
    folder, backend = Folder(tmp_path, lines(10)), Backend()
    await folder.run(backend, sample=6)
    rows = lines(10)
    rows[3] = line(3, "another text")
    write(folder.source, rows)
    report = await folder.run(backend)
    assert (report.done, report.sent, report.resumed, report.exit_code) == (10, 5, 5, 0)
    assert answers(folder.output) == expected(10) | {"id-3": "re: another text"}
    write(folder.source, lines(10))
    assert (await folder.run(backend)).sent == 0
    assert answers(folder.output) == expected(10)


async def test_lines_may_be_moved_removed_and_added_between_runs(tmp_path: Path) -> None:
    folder, backend = Folder(tmp_path, lines(10)), Backend()
    await folder.run(backend)
    for rows, sent in ((lines(7), 0), (lines(12)[::-1], 2), ([], 0), (lines(12)[3:5], 0)):
        write(folder.source, rows)
        report = await folder.run(backend)
        assert (report.done, report.sent, report.exit_code) == (len(rows), sent, 0)
        names = [row["custom_id"] for row in read(folder.output)] if rows else []
        assert names == [row["custom_id"] for row in rows]


async def test_each_of_equal_lines_has_a_result_of_its_own_also_after_a_stop(tmp_path: Path) -> None:
    count = 0

    async def script(sent: Sent) -> Any:
        nonlocal count
        number = count = count + 1
        await asyncio.sleep(1)
        return f"answer {number}"

    folder, backend = Folder(tmp_path, [{"model": MODEL, "prompt": "roll a die"}] * 20), Backend(script)
    report = await folder.run(backend, sample=8)
    assert (report.done, report.sent) == (8, 8)
    report = await folder.run(backend)
    assert (report.done, report.sent, len(backend.sent)) == (20, 12, 20)
    found = read(folder.output)
    assert (
        len({row["custom_id"] for row in found})
        == len({row["response"]["body"]["choices"][0]["message"]["content"] for row in found})
        == 20
    )


async def test_other_settings_are_refused_by_name_and_those_that_change_no_request_are_not(tmp_path: Path) -> None:
    folder, backend = Folder(tmp_path, lines(10)), Backend()
    await folder.run(backend, sample=3)
    changes: dict[str, Any] = {"params": {"max_tokens": 5}, "model": "m", "system": "be brief", "shard": (1, 2)}
    for name, value in changes.items():
        with pytest.raises(ConfigError, match=f"^{name} has changed"):
            await folder.run(backend, **{name: value})
    other = write(tmp_path / "other.jsonl", lines(10))
    with pytest.raises(ConfigError, match=r"^input has changed"):
        await folder.run(backend, source=[folder.source, other])
    report = await folder.run(backend, params={"max_tokens": 5}, resume="force", sample=1)
    assert report.sent == 1
    free: dict[str, Any] = {"timeout": 9.0, "priority": 1, "deadline": 99.0, "max_tokens": None, "retry_failed": True}
    report = await folder.run(backend, **free)
    assert (report.done, report.exit_code) == (10, 0)


# arguments


async def test_wrong_arguments_are_refused_before_anything_is_sent_or_left_behind(tmp_path: Path) -> None:
    folder, backend = Folder(tmp_path, lines(3)), Backend()
    cases: dict[str, dict[str, Any]] = {
        "progress must be": {"progress": 5},
        "max_cost needs the price": {"max_cost": 3.0},
        "template names no column": {"template": "hello"},
        "line 1: '{a.b}' is not a placeholder": {"template": "{a.b}"},
        "'timeout' is an option of other calls": {"params": {"timeout": 3}},
        "must be part i of n, with i from 1 to n": {"shard": (3, 2)},
        "shards": {"shards": (1, 2)},
        "deadline": {"deadline": -1},
        "sample": {"sample": 0},
        "is not known; known: ": {"source": str(write(tmp_path / "x.xml", []))},
        "there is no file": {"source": "nowhere.jsonl"},
    }
    for message, options in cases.items():
        with pytest.raises(ConfigError, match=message):
            await folder.run(backend, **options)
    folder.journal.unlink(missing_ok=True)
    report = await folder.run(backend)
    assert (report.done, len(backend.sent)) == (3, 3)


async def test_an_output_that_would_replace_an_input_is_refused(tmp_path: Path) -> None:
    source = write(tmp_path / "in.jsonl", lines(3))
    backend = Backend()
    async with client_of(backend) as client:
        for output in (source, tmp_path / "." / "in.jsonl"):
            with pytest.raises(ConfigError, match=r"in\.jsonl' is an input; name another output"):
                await run_bulk(client, str(tmp_path / "*.jsonl"), output, {})
    assert len(read(source)) == 3


async def test_a_run_replaces_no_file_of_others_and_leaves_no_journal_beside_it(tmp_path: Path) -> None:
    folder, backend = Folder(tmp_path, lines(3)), Backend()
    for path in (folder.output, folder.failed):
        path.write_text("of others\n")
        with pytest.raises(ConfigError, match=rf"{path.name}' exists and is not the output of a bulk run"):
            await folder.run(backend)
        assert (path.read_text(), folder.journal.exists(), backend.sent) == ("of others\n", False, [])
        path.unlink()
    await folder.run(backend)
    folder.journal.unlink()  # to start over
    assert (await folder.run(backend)).sent == 3


async def test_rows_of_the_program_are_lines_and_are_checked_like_those_of_files(tmp_path: Path) -> None:
    folder, backend = Folder(tmp_path, []), Backend()
    rows = [{"messages": [{"role": "user", "content": f"item {number}"}], "custom_id": f"id-{number}"} for number in range(5)]
    report = await folder.run(backend, source=iter(rows[:3]), model=MODEL)
    assert (report.done, answers(folder.output)) == (3, expected(3))
    report = await folder.run(backend, source=rows, model=MODEL)
    assert (report.sent, answers(folder.output)) == (2, expected(5))
    rows[0]["custom_id"] = "changed"
    assert (await folder.run(backend, source=rows, model=MODEL)).sent == 1


async def test_the_progress_of_a_run_counts_its_lines(tmp_path: Path) -> None:
    seen: list[Any] = []
    folder = Folder(tmp_path, [*lines(30), "{oops"])
    await folder.run(Backend(), progress=seen.append)
    assert (seen[-1].done, seen[-1].failed, seen[-1].total, seen[-1].prompt_tokens) == (31, 1, 31, 300)


async def test_a_full_disk_ends_the_run_with_a_report_and_the_next_one_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_at, limit = os.pwrite, 6000

    def fallocate(_file: int, _offset: int, _size: int) -> None:
        raise OSError(errno.EOPNOTSUPP, "no")

    def pwrite(file: int, data: bytes, offset: int) -> int:
        if offset + len(data) > limit:
            raise OSError(errno.ENOSPC, "No space left on device")
        return write_at(file, data, offset)

    folder, backend = Folder(tmp_path, lines(100)), Backend()
    with monkeypatch.context() as patch:
        patch.setattr(os, "posix_fallocate", fallocate)
        patch.setattr(os, "pwrite", pwrite)
        report = await folder.run(backend)
    assert report.exit_code == 75
    assert "no space is left for" in str(report.reason)
    assert report.done + report.in_flight == report.sent
    again = await folder.run(backend)
    assert (again.resumed, again.done, again.exit_code) == (report.done, 100, 0)
    assert again.sent_again == report.in_flight
    assert answers(folder.output) == expected(100)


async def test_an_output_that_cannot_be_written_is_a_reason_and_everything_stays_in_the_journal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    folder, backend = Folder(tmp_path, lines(10)), Backend()
    with monkeypatch.context() as patch:
        patch.setattr(OutputFile, "write", full)
        report = await folder.run(backend)
    assert (report.exit_code, report.done, report.output) == (75, 10, None)
    assert "the output cannot be written: No space left on device" in str(report.reason)
    report = await folder.run(backend)
    assert (report.exit_code, report.sent) == (0, 0)
    assert answers(folder.output) == expected(10)


# changed inputs


async def test_whatever_changes_between_runs_the_output_is_that_of_the_last_input_and_no_result_is_paid_again(tmp_path: Path) -> None:
    async def script(sent: Sent) -> Any:
        await asyncio.sleep(1)
        return refused() if "bad" in sent.text else f"re: {sent.text}"

    for seed in seeds(12):
        dice = random.Random(seed)
        rows = [line(number, dice.choice(("good", "fine", "bad!"))) for number in range(40)]
        (tmp_path / str(seed)).mkdir()
        folder = Folder(tmp_path / str(seed), [])
        for _ in range(7):
            dice.choice((_edit, _append, _shorten, _keep, _keep))(dice, rows)
            options: dict[str, Any] = {"resume": dice.choice(("auto", "force")), "retry_failed": dice.random() < 0.3}
            write(folder.source, rows)
            backend = Backend(script)
            report = await folder.run(backend, endpoint(slots=3), on_start=stop_after(dice.uniform(0.5, 30), now=True), **options)
            if report.reason is None:
                good = {row["custom_id"]: f"re: {_text_of(row)}" for row in rows if "bad" not in _text_of(row)}
                assert (answers(folder.output) if good else {}) == good, seed
        write(folder.source, rows)
        report = await folder.run(Backend(script), endpoint(slots=3), resume="force", retry_failed=True)
        assert (report.reason, report.done) == (None, len(rows)), seed
        good = {row["custom_id"]: f"re: {_text_of(row)}" for row in rows if "bad" not in _text_of(row)}
        assert (answers(folder.output) if good else {}) == good, seed
        assert (await folder.run(Backend(script), resume="force")).sent == 0, seed


def _text_of(row: dict[str, Any]) -> str:
    return str(row["body"]["messages"][-1]["content"])


def _edit(dice: random.Random, rows: list[dict[str, Any]]) -> None:
    number = dice.randrange(len(rows))
    rows[number] = line(number, dice.choice(("good", "fine", "bad!", "much longer")))


def _append(dice: random.Random, rows: list[dict[str, Any]]) -> None:
    rows.extend(line(len(rows) + more, "good") for more in range(dice.randrange(9)))


def _shorten(dice: random.Random, rows: list[dict[str, Any]]) -> None:
    del rows[len(rows) - dice.randrange(5) :]


def _keep(_dice: random.Random, _rows: list[dict[str, Any]]) -> None:
    """Change nothing."""


async def test_lines_that_a_server_always_rejects_do_not_keep_later_runs_from_the_others(tmp_path: Path) -> None:
    async def script(sent: Sent) -> Any:
        await asyncio.sleep(0.1)
        return overloaded() if 20 <= int(sent.text.split()[1]) < 40 else f"re: {sent.text}"

    folder, exit_code, runs = Folder(tmp_path, lines(100)), 75, 0
    while exit_code == 75 and runs < 15:  # each run leaves up to four of these lines behind
        report, runs = await folder.run(Backend(script), timeout=30), runs + 1
        exit_code = report.exit_code
    assert (report.done - report.failed, exit_code) == (80, 1)


async def test_what_is_in_flight_when_a_run_stops_is_answered_although_copies_of_it_are_not_sent(tmp_path: Path) -> None:
    async def script(sent: Sent) -> Any:
        await asyncio.sleep(9.0 if sent.text in ("item 60", "item 61") else 0.03)
        return f"re: {sent.text}"

    folder, backend, stop = Folder(tmp_path, lines(4000)), Backend(script), 0.3
    report = await folder.run(backend, endpoint("a"), endpoint("b"), client={"hedge": Hedge()}, deadline=stop)
    assert 62 < report.sent < 4000
    assert (report.done, report.in_flight, report.failed) == (report.sent, 0, 0)
    assert max(sent.at for sent in backend.sent) - backend.sent[0].at <= stop, "no copies"
