"""``qreward run`` as a user calls it: options, files, exit codes, interruptions, and a disk that is full."""

from __future__ import annotations

import asyncio
import ctypes
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from bulk_tools import MODEL, chat_line, counting_server, environment, finish, in_flight, read_lines, start, write_lines

from qreward.cli import main
from qreward.cli.run import _stop_on_interrupt
from qreward.testing import FakeEndpoint, FakeFleet


class Bulk:
    """Runs the command in this process, and reads what it says."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.folder, self.output = folder, folder / "out.jsonl"
        self._capsys = capsys

    def __call__(self, *arguments: object) -> tuple[int, str, str]:
        status = main(
            ["run", *map(str, arguments), "--output", str(self.output), *(() if "--progress" in arguments else ("--progress", "none"))]
        )
        said = self._capsys.readouterr()
        return status, said.out, said.err

    def write(self, name: str, content: Any) -> Path:
        path = self.folder / name
        if isinstance(content, str):
            path.write_text(content)
            return path
        return write_lines(path, content)

    def config(self, fleet: FakeFleet, **settings: Any) -> Path:
        endpoints = [{"name": name, "base_url": url, "proxy": "", **settings} for name, url in fleet.urls.items()]
        return self.write("fleet.json", json.dumps({"endpoints": endpoints}))


@pytest.fixture
def bulk(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Bulk:
    return Bulk(tmp_path, capsys)


def lines(count: int, **body: Any) -> list[dict[str, Any]]:
    return [chat_line(number, **body) for number in range(count)]


def test_a_file_is_sent_and_a_table_says_what_was_done(bulk: Bulk) -> None:
    source = bulk.write("in.jsonl", lines(30))
    with FakeFleet([FakeEndpoint("a"), FakeEndpoint("b")]) as fleet:
        config = bulk.config(fleet, price=[1.0, 2.0])
        status, out, err = bulk(source, "--config", config)
        assert (status, err) == (0, "")
        assert "30 done (0 before this run), 0 of them failed, 30 sent now" in out
        assert re.search(r"time +[\d.]+ s, \d+ tokens, \$0\.\d{4}", out)
        assert f"written       {bulk.output}" in out
        status, out, _ = bulk(source, "--config", config)
        assert (status, "30 done (30 before this run)" in out, "0 sent now" in out) == (0, True, True)
    assert [row["custom_id"] for row in read_lines(bulk.output)] == [f"id-{number}" for number in range(30)]


def test_exit_codes_tell_all_done_some_failed_wrong_settings_and_go_on_later(bulk: Bulk) -> None:
    with FakeFleet([FakeEndpoint("a", models=[MODEL])]) as fleet:
        config = bulk.config(fleet, models=[MODEL])
        source = bulk.write("in.jsonl", [*lines(5), chat_line(9, model="other")])
        assert bulk(source, "--config", config, "--sample", 2)[0] == 75
        assert bulk(source, "--config", config)[0] == 1
        assert [row["custom_id"] for row in read_lines(bulk.folder / "out.failed.jsonl")] == ["id-9"]
        status, _, err = bulk(source, "--config", config, "--model", "m")
        assert (status, err.startswith("qreward run: model has changed since the run")) == (2, True)
        status, _, err = bulk("nowhere.jsonl", "--config", config)
        assert (status, "there is no file 'nowhere.jsonl'" in err) == (2, True)
        with pytest.raises(SystemExit) as caught:
            bulk(source, "--config", config, "--shard", "5")
        assert caught.value.code == 2


def test_options_make_the_requests(bulk: Bulk) -> None:
    table = bulk.write("in.csv", 'id,question,url\n7,"why, oh why?",x\n')
    prompt, system = bulk.write("prompt.txt", "Q: {question}"), bulk.write("system.txt", "be brief")
    seen: list[Any] = []

    def responder(messages: Any) -> str:
        seen.append(messages)
        return "because"

    with FakeFleet([FakeEndpoint("a", responder=responder)]) as fleet:
        status, _, err = bulk(
            table, "--config", bulk.config(fleet), "--model", "m", "--template", f"@{prompt}", "--system", f"@{system}",
            "--set", "max_tokens=9", "--set", "stop=x", "--set", 'response_format={"type":"text"}', "--timeout", 30,
        )  # fmt: skip
    assert (status, err) == (0, "")
    assert read_lines(bulk.output)[0]["custom_id"] == "7"
    assert [[message["content"] for message in messages] for messages in seen] == [["be brief", "Q: why, oh why?"]]
    header = json.loads(Path(f"{bulk.output}.journal").read_bytes().split(b"\n")[0])
    assert header["params"] == {"max_tokens": 9, "stop": "x", "response_format": {"type": "text"}}


def test_wrong_options_are_refused_with_what_to_write(bulk: Bulk) -> None:
    source = bulk.write("in.jsonl", lines(1))
    with FakeFleet([FakeEndpoint("a")]) as fleet:
        config = bulk.config(fleet)
        cases = {
            ("--set", "max_tokens"): "--set needs NAME=VALUE, such as max_tokens=512, not 'max_tokens'",
            ("--template", "@nowhere.txt"): "'nowhere.txt' cannot be read",
            ("--template", "no column"): "the template names no column",
            ("--max-cost", "3"): "max_cost needs the price of the endpoints",
            ("--shard", "3/2"): "must be part i of n, with i from 1 to n",
            ("--judge", "nowhere.yaml"): "nowhere.yaml",
        }
        for options, message in cases.items():
            status, _, err = bulk(source, "--config", config, *options)
            assert (status, message in err) == (2, True), (options, err)


def test_a_judge_file_turns_rows_into_verdicts_and_another_judge_is_refused(bulk: Bulk) -> None:
    rows = [{"id": f"r{number}", "question": "What is 3 x 4?", "answer": str(number), "truth": "12"} for number in range(20)]
    source = bulk.write("in.jsonl", rows)
    columns = {"prompt": "question", "response": "answer", "reference": "truth"}
    settings = {"judge": {"model": MODEL, "scale": [0, 1]}, "columns": columns, "deadline": 60}
    with FakeFleet([FakeEndpoint("a", responder="judge")]) as fleet:
        judge = bulk.write("judge.json", json.dumps(settings))
        config = bulk.config(fleet)
        status, out, err = bulk(source, "--config", config, "--judge", judge, "--dry-run")
        assert (status, "items         20, for the scorer" in out, err) == (0, True, "")
        status, out, err = bulk(source, "--config", config, "--judge", judge)
        assert (status, err) == (0, ""), out
        found = read_lines(bulk.output)
        assert [row["custom_id"] for row in found] == [f"r{number}" for number in range(20)]
        assert [row["verdict"]["score"] for row in found] == [float(number == 12) for number in range(20)]
        settings["judge"] = {"model": MODEL, "scale": [0, 5]}
        bulk.write("judge.json", json.dumps(settings))
        status, _, err = bulk(source, "--config", config, "--judge", judge)
        assert (status, err.startswith("qreward run: scorer has changed since the run")) == (2, True)
        settings["judge"] = {"model": "unknown", "scale": [0, 1]}
        bulk.write("judge.json", json.dumps({**settings, "client": json.loads(bulk.config(fleet, models=[MODEL]).read_text())}))
        status, _, err = bulk(source, "--judge", judge)
        assert (status, "judge.json: judge.model: no endpoint of the client serves the model 'unknown'" in err) == (2, True)


def test_a_dry_run_sends_nothing_and_says_what_it_would_send(bulk: Bulk) -> None:
    source = bulk.write("in.jsonl", lines(5, max_tokens=10))
    with FakeFleet([FakeEndpoint("a")]) as fleet:
        config = bulk.config(fleet, price=[1.0, 2.0])
        status, out, err = bulk(source, "--config", config, "--dry-run")
        assert (status, err) == (0, "")
        assert re.search(r"judge-7b +5 requests, about \d+ prompt tokens, at most 50 output tokens, at most \$0\.\d{4}; to a", out)
        status, out, _ = bulk(bulk.write("bad.jsonl", [*lines(1), "{\n"]), "--config", config, "--dry-run")
        assert (status, "bad.jsonl:2: it is not JSON" in out) == (2, True)
    assert not bulk.output.exists()
    assert not Path(f"{bulk.output}.journal").exists()


def test_requests_are_read_from_standard_input(tmp_path: Path) -> None:
    with counting_server() as server:
        text = "".join(json.dumps(line) + "\n" for line in lines(10))
        done = subprocess.run(
            [sys.executable, "-m", "qreward", "run", "-", "--output", str(tmp_path / "out.jsonl"), "--progress", "none"],
            input=text, env=environment(server.url), capture_output=True, text=True, check=False,
        )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert len(read_lines(tmp_path / "out.jsonl")) == 10


def until_records(process: subprocess.Popen[str], journal: Path, records: int) -> None:
    while process.poll() is None and not (journal.exists() and journal.read_bytes().count(b"\n") > records):
        pass


def test_the_first_interrupt_finishes_what_is_in_flight_and_nothing_is_sent_twice(tmp_path: Path) -> None:
    source, output = write_lines(tmp_path / "in.jsonl", lines(1000)), tmp_path / "out.jsonl"
    journal = Path(f"{output}.journal")
    with counting_server(0.05) as server:
        for number in (signal.SIGINT, signal.SIGTERM):
            records = journal.read_bytes().count(b"\n") if journal.exists() else 0
            process = start(source, output, server.url)
            until_records(process, journal, records + 100)
            process.send_signal(number)
            printed, _ = process.communicate(timeout=300)
            assert process.returncode == 75, printed
            assert "finishing the requests in flight; press Ctrl-C again to stop now" in printed
            assert "stopped       it was interrupted; run the same command again to continue" in printed
            assert in_flight(journal, source) == set()
            assert not output.exists()
        code, printed = finish(source, output, server.url)
        assert code == 0, printed
        assert set(server.served.values()) == {1}
    assert len(read_lines(output)) == 1000


async def test_an_interrupt_stops_a_run_although_it_has_ended_the_reader_of_standard_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_: str = "") -> None:
        raise BrokenPipeError

    done: list[Any] = []
    monkeypatch.setattr(sys, "stderr", SimpleNamespace(write=broken, flush=broken))
    run: Any = SimpleNamespace(stop=done.append, stop_now=partial(done.append, "now"))
    _stop_on_interrupt(run)
    for _ in range(2):
        signal.raise_signal(signal.SIGINT)
        await asyncio.sleep(0.05)
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().remove_signal_handler(number)
    assert done == ["it was interrupted", "now"]


def test_the_second_interrupt_stops_at_once_and_only_what_was_in_flight_is_sent_again(tmp_path: Path) -> None:
    source, output = write_lines(tmp_path / "in.jsonl", lines(400)), tmp_path / "out.jsonl"
    journal = Path(f"{output}.journal")
    with counting_server(2.0) as server:
        process = start(source, output, server.url)
        until_records(process, journal, 20)
        process.send_signal(signal.SIGINT)
        assert process.stdout is not None
        while "finishing" not in process.stdout.readline():
            pass
        process.send_signal(signal.SIGINT)
        printed, _ = process.communicate(timeout=300)
        left = in_flight(journal, source)
        assert (process.returncode, f"in flight     {len(left)} lines were sent" in printed) == (75, True), printed
        server._seconds = 0.0
        code, printed = finish(source, output, server.url)
        assert (code, f"sent again    {len(left)} lines" in printed) == (0, True), printed
    assert {text for text, times in server.served.items() if times > 1} <= {f"item {number}" for number in left}
    assert len(read_lines(output)) == 400


@contextmanager
def small_disk(path: Path, size: int) -> Iterator[bool]:
    """A disk of so many bytes, if one may be mounted here; else yields False."""
    path.mkdir()
    libc = ctypes.CDLL(None, use_errno=True)
    mounted = hasattr(libc, "mount") and libc.mount(b"tmpfs", os.fsencode(path), b"tmpfs", 0, f"size={size}".encode()) == 0
    try:
        yield mounted
    finally:
        if mounted:
            libc.umount2(os.fsencode(path), 2)


LIMITED = """
import errno, os, sys
limit, write = int(sys.argv.pop(1)), os.pwrite
def pwrite(file, data, offset):
    if offset + len(data) > limit:
        raise OSError(errno.ENOSPC, "No space left on device")
    return write(file, data, offset)
