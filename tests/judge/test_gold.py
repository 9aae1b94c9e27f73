"""Gold labels: what is wrong with them is said before anything is sent, and a judge is calibrated with them for itself alone."""

from __future__ import annotations

import asyncio
import json
import logging
import pickle
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest
from judge_tools import JudgeBackend, Sent, broken, client_of, judge_over, number_of, score

from qreward.errors import ConfigError, RequestError
from qreward.judge import Calibration, Judge, JudgeConfig, calibrate
from qreward.judge.agreement import labelled, read_items

COUNT = 100


def gold(count: int = COUNT) -> list[dict[str, Any]]:
    """Items whose label is yes with the probability that is the tenth of their number's last digit, roughly."""
    rng = Random(1)
    return [{"prompt": "q", "response": f"a{number}", "label": rng.random() * 9 < number % 10, "id": number} for number in range(count)]


async def digit(sent: Sent) -> str:
    """A judge that gives the last digit of the number, which is unsure of itself by a tenth."""
    await asyncio.sleep(0.1)
    return score(number_of(sent) % 10)


def settings(**more: Any) -> dict[str, Any]:
    return {"scale": (0, 9), **more}


async def made(script: Any = digit, items: Any = None, **more: Any) -> Calibration:
    async with judge_over(JudgeBackend(script), **settings(**more)) as judge:
        return await calibrate(judge, gold() if items is None else items)


async def refusal(of: Callable[[], Any]) -> str:
    try:
        found = of()
        if asyncio.iscoroutine(found):
            await found
    except (ConfigError, RequestError) as error:
        return str(error)
    return ""


async def test_a_file_that_cannot_be_read_is_named_with_the_line(tmp_path: Path) -> None:
    path = tmp_path / "gold.jsonl"
    line = '{"prompt": "q", "response": "a", "label": 1}'
    table = [
        ("", f"{path}: is empty"),
        (f"{line}\n{{", f"{path}, line 2: is not valid JSON: "),
        (f"{line}\n\n[1]", f"{path}, line 3: must be a mapping of fields"),
        ('{"prompt": "q", "label": 1, "label": 0}', f"{path}, line 1: cannot be read: the name 'label' is there twice; keep one"),
        ('{"prompt": "q", "response": "a"}', f"{path}, line 1: has no 'label'; give true, false or a number from 0 to 1"),
        (f'{line}\n{{"label": "yes"}}', f"{path}, line 2: 'label' must be true, false or a number from 0 to 1, not 'yes'"),
        *((f'{{"label": {odd}}}', f"{path}, line 1: 'label' must be true, false or a number") for odd in ("NaN", "1e400", 10**400)),
        (f'{line}\n{{"label": 4}}', f"{path}, line 2: the label 4 is not from 0 to 1; set scale to the lowest and highest label"),
    ]
    wrong = []
    for content, words in table:
        path.write_text(content)
        said = await refusal(lambda: labelled(path))
        if not said.startswith(words):
            wrong.append((words, said))
    assert wrong == []
    wrong_item: Any = 3
    path.write_bytes(b"\xff")
    assert await refusal(lambda: labelled(str(path))) == f"{path}: is not UTF-8 text"
    assert await refusal(lambda: labelled(tmp_path / "gone")) == f"{tmp_path / 'gone'}: cannot be read: No such file or directory"
    assert await refusal(lambda: labelled([{"label": 1}, wrong_item])) == (
        'gold[1]: must be a mapping of fields, such as {"prompt": ..., "response": ...}, not a int'
    )
    assert "must be the path of a JSONL file or a list of mappings, not a int" in await refusal(lambda: labelled(wrong_item))
    assert "scale must be (lowest, highest)" in await refusal(lambda: labelled([{"label": 1}], (5, 1)))


async def test_labels_are_read_on_their_scale_and_are_not_part_of_the_items(tmp_path: Path) -> None:
    path = tmp_path / "gold.jsonl"
    labels = ["true", "false", "1", "3", "5.0"]
    path.write_text("\ufeff" + "".join(f'{{"response": "a\u2028b", "label": {label}}}\r\n' for label in labels), encoding="utf-8")
    items, found = labelled(path, (1, 5))
    assert found == [1.0, 0.0, 0.0, 0.5, 1.0]
    assert items == [{"response": "a\u2028b"}] * 5
    assert [place for place, _ in read_items(path)] == [f"{path}, line {number}" for number in range(1, 6)]


