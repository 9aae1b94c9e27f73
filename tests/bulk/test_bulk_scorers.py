"""Judging files: each line is an item of a scorer, and its result a verdict."""

from __future__ import annotations

import asyncio
import json
import re
from collections import Counter
from collections.abc import AsyncIterable, Iterable
from pathlib import Path
from typing import Any

import pytest
from bulk_fakes import MODEL, Backend, Folder, Sent, broken, endpoint, failures, overloaded, read, refused, unreachable

from qreward import Retry
from qreward.bulk import batches
from qreward.bulk.batches import SCORING
from qreward.bulk.budget import UNPAID
from qreward.bulk.inputs import digest_of
from qreward.engine.batch import BatchWaiter
from qreward.errors import ConfigError
from qreward.judge import Cascade, Judge, RewardModelScorer
from qreward.judge.config import JudgeConfig
from qreward.judge.types import JudgeAnswer, Verdict
from qreward.results import BatchResult, BatchStats, Result


def items(count: int, **more: Any) -> list[dict[str, Any]]:
    return [{"id": f"id-{number}", "question": "What is 6 x 7?", "answer": f"a{number}", **more} for number in range(count)]


COLUMNS = {"prompt": "question", "response": "answer"}


def judge_of(**settings: Any) -> Any:
    return lambda client: Judge(client, model=MODEL, **settings)


async def scores(sent: Sent) -> Any:
    """The number of the answer as its score, of 100."""
    await asyncio.sleep(1)
    number = int(sent.text.split("```\na")[1].split("\n")[0])
    return json.dumps({"reason": "so it is", "score": number % 10})


def verdicts(path: Path | None) -> dict[str, float]:
    return {row["custom_id"]: row["verdict"]["score"] for row in read(path)}


async def test_each_line_becomes_a_verdict_in_the_order_of_the_input(tmp_path: Path) -> None:
    folder, backend = Folder(tmp_path, items(60)), Backend(scores)
    report = await folder.run(backend, endpoint(price=(1e6, 0.0)), scorer=judge_of(scale=(0, 9), range=(0, 9)), columns=COLUMNS)
    assert (report.done, report.failed, report.exit_code) == (60, 0, 0)
    assert verdicts(folder.output) == {f"id-{number}": float(number % 10) for number in range(60)}
    assert list(verdicts(folder.output)) == [f"id-{number}" for number in range(60)]
    (first, *_) = read(folder.output)
    assert first["verdict"]["votes"][0]["model"] == MODEL
    assert first["error"] is None
    assert (report.tokens, report.cost) == (60 * 15, 600.0)


async def test_a_judge_that_is_stopped_goes_on_with_the_rest(tmp_path: Path) -> None:
    folder, backend = Folder(tmp_path, items(100)), Backend(scores)
    judge = judge_of(scale=(0, 9))

    def stop(run: Any) -> asyncio.TimerHandle:
        return asyncio.get_running_loop().call_later(2.5, run.stop_now)

    report = await folder.run(backend, scorer=judge, columns=COLUMNS, on_start=stop)
    assert (report.exit_code, report.done) == (75, 16)
    assert report.in_flight == report.sent - 16 > 0
    again = await folder.run(backend, scorer=judge, columns=COLUMNS)
    assert (again.resumed, again.done, again.exit_code, again.sent_again) == (16, 100, 0, report.in_flight)
    assert len(verdicts(folder.output)) == 100


async def test_a_judge_whose_batch_an_operator_cancels_leaves_its_items_to_the_next_run(tmp_path: Path) -> None:
    folder, backend, judge = Folder(tmp_path, items(100)), Backend(scores), judge_of(scale=(0, 9))

    def cancel(run: Any) -> None:
        (batch,) = [each for each in run.runtime.engine.driver().waiters if isinstance(each, BatchWaiter)]
        batch.cancel("wrong prompt")

    report = await folder.run(
        backend, scorer=judge, columns=COLUMNS, on_start=lambda run: asyncio.get_running_loop().call_later(2.5, cancel, run)
    )
    assert (report.exit_code, report.done, report.failed) == (75, 16, 0)
    assert "wrong prompt" in str(report.reason)
    again = await folder.run(backend, scorer=judge, columns=COLUMNS)
    assert (again.resumed, again.done, again.exit_code) == (16, 100, 0)


