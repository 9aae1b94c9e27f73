"""The examples for Ray and for trainers, run as a reader without either would run them; their settings, arguments and pages."""

from __future__ import annotations

import importlib
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from qreward.integrations.trainers import load_reward_config

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
SLOW = ROOT / "tests" / "slow"
PAGES = ("areal", "art", "ms_swift", "openenv", "openrlhf", "roll", "skyrl", "slime", "tinker_cookbook", "trl", "verifiers", "verl")
MISSES_A_REWARD = re.compile("1 rewards are missing so far; the last: ")
"""What slime's function logs of the first failure; nobody has set up logging."""


def said_by(script: Path) -> tuple[str, str]:
    """What a script printed, and what it said on standard error beside the servers of its own that fail."""
    command = [sys.executable, "-W", "error", script.name]
    done = subprocess.run(command, cwd=script.parent, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout, "".join(line for line in done.stderr.splitlines(keepends=True) if "is out of service" not in line)


def test_the_example_of_ray_runs_without_ray_and_says_so(tmp_path: Path) -> None:
    script = tmp_path / "run.py"
    script.write_text(
        "import importlib.util, runpy\n"
        "importlib.util.find_spec = lambda name, package=None: None\n"  # also where Ray is installed
        f"runpy.run_path({str(EXAMPLES / 'ray_scorer.py')!r}, run_name='__main__')\n",
        encoding="utf-8",
    )
    printed, errors = said_by(script)
    says, scored, *answers, deaths = printed.splitlines()
    assert "pip install 'qreward[ray]'" in says
    assert scored == "local: 200 rewards, the last 100.0, in 7 batches"
    assert answers == ["  'fine': 2.0", "  '': ValueError: no answer", "  'segmentation fault': 9.0", "  'fine, too': 4.5"]
    assert deaths == "  0 deaths, 2 actors"
    assert errors == ""


@pytest.mark.parametrize(("folder", "logged"), [("roll_example", ""), ("slime_example", MISSES_A_REWARD)])
def test_the_script_of_an_example_prints_what_its_readme_says(folder: str, logged: str | re.Pattern[str]) -> None:
    printed, errors = said_by(EXAMPLES / folder / "try_it.py")
    assert f"```text\n{printed}```" in (EXAMPLES / folder / "README.md").read_text(encoding="utf-8")
    assert errors == logged if isinstance(logged, str) else logged.match(errors) and errors.count("\n") == 1, errors


def test_the_example_for_trl_scores_and_leaves_out_what_could_not_be_scored() -> None:
    printed, errors = said_by(EXAMPLES / "trl_example" / "try_it.py")
    metrics = [*(f"correctness/{name}" for name in ("cost", "ok", "seconds", "tokens", "unreported")), "rewards/brevity/mean"]
    logged = ", ".join([*metrics, "rewards/correctness/mean"])
    assert (printed.splitlines(), errors) == (
        [
            "the judge alone: [1.0, 0.0, 1.0, 0.0]",
            "with brevity: [1.1, 0.1, 1.1, 0.1]",
            f"logged: {logged}",
            "no judge is there: [None, None, None, None]",
            "with brevity: [None, None, None, None]",
        ],
        "",
    )


def test_the_example_for_verl_scores_raises_or_gives_the_number_that_was_chosen() -> None:
    printed, errors = said_by(EXAMPLES / "verl_example" / "try_it.py")
    scored, values, raised, chosen, numbers = printed.splitlines()
    keys = "score, judge_ok, judge_error, judge_seconds, judge_tokens, judge_cost, judge_unreported"
    assert scored == f"a tenth of the requests fails: 32 of 32 with the keys {keys}"
    assert values == "  scores [1.0, 0.0, 1.0, 1.0], judge_ok 32"
    assert re.match(r"no judge is there: (RequestTimeout|ConnectionFailed)\(", raised)  # by what was under way at the end of the time
    assert chosen == f"and on_failure is -1: 32 of 32 with the keys {keys}"
    assert numbers == "  scores [-1.0, -1.0, -1.0, -1.0], judge_ok 0"
    assert errors == ""


def test_the_drop_in_judges_by_the_sdk_over_two_endpoints() -> None:
    printed, errors = said_by(EXAMPLES / "openai_sdk.py")
    judged, sent, stream, facade = printed.splitlines()
    assert errors == ""
    assert judged == "60 judged: 30 correct, 30 incorrect"
    shares = [int(count) for count in re.findall(r"judge-\d (\d+)", sent)]
    assert len(shares) == 2
    assert sum(shares) > 60  # some failed, and were sent again
    assert stream.count("|") > 20
    assert '"verdict": "correct"' in stream.replace("|", "")
    assert facade.startswith('without the SDK: {"verdict": "correct"')


def test_the_settings_of_the_examples_and_the_pages_are_valid_and_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JUDGE_URL", "http://judge:8000/v1")
    monkeypatch.setenv("JUDGE_KEY", "not-secret")
    configs = {folder: load_reward_config(EXAMPLES / f"{folder}_example" / "reward.yaml") for folder in ("roll", "slime", "trl", "verl")}
    assert all(config.judge and config.client for config in configs.values())
    assert configs["slime"].columns == {"prompt": "metadata.question"}
    assert configs["roll"].client is not None
    *gpus, hosted = configs["roll"].client.endpoints
    assert ([endpoint.name for endpoint in gpus], hosted.name, hosted.limits.shared) == (["gpu-0", "gpu-1"], "hosted", "local")
    for name in ("trl", "verl"):
        folder = EXAMPLES / f"{name}_example"
        readme = (folder / "README.md").read_text(encoding="utf-8")
        files = {path.name for path in folder.iterdir() if not path.name.startswith("_")} - {"README.md"}
        assert {file for file in files if f"[{file}]({file})" not in readme} == set()
    page = (ROOT / "docs" / "trainers" / "index.md").read_text(encoding="utf-8")
    settings = page.partition("## The settings")[2].partition("###")[0]
    smallest, full = (load_reward_config(yaml.safe_load(block)) for block in re.findall(r"```yaml\n(.*?)```", settings, re.DOTALL))
    assert smallest.judge
    assert full.judge
    assert re.findall(r"^\| `(\w+)` \|", settings, re.MULTILINE) == list(type(full).model_fields)


def test_the_yaml_of_roll_names_our_classes_and_no_key_of_the_section_is_unknown_to_roll() -> None:
    whole = yaml.safe_load((EXAMPLES / "roll_example" / "rlvr_llm_judge.yaml").read_text(encoding="utf-8"))
    section = whole["rewards"]["llm_judge"]
    assert section["worker_cls"] == "qreward.integrations.roll.JudgeRewardWorker"
    assert whole["user_defined_rollout_loop_cls"] == "qreward.integrations.roll.SkippingRolloutLoop"
    known = {"worker_cls", "tag_included", "world_size", "model_args", "system_envs", "reward_manager_config"}
    assert section.keys() == known  # tests/slow/roll asks ROLL itself


def test_the_arguments_of_slime_name_functions_that_are_there() -> None:
    script = EXAMPLES / "slime_example" / "reward_args.sh"
    named = re.findall(r"--custom-\S+-path (\S+)", script.read_text(encoding="utf-8"))
    assert len(named) == 3
    for path in named:
        module, _, function = path.rpartition(".")
        assert callable(getattr(importlib.import_module(module), function))
    assert subprocess.run(["bash", "-n", str(script)], check=False).returncode == 0


ON_PYPI = {"skyrl": "skyrl(?:-gym)?", "art": "openpipe-art"}
"""Page -> pattern of the names of its packages, where they differ."""


def pinned(trainer: str) -> set[str]:
    """Versions of a trainer that its tests, also those of an older version, are run with."""
    line = re.compile(rf"^{ON_PYPI.get(trainer, trainer)}==([^\s;]+)(?:;.*)?$", re.MULTILINE)
    files = [file for folder in SLOW.glob(f"{trainer}*") for file in folder.glob("*.txt")]
    return {version for file in files for version in line.findall(file.read_text(encoding="utf-8"))}


def test_each_page_names_the_versions_it_was_run_with_which_are_pinned_if_pypi_has_them() -> None:
    missing = {}
    for page in PAGES:
        text = (ROOT / "docs" / "trainers" / f"{page}.md").read_text(encoding="utf-8")
        sentence = re.search(r"was run with .*?[.;](?=\s)", text, re.DOTALL)
        named = set(re.findall(r"\d+\.\d+\.\d+|(?<=commit `)[0-9a-f]{7,}", sentence[0])) if sentence else set()
        if not named or not pinned(page) <= named:
            missing[page] = (named, pinned(page))
    assert missing == {}
    assert {page for page in PAGES if not pinned(page)} == {"roll", "slime"}


def test_the_table_of_what_was_run_has_a_row_with_a_pinned_version_and_an_existing_suite_for_each_page() -> None:
    section = (ROOT / "docs" / "trainers" / "index.md").read_text(encoding="utf-8").partition("## What was run")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| \[[^]]+\]\((\w+)\.md\) \| (.+?) \| `make (?:PYTHON=\S+ )?slow-(\w+)` \| (.+?) \|", section, re.MULTILINE)
    assert {page for page, *_ in rows} == set(PAGES)
    for page, version, suite, date in rows:
        numbers = set(re.findall(r"(?<!Python )\b\d+\.\d+\.\d+", version))
        assert numbers <= pinned(page), (page, version)
        assert numbers or "commit" in version, (page, version)
        assert (SLOW / suite / "requirements.txt").is_file(), suite
        assert re.fullmatch(r"\d{4}-\d\d-\d\d|before this table", date), date


def test_examples_install_this_checkout_and_not_an_older_release() -> None:
    texts = {file.parent.name: file.read_text(encoding="utf-8") for file in EXAMPLES.glob("*_example/README.md")}
    assert {name for name, text in texts.items() if re.search(r"pip install '?qreward", text)} == set()
    assert {name for name, text in texts.items() if "pip install '.[yaml]'" not in text} == set()
