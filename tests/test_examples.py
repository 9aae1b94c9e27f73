"""The examples, their data and the README are run as a reader would run them: nothing in them may rot."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from itertools import pairwise
from pathlib import Path

import pytest

from qreward.cli.demo import INPUT
from qreward.testing import FakeEndpoint, FakeFleet, Latency
from qreward.testing.responders import judge

ROOT = Path(__file__).resolve().parents[1]
EXAMPLES = ROOT / "examples"
DATA = EXAMPLES / "data"
NAMES = ["single_call.py", "batch_call.py", "sync_call.py"]
NAMES += ["client_load_balancer.py", "client_model_router.py", "client_streaming.py", "client_batch_streaming.py"]
LINES = [json.loads(line) for line in INPUT.read_text(encoding="utf-8").splitlines()]


def run_python(*args: str, cwd: Path, **variables: str) -> str:
    """Standard output of a Python process in which each warning is an error; it must end well and say nothing else."""
    done = subprocess.run(
        [sys.executable, "-W", "error", *args], cwd=cwd, env=os.environ | variables, capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    return done.stdout


async def run_against(fleet: FakeFleet, *args: str, cwd: Path, **variables: str) -> str:
    """The same, in a thread, while this loop serves the fleet."""
    async with fleet:
        urls = {f"URL_{number}": endpoint.base_url for number, endpoint in enumerate(fleet.endpoints)}
        filled = {name: value.format(**urls) for name, value in variables.items()}
        return await asyncio.to_thread(lambda: run_python(*args, cwd=cwd, **filled))


def blocks(text: str) -> list[str]:
    """The Python blocks marked to be run."""
    return re.findall(r"<!-- run -->\n```python\n(.*?)```", text, re.DOTALL)


def user_text(line: dict[str, list[dict[str, str]]]) -> str:
    return line["messages"][-1]["content"]


def test_running_the_generator_gives_exactly_the_committed_file(tmp_path: Path) -> None:
    for name in ("make_judge_requests.py", "judge_facts.txt"):
        shutil.copy(DATA / name, tmp_path)
    run_python("make_judge_requests.py", "judge_requests.jsonl", cwd=tmp_path)
    assert (tmp_path / "judge_requests.jsonl").read_bytes() == INPUT.read_bytes()


def test_the_judge_of_the_fake_fleet_gives_the_expected_verdict_on_every_line() -> None:
    wrong = [user_text(line) for line in LINES if json.loads(judge(line["messages"]))["verdict"] != line["expected"]]
    assert wrong == []


def test_half_of_the_candidates_are_right_in_the_whole_and_in_each_category() -> None:
    verdicts = Counter((line["category"], line["expected"]) for line in LINES)
    categories = {category for category, _ in verdicts}
    assert len(LINES) >= 600
    assert len(categories) >= 15
    assert all(verdicts[category, "correct"] == verdicts[category, "incorrect"] for category in categories)


def test_no_id_and_no_prompt_comes_twice() -> None:
    assert len({line["id"] for line in LINES}) == len(LINES)
    assert len({user_text(line) for line in LINES}) == len(LINES)


def test_many_right_candidates_are_not_the_reference_word_for_word() -> None:
    pairs = [re.findall(r"answer: (.*)", user_text(line)) for line in LINES if line["expected"] == "correct"]
    assert sum(reference != candidate for reference, candidate in pairs) > len(pairs) / 2


def test_the_code_questions_say_what_python_really_prints() -> None:
    asked = {user_text(line) for line in LINES if "What does this Python print?" in user_text(line)}
    assert len(asked) >= 20
    for text in asked:
        code, reference = re.findall(r"print\? (.*)\nReference answer: (.*)\n", text)[0]
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            exec(code, {})
        assert out.getvalue().strip() == reference, code


def test_the_single_call_prints_the_verdict() -> None:
    verdict = json.loads(run_python("single_call.py", cwd=EXAMPLES))
    assert verdict["verdict"] == "correct"
    assert verdict["score"] == 1


def test_the_batch_call_judges_all_rollouts_and_knows_the_wrong_half() -> None:
    out = run_python("batch_call.py", cwd=EXAMPLES)
    assert "60 of 60 judged" in out
    assert "mean reward 0.50" in out
    sent = {name: int(count) for name, count in re.findall(r"^(\S+): sent (\d+)", out, re.MULTILINE)}
    assert set(sent) == {"judge-fast", "judge-slow"}
    assert sum(sent.values()) >= 60


def test_the_load_balancer_shows_each_strategy_and_spares_an_unhealthy_endpoint() -> None:
    lines = run_python("client_load_balancer.py", cwd=EXAMPLES).splitlines()
    labels = ["expected_finish", "round_robin", "weighted_round_robin", "least_connections", "power_of_two", "without gpu-0"]
    assert [line[:22].strip() for line in lines] == labels
    shares = {line[:22].strip(): Counter({name: int(count) for name, count in re.findall(r"(gpu-\d) (\d+)", line[22:])}) for line in lines}
    assert all(share.total() == 20 for share in shares.values())
    assert sorted(shares["round_robin"].values()) == [6, 7, 7]
    assert shares["weighted_round_robin"]["gpu-0"] == 12  # three of five
    assert shares["without gpu-0"]["gpu-0"] == 0


def test_the_model_router_prefers_the_exact_name_then_the_most_specific_glob() -> None:
    out = run_python("client_model_router.py", cwd=EXAMPLES)
    assert re.findall(r"^(judge-\S+) -> (\S+)$", out, re.MULTILINE) == [
        ("judge-7b", "small"),  # by the glob judge-7?
        ("judge-70b", "large"),  # by the glob judge-*
        ("judge-7b", "large"),  # by the exact name, registered since
    ]
    assert re.search(r"^not served: .*'unknown-model'.*'judge-\*'", out, re.MULTILINE)


def test_the_streams_come_token_by_token_break_off_and_begin_anew() -> None:
    tokens, whole, chunks, left, broke, anew, again = run_python("client_streaming.py", cwd=EXAMPLES).splitlines()
    assert tokens.count("|") == 30
    verdict = tokens.replace("|", "")
    assert json.loads(verdict)["verdict"] == "correct"
    assert whole == f"the whole: {len(verdict)} characters, 30 tokens"
    assert re.fullmatch(r"as chunks: 3\d of openai's ChatCompletionChunk", chunks)
    assert left.startswith('left at:   {"verdict": "correct",')
    assert verdict.startswith(left.removeprefix("left at:   "))
    said = re.fullmatch(r"broke off: (.*) \(ConnectionFailed\)", broke)
    assert said
    assert verdict.startswith(said[1])
    assert 0 < len(said[1]) < len(verdict)
    assert anew == f"begun anew after {len(said[1])} characters, which are void"
    assert again == f"and whole: {verdict}"


def test_the_streams_of_a_batch_interleave_and_one_that_fails_is_a_value() -> None:
    out = run_python("client_batch_streaming.py", cwd=EXAMPLES)
    before, failed, after, judged, *ends = out.splitlines()
    tokens = Counter(before + after)
    index = re.fullmatch(r"stream (\d) failed: the stream broke off after \d+ characters: endpoint 'judge-1'.*", failed)
    assert index
    assert tokens == dict.fromkeys("01234567", 24) | {index[1]: 12}
    assert sum(one != other for one, other in pairwise(before + after)) > 7  # more than if they came one after the other
    rewards = [None if number == int(index[1]) else 1 - number % 2 for number in range(8)]
    assert judged == f"7 of 8 judged: {rewards}"
    pattern = r'stream (\d) ended at judge-[01] after \d\.\d\d s: \{"verdict": "(\w+)", .*\}'
    found = [re.fullmatch(pattern, end) for end in ends]
    assert sorted((end[1], end[2]) for end in found if end) == [(str(number), ("correct", "incorrect")[number % 2]) for number in range(8)]


def test_the_blocking_client_calls_judges_streams_and_serves_threads() -> None:
    one, *progress, batch, stream, threads = run_python("sync_call.py", cwd=EXAMPLES).splitlines()
    assert json.loads(one.removeprefix("one call:"))["verdict"] == "correct"
    assert all(re.fullmatch(r"\d+/60 judged, 0 failed, \$0\.\d{6}", line) for line in progress)
    assert progress[0].startswith("0/60")
    assert progress[-1].startswith("60/60")
    assert not progress[-1].endswith("$0.000000")
    assert batch == "the batch: 30 of 60 candidates are right"
    assert stream.count("|") == 30
    assert json.loads(stream.removeprefix("a stream:").replace("|", ""))["verdict"] == "incorrect"
    assert threads.startswith("8 threads: 16 answers")


@pytest.mark.parametrize("name", NAMES)
def test_an_example_runs_against_the_endpoints_that_the_environment_names(name: str) -> None:
    fleet = FakeFleet([FakeEndpoint("mine", models=["mine-*", "judge-*"], responder="judge", api_key="not-secret")])
    own = {"OPENAI_BASE_URL": "{URL_0}", "OPENAI_API_KEY": "not-secret", "JUDGE_MODEL": "mine-1"}
    out = asyncio.run(run_against(fleet, name, cwd=EXAMPLES, **own))
    assert out
    assert fleet.seen("mine").answered >= 1


def test_each_example_is_short_and_says_what_it_shows() -> None:
    for path in sorted(EXAMPLES.glob("*.py")):
        text = path.read_text(encoding="utf-8")
        assert len(text.splitlines()) < 60, path
        assert text.startswith('"""'), path


