"""Input of every format is read as a stream, and whatever is wrong in it is said with file and line."""

from __future__ import annotations

import gzip
import io
import json
import os
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from qreward.bulk import inputs as module
from qreward.bulk.inputs import Input
from qreward.errors import ConfigError

ROWS = [{"custom_id": str(number), "prompt": f"item {number}, 'ä'\n\"x\""} for number in range(7)]
LINES = "".join(json.dumps(row) + "\n" for row in ROWS).encode()


def read(source: Any) -> list[dict[str, Any]]:
    return [line.fields() for line in Input(source).lines()]


def places(source: Any) -> list[str]:
    return [line.place.rpartition("/")[2] for line in Input(source).lines()]


def written(path: Path, content: bytes | str) -> str:
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return str(path)


def refusal(source: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        list(Input(source).lines())
    return str(caught.value)


# lines


def test_lines_are_read_with_their_places_whatever_their_breaks(tmp_path: Path) -> None:
    for name, content in {
        "a.jsonl": LINES,
        "a.ndjson": LINES.rstrip(b"\n"),
        "b.json": LINES.replace(b"\n", b"\r\n"),
        "c.txt": b"\xef\xbb\xbf" + LINES,
        "no-suffix": LINES,
        "d.JSONL": LINES,
        "e.jsonl.gz": gzip.compress(LINES),
        "f.gz": gzip.compress(LINES[:100]) + gzip.compress(LINES[100:]),
    }.items():
        path = written(tmp_path / name, content)
        assert read(path) == ROWS, name
        assert places(path) == [f"{name}:{number + 1}" for number in range(7)], name


def test_blank_lines_are_left_out_and_counted(tmp_path: Path) -> None:
    path = written(tmp_path / "a.jsonl", b'\n{"a":1}\n   \n\r\n{"a":2}\n\n')
    assert read(path) == [{"a": 1}, {"a": 2}]
    assert places(path) == ["a.jsonl:2", "a.jsonl:5"]


def test_the_digest_is_that_of_the_content_alone(tmp_path: Path) -> None:
    one = [line.key for line in Input(written(tmp_path / "a.jsonl", LINES)).lines()]
    other = [line.key for line in Input(written(tmp_path / "b.jsonl.gz", gzip.compress(b"\n" + LINES.replace(b"\n", b" \r\n")))).lines()]
    assert one == other
    assert len(set(one)) == 7


def test_a_line_that_is_no_object_says_what_it_is(tmp_path: Path) -> None:
    cases = {b"{": "it is not JSON", b"[1]": "it is a JSON list", b'"x"': "it is a JSON str", b'{"a":"\xff"}': "it is not JSON"}
    cases[b'{"a":' + 3000 * b"[" + 3000 * b"]" + b"}"] = "it is not JSON"
    for content, message in cases.items():
        (line,) = Input(written(tmp_path / "a.jsonl", content)).lines()
        with pytest.raises(ValueError, match=message):
            line.fields()


def test_a_file_without_line_breaks_is_refused_before_it_fills_the_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LONGEST_LINE", 1 << 20)
    path = written(tmp_path / "a.jsonl", b'{"a":1}\n' + b"x" * (3 << 20))
    assert refusal(path).endswith("a.jsonl:2 is longer than 1 MB; each line must be one request")


def test_a_file_of_json_over_several_lines_is_named_once_with_what_to_do(tmp_path: Path) -> None:
    rows = [{"prompt": "a"}, {"prompt": "b"}]
    text = "".join(json.dumps(row) + "\n" for row in rows)
    cases: list[tuple[str, bytes, str]] = [
        ("in.json", json.dumps(rows).encode(), "holds JSON over several lines, or an array; each line must be one object"),
        ("in.json", json.dumps(rows, indent=2).encode(), "holds JSON over several lines"),
        ("in.json", json.dumps(["a", "b"], indent=2).encode(), "holds JSON over several lines"),
        ("in.jsonl", "\r\n".join(json.dumps(row, indent=2) for row in rows).encode(), "holds JSON over several lines"),
        ("in.jsonl.gz", gzip.compress(b"\n{\r\n"), "holds JSON over several lines"),
    ]
    for name, content, message in cases:
        path = tmp_path / name
        path.write_bytes(content)
        with pytest.raises(ConfigError, match=re.escape(message)) as caught:
            list(Input(path).lines())
        assert str(caught.value).startswith(str(path)), (name, message)
    for content in (text.encode(), b"\xef\xbb\xbf" + text.encode(), b"\n\n" + text.encode(), b"[1]\n", b"{oops\n", b'{"a": {\n'):
        (tmp_path / "in.jsonl").write_bytes(content)
        assert list(Input(tmp_path / "in.jsonl").lines()), content


def test_a_compressed_file_that_was_cut_off_or_damaged_is_an_error_with_its_last_line(tmp_path: Path) -> None:
    whole = gzip.compress(LINES * 1000, mtime=0)
    for name, content in {
        "cut.gz": whole[: len(whole) // 2],
        "no-end.gz": whole[:-8],
        "damaged.gz": whole[:500] + bytes(300) + whole[800:],
        "no.gz": b"no gzip at all",
    }.items():
        assert "cannot be read after line " in refusal(written(tmp_path / name, content)), name


# tables


def test_rows_of_csv_and_tsv_are_read_with_quotes_breaks_and_any_encoding_mark(tmp_path: Path) -> None:
    rows = [{"id": "1", "text": 'say "hi", twice'}, {"id": "2", "text": "two\nlines\r\nthree"}, {"id": "3", "text": "ä"}]
    quoted = 'id,text\r\n1,"say ""hi"", twice"\r\n\r\n2,"two\nlines\r\nthree"\r\n3,ä\r\n'
    assert read(written(tmp_path / "a.csv", quoted)) == rows
    assert places(tmp_path / "a.csv") == ["a.csv:2", "a.csv:6", "a.csv:7"]
    assert read(written(tmp_path / "b.csv", b"\xef\xbb\xbf" + quoted.encode())) == rows
    assert read(written(tmp_path / "c.csv.gz", gzip.compress(quoted.encode()))) == rows
    assert read(written(tmp_path / "d.tsv", "id\ttext\n1\ta, b\n")) == [{"id": "1", "text": "a, b"}]
    assert read(written(tmp_path / "e.tsv.gz", gzip.compress(b"id\ttext\n1\ta\n"))) == [{"id": "1", "text": "a"}]
    assert read(written(tmp_path / "empty.csv", "")) == []


def test_a_row_with_other_columns_is_its_own_failure(tmp_path: Path) -> None:
    path = written(tmp_path / "a.csv", "id,text\n1,a\n2\n3,b,c\n4,d\n")
    found = list(Input(path).lines())
    assert [line.fault for line in found] == [
        "", "it has 1 columns, and the first line has 2", "it has 3 columns, and the first line has 2", "",
    ]  # fmt: skip
    assert len({line.key for line in found}) == 4
    with pytest.raises(ValueError, match="it has 1 columns"):
        found[1].fields()


def test_a_table_that_cannot_be_read_is_refused_with_its_last_line(tmp_path: Path) -> None:
    cases: dict[str | bytes, str] = {
        'a,b\n1,"x\n': "cannot be read after line 0",
        'a,b\n1,2\n1,"x"y\n': "cannot be read after line 2",
        "a,a\n1,2\n": ":1 names the column 'a' twice; rename one",
        b"a,b\n1,\xff\n": "cannot be read after line 0",
    }
    for content, message in cases.items():
        assert message in refusal(written(tmp_path / "a.csv", content)), content


def test_a_cell_may_be_as_long_as_a_line(tmp_path: Path) -> None:
    text = "x" * 300_000
    assert read(written(tmp_path / "a.csv", f"text\n{text}\n")) == [{"text": text}]


def test_rows_of_parquet_are_read_in_order(tmp_path: Path) -> None:
    import pyarrow  # type: ignore[import-not-found,unused-ignore]
    from pyarrow import parquet  # type: ignore[import-not-found,unused-ignore]

    rows = [{"id": number, "messages": [{"role": "user", "content": f"item {number}"}]} for number in range(2500)]
    path = tmp_path / "a.parquet"
    parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    assert read(path) == rows
    assert places(path)[-1] == "a.parquet:2500"
    assert "cannot be read after row 0" in refusal(written(tmp_path / "no.parquet", "no table"))
    whole = path.read_bytes()
    assert "cannot be read after row " in refusal(written(tmp_path / "cut.parquet", whole[: len(whole) // 2]))


def test_a_file_whose_package_is_missing_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    assert "needs the package pyarrow; install it with pip install 'qreward[bulk]'" in refusal(written(tmp_path / "a.parquet", b""))


# several files, standard input, rows of a program


def test_files_and_globs_are_read_in_the_order_in_which_they_are_named(tmp_path: Path) -> None:
    for name in ("b.jsonl", "a.jsonl", "sub-c.jsonl"):
        written(tmp_path / name, json.dumps({"file": name}))
    (tmp_path / "folder.jsonl").mkdir()
    source = [str(tmp_path / "sub*.jsonl"), tmp_path / "b.jsonl", str(tmp_path / "[ab].jsonl")]
    assert [row["file"] for row in read(source)] == ["sub-c.jsonl", "b.jsonl", "a.jsonl", "b.jsonl"]
    assert read(written(tmp_path / "odd[1].jsonl", '{"a":1}')) == [{"a": 1}]


def test_standard_input_is_read_as_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(LINES)))
    assert read("-") == ROWS
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"{}\n[")))
    assert [line.place for line in Input("-").lines()] == ["standard input:1", "standard input:2"]
    assert "can be read only once" in refusal(["-", "-"])


