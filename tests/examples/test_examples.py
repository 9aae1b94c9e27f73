"""The examples, their data and the README are run as a reader would run them: nothing in them may rot."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import pytest
from example_index import INDEX, ROW, docstring, programs, rows, shown

from qreward import LoadBalanceStrategy
from qreward.cli.demo import INPUT
from qreward.testing import FakeEndpoint, FakeFleet
from qreward.testing.responders import judge

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.timeout(600)  # many programs in one process, on a busy machine
EXAMPLES = ROOT / "examples"
DATA = EXAMPLES / "data"
NAMES = ["client_call.py", "client_batch.py", "client_sync.py", "client_prefix_affinity.py", "client_load_balancing.py"]
NAMES += ["client_model_routes.py", "client_stream.py", "client_stream_batch.py", "client_decide.py", "bulk_file.py"]
LINES = [json.loads(line) for line in INPUT.read_text(encoding="utf-8").splitlines()]
RUNNER = """
import contextlib, io, json, os, runpy, sys, traceback
said = []
for script, variables in json.loads(sys.argv[1]):
    folder = os.path.dirname(script)
    os.chdir(folder)
    os.environ.update(variables)
    sys.path.insert(0, folder)
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            runpy.run_path(script, run_name="__main__")
        except BaseException:
            traceback.print_exc()
    sys.path.remove(folder)
    for name, module in list(sys.modules.items()):
        if os.path.dirname(getattr(module, "__file__", None) or "") == folder:
            del sys.modules[name]
    for name in variables:
        del os.environ[name]
    said.append([out.getvalue(), err.getvalue()])
print(json.dumps(said))
"""


def run_python(*args: str, cwd: Path) -> str:
    """Standard output of a Python process in which each warning is an error; it must end well and say nothing else."""
    done = subprocess.run([sys.executable, "-W", "error", *args], cwd=cwd, capture_output=True, text=True, timeout=500, check=False)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    return done.stdout


def run_scripts(scripts: Iterable[tuple[Path, dict[str, str]]], folder: Path) -> list[tuple[str, str]]:
    """What scripts print and complain of, run one after the other in one process, each in its folder and with its variables."""
    given = [(str(script), variables) for script, variables in scripts]
    return [(out, err) for out, err in json.loads(run_python("-c", RUNNER, json.dumps(given), cwd=folder))]


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What each example prints that is run without any setting."""
    names = [*NAMES, "batch_decorator.py", "reward_server.py"]
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith(("OPENAI_", "QREWARD_"))]:
            patch.delenv(name)
        found = run_scripts([(EXAMPLES / name, {}) for name in names], tmp_path_factory.mktemp("examples"))
    assert {name: err for name, (_, err) in zip(names, found, strict=True) if err} == {}
    return {name: out for name, (out, _) in zip(names, found, strict=True)}


def user_text(line: dict[str, list[dict[str, str]]]) -> str:
    return line["messages"][-1]["content"]


def test_running_the_generator_gives_exactly_the_committed_file(tmp_path: Path) -> None:
    for name in ("make_judge_requests.py", "judge_facts.txt"):
        shutil.copy(DATA / name, tmp_path)
    run_python("make_judge_requests.py", "judge_requests.jsonl", cwd=tmp_path)
    assert (tmp_path / "judge_requests.jsonl").read_bytes() == INPUT.read_bytes()


def test_the_data_are_half_right_without_repeats_and_the_judge_of_the_fake_fleet_gives_the_expected_verdict_on_every_line() -> None:
    assert [user_text(line) for line in LINES if json.loads(judge(line["messages"]))["verdict"] != line["expected"]] == []
    verdicts = Counter((line["category"], line["expected"]) for line in LINES)
    assert len(LINES) >= 600
    assert all(verdicts[category, "correct"] == verdicts[category, "incorrect"] for category, _ in verdicts)
    assert len({line["id"] for line in LINES}) == len({user_text(line) for line in LINES}) == len(LINES)


def test_the_code_questions_say_what_python_really_prints() -> None:
    asked = {user_text(line) for line in LINES if "What does this Python print?" in user_text(line)}
    assert len(asked) >= 20
    for text in asked:
        code, reference = re.findall(r"print\? (.*)\nReference answer: (.*)\n", text)[0]
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            exec(code, {})
        assert out.getvalue().strip() == reference, code


def test_a_single_call_and_a_batch_print_their_verdicts(said: dict[str, str]) -> None:
    verdict = json.loads(said["client_call.py"])
    assert (verdict["verdict"], verdict["score"]) == ("correct", 1)
    out = said["client_batch.py"]
    assert "60 of 60 judged" in out
    assert "mean reward 0.50" in out
    sent = {name: int(count) for name, count in re.findall(r"^(\S+): sent (\d+)", out, re.MULTILINE)}
    assert set(sent) == {"judge-fast", "judge-slow"}
    assert sum(sent.values()) >= 60


def test_the_load_balancer_shows_each_strategy_and_spares_an_unhealthy_endpoint(said: dict[str, str]) -> None:
    lines = {line[:22].strip(): line[22:] for line in said["client_load_balancing.py"].splitlines()}
    shares = {name: Counter({gpu: int(count) for gpu, count in re.findall(r"(gpu-\d) (\d+)", line)}) for name, line in lines.items()}
    assert list(shares) == [*LoadBalanceStrategy, "without gpu-0"]
    assert {share.total() for share in shares.values()} == {20}
    assert (shares["weighted_round_robin"]["gpu-0"], shares["without gpu-0"]["gpu-0"]) == (12, 0)  # three of five