async def test_what_cannot_be_calibrated_is_refused_before_anything_is_sent() -> None:
    backend = JudgeBackend(digit)
    async with client_of(backend) as client:
        calibration = Calibration.fit([place / 100 for place in range(100)], [place > 50 for place in range(100)])

        def judge(**more: Any) -> Judge:
            return Judge(client, model="judge-7b", **settings(**more))

        table: list[tuple[Callable[[], Any], str]] = [
            (lambda: calibrate(judge(), gold(40)), "at least 50 labels"),
            (lambda: calibrate(judge(), [{**item, "label": True} for item in gold()]), "0 of 100 labels say no (0)"),
            (lambda: calibrate(judge(), [{"response": "a"}]), "gold[0]: has no 'label'"),
            (lambda: calibrate(judge(calibration=calibration), gold()), "the judge has a calibration already"),
            (lambda: calibrate(judge(method="auto", scale=(1, 5)), gold()), "method='auto' may decide or write"),
            (lambda: calibrate(judge(score=lambda verdict: verdict.score), gold()), "a score function gives scores without known ends"),
            (lambda: calibrate(judge(range=(1, 1)), gold()), "range (1, 1) makes all scores equal"),
            (lambda: calibrate(judge(), gold(), keep_results=False), "keep_results cannot be False"),
            (lambda: calibrate(client, gold()), "judge must be a Judge, not a QRewardClient"),  # type: ignore[arg-type]
            (lambda: calibrate(judge(), gold(), methd="platt"), "methd"),  # type: ignore[call-arg]
            (lambda: judge(calibration=calibration, method="auto", scale=(1, 5)), "method='auto' may decide or write"),
            (lambda: judge(calibration=calibration, score=lambda verdict: verdict.score), "without known ends"),
            (lambda: judge(calibration="gone.json"), "gone.json: cannot be read"),
        ]
        said = [(await refusal(of), words) for of, words in table]
    assert [(found, words) for found, words in said if words not in found] == []
    assert backend.sent == []


async def test_a_calibrated_judge_gives_probabilities_in_its_range_and_leaves_votes_and_pairs_as_they_are() -> None:
    calibration = await made()
    wanted = [calibration.apply(digit / 9) for digit in range(10)]
    assert wanted == sorted(wanted)
    for bounds in ((0.0, 1.0), (-1.0, 1.0), (1.0, 0.0), None):
        low, high = bounds or (0.0, 9.0)
        async with judge_over(JudgeBackend(digit), **settings(calibration=calibration, range=bounds)) as judge:
            verdicts = (await judge.batch_score([("q", f"a{number}") for number in range(10)])).values()
            single = await judge.score("q", "a3")
        assert [verdict.score for verdict in verdicts] == pytest.approx([low + (high - low) * each for each in wanted]), bounds
        assert [verdict.votes[0].score for verdict in verdicts] == pytest.approx([low + (high - low) * digit / 9 for digit in range(10)])
        assert all(verdict.calibrated for verdict in verdicts)
        assert single == verdicts[3]

    async def first(_: Sent) -> str:
        return json.dumps({"preferred": "tie"})

    async with judge_over(JudgeBackend(first), **settings(calibration=calibration)) as judge:
        assert (await judge.compare("q", "a", "b")).score == 0.5
    async with judge_over(JudgeBackend(digit), **settings()) as judge:
        assert not (await judge.score("q", "a3")).calibrated


async def test_items_that_fail_are_left_out_and_counted_but_not_more_than_a_fifth() -> None:
    def failing(share: int) -> Any:
        async def script(sent: Sent) -> Any:
            return broken(400) if number_of(sent) % 100 < share else score(number_of(sent) % 10)

        return script

    found = await made(failing(20), gold(200))
    assert (found.labels, found.failed) == (160, 40)
    said = await refusal(lambda: made(failing(21), gold(200)))
    assert said.startswith(
        "42 of 200 labelled items could not be judged, and at most a fifth may fail: 42 ServerError; the first ServerError: "
    )


