"""``qreward --print-completion``: the scripts are made, and that of bash completes in a shell that runs."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
from pathlib import Path

import pytest

from qreward.cli import main

CASES = {
    "qreward chec": "check",
    "qreward check --ti": "--timeout",
    "qreward run --resume f": "force",
    "qreward judge cal": "calibrate",
    "qreward judge calibrate --meth": "--method",
    "qreward check flee": "fleet.yaml",
}
"""What is typed -> the word that is completed."""
BASH = """\
source "$1"
words=($2) at=$((${#words[@]} - 1))
function=$(complete -p qreward | sed 's/.* -F \\([^ ]*\\) .*/\\1/')
COMP_WORDS=("${words[@]}") COMP_CWORD=$at COMP_LINE=$2 COMP_POINT=${#2}
$function qreward "${words[at]}" "${words[at - 1]}"
printf '%s\\n' "${COMPREPLY[@]}"
"""


def test_a_shell_completes_commands_options_choices_and_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    program = shutil.which("bash")
    if program is None:
        pytest.skip("there is no bash")
    scripts = {}
    for shell in ("fish", "zsh", "bash"):
        with pytest.raises(SystemExit) as ended:
            main(["--print-completion", shell])
        assert ended.value.code == 0
        scripts[shell] = capsys.readouterr().out
        assert "calibrate" in scripts[shell]
    (tmp_path / "qreward.bash").write_text(scripts["bash"])
    (tmp_path / "fleet.yaml").touch()
    for typed, word in CASES.items():
        command = [program, "--norc", "-c", BASH, "test", "qreward.bash", typed]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=True)
        assert word in [line.strip() for line in done.stdout.splitlines()], (typed, done.stdout, done.stderr)


def test_without_shtab_the_error_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(SystemExit) as ended:
        main(["--print-completion", "bash"])
    assert ended.value.code == 2
    assert "pip install 'qreward[completion]'" in capsys.readouterr().err
