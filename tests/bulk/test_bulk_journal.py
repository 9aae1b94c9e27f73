"""The journal: what is written is found again, whatever the end of the file looks like, and a full disk loses nothing that is done."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qreward.bulk.inputs import DIGEST
from qreward.bulk.journal import CHUNK, Journal, JournalFull, encode
from qreward.bulk.outputs import failure_line, success_line
from qreward.errors import BadRequest, ConfigError, QRewardError

SETTINGS = {"input": ["in.jsonl"], "model": "judge-7b"}


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Waiting for the disk takes nearly all of the time, and no test can see it."""
    monkeypatch.setattr(os, "fsync", lambda _file: None)
    monkeypatch.setattr(os, "fdatasync", lambda _file: None)


@contextmanager
def opened(path: Path, settings: Any = SETTINGS, **options: Any) -> Iterator[Journal]:
    journal = Journal(path, settings, **options)
    try:
        yield journal
    finally:
        journal.close()


def filled(path: Path, results: dict[int, str], started: tuple[int, ...] = ()) -> bytes:
    """Write a journal in which lines are done (``!`` at the end: failed) or started, and return its content."""
    with opened(path) as journal:
        for ordinal, text in results.items():
            journal.start(ordinal)
            journal.finish(ordinal, b'"%b"' % text.encode(), ok=not text.endswith("!"))
        for ordinal in started:
            journal.start(ordinal)
    return path.read_bytes()


def read_input(journal: Journal) -> list[int]:
    """Read the lines of all results, in the order of their keys, and return the keys."""
    keys = sorted(key for key, found in journal._index.items() if found >> 2)
    for key in keys:
        assert journal.take(key)[0] == key
    return keys


def found(journal: Journal) -> dict[int, str]:
    """The results by key, as far as they count as done."""
    texts = zip(read_input(journal), (line.content.decode().strip('"') for line in journal.in_order()), strict=True)
    return {key: text for key, text in texts if journal.is_done(key)}


@contextmanager
def full_disk(monkeypatch: pytest.MonkeyPatch, size: int, *, reserve: bool = True) -> Iterator[None]:
    """No file may become longer than ``size`` bytes. Without ``reserve``, the file system cannot reserve space in advance."""
    write, allocate = os.pwrite, os.posix_fallocate

    def pwrite(file: int, data: bytes, offset: int) -> int:
        if offset >= size:
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(file, data[: size - offset], offset)

    def posix_fallocate(file: int, offset: int, more: int) -> None:
        if not reserve:
            raise OSError(errno.EOPNOTSUPP, "Operation not supported")
        if offset + more > size:
            raise OSError(errno.ENOSPC, "No space left on device")
        allocate(file, offset, more)

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", pwrite)
        patch.setattr(os, "posix_fallocate", posix_fallocate)
        yield


# what is written is found again


def test_results_of_lines_that_are_not_in_the_input_are_left_out(tmp_path: Path) -> None:
    path = tmp_path / "j"
    filled(path, {0: "a", 1: "b!", 2: "c", 3: "d!"})
    with opened(path) as journal:
        assert [journal.take(key) for key in (1, 5, 0)] == [(1, True), (5, False), (0, True)]
        assert journal.done == 4
        journal.drop_unread()
        assert (journal.done, journal.failed) == (2, 1)
        assert [line.content for line in journal.in_order()] == [b'"b!"', b'"a"']


def test_equal_lines_have_keys_of_their_own_that_are_the_same_in_the_next_run(tmp_path: Path) -> None:
    path, digests = tmp_path / "j", [7, DIGEST, 7, DIGEST, 3, 7, 3]
    with opened(path) as journal:
        keys = [journal.take(digest)[0] for digest in digests]
        assert len(set(keys)) == len(keys)
        assert max(keys) <= DIGEST
        for key in keys[:5]:
            journal.finish(key, b"%d" % key, ok=True)
    with opened(path) as journal:
        assert [journal.take(digest) for digest in digests] == [(key, place < 5) for place, key in enumerate(keys)]
        assert [line.content for line in journal.in_order()] == [b"%d" % key for key in keys[:5]]