async def test_a_judge_that_is_told_to_stop_finishes_the_items_that_it_has(tmp_path: Path) -> None:
    folder, backend = Folder(tmp_path, items(3000)), Backend(scores)

    def stop(run: Any) -> asyncio.TimerHandle:
        return asyncio.get_running_loop().call_later(2.5, run.stop, "enough")

    report = await folder.run(backend, endpoint(slots=256), scorer=judge_of(scale=(0, 9)), columns=COLUMNS, on_start=stop)
    assert (report.exit_code, report.in_flight, report.reason) == (75, 0, "enough")
    assert 512 <= report.done == report.sent < 512 + SCORING
    assert sum(stats.won for stats in report.endpoints.values()) == report.done


async def test_an_item_that_fails_is_that_line_and_missing_columns_are_said(tmp_path: Path) -> None:
    async def script(sent: Sent) -> Any:
        return refused() if "a3\n" in sent.text else await scores(sent)

    rows: list[Any] = [*items(6), {"id": "id-6", "question": "?"}, "{oops"]
    folder = Folder(tmp_path, rows)
    report = await folder.run(Backend(script), scorer=judge_of(scale=(0, 9)), columns=COLUMNS)
    assert (report.done, report.failed, report.exit_code) == (8, 3, 1)
    found = failures(folder.failed)
    assert "in.jsonl:4: " in found["id-3"]
    assert "in.jsonl:7: it has no 'answer', which columns names" in found["id-6"]
    assert "in.jsonl:8: it is not JSON" in found[f"qreward-{digest_of(b'{oops'):015x}"]


async def test_wrong_columns_are_said_and_the_run_starts_anew_when_they_are_corrected(tmp_path: Path) -> None:
    folder, backend = Folder(tmp_path, items(150)), Backend(scores)
    judge = judge_of(scale=(0, 9))
    report = await folder.run(backend, scorer=judge, columns={"prompt": "question"})
    assert (report.exit_code, backend.served, report.errors["ConfigError"][0] >= 100) == (75, {}, True)
    assert "map the field to the column with the setting columns" in report.errors["ConfigError"][1]
    report = await folder.run(backend, scorer=judge, columns={"prompt": "question", "response": "answr"})
    assert "it has no 'answr', which columns names" in report.errors["BadRequest"][1]
    report = await folder.run(backend, scorer=judge, columns=COLUMNS)
    assert (report.exit_code, report.done, report.failed, report.resumed, report.sent) == (0, 150, 0, 0, 150)
    with pytest.raises(ConfigError, match=r"^columns has changed .*, or continue with --resume force"):
        await folder.run(backend, scorer=judge, columns={"prompt": "question"})


async def test_an_outage_fails_no_item_that_no_server_has_seen(tmp_path: Path) -> None:
    async def script(sent: Sent) -> Any:
        if not down:
            return await scores(sent)
        await asyncio.sleep(1)
        return unreachable()

    down, folder, backend = True, Folder(tmp_path, items(40)), Backend(script)
    judge = judge_of(scale=(0, 9))
    report = await folder.run(backend, scorer=judge, columns=COLUMNS, timeout=20)
    assert (report.exit_code, report.done, report.failed) == (75, 0, 0)
    down = False
    report = await folder.run(backend, scorer=judge, columns=COLUMNS)
    assert (report.exit_code, report.done, report.failed) == (0, 40, 0)