def posix_fallocate(file, offset, size):
    raise OSError(errno.EOPNOTSUPP, "not here")
os.pwrite, os.posix_fallocate = pwrite, posix_fallocate
from qreward.cli import main
sys.exit(main(sys.argv[1:]))
"""
"""The command on a disk on which no file can become longer than its first argument says."""


def test_a_full_disk_stops_the_run_and_nothing_that_was_done_is_lost(tmp_path: Path) -> None:
    source, count = write_lines(tmp_path / "in.jsonl", lines(3000)), 3000
    with small_disk(tmp_path / "disk", 1 << 20) as is_mounted, counting_server(0.001) as server:
        output = tmp_path / "disk" / "out.jsonl"
        arguments = ["run", str(source), "--output", str(output), "--progress", "none"]
        command = ["-m", "qreward", *arguments] if is_mounted else ["-c", LIMITED, str(1 << 19), *arguments]
        full = subprocess.run([sys.executable, *command], env=environment(server.url), capture_output=True, text=True, check=False)
        assert full.returncode == 75, full.stderr
        assert "no space is left for" in full.stdout
        done = server.served.copy()
        assert 0 < len(done) < count
        journal = Path(f"{output}.journal")
        left = in_flight(journal, source)
        elsewhere = tmp_path / "out.jsonl"
        Path(f"{elsewhere}.journal").write_bytes(journal.read_bytes())  # a disk with room
        code, printed = finish(source, elsewhere, server.url)
        assert code == 0, printed
        again = {text for text, times in server.served.items() if times > 1}
        assert again <= {f"item {number}" for number in left}
        if is_mounted:  # space was reserved for what was in flight
            assert left == set()
    assert [row["custom_id"] for row in read_lines(elsewhere)] == [f"id-{number}" for number in range(count)]
