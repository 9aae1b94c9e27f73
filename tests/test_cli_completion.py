"""``qreward completion``: each script completes commands, options, choices and files in a shell that runs."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from qreward.cli import main

CASES = {
    "qreward chec": "check",
    "qreward check --ti": "--timeout",
    "qreward run --order a": "any",
    "qreward judge cal": "calibrate",
    "qreward judge calibrate --meth": "--method",
    "qreward init --trainer sli": "slime",
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
FISH = 'source "$argv[1]"; complete --do-complete "$argv[2]"'
ZSH = """\
zmodload zsh/zpty
zpty shell zsh -f -i
zpty -w shell "PS1= PS2=; fpath=(${1:h} \\$fpath); autoload -Uz compinit; compinit -u -D; bindkey '^I' complete-word"
zpty -w shell 'show() { print -r "<""<$BUFFER>"">" }; zle -N show; bindkey "^X" show; echo RE""ADY'
zpty -r shell shown '*READY*'
zpty -w -n shell "$2"$'\\t\\x18'
zpty -r shell shown '*<<*>>*'
print -rl -- ${=${shown##*<<}%%>>*}
zpty -d shell
"""
SHELLS = {"bash": (BASH, "--norc", "-c"), "fish": (FISH, "--no-config", "-c"), "zsh": (ZSH, "-f", "-c")}


@pytest.mark.parametrize("shell", SHELLS)
def test_a_shell_completes(shell: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    program = shutil.which(shell)
    if program is None:
        pytest.skip(f"there is no {shell}")
    assert main(["completion", shell]) == 0
    script = tmp_path / "_qreward"
    script.write_text(capsys.readouterr().out)
    (tmp_path / "fleet.yaml").touch()
    source, *options = SHELLS[shell]
    for typed, word in CASES.items():
        name = [] if shell == "fish" else ["test"]
        command = [program, *options, source, *name, str(script), typed, word]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=True)
        assert word in [line.split("\t")[0].strip() for line in done.stdout.splitlines()], (typed, done.stdout, done.stderr)


def test_without_shtab_the_error_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setitem(sys.modules, "shtab", None)
    assert main(["completion", "bash"]) == 2
    assert "pip install 'qreward[completion]'" in capsys.readouterr().err