async def test_in_an_outage_items_that_were_not_sent_do_not_wait_for_their_timeouts(tmp_path: Path) -> None:
    async def script(sent: Sent) -> Any:
        if not down:
            return await scores(sent)
        await asyncio.sleep(1)
        return overloaded()

    down, folder = True, Folder(tmp_path, items(500))
    report = await folder.run(Backend(script), scorer=judge_of(scale=(0, 9)), columns=COLUMNS, timeout=60)
    assert (report.exit_code, report.done - report.failed, report.in_flight) == (75, 0, 0)
    assert report.seconds <= 120
    down = False
    report = await folder.run(Backend(script), endpoint(slots=64), scorer=judge_of(scale=(0, 9)), columns=COLUMNS)
    assert (report.exit_code, report.done, report.failed, report.sent_again) == (0, 500, 0, 0)


class Wrapped:
    """A scorer of one's own that asks a judge."""

    def __init__(self, client: Any) -> None:
        self._judge = judge_of(scale=(0, 9))(client)

    async def batch_score(self, entries: Any, **options: Any) -> BatchResult[Verdict]:
        found: BatchResult[Verdict] = await self._judge.batch_score(entries, **options)
        return found

    async def aclose(self) -> None: ...


def cascade_of(client: Any) -> Cascade:
    """The first stage gives no confidence, so the second one scores every item."""
    return Cascade([Judge(client, model=model, scale=(0, 9)) for model in (MODEL, "big")])


async def test_a_cascade_or_a_scorer_of_ones_own_that_is_given_up_forgets_no_answer_that_it_has_paid_for(tmp_path: Path) -> None:
    async def script(sent: Sent) -> Any:
        text = await scores(sent)
        if asyncio.get_running_loop().time() >= until:
            return text
        return broken() if sent.body["model"] == "big" else unreachable() if scorer is Wrapped and "a0\n" in sent.text else text

    places = [endpoint(name, slots=64, models=[model], price=(1e6, 0.0)) for name, model in (("a", MODEL), ("b", "big"))]
    for scorer, seconds, failed in ((cascade_of, 120, 500), (Wrapped, 1.5, 0)):
        path = tmp_path / scorer.__name__
        path.mkdir()
        until, folder = asyncio.get_running_loop().time() + seconds, Folder(path, items(500))
        options: dict[str, Any] = {"scorer": scorer, "columns": COLUMNS, "timeout": 60, "client": {"retry": Retry(attempts=1)}}
        report = await folder.run(Backend(script), *places, **options)
        assert (report.exit_code, report.in_flight, report.failed) == (75, 0, failed), scorer
        assert report.cost == 10.0 * sum(stats.answered for stats in report.endpoints.values()) > 0, scorer
        again = await folder.run(Backend(script), *places, **options)
        assert (again.done, again.sent, again.sent_again) == (500, 500 - report.done, 0), scorer


async def test_a_cascade_that_is_sure_of_nothing_before_its_last_stage_gets_the_lines_in_rounds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batches, "SCORING", 50)
    for name, most, done in (("no limit", None, 120), ("high limit", 10_000, 120), ("low limit", 1500, 50)):
        (tmp_path / name).mkdir()
        folder = Folder(tmp_path / name, items(120))
        report = await folder.run(Backend(scores), endpoint(slots=64), scorer=cascade_of, columns=COLUMNS, max_tokens=most)
        assert (report.done, report.failed, report.tokens) == (done, 0, 30 * done), name
        assert report.exit_code == (0 if done == 120 else 75), name
        assert report.seconds < 12, name


async def test_a_scorer_that_forgets_items_stops_the_run(tmp_path: Path) -> None:
    class Forgetful(Lengths):
        async def batch_score(self, entries: Any, *, on_result: Any, **options: Any) -> BatchResult[Verdict]:
            return await super().batch_score(entries, on_result=lambda result: result.index % 2 or on_result(result), **options)

    report = await Folder(tmp_path, items(12)).run(Backend(), scorer=lambda _: Forgetful(), columns=COLUMNS)
    assert (report.done, report.in_flight, report.exit_code) == (6, 6, 75)
    assert "the scorer has ended without a result for 6 of its items" in str(report.reason)