def test_a_result_longer_than_what_is_read_at_once_is_found_again(tmp_path: Path) -> None:
    path, long = tmp_path / "j", "x" * (2 * CHUNK + 17)
    filled(path, {0: "short", 1: long, 2: "after"})
    with opened(path) as journal:
        assert found(journal) == {0: "short", 1: long, 2: "after"}


def test_a_result_is_read_again_whatever_its_text(tmp_path: Path) -> None:
    bodies = [
        b'{"a":"\xff"}',
        b'{"a":"\t"}',
        b'{"a":NaN}',
        b'{"a":"\\ud800"}',
        b'\xef\xbb\xbf{"a":1}',
        b'{"a":1}\r\n',
        b'{"a":"\x7f\x00"}',
        b'{"a":1e999}',
        b"[" * 900 + b"]" * 900,
    ]
    written = [success_line("half a pair: \ud800", "qreward-1", body) for body in bodies]
    written.append(failure_line("x", "y", BadRequest("half a pair: \ud800")))
    with opened(tmp_path / "j") as journal:
        for ordinal, result in enumerate(written):
            journal.finish(ordinal, result, ok=True)
    with opened(tmp_path / "j") as journal:
        read_input(journal)
        assert [line.content for line in journal.in_order()] == written


# the end of the file


def test_a_record_cut_off_at_any_byte_is_dropped_and_all_before_it_are_kept(tmp_path: Path) -> None:
    path = tmp_path / "j"
    whole = filled(path, {0: "first", 1: "the last one"})
    last = whole.rindex(b"\n", 0, -1) + 1
    for end in range(last, len(whole)):
        for zeros in (0, 1, 40, CHUNK):
            path.write_bytes(whole[:end] + bytes(zeros))
            with opened(path) as journal:
                assert found(journal) == {0: "first"}, (end, zeros)
                assert journal.torn == end - last, (end, zeros)
                assert journal.unfinished == {1}
                journal.finish(1, b'"again"', ok=True)
            with opened(path) as journal:
                assert (found(journal), journal.torn) == ({0: "first", 1: "again"}, 0), (end, zeros)


def test_a_header_that_was_cut_off_in_writing_is_written_again(tmp_path: Path) -> None:
    path = tmp_path / "j"
    header = filled(path, {})
    for end in range(len(header)):
        for zeros in (0, 4096):
            path.write_bytes(header[:end] + bytes(zeros))
            with opened(path) as journal:
                journal.finish(0, b'"a"', ok=True)
            with opened(path) as journal:
                assert (found(journal), journal.torn) == ({0: "a"}, 0), (end, zeros)


def test_reserved_space_of_any_size_is_no_record(tmp_path: Path) -> None:
    path = tmp_path / "j"
    whole = filled(path, {0: "first"})
    with path.open("r+b") as file:
        file.truncate(len(whole) + 3 * CHUNK + 5)
    with opened(path) as journal:
        assert (found(journal), journal.torn) == ({0: "first"}, 0)
    assert path.read_bytes() == whole


def test_a_damaged_record_in_the_middle_loses_its_own_line_only(tmp_path: Path) -> None:
    path = tmp_path / "j"
    whole = filled(path, {0: "first", 1: "second", 2: "third"}, started=(9,))
    begin = whole.index(b'["D",1,')
    size = whole.index(b"\n", begin) + 1 - begin
    for at in range(begin, begin + size - 1):
        for byte in (b"\0", b"x", b"\n"):
            path.write_bytes(whole[:at] + byte + whole[at + 1 :])
            with opened(path) as journal:
                if whole[at : at + 1] == byte:
                    continue
                assert found(journal) == {0: "first", 2: "third"}, (at, byte)
                assert (journal.done, journal.torn) == (2, size), (at, byte)
                assert journal.unfinished == {1, 9}


