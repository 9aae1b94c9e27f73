"""The lines of the output: any reader of OpenAI's Batch API takes them, whatever a server has sent; and files that appear as a whole."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from bulk_fakes import completion

from qreward.bulk.outputs import OutputFile, failure_line, success_line, verdict_line
from qreward.errors import ConfigError, QRewardError, ServerError
from qreward.judge.types import CriterionResult, Verdict, Vote
from qreward.records import AttemptRecord
from qreward.results import Usage


def body(text: str = "yes") -> bytes:
    return json.dumps(completion(text)).encode()


def strictly(line: bytes) -> Any:
    """Read a line as a strict reader does: one line of UTF-8, without NaN."""
    assert line.splitlines() == [line]

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is no JSON")

    return json.loads(line.decode(), parse_constant=refuse)


def test_every_answer_is_a_line_of_openais_batch_api_and_says_nothing_of_the_request() -> None:
    for text in ("yes", "two\nlines", "ä\u2028ö", '"quoted"', "\x00", "😀", ""):
        found = strictly(success_line("id-1", "qreward-1", body(text)))
        response = {"status_code": 200, "request_id": "qreward-1", "body": completion(text)}
        assert found == {"id": "qreward-1", "custom_id": "id-1", "response": response, "error": None}


def test_whatever_a_server_has_sent_becomes_one_line_of_valid_json() -> None:
    cases: list[tuple[bytes, Any]] = [
        (b'{"a":1}', {"a": 1}),
        (b'{\n  "a": 1\r\n}\n', {"a": 1}),
        (b'{\r"a":1}', {"a": 1}),
        (b'\xef\xbb\xbf{"a":1}', {"a": 1}),
        (b'{"a":NaN,"b":-Infinity}', {"a": None, "b": None}),
        (b'{"a":"x\ny"}', {"a": "x\ny"}),
        (b'{"a":"x\ry"}', {"a": "x\ry"}),
        (b'{"a":"x\x00y"}', {"a": "x\x00y"}),
        (b'{"a":"\xff"}', {"a": "\ufffd"}),
        ('{"a":"ä"}'.encode(), {"a": "ä"}),
        (b'{"a":"\\ud800"}', {"a": "\ud800"}),
        (b'{"a":"\\ud800","b":NaN}', {"a": "\ud800", "b": None}),
        (b'{"a":123456789012345678901234567890,"b":NaN}', {"a": 123456789012345678901234567890, "b": None}),
    ]
    for sent, meant in cases:
        assert strictly(success_line("id", "x", sent))["response"]["body"] == meant, sent


def test_identifiers_of_any_text_are_kept() -> None:
    for custom_id in ("a", 'quote " and \\', "two\nlines", "ä", "\ud800", ""):
        assert strictly(success_line(custom_id, "x", b"{}"))["custom_id"] == custom_id
        assert strictly(failure_line(custom_id, "x", QRewardError("no")))["custom_id"] == custom_id
        assert strictly(verdict_line(custom_id, "x", Verdict(1.0, (Vote(1.0),))))["custom_id"] == custom_id


def test_a_failure_says_what_happened_and_what_was_tried() -> None:
    error = ServerError("endpoint 'a' answered 500: \ud800", endpoint="a", status_code=500)
    error.attempts = (AttemptRecord("a", "transient", 0.5, 500, "oh"),)
    found = strictly(failure_line("id-1", "qreward-1", error))
    (attempt,) = found["error"].pop("attempts")
    assert (attempt["endpoint"], attempt["outcome"], attempt["status_code"]) == ("a", "transient", 500)
    expected = {"code": "ServerError", "message": str(error), "status_code": 500}
    assert found == {"id": "qreward-1", "custom_id": "id-1", "response": None, "error": expected}
    plain = strictly(failure_line("id-1", "qreward-1", QRewardError("no")))
    assert plain["error"] == {"code": "QRewardError", "message": "no", "status_code": None, "attempts": []}


def test_a_verdict_is_written_with_its_votes_and_with_what_else_it_has() -> None:
    votes = (Vote(1.0, text="Score: 1", model="judge-7b"), Vote(0.0, text="\ud800", model="judge-70b"))
    verdict = Verdict(0.5, votes, {"helpful": 0.25}, Usage(10, 5, 15))
    found = strictly(verdict_line("id-1", "qreward-1", verdict))
    assert (found["id"], found["custom_id"], found["error"]) == ("qreward-1", "id-1", None)
    usage = found["verdict"].pop("usage")
    said = [
        {"score": 1.0, "text": "Score: 1", "model": "judge-7b"},
        {"score": 0.0, "text": "\ud800", "model": "judge-70b"},
    ]
    assert found["verdict"] == {"score": 0.5, "votes": said, "attributes": {"helpful": 0.25}, "cached": False}
    assert (usage["prompt_tokens"], usage["completion_tokens"]) == (10, 5)


def test_a_verdict_with_confidence_criteria_and_a_distribution_has_them_in_its_line() -> None:
    criterion = CriterionResult(0.9, 2.0, 0.0, {True: 0.9, False: 0.1})
    odd: Any = {True: 0.5, 3: 0.25, "so": 0.25}
    vote = Vote(0.5, confidence=0.0, distribution=odd, criteria={"clear": criterion})
    found = strictly(verdict_line("id-1", "qreward-1", Verdict(0.5, (vote,), confidence=0.0, decided_by="small")))["verdict"]
    assert (found["confidence"], found["decided_by"]) == (0.0, "small")
    assert found["distribution"] == {"true": 0.5, "3": 0.25, "so": 0.25}
    clear = {"score": 0.9, "weight": 2.0, "confidence": 0.0, "distribution": {"true": 0.9, "false": 0.1}, "text": ""}
    assert found["criteria"] == {"clear": clear}
    assert "calibrated" not in found
    gated = Vote(0.0, criteria={"safe": CriterionResult(0.2, 0.0, text="{}", gate=0.5, reason="It harms.")})
    (safe,) = strictly(verdict_line("id-1", "qreward-1", Verdict(0.0, (gated,))))["verdict"]["criteria"].values()
    assert (safe["gate"], safe["passed"], safe["reason"]) == (0.5, False, "It harms.")
    plain = strictly(verdict_line("id-1", "qreward-1", Verdict(0.5, (Vote(0.5),))))["verdict"]
    assert plain.keys() == {"score", "votes", "attributes", "usage", "cached"}


def test_a_file_appears_as_a_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    file = OutputFile(path)
    path.write_text("of before")

    def breaking() -> Any:
        yield b"{}"
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space left"):
        file.write(breaking())
    assert path.read_text() == "of before"
    assert file.write([b"1", b"2"]) == 2
    assert path.read_bytes() == b"1\n2\n"
    assert file.write([]) == 0
    assert list(tmp_path.iterdir()) == []


def test_an_output_that_cannot_be_is_refused(tmp_path: Path) -> None:
    cases = {"-": "the output must be a file", str(tmp_path): "is a folder; name a file in it", "no/where.jsonl": "there is no folder 'no'"}
    for name, message in cases.items():
        with pytest.raises(ConfigError, match=message):
            OutputFile(Path(name))


def test_the_ending_of_the_name_says_what_is_written_and_others_are_refused(tmp_path: Path) -> None:
    for name in ("x.csv", "x.txt", "x.json", "x.tsv", "x.jsonl.zst", "x.gz", "x", "x.parquet"):
        with pytest.raises(ConfigError, match=r"must end in \.jsonl\.gz, \.ndjson\.gz, \.jsonl, \.ndjson"):
            OutputFile(tmp_path / name)
    path = tmp_path / "x.jsonl.gz"
    assert OutputFile(path).stem == "x"
    assert OutputFile(path).write([b"1", b"2"]) == 2
    assert gzip.decompress(path.read_bytes()) == b"1\n2\n"
    first = path.read_bytes()
    OutputFile(path).write([b"1", b"2"])
    assert path.read_bytes() == first


def test_a_file_that_is_no_output_of_a_bulk_run_is_not_replaced(tmp_path: Path) -> None:
    of_provider = b'{"id":"batch_req_1","custom_id":"a","response":{},"error":null}'
    for name in ("x.jsonl", "x.jsonl.gz"):
        file = OutputFile(tmp_path / name)
        file.check_replaceable()
        file.path.touch()
        file.check_replaceable()
        for line in (success_line("a", "qreward-1", body("x")), of_provider):
            file.write([line])
            file.check_replaceable()
        for content in (b"mine\n", b'{"id":"1","prompt":"mine"}\n', gzip.compress(b"mine\n"), gzip.compress(b"mine\n")[:12]):
            file.path.write_bytes(content)
            with pytest.raises(ConfigError, match="exists and is not the output of a bulk run; name another output, or remove the file"):
                file.check_replaceable()
