"""``qreward completion SHELL``: prints a script that completes commands, options and file names in a shell.

The package shtab makes the script from the parser of the command line. The script is static: it completes without starting Python.
"""

from __future__ import annotations

import argparse

from qreward import cli
from qreward.errors import ConfigError

SHELLS = ("bash", "zsh", "fish")
FILES = frozenset({"CONFIG", "FILE", "GOLD", "INPUT", "ITEMS", "PATH", "SPEC"})
"""The metavars of arguments that are file names."""
_EPILOG = """\
bash:  qreward completion bash > ~/.local/share/bash-completion/completions/qreward   (without the package bash-completion:
       qreward completion bash > ~/.qreward.bash; echo '. ~/.qreward.bash' >> ~/.bashrc)
zsh:   qreward completion zsh > DIR/_qreward   (DIR is a folder of $fpath, before compinit in ~/.zshrc)
fish:  qreward completion fish > ~/.config/fish/completions/qreward.fish
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.formatter_class, parser.epilog = argparse.RawDescriptionHelpFormatter, _EPILOG
    parser.add_argument("shell", choices=SHELLS, help="shell whose script is printed")


def run(args: argparse.Namespace) -> int:
    """Print the script. Returns 0. Raises ``ConfigError`` if shtab is not installed."""
    try:
        import shtab  # noqa: PLC0415 - an extra
    except ImportError:
        raise ConfigError("shell completion needs shtab: pip install 'qreward[completion]'") from None
    parser = cli.parser()
    _mark_files(parser, shtab.FILE)
    print(shtab.complete(parser, args.shell))
    return 0


def _mark_files(parser: argparse.ArgumentParser, how: object) -> None:
    """Mark the arguments that are file names. shtab reads the mark from the attribute ``complete``."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for inner in action.choices.values():
                _mark_files(inner, how)
        elif action.metavar in FILES:
            action.complete = how  # type: ignore[attr-defined]