def test_a_hole_that_a_power_failure_left_loses_the_lines_in_it_only(tmp_path: Path) -> None:
    path = tmp_path / "j"
    whole = filled(path, {ordinal: f"result {ordinal}" for ordinal in range(400)})
    path.write_bytes(whole[:4096] + bytes(4096) + whole[8192:])
    with opened(path) as journal:
        kept = found(journal)
        assert journal.torn >= 4096
    lost = set(range(400)) - kept.keys()
    assert {ordinal: f"result {ordinal}" for ordinal in kept} == kept
    assert lost == set(range(min(lost), max(lost) + 1))
    assert len(lost) <= 4096 // 70 + 2


STEPS = st.lists(st.tuples(st.sampled_from(["start", "ok", "failed", "flush"]), st.integers(0, 12), st.text(max_size=60)), max_size=40)


@given(STEPS, st.integers(0, 1 << 30), st.integers(0, 3000))
def test_a_journal_cut_at_any_byte_gives_back_exactly_what_was_completely_written(steps: Any, cut: int, zeros: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "j")
        history: list[tuple[int, dict[int, tuple[bool, bytes]], set[int]]] = []  # length of the file, results and started lines by then
        results: dict[int, tuple[bool, bytes]] = {}
        started: set[int] = set()
        unwritten: list[tuple[int, bool, bytes]] = []
        with opened(path) as journal:
            size = journal._end
            history.append((size, {}, set()))

            def written() -> None:
                nonlocal size
                for ordinal, ok, text in unwritten:
                    size += len(encode("D" if ok else "F", ordinal, content=text))
                    results[ordinal] = ok, text
                    started.discard(ordinal)
                    history.append((size, dict(results), set(started)))
                unwritten.clear()

            for what, ordinal, data in steps:
                text = json.dumps(data).encode()
                if what == "start":
                    journal.start(ordinal)
                    journal.write()
                    written()
                    size += len(encode("S", ordinal))
                    started.add(ordinal)
                    history.append((size, dict(results), set(started)))
                elif what == "flush":
                    assert journal.flush()
                    written()
                else:
                    journal.finish(ordinal, text, ok=what == "ok")
                    unwritten.append((ordinal, what == "ok", text))
            journal.flush()
            written()
            assert journal._end == size
            whole = path.read_bytes()[:size]
        end = history[0][0] + cut % (size - history[0][0] + 1)
        path.write_bytes(whole[:end] + bytes(zeros))
        known = [each for each in history if each[0] <= end][-1]
        with opened(path) as journal:
            back = dict(zip(read_input(journal), journal.in_order(), strict=True))
            assert {ordinal: (line.ok, line.content) for ordinal, line in back.items()} == known[1]
            assert journal.unfinished == known[2]
            assert (journal.done, journal.failed) == (len(known[1]), sum(not ok for ok, _ in known[1].values()))


# what does not fit


def test_a_journal_is_started_over_only_if_no_request_was_sent_for_any_line(tmp_path: Path) -> None:
    def failed(code: str, status: int | None = None, attempts: tuple[str, ...] = ()) -> bytes:
        return json.dumps({"error": {"code": code, "status_code": status, "attempts": attempts}}).encode()

    path, other = tmp_path / "j", {**SETTINGS, "model": "other"}
    cases: dict[str, tuple[list[tuple[bool, bytes | None]], bool]] = {
        "nothing": ([], True),
        "local": ([(False, failed("ConfigError")), (False, failed("BadRequest")), (False, failed("NoEndpoint"))], True),
        "succeeded": ([(False, failed("ConfigError")), (True, b"{}")], False),
        "in flight": ([(False, failed("ConfigError")), (False, None)], False),
        "refused by a server": ([(False, failed("BadRequest", 400))], False),
        "attempted": ([(False, failed("BadRequest", None, ("a",)))], False),
        "unreadable answer": ([(False, failed("InvalidResponse"))], False),
    }
    for name, (results, starts_over) in cases.items():
        path.unlink(missing_ok=True)
        with opened(path) as journal:
            for ordinal, (ok, result) in enumerate(results):
                journal.start(ordinal)
                if result is not None:
                    journal.finish(ordinal, result, ok=ok)
        if starts_over:
            with opened(path, other, start_over=True) as journal:
                assert (journal.done, journal.torn) == (0, 0), name
            with opened(path, other):
                pass
        else:
            content = path.read_bytes()
            with pytest.raises(ConfigError, match=r"^model has changed"):
                Journal(path, other, start_over=True)
            assert path.read_bytes() == content, name


