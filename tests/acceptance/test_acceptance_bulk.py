"""A bulk that is killed, interrupted or runs out of disk goes on with the same command: nothing is lost, nothing is there twice."""

from __future__ import annotations

import random
import signal
from collections import Counter
from pathlib import Path

from bulk_tools import chat_line, counting_server, finish, in_flight, kill_after, read_lines, start, write_lines
from scale import SCALE

LINES = 5000


def check_output(output: Path, lines: int) -> None:
    """Each line is there once, in the order of the input, with its own answer."""
    rows = read_lines(output)
    assert [row["custom_id"] for row in rows] == [f"id-{number}" for number in range(lines)]
    answers = [row["response"]["body"]["choices"][0]["message"]["content"] for row in rows]
    assert answers == [f"answer to item {number}" for number in range(lines)]


def test_a_run_that_is_killed_again_and_again_loses_nothing_and_sends_again_only_what_was_in_flight(tmp_path: Path) -> None:
    kills = 3 * SCALE
    for seed in range(2):
        dice = random.Random(seed)
        folder = tmp_path / str(seed)
        folder.mkdir()
        source, output = write_lines(folder / "in.jsonl", [chat_line(number) for number in range(LINES)]), folder / "out.jsonl"
        journal = folder / "out.jsonl.journal"
        allowed: Counter[int] = Counter()
        with counting_server(0.005, seed) as server:
            records = 0
            for _ in range(kills):
                records += dice.randrange(1, 2 * LINES // kills)
                process = start(source, output, server.url)
                kill_after(process, records, journal)
                if process.returncode == 0:
                    break
                assert process.returncode == -signal.SIGKILL, seed
                allowed.update(in_flight(journal, source))
                assert not output.exists(), seed
            code, printed = finish(source, output, server.url)
            assert code == 0, (seed, printed)
            check_output(output, LINES)
            assert len(server.served) == LINES, seed
            for number in range(LINES):
                assert server.served[f"item {number}"] <= 1 + allowed[number], (seed, number)