async def test_a_calibration_for_another_judge_is_an_error_that_names_what_differs() -> None:
    calibration = await made(temperature=0)
    table: list[tuple[dict[str, Any], str]] = [
        ({"temperature": 0.5}, "temperature"),
        ({"temperature": 0, "model": "judge-70b"}, "model (was judge-7b, is judge-70b)"),
        ({"temperature": 0, "system": "Be strict."}, "system"),
        ({"temperature": 0, "scale": (0, 10)}, "scale, verdict"),
        ({"temperature": 0, "samples": 3, "settle": "mean"}, "samples, settle"),
        ({"temperature": 0, "rubric": {"right": "It is right."}, "scale": None}, "rubric, scale, verdict"),
    ]
    fine: list[dict[str, Any]] = [{}, {"range": (-1, 1)}, {"reasks": 3}, {"cache_namespace": "x"}, {"extra_headers": {"X-Key": "sk-1"}}]
    async with client_of(JudgeBackend(digit)) as client:

        def judge(**more: Any) -> Judge:
            return Judge(client, calibration=calibration, **{"model": "judge-7b", **settings(**more)})

        said = [(await refusal(lambda more=more: judge(**more)), words) for more, words in table]  # type: ignore[misc]
        assert [each for each in said if f"was made for another judge; what differs: {each[1]}. Calibrate this judge" not in each[0]] == []
        assert [more for more in fine if await refusal(lambda more=more: judge(temperature=0, **more))] == []  # type: ignore[misc]
    assert "sk-1" not in calibration.model_dump_json()


def of_weights(*versions: str) -> Any:
    """A judge whose answers say which weights wrote them: those of each version in turn."""

    async def script(sent: Sent) -> Any:
        number = number_of(sent)
        return {"content": score(number % 10), "weights": versions[number % len(versions)]}

    return script


async def test_other_weights_are_said_in_the_log_once(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    import judge_tools

    plain = judge_tools.answer

    def with_version(said: Any) -> bytes:
        version = said.pop("weights") if isinstance(said, dict) else None
        body = json.loads(plain(said))
        return json.dumps({**body, "metadata": {"weight_version": version}}).encode()

    monkeypatch.setattr(judge_tools, "answer", with_version)
    calibration = await made(of_weights("step-1"))
    assert calibration.judge is not None
    assert calibration.judge.weights == ("('m', None, 'step-1')",)
    with caplog.at_level(logging.WARNING, "qreward"):
        async with judge_over(JudgeBackend(of_weights("step-1")), **settings(calibration=calibration)) as judge:
            await judge.batch_score([("q", f"a{number}") for number in range(5)])
        assert caplog.messages == []
        async with judge_over(JudgeBackend(of_weights("step-2")), **settings(calibration=calibration)) as judge:
            await judge.batch_score([("q", f"a{number}") for number in range(5)])
        async with judge_over(JudgeBackend(of_weights("step-2", "step-3")), **settings(calibration=calibration)) as judge:
            await judge.batch_score([("q", f"a{number}") for number in range(5)])
            assert len(judge.identity.weights) == 2
    said, again = caplog.messages
    assert said == again
    assert said == (
        "the calibration of the judge judge-7b was made with the weights ('m', None, 'step-1'), and now the weights ('m', None, 'step-2') "
        "answer; calibrate it again"
    )


async def test_the_calibration_is_a_setting_that_survives_files_and_pickles(tmp_path: Path) -> None:
    calibration = await made()
    calibration.save(tmp_path / "c.json")
    async with client_of(JudgeBackend(digit)) as client:
        written = JudgeConfig(model=("judge-7b",), calibration=calibration).model_dump(mode="json")["calibration"]
        for given in (tmp_path / "c.json", str(tmp_path / "c.json"), calibration, written):
            judge = Judge.from_config(client, {"model": "judge-7b", "scale": (0, 9), "calibration": given})
            assert judge.calibration == calibration
            rebuilt, arguments = judge.__reduce__()
            assert rebuilt(*arguments).calibration == calibration
    assert pickle.loads(pickle.dumps(calibration)) == calibration