def test_standard_input_that_stays_open_without_giving_anything_is_left_when_the_input_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = os.pipe()
    with open(ours, "rb") as reading, open(theirs, "wb", buffering=0) as writing:  # noqa: PTH123 - these are no paths
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(reading))
        writing.write(b'{"a": 1}\n')
        source = Input("-")
        lines = source.lines()
        assert next(lines).fields() == {"a": 1}
        source.close()
        assert list(lines) == []


def test_files_are_read_without_standard_input_and_a_closed_one_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for missing in (None, io.StringIO()):
        monkeypatch.setattr(sys, "stdin", missing)
        assert read(written(tmp_path / "a.jsonl", LINES)) == ROWS
        assert "standard input is closed" in refusal("-")


def test_bytes_in_a_row_are_text_and_other_bytes_are_the_failure_of_their_row() -> None:
    good, bad = Input([{"a": "ä".encode()}, {"a": b"\xff"}]).lines()
    assert good.fields() == {"a": "ä"}
    with pytest.raises(ValueError, match="'a' holds bytes that are no UTF-8 text"):
        bad.fields()


def test_rows_of_a_program_are_read_and_their_order_of_fields_does_not_matter() -> None:
    one, other = ({"a": 1, "b": {"c": 2, "d": 3}}, {"b": {"d": 3, "c": 2}, "a": 1})
    assert [line.key for line in Input([one]).lines()] == [line.key for line in Input(iter([other])).lines()]
    assert places(iter([one, one])) == ["item:1", "item:2"]
    assert read([]) == []
    odd: Any = [one, 5]
    assert refusal(odd) == "item:2 is a int, not a mapping"