def test_the_python_of_the_readme_runs_and_judges(tmp_path: Path) -> None:
    found = blocks((ROOT / "README.md").read_text(encoding="utf-8"))
    assert len(found) == 2  # awaited, and not
    for block in found:
        (tmp_path / "readme.py").write_text(block, encoding="utf-8")
        fleet = FakeFleet([FakeEndpoint("a", responder="judge"), FakeEndpoint("b", responder="judge", api_key="not-secret")])
        given = {"JUDGE_URL": "{URL_0}", "API_URL": "{URL_1}", "API_KEY": "not-secret", "OPENAI_BASE_URL": "{URL_0}"}
        out = asyncio.run(run_against(fleet, "readme.py", cwd=tmp_path, **given))
        assert re.findall(r'"verdict": "(\w+)"', out) == ["correct", "correct", "incorrect"]


PAGES = [(page.name, block) for page in sorted((ROOT / "docs").glob("*.md")) for block in blocks(page.read_text(encoding="utf-8"))]


@pytest.mark.parametrize("block", [block for _, block in PAGES], ids=[name for name, _ in PAGES])
def test_the_python_of_the_pages_runs_where_it_is_marked(block: str, tmp_path: Path) -> None:
    (tmp_path / "page.py").write_text(block, encoding="utf-8")
    fleet = FakeFleet([FakeEndpoint("a", latency=Latency(tokens=10))])
    assert asyncio.run(run_against(fleet, "page.py", cwd=tmp_path, OPENAI_BASE_URL="{URL_0}"))


def test_each_page_with_marked_python_is_found() -> None:
    assert {"batching.md", "configuration.md", "errors.md", "streaming.md"} <= {name for name, _ in PAGES}


def test_the_batch_decorator_merges_calls() -> None:
    one, many, bad, streams, stats = run_python("batch_decorator.py", cwd=EXAMPLES).splitlines()
    assert one == "one call: 1.0 in batches of [1]"
    assert many == "100 at once: mean reward 0.5, in batches of [32, 32, 32, 4]"
    assert bad.startswith("a bad neighbour: 1.0 and ValueError(")
    assert streams.count("read") == 2
    assert stats == "103 items in 6 batches"


def test_the_reward_server_scores_in_batches_and_a_completion_that_cannot_be_scored_fails_alone() -> None:
    rewards, fewer, alone = run_python("reward_server.py", cwd=EXAMPLES).splitlines()
    assert rewards == "rewards: [0.6, 1.0, 1.0, 0.6, 1.0, 1.0, 0.6, 1.0, 1.0, 0.6, 1.0, 1.0, 0.0]"
    assert fewer == "13 completions, fewer calls of the scorer: True"
    assert alone == "one that has none: [1.0, None] 'one half' is no number"