def test_a_journal_without_an_intact_record_is_kept_as_it_is_and_changed_line_ends_are_read(tmp_path: Path) -> None:
    path, other = tmp_path / "j", {**SETTINGS, "model": "other"}
    whole = filled(path, {1: "a", 2: "b"})
    path.write_bytes(whole.replace(b"\n", b"\r\n"))
    with pytest.raises(ConfigError, match=r"^model has changed"):
        Journal(path, other, start_over=True)
    with opened(path) as journal:
        assert (found(journal), journal.torn) == ({1: "a", 2: "b"}, 0)
    damaged = whole.replace(b",", b";").replace(b";", b",", whole.partition(b"\n")[0].count(b","))
    path.write_bytes(damaged)
    with pytest.raises(ConfigError, match=r"no record of .* is intact; restore the file as it was"):
        Journal(path, SETTINGS, start_over=True)
    assert path.read_bytes() == damaged


def test_a_journal_of_many_inputs_is_opened_again_and_a_message_on_them_is_short(tmp_path: Path) -> None:
    path, many = tmp_path / "j", {"input": [f"{number:0100}.jsonl" for number in range(13_000)]}
    with opened(path, many) as journal:
        journal.start(1)
        journal.finish(1, b'"a"', ok=True)
    with opened(path, many) as journal:
        assert found(journal) == {1: "a"}
    with pytest.raises(ConfigError, match=r"^input has changed") as caught:
        Journal(path, SETTINGS)
    assert len(str(caught.value)) < 2000


def test_reserved_space_is_skipped_in_pieces_wherever_it_is(tmp_path: Path) -> None:
    path = tmp_path / "j"
    whole = filled(path, {1: "a"})
    more = filled(tmp_path / "other", {2: "b"}).partition(b"\n")[2]
    path.write_bytes(whole + bytes(3 * CHUNK + 7) + more + bytes(2 * CHUNK))
    with opened(path) as journal:
        assert found(journal) == {1: "a", 2: "b"}


def test_a_file_that_is_no_journal_is_refused_and_not_changed(tmp_path: Path) -> None:
    path = tmp_path / "j"
    older = b'e9a1fe4e {"format": "qreward journal 2", "input": ["in.jsonl"]}\n'
    last = b'{"format": "qreward journal 3", "input": ["in.jsonl"]}\n["D",0,7,1,0.0,{"id":"qreward-1"},1]\n'
    for content in (b"something else", b"a\nb\n", b"\n", older, older[9:], last, b"[]\n", b"x" * (CHUNK + 1)):
        path.write_bytes(content)
        with pytest.raises(
            ConfigError, match=r" is (not a journal of qreward|a qreward journal [23], and .* a qreward journal 4); name another"
        ):
            Journal(path, SETTINGS, start_over=True)
        assert path.read_bytes() == content


def test_a_folder_that_does_not_exist_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"the journal .*nowhere/j' cannot be written: No such file"):
        Journal(tmp_path / "nowhere" / "j", SETTINGS)


def test_a_second_run_is_refused_in_this_process_and_in_another_one(tmp_path: Path) -> None:
    path = tmp_path / "j"
    program = f"from pathlib import Path; from qreward.bulk.journal import Journal; Journal(Path({str(path)!r}), {SETTINGS!r})"
    with opened(path):
        with pytest.raises(ConfigError, match="another run is writing to"):
            Journal(path, SETTINGS)
        other = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
        assert "another run is writing to" in other.stderr
    with opened(path):
        pass