async def test_lines_that_cost_nothing_do_not_count_in_the_mean_cost_of_a_line(tmp_path: Path) -> None:
    async def run(most: int) -> Any:
        options: dict[str, Any] = {"columns": COLUMNS, "max_tokens": most}
        return await folder.run(Backend(scores), endpoint(slots=256), scorer=judge_of(scale=(0, 9)), **options)

    for case, bad in (("none", 0), ("one", 1), ("many", 90)):
        path = tmp_path / case
        path.mkdir()
        folder = Folder(path, [*(f"{{oops {number}" for number in range(bad)), *items(3000)])
        report = await run(750)
        assert (report.done - report.failed, report.tokens) == (50, 750), case
        report = await run(1500)
        assert (report.done - report.failed, report.tokens) == (100, 750), case


async def test_a_scorer_with_a_budget_does_not_wait_for_each_of_the_first_items_that_cost_nothing(tmp_path: Path) -> None:
    async def script(sent: Sent) -> Any:
        text = await scores(sent)
        return refused() if int(sent.text.split("```\na")[1].split("\n")[0]) < 90 else text

    folder, backend = Folder(tmp_path, items(200)), Backend(script)
    report = await folder.run(backend, endpoint(slots=64), scorer=judge_of(scale=(0, 9)), columns=COLUMNS, max_tokens=10**6)
    assert (report.done, report.failed, report.tokens) == (200, 90, 110 * 15)
    assert report.seconds <= 15
    assert max(Counter(sent.at for sent in backend.sent[:90]).values()) <= UNPAID


async def test_an_item_whose_request_hangs_fails_alone_and_the_run_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def script(sent: Sent) -> Any:
        if "hang" in json.dumps(sent.body):
            await asyncio.sleep(1e6)
        return await scores(sent)

    async def hang(*_: Any) -> Any:
        await asyncio.sleep(1e6)

    def reward_model(client: Any) -> Any:
        monkeypatch.setattr(backend, "send", hang)  # its script knows no bodies of reward servers
        return RewardModelScorer(client, MODEL)

    one, three = [endpoint()], [endpoint(name) for name in "abc"]
    cases: dict[str, tuple[Any, list[Any], int, int]] = {
        "one endpoint": (judge_of(scale=(0, 9)), one, 4, 1),
        "several samples": (judge_of(scale=(0, 9), samples=3), three, 4, 1),
        "one slot for all samples": (judge_of(scale=(0, 9), samples=3), [endpoint(slots=1)], 4, 1),
        "equal items": (judge_of(scale=(0, 9)), one, 4, 2),
        "a reward model": (reward_model, [endpoint(kind="openrlhf")], 0, 1),
    }
    for case, (scorer, endpoints, others, hanging) in cases.items():
        path = tmp_path / case
        path.mkdir()
        rows = items(others)
        rows[1:1] = [{**items(1)[0], "id": f"hang-{number}", "question": "hang"} for number in range(hanging)]
        folder, backend = Folder(path, rows), Backend(script)
        report = await folder.run(backend, *endpoints, scorer=scorer, columns=COLUMNS, timeout=60)
        assert (report.done, report.failed, report.exit_code) == (others + hanging, hanging, 1), (case, str(report))
        assert set(failures(folder.failed)) == {f"hang-{number}" for number in range(hanging)}, case
        assert all(row["error"]["attempts"][-1]["outcome"] == "timeout" for row in read(folder.failed)), case


