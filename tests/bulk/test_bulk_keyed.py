"""Rows of a bulk that several processes share are known by their content: each is paid once, whoever receives it."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from bulk_fakes import MODEL, Backend, Sent, unreachable
from keyed_fakes import counting, worker

from qreward.bulk.batches import ALL_FAILED, _was_processed
from qreward.bulk.keyed import JournalFolder, keyed_line, keyed_settings
from qreward.errors import ConfigError, NoEndpoint, QRewardError, RequestTimeout, ServerError
from qreward.judge import Cascade, Judge
from qreward.results import AttemptRecord, Usage

pytestmark = pytest.mark.real_time(60)  # journals are read in a thread


def opened(folder: Path) -> JournalFolder:
    return JournalFolder(folder, keyed_settings({"model": MODEL}).shared_settings((), None))


def asked(*texts: str) -> list[dict[str, Any]]:
    return [{"id": f"id of {text}", "prompt": text} for text in texts]


def answers(results: list[Any]) -> list[str | None]:
    """The texts of the answers; None for a row that failed."""
    lines = [json.loads(each.line) if each.ok else None for each in results]
    return [line and line["response"]["body"]["choices"][0]["message"]["content"] for line in lines]


def output(folder: Path) -> list[str]:
    return identifiers(folder, "part-?????.jsonl")


def identifiers(folder: Path, pattern: str) -> list[str]:
    return [json.loads(line)["custom_id"] for path in sorted(folder.glob(pattern)) for line in path.read_text().splitlines()]


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


async def test_rows_that_are_done_are_not_sent_again_by_any_process(tmp_path: Path) -> None:
    backend = counting()
    async with worker(tmp_path, backend) as one, worker(tmp_path, backend) as other:
        assert answers(await one.results(asked("a", "b"))) == ["re: a", "re: b"]
        assert answers(await other.results(asked("b", "c", "a"))) == ["re: b", "re: c", "re: a"]
    async with worker(tmp_path, backend) as later:
        assert answers(await later.results(asked("c", "b", "a"))) == ["re: c", "re: b", "re: a"]
    assert backend.served == {"a": 1, "b": 1, "c": 1}
    assert names(tmp_path) == ["part-00000.jsonl.journal", "part-00001.jsonl.journal"]  # the third used the first's again


async def test_equal_rows_have_one_answer_and_rows_with_another_id_their_own(tmp_path: Path) -> None:
    backend = counting()
    async with worker(tmp_path, backend) as run:
        assert answers(await run.results(asked("a", "a", "a"))) == ["re: a"] * 3
        assert answers(await run.results([{"id": "another", "prompt": "a"}])) == ["re: a"]
    assert backend.served == {"a": 2}


async def test_what_was_in_flight_when_a_process_died_is_sent_again_and_counted(tmp_path: Path) -> None:
    backend = counting()
    async with worker(tmp_path, backend) as run:
        died = asyncio.ensure_future(run.results(asked("a", "hang")))
        while backend.served["hang"] == 0 or opened(tmp_path).done == 0:  # noqa: ASYNC110 - nobody would set an event
            await asyncio.sleep(0.01)
        copy = tmp_path / "copy"
        copy.mkdir()
        (copy / "part-00000.jsonl.journal").write_bytes((tmp_path / "part-00000.jsonl.journal").read_bytes())
        found = opened(copy)
        assert (found.done, found.sent, found.sent_again, found.in_flight) == (1, 2, 0, 1)
        died.cancel()
        for task in run._tasks:
            task.cancel()
    backend.sent.clear()
    async with worker(copy, backend) as later:
        waiting = asyncio.ensure_future(later.results(asked("a", "hang", "b")))
        while backend.served["hang"] == 0 or opened(copy).done < 2:  # noqa: ASYNC110 - nobody would set an event
            await asyncio.sleep(0.01)
        assert backend.served == {"hang": 1, "b": 1}
        found = opened(copy)
        assert (found.done, found.sent, found.sent_again, found.in_flight) == (2, 4, 1, 1)
        waiting.cancel()
        for task in later._tasks:
            task.cancel()


async def test_a_row_that_fails_is_a_line_and_is_sent_again_only_if_asked(tmp_path: Path) -> None:
    backend = counting()
    rows = [*asked("bad", "good"), {"id": "no prompt"}, {"prompt": object()}]
    for retry_failed, sent in ((False, 1), (False, 1), (True, 2)):
        async with worker(tmp_path, backend, retry_failed=retry_failed) as run:
            results = await run.results(rows)
            assert answers(results) == [None, "re: good", None, None]
            assert all(each.is_kept for each in results)
            codes = [json.loads(each.line)["error"]["code"] for each in results if not each.ok]
            assert codes == ["BadRequest"] * 3
        assert backend.served == {"bad": sent, "good": 1}, retry_failed


async def test_rows_that_fail_for_the_same_reason_have_the_same_message(tmp_path: Path) -> None:
    async with worker(tmp_path, counting()) as run:
        results = await run.results([{"id": name, "prompt": "bad"} for name in ("a", "b")])
    assert [json.loads(each.line)["error"]["message"] for each in results] == ["the server answered 400: too strange"] * 2


async def test_the_output_has_each_row_once_though_two_processes_had_it_at_the_same_time(tmp_path: Path) -> None:
    backend = counting()
    async with worker(tmp_path, backend) as one, worker(tmp_path, backend) as other:
        first, second = await asyncio.gather(one.results(asked("a", "b", "bad")), other.results(asked("a", "c")))
        assert (answers(first), answers(second)) == (["re: a", "re: b", None], ["re: a", "re: c"])
    found = opened(tmp_path)
    assert found.write() == 2
    assert sorted(output(tmp_path)) == ["id of a", "id of b", "id of c"]
    assert (found.done, found.failed) == (4, 1)
    assert found.sent == 4 + found.sent_again == len(backend.sent)
    assert identifiers(tmp_path, "*.failed.jsonl") == ["id of bad"]


async def test_a_result_of_another_row_with_the_same_key_is_never_taken(tmp_path: Path) -> None:
    async with worker(tmp_path, counting()) as run:
        await run.results(asked("a"))
    row = keyed_line(asked("a")[0])
    found = opened(tmp_path)
    assert found.find(row) is not None
    row.row_identifier = row.identifier[:-1] + "x"
    assert found.find(row) is None


async def test_a_full_disk_fails_rows_without_calling_them_done(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    backend = counting()
    async with worker(tmp_path, backend) as run:
        await run.results(asked("a"))

        def full(_: int) -> None:
            raise OSError(28, "No space left on device")

        with monkeypatch.context() as patch:
            patch.setattr(run._journal, "_reserve", full)
            results = await run.results(asked("b", "c"))
        assert [(each.ok, each.is_kept) for each in results] == [(False, False)] * 2
        assert json.loads(results[0].line)["error"]["code"] == "JournalFull"
        assert [(each.ok, each.is_kept) for each in await run.results(asked("a", "d"))] == [(True, True), (False, False)]
    assert backend.served == {"a": 1}
    assert opened(tmp_path).done == 1


async def test_if_all_of_the_first_rows_fail_the_run_sends_no_others_and_the_next_one_goes_on(tmp_path: Path) -> None:
    rows = [{"id": number, "prompt": "bad"} for number in range(3 * ALL_FAILED)]
    backend = counting()
    async with worker(tmp_path, backend) as run:
        results = await run.results(rows)
        failed, lost = [each for each in results if each.is_kept], [each for each in results if not each.is_kept]
        assert ALL_FAILED <= len(failed) < ALL_FAILED + 50 > backend.served["bad"] - ALL_FAILED
        message = json.loads(lost[0].line)["error"]["message"]
        assert message.startswith(f"the last {ALL_FAILED} lines have all failed; the last one: ")
        assert "use --retry-failed (in Python: retry_failed=True)" in message
        assert [each.is_kept for each in await run.results(asked("good"))] == [False]
        assert backend.served["good"] == 0
    async with worker(tmp_path, backend, retry_failed=True) as later:
        assert answers(await later.results(asked("good"))) == ["re: good"]


async def test_a_cascade_has_results_for_the_rows_of_each_call(tmp_path: Path) -> None:
    async def script(_sent: Sent) -> Any:
        return '{"reason": "", "score": 1}'

    def unsure(client: Any) -> Cascade:
        return Cascade([Judge(client, model=model, scale=(0, 1)) for model in (MODEL, "big")])

    async with worker(tmp_path, Backend(script), scorer=unsure) as run:
        for name in "ab":
            results = await run.results([{"prompt": name, "response": f"answer {number}"} for number in range(10)])
            assert [each.ok for each in results] == [True] * 10
        assert [(name, stats.answered) for name, stats in run.scored.items()] == [("a", 40)], (
            "the memory of a run does not grow with its calls"
        )


async def test_many_bad_rows_among_good_ones_fail_alone(tmp_path: Path) -> None:
    rows = [{"id": number, "prompt": None if number % 8 == 7 else f"row {number}"} for number in range(1024)]
    async with worker(tmp_path, counting()) as run:
        results = await run.results(rows)
    assert sum(each.ok for each in results) == 896
    assert all(each.is_kept for each in results)


async def test_rows_of_a_model_whose_endpoint_is_down_are_left_to_the_next_run_and_others_are_answered(tmp_path: Path) -> None:
    async def script(sent: Sent) -> Any:
        return unreachable() if sent.body["model"] == "down" else f"re: {sent.text}"

    rows = [*asked("a", "b"), *({"model": "down", "prompt": f"row {number}"} for number in range(50))]
    async with worker(tmp_path, Backend(script), timeout=5) as run:
        for _ in range(2):  # the second time its rows are not sent
            results = await run.results(rows)
            assert [(each.ok, each.is_kept) for each in results] == [(True, True)] * 2 + [(False, False)] * 50
            assert b"no line can be sent: " in results[-1].line
        assert answers(await run.results(asked("c"))) == ["re: c"]
    found = opened(tmp_path)
    assert (found.done, found.failed, found.in_flight) == (3, 0, 0)


async def test_a_row_that_hangs_fails_and_one_that_no_server_has_seen_is_left_to_the_next_run(tmp_path: Path) -> None:
    async def script(sent: Sent) -> Any:
        if sent.text != "hang":
            return unreachable()
        await asyncio.sleep(3600)
        return None

    for text, is_kept in (("hang", True), ("away", False)):
        path = tmp_path / text
        path.mkdir()
        async with worker(path, Backend(script), timeout=0.05) as run:
            (result,) = await run.results(asked(text))
        found = opened(path)
        assert (result.ok, result.is_kept, found.done, found.in_flight) == (False, is_kept, int(is_kept), 0), text
        assert (b"no line can be sent: " in result.line) is not is_kept, text


def test_the_attempts_of_a_failed_line_say_whether_a_server_can_have_processed_it() -> None:
    late, gone, other = RequestTimeout("late"), NoEndpoint("gone"), ServerError("500")
    paid = RequestTimeout("late")
    paid.usage = Usage(1, 1)
    cases: list[tuple[QRewardError, str, bool]] = [
        (late, "", False),
        (gone, "", False),
        (other, "", True),
        (paid, "", True),
        (late, "a:timeout", True),
        (other, "a:unreachable", False),
        (late, "a:unreachable a:timeout", False),
        (late, "a:overloaded a:timeout", False),
        (late, "a:overloaded a:timeout:30", True),
        (late, "a:unreachable b:timeout", True),
        (late, "a:timeout a:unreachable", True),
        (other, "a:unreachable a:transient", True),
        (other, "a:ok a:unreachable", True),
    ]
    for error, trail, processed in cases:
        fields = [[*each.split(":"), "1"][:3] for each in trail.split()]
        attempts = [AttemptRecord(endpoint, outcome, float(seconds)) for endpoint, outcome, seconds in fields]
        assert _was_processed(error, attempts) is processed, (error, trail)


def test_a_torn_end_and_reserved_space_are_read_over(tmp_path: Path) -> None:
    path = tmp_path / "part-00000.jsonl.journal"
    number, journal = opened(tmp_path).claim()
    row = keyed_line({"prompt": "a"})
    line = b'{"id":"%b","custom_id":"a"}' % row.identifier.encode()
    journal.start(row.key)
    journal.finish(row.key, line, ok=True)
    journal.close()
    whole = path.read_bytes()
    for end in (b"", b"\0" * 5000, b"0123", b"0123" + b"\0" * 5000, whole[-20:-1]):
        path.write_bytes(whole + end)
        found = opened(tmp_path)
        assert (number, found.done, found.sent) == (0, 1, 1), end[:10]
        record = found.find(row)
        assert record is not None
        assert (record.ok, record.content) == (True, line), end[:10]
        part, again = found.claim()
        again.finish(7, b"{}", ok=False)
        again.close()
        found.refresh()
        assert (part, found.done, found.failed) == (0, 2, 1), end[:10]


def test_settings_of_one_process_and_other_settings_than_before_are_refused(tmp_path: Path) -> None:
    single: dict[str, Any] = {
        "max_cost": 1.0,
        "max_tokens": 5,
        "sample": 3,
        "shard": (1, 2),
        "deadline": 3.0,
        "progress": True,
    }
    for name, value in single.items():
        with pytest.raises(ConfigError, match=f"{name} needs one process that reads all lines"):
            keyed_settings({name: value})
    opened(tmp_path).claim()[1].close()
    with pytest.raises(ConfigError, match="model has changed"):
        JournalFolder(tmp_path, {"input": [], "scorer": None, "model": "another"})
    with pytest.raises(ConfigError, match="there is no folder"):
        opened(tmp_path / "none")


def test_a_row_is_known_by_its_values_whatever_the_order_of_its_columns() -> None:
    same: list[dict[str, Any]] = [
        {"id": 1, "body": {"a": 1, "b": None}},
        {"body": {"a": 1}, "id": 1},
        {"id": 1, "body": {"a": 1}, "note": None},
    ]
    assert len({keyed_line(row).identifier for row in same}) == 1
    others: list[dict[str, Any]] = [{"id": 1}, {"id": "1"}, {"id": 2}, {"id": 1, "body": {}}, {"id": 1, "body": {"a": [1]}}]
    assert len({keyed_line(row).identifier for row in [*others, same[0]]}) == 6
    line = keyed_line({"prompt": "a", "model": None})
    assert (line.fields(), line.custom_id) == ({"prompt": "a"}, line.identifier)


def test_a_success_counts_and_not_a_failure_of_the_same_row_in_another_journal(tmp_path: Path) -> None:
    for results in ((True, False), (False, True), (True, True)):
        folder = tmp_path / str(results)
        folder.mkdir()
        parts = [opened(folder).claim() for _ in results]
        for (number, journal), ok in zip(parts, results, strict=True):
            journal.finish(7, b'{"custom_id":"of %d"}' % number, ok=ok)
            journal.close()
        found = opened(folder)
        assert (found.done, found.failed) == (1, 0), results
        assert found.write() == 1
        assert output(folder) == [f"of {results.index(True)}"], results
        assert not list(folder.glob("*.failed.jsonl")), results