def test_a_child_that_was_forked_during_a_run_holds_neither_the_lock_nor_the_file(tmp_path: Path) -> None:
    program = f"""
import os, signal
from pathlib import Path
from qreward.bulk.journal import Journal
path, (ready, tell) = Path({str(tmp_path / "j")!r}), os.pipe()
first, child = Journal(path, {{}}), os.fork()
if child == 0:
    try:
        first.record_batch(0, b"{{}}")
    finally:
        os.write(tell, b".")
        signal.pause()
os.read(ready, 1)
print(path.read_bytes().count(b"["))
first.close()
try:
    Journal(path, {{}}).close()
finally:
    os.kill(child, signal.SIGKILL)
"""
    ran = subprocess.run([sys.executable, "-W", "ignore", "-c", program], capture_output=True, text=True, check=False)
    assert (ran.stdout, ran.returncode) == ("0\n", 0), ran.stderr


# a full disk


def start_until_it_is_full(journal: Journal) -> int:
    """Send one line after the other; the first three stay in flight. Returns the first one that was refused."""
    for ordinal in range(100_000):
        try:
            journal.start(ordinal)
        except JournalFull:
            return ordinal
        if ordinal >= 3:
            journal.finish(ordinal, b"%d" % ordinal, ok=True)
    raise AssertionError("it never was full")


def test_a_full_disk_refuses_the_next_line_and_everything_done_before_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "j"
    with full_disk(monkeypatch, CHUNK), opened(path) as journal:
        ordinal = start_until_it_is_full(journal)
        for waiting in range(3):  # their space was reserved
            journal.finish(waiting, b'"%b"' % (b"y" * 4000), ok=True)
    with opened(path) as journal:
        assert list(found(journal)) == list(range(ordinal))
        assert journal.unfinished == frozenset()


def test_results_that_do_not_fit_are_counted_when_the_journal_is_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "j"
    with full_disk(monkeypatch, 5000, reserve=False):
        journal = Journal(path, SETTINGS)
        for ordinal in range(10):
            journal.start(ordinal)
        for ordinal in range(9):
            journal.finish(ordinal, b'"%b"' % (b"z" * 900), ok=ordinal != 7)
            assert journal.flush() == (ordinal < 4), ordinal
        journal.start(11)
        with pytest.raises(JournalFull, match=r"no space is left for .*; make room and run the same command again"):
            journal.write()
        assert not journal.flush()
        with pytest.raises(JournalFull):
            journal.close()
        assert (journal.started, journal.done, journal.failed) == ({*range(4, 10), 11}, 4, 0)
    with opened(path) as journal:
        assert (sorted(found(journal)), journal.torn) == ([0, 1, 2, 3], 0)
        assert journal.unfinished == {4, 5, 6, 7, 8, 9}


def test_a_disk_that_is_full_from_the_beginning_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for reserve in (True, False):
        with full_disk(monkeypatch, 10, reserve=reserve), pytest.raises(JournalFull):
            Journal(tmp_path / "j", SETTINGS)
        with opened(tmp_path / "j") as journal:
            assert journal.done == 0
        (tmp_path / "j").unlink()


def test_a_disk_that_fails_otherwise_is_an_error_and_not_called_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fsync(_file: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    journal = Journal(tmp_path / "j", SETTINGS)
    journal.finish(0, b'"a"', ok=True)
    monkeypatch.setattr(os, "fsync", fsync)
    with pytest.raises(QRewardError, match="cannot be written: Input/output error") as caught:
        journal.close()
    assert not isinstance(caught.value, JournalFull)
    monkeypatch.undo()
    with opened(tmp_path / "j") as journal:
        assert found(journal) == {0: "a"}


def test_a_journal_that_another_program_has_shortened_is_an_error_and_no_endless_search(tmp_path: Path) -> None:
    path = tmp_path / "j"
    filled(path, {0: "a", 1: "b"})
    with opened(path) as journal:
        os.truncate(path, path.stat().st_size - 5)
        read_input(journal)
        with pytest.raises(QRewardError, match="was changed by another program"):
            list(journal.in_order())