async def test_another_scorer_is_refused(tmp_path: Path) -> None:
    folder, backend = Folder(tmp_path, items(5)), Backend(scores)
    judge = judge_of(scale=(0, 9))
    await folder.run(backend, scorer=judge, columns=COLUMNS, sample=2)
    with pytest.raises(ConfigError, match=r"^scorer has changed"):
        await folder.run(backend, columns=COLUMNS)
    with pytest.raises(ConfigError, match=r"^columns has changed"):
        await folder.run(backend, scorer=judge, columns={"prompt": "question", "response": "question"})


async def test_the_budget_of_a_run_and_that_of_its_judge_stop_it_and_the_next_run_goes_on(tmp_path: Path) -> None:
    place = endpoint(slots=1, price=(1e6, 0.0))  # an answer costs 10 dollars
    for name, run, judge, said in (
        ("cost", {"max_cost": 50.0}, {}, r"probably pass max_cost or max_tokens \(50 of 50 dollars spent"),
        ("tokens", {"max_tokens": 75}, {}, "probably pass max_cost or max_tokens .75 of 75 tokens"),
        ("judge", {}, {"budget": 50.0}, r"the budget of the judge 'judge-7b' is spent \(\$50 of \$50\)"),
    ):
        (tmp_path / name).mkdir()
        folder, backend = Folder(tmp_path / name, items(20)), Backend(scores)
        scorer = judge_of(scale=(0, 9), **judge)
        report = await folder.run(backend, place, scorer=scorer, columns=COLUMNS, **run)
        assert re.search(said, str(report.reason)), (name, report.reason)
        assert (report.failed, report.exit_code) == (0, 75), name
        assert (report.done, report.sent) == (5, 5) if run else report.done <= 6, name
        assert report.cost == 10.0 * report.done
        again = await folder.run(backend, place, scorer=scorer, columns=COLUMNS, **run)
        assert (again.cost_before, again.done) == (report.cost, report.done if run else again.done), name
        whole = await folder.run(backend, place, scorer=judge_of(scale=(0, 9)), columns=COLUMNS)
        assert (whole.done, whole.failed, len(verdicts(folder.output))) == (20, 0, 20), name


async def test_a_judge_with_another_setting_is_another_scorer_and_one_made_anew_is_not(tmp_path: Path) -> None:
    folder, backend = Folder(tmp_path, items(5)), Backend(scores)
    await folder.run(backend, scorer=judge_of(scale=(0, 9)), columns=COLUMNS, sample=2)
    changed: list[dict[str, Any]] = [
        {"scale": (0, 8)},
        {"range": (-1, 1)},
        {"temperature": 1},
        {"rubric": [{"name": "right", "instructions": "It is right."}]},
    ]
    for settings in changed:
        other = judge_of(**({} if "rubric" in settings else {"scale": (0, 9)}) | settings)
        with pytest.raises(ConfigError, match=r"^scorer has changed"):
            await folder.run(backend, scorer=other, columns=COLUMNS)
    report = await folder.run(backend, scorer=judge_of(scale=(0, 9)), columns=COLUMNS)
    assert (report.exit_code, report.done) == (0, 5)


async def test_what_is_not_a_scorer_is_refused_before_there_is_a_journal(tmp_path: Path) -> None:
    folder = Folder(tmp_path, items(5))
    with pytest.raises(ConfigError, match=r"^scorer must be a scorer, such as a Judge; .* has no method 'batch_score'"):
        await folder.run(Backend(scores), scorer=lambda _: JudgeConfig(model=(MODEL,)), columns=COLUMNS)
    assert not folder.output.with_name(f"{folder.output.name}.journal").exists()


class Lengths:
    """A scorer of one's own."""

    async def batch_score(self, entries: Iterable[Any] | AsyncIterable[Any], *, on_result: Any, **_: Any) -> BatchResult[Verdict]:
        from qreward.judge.types import JudgeAnswer, Vote
        from qreward.results import BatchStats, Result

        index = 0
        assert isinstance(entries, AsyncIterable)
        async for entry in entries:
            length = float(len(entry["response"]))
            on_result(Result(index, JudgeAnswer(Verdict(length, (Vote(length),))), None, None, 0.0, 0.0))
            index += 1
        return BatchResult([], BatchStats(index, index, 0, 0.0, {}))

    async def aclose(self) -> None: ...

    def __repr__(self) -> str:
        return "lengths"