def test_a_row_that_json_cannot_hold_is_its_own_failure() -> None:
    nested: list[Any] = []
    for _ in range(3000):
        nested = [nested]
    values: tuple[Any, ...] = (object(), "\ud800", nested)
    for value in values:
        first, bad, last = Input([{"a": 1}, {"a": value}, {"a": 2}]).lines()
        assert (first.fields(), last.fields()) == ({"a": 1}, {"a": 2})
        with pytest.raises(ValueError, match="it cannot be written as JSON"):
            bad.fields()


def test_what_is_no_input_is_refused_before_anything_is_read(tmp_path: Path) -> None:
    cases: dict[str, Any] = {
        "'/dev/null' is a pipe or a device; pass it to standard input, and name - as the input": "/dev/null",
        "there is no file 'nowhere.jsonl'; name a file, a glob in quotes, or - for standard input": "nowhere.jsonl",
        "no file matches 'no*.jsonl'": "no*.jsonl",
        "the format '.xml' is not known; known: .jsonl": written(tmp_path / "a.xml", ""),
        "the format '.parquet.gz' is not known": written(tmp_path / "a.parquet.gz", ""),
        "must be paths or an iterable of mappings, not a dict": {"a": 1},
        "must be paths or an iterable of mappings, not a int": 5,
    }
    for message, source in cases.items():
        with pytest.raises(ConfigError) as caught:
            Input(source)
        assert message in str(caught.value), source


def test_lines_are_counted_where_that_is_cheap(tmp_path: Path) -> None:
    path = written(tmp_path / "a.jsonl", LINES)
    assert Input(path).count() == 7
    assert Input([path, written(tmp_path / "b.jsonl", LINES.rstrip(b"\n"))]).count() == 14
    assert Input(ROWS).count() == 7
    assert Input(iter(ROWS)).count() is None
    assert Input(written(tmp_path / "a.gz", gzip.compress(LINES))).count() is None
    closed = Input(path)
    closed.close()
    assert closed.count() == 0