def test_a_bulk_that_stops_half_way_judges_each_row_once_and_prefix_affinity_computes_far_fewer_tokens(said: dict[str, str]) -> None:
    assert said["bulk_file.py"].splitlines() == [
        "first run:  120 of 200 rows judged, then its sample of 120 lines is done; output: None",
        "second run: 120 rows were done before, 80 judged now, 0 failed",
        "200 verdicts, 67 answers are right, the first of them row-0",
    ]
    computed = re.findall(r"([\d,]+) prompt tokens computed", said["client_prefix_affinity.py"])
    without, affine = (int(text.replace(",", "")) for text in computed)
    assert affine < 0.6 * without


def test_the_model_router_prefers_the_exact_name_then_the_most_specific_glob(said: dict[str, str]) -> None:
    out = said["client_model_routes.py"]
    assert re.findall(r"^(judge-\S+) -> (\S+)$", out, re.MULTILINE) == [
        ("judge-7b", "small"),  # by the glob judge-7?
        ("judge-70b", "large"),  # by the glob judge-*
        ("judge-7b", "large"),  # by the exact name, registered since
    ]
    assert re.search(r"^not served: .*'unknown-model'.*'judge-\*'", out, re.MULTILINE)


def test_streams_come_token_by_token_and_are_restarted_and_one_that_fails_is_a_value(said: dict[str, str]) -> None:
    tokens, text, _, _, restarted, complete, broke = said["client_stream.py"].splitlines()
    verdict = tokens.replace("|", "")
    assert json.loads(verdict)["verdict"] == "correct"
    assert (text, complete) == (f"the text:  {len(verdict)} characters, 30 tokens", f"complete:  {verdict}")
    before = re.fullmatch(r"broke off: (.+) \(ConnectionFailed\)", broke)
    assert before
    assert verdict.startswith(before[1])
    assert restarted == f"restarted after {len(before[1])} characters, which do not count"
    before_it, failed, after_it, judged, *ends = said["client_stream_batch.py"].splitlines()
    index = re.match(r"stream (\d) failed: the stream broke off after \d+ characters: endpoint 'judge-1'", failed)
    assert index
    assert Counter(before_it + after_it) == dict.fromkeys("01234567", 24) | {index[1]: 12}
    assert judged == f"7 of 8 judged: {[None if number == int(index[1]) else 1 - number % 2 for number in range(8)]}"
    assert all(" ended at judge-" in end for end in ends)


def test_the_blocking_client_calls_judges_streams_and_serves_threads(said: dict[str, str]) -> None:
    one, *progress, batch, stream, threads = said["client_sync.py"].splitlines()
    assert json.loads(one.removeprefix("one call:"))["verdict"] == "correct"
    assert re.fullmatch(r"60/60 judged, 0 failed, \$0\.\d{6}", progress[-1])
    assert batch == "the batch: 30 of 60 candidates are right"
    assert json.loads(stream.removeprefix("a stream:").replace("|", ""))["verdict"] == "incorrect"
    assert threads.startswith("8 threads: 16 answers")


def test_each_program_is_short_and_begins_with_what_it_shows_and_the_command_that_runs_it() -> None:
    for path in programs():
        lines = path.read_text(encoding="utf-8").splitlines()
        command = f"Run it: ``python examples/{path.relative_to(EXAMPLES).as_posix()}``."
        assert len(lines) <= (60 if path.parent == EXAMPLES else 90), path
        assert lines[0].startswith('"""'), path
        assert command in docstring(path).splitlines(), path
        assert shown(path).count(". ") < 2, path


def test_the_index_lists_each_program_with_what_it_shows() -> None:
    listed = ROW.findall(INDEX.read_text(encoding="utf-8"))
    assert [(name, text) for name, text, _ in listed] == rows()
    assert all(0 < float(seconds) < 60 for _, _, seconds in listed)


def test_examples_run_against_the_endpoints_that_the_environment_names(tmp_path: Path) -> None:
    with FakeFleet([FakeEndpoint("mine", models=["mine-*", "judge-*"], responder="judge", api_key="not-secret", decisions=True)]) as fleet:
        own = {"OPENAI_BASE_URL": fleet.urls["mine"], "OPENAI_API_KEY": "not-secret", "JUDGE_MODEL": "mine-1"}
        found = dict(zip(NAMES, run_scripts([(EXAMPLES / name, own) for name in NAMES], tmp_path), strict=True))
        assert fleet.seen("mine").answered >= len(NAMES)
    assert {name: err for name, (out, err) in found.items() if err or not out} == {}


def test_the_batch_decorator_merges_calls(said: dict[str, str]) -> None:
    one, many, bad, streams, stats = said["batch_decorator.py"].splitlines()
    assert one == "one call: 1.0 in batches of [1]"
    assert many == "100 at once: mean reward 0.5, in batches of [32, 32, 32, 4]"
    assert bad.startswith("a bad neighbour: 1.0 and ValueError(")
    assert (streams.count("read"), stats) == (2, "103 items in 6 batches")


def test_the_reward_server_scores_in_batches_and_a_completion_that_cannot_be_scored_fails_alone(said: dict[str, str]) -> None:
    assert said["reward_server.py"].splitlines() == [
        "rewards: [0.6, 1.0, 1.0, 0.6, 1.0, 1.0, 0.6, 1.0, 1.0, 0.6, 1.0, 1.0, 0.0]",
        "13 completions, fewer calls of the scorer: True",
        "one without a score: [1.0, None] 'one half' is no number",
    ]