async def test_a_scorer_of_ones_own_takes_the_lines(tmp_path: Path) -> None:
    folder = Folder(tmp_path, items(12))
    report = await folder.run(Backend(), scorer=lambda _: Lengths(), columns=COLUMNS)
    assert (report.done, report.exit_code) == (12, 0)
    assert verdicts(folder.output)["id-11"] == 3.0


async def test_columns_name_entries_of_mappings_too_and_a_blank_reference_is_none(tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [
        {"id": name, "task": {"question": "q"}, "answer": "a1", "gold": gold} for name, gold in (("a", ""), ("b", "a1"))
    ]
    rows += [{"id": "c", "task": {}, "answer": "a1"}, {"id": "d", "task.question": "dotted", "answer": "a2", "gold": "b3"}]
    folder, backend = Folder(tmp_path, rows), Backend(scores)
    columns = {"prompt": "task.question", "response": "answer", "reference": "gold"}
    report = await folder.run(backend, scorer=judge_of(scale=(0, 9), range=(0, 9)), columns=columns)
    assert (report.done, report.failed, verdicts(folder.output)) == (4, 1, {"a": 1.0, "b": 1.0, "d": 2.0})
    assert "in.jsonl:3: it has no 'task.question', which columns names" in failures(folder.failed)["c"]
    assert sorted("Reference answer" in sent.text for sent in backend.sent) == [False, True, True]
    with pytest.raises(ConfigError, match="the reference is read from 'answer', which is the response"):
        await folder.run(backend, scorer=judge_of(), columns={"response": "answer", "reference": "answer"})


async def test_a_score_that_is_no_finite_number_is_a_failed_line(tmp_path: Path) -> None:
    class Odd:
        """A scorer of the user's own."""

        async def batch_score(self, items: AsyncIterable[Any], *, on_result: Any, **_: Any) -> BatchResult[Verdict]:
            numbers = iter((1.0, float("nan"), float("inf")))
            index = 0
            async for _item in items:
                on_result(Result(index, JudgeAnswer(Verdict(next(numbers), ())), None, None, 0.0, 0.0))
                index += 1
            return BatchResult([], BatchStats())

    folder = Folder(tmp_path, items(3))
    report = await folder.run(Backend(), scorer=lambda _: Odd(), columns=COLUMNS)
    assert (report.done, report.failed, verdicts(folder.output)) == (3, 2, {"id-0": 1.0})
    assert all("which is not a finite number" in reason for reason in failures(folder.failed).values())


async def test_each_line_may_have_a_rubric_of_its_own(tmp_path: Path) -> None:
    rubrics = [["It is right."], [{"instructions": "It is right.", "weight": 2}, "It is a0."], "[7]"]
    lines = [item | {"criteria": rubric} for item, rubric in zip(items(3), rubrics, strict=True)]
    folder, backend = Folder(tmp_path, lines), Backend(scores_of_criteria)
    report = await folder.run(backend, endpoint(), scorer=judge_of(rubric_column="rubric"), columns=COLUMNS | {"rubric": "criteria"})
    assert (report.done, report.failed) == (3, 1)
    assert verdicts(folder.output) == {"id-0": 1.0, "id-1": pytest.approx(2 / 3)}
    (failed,) = read(report.failures)
    assert failed["custom_id"] == "id-2"
    assert "the rubric in 'rubric' is wrong: 0: must be a mapping" in failed["error"]["message"]


async def scores_of_criteria(sent: Sent) -> Any:
    return json.dumps({"reason": "", "verdict": "no" if "It is a0." in sent.text else "yes"})
