"""``qreward init [PATH]``: writes a commented configuration file, and with ``--judge`` the settings of a judge beside it."""

from __future__ import annotations

import argparse
import json
import os
import re
import tomllib
from pathlib import Path

from qreward.errors import ConfigError, page
from qreward.scheduler.routing import is_glob
from qreward.settings.client import USUAL_FILES, read_config, usual_file
from qreward.settings.files import read_settings

DEFAULT = USUAL_FILES[0]
EXAMPLE = "http://gpu-0:8000/v1"


def add_init(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(run=init)
    add = parser.add_argument
    add("path", nargs="?", type=Path, metavar="PATH", help=f"file to write, in TOML (default: {DEFAULT})")
    root = "root of the API of a server, such as http://gpu-0:8000/v1; repeat it for each (default: OPENAI_BASE_URL, or an example)"
    add("--endpoint", action="append", dest="endpoints", default=[], metavar="URL", help=root)
    add(
        "--judge",
        metavar="MODEL",
        help="also write judge.toml, the settings of a judge with this model, for qreward run --judge; without --endpoint it uses the "
        "endpoints of PATH, which is kept (default: no such file)",
    )
    add("--force", action="store_true", help="replace files that exist")


def init(args: argparse.Namespace) -> int:
    """Write the files, and return 0. If a file exists or a setting is wrong, raise ``ConfigError`` and write nothing."""
    path = args.path or Path(DEFAULT)
    present = args.path or Path(usual_file() or DEFAULT)
    keeps = args.judge is not None and not args.endpoints and present.is_file()
    files: dict[Path, str] = {}
    if keeps:
        path = present
        content, place = read_settings(path, empty="it must hold a list 'endpoints'", expand=False)
        if "endpoints" not in content:
            raise ConfigError(f"{place}: is not a configuration file of a client; it must hold a list 'endpoints'")
    else:
        _check_path(path, replace=args.force)
        files[path] = _client_file(path, args.endpoints)
        try:
            read_config(tomllib.loads(files[path]))
        except ConfigError as error:
            raise ConfigError(str(error).replace("configuration: ", "")) from None
    judge = path.with_name("judge.toml")
    if args.judge is not None:
        _check_path(judge, replace=args.force)
        if is_glob(args.judge):
            raise ConfigError(f"--judge must be the name of one model, not the pattern {args.judge!r}")
        names = {"client": f"{json.dumps(path.name):27}", "model": f"{json.dumps(args.judge):37}"}
        files[judge] = _filled("init_judge.toml", judge=str(judge), trainers=page("trainers/index"), **names)
    if keeps:
        print(f"kept     {path}")
    for file, text in files.items():
        try:
            with file.open("w" if args.force else "x", encoding="utf-8") as opened:
                opened.write(text)
        except OSError as error:
            raise ConfigError(f"{file} cannot be written: {error.strerror}; name another file") from None
        print(f"written  {file}")
    print(f"\nNext:\n  qreward check {path}")
    if args.judge is not None:
        print(f"  qreward run items.jsonl --judge {judge} --output results.jsonl")
    return 0


def _check_path(path: Path, *, replace: bool) -> None:
    if path.suffix.lower() != ".toml":
        raise ConfigError(f"{path}: its name must end in .toml")
    if path.is_dir() or (path.exists() and not replace):
        keep = "; to add a judge to a configuration file, leave out --endpoint and name the model with --judge"
        raise ConfigError(f"{path} exists; name another file, or replace it with --force{keep}")
    if not path.parent.is_dir():
        raise ConfigError(f"{path}: there is no folder {str(path.parent)!r}; make it, or name another file")


def _client_file(path: Path, urls: list[str]) -> str:
    """Return the file with these endpoints. Without any, it has that of the environment with a reference to its key, or an example."""
    key = '# api_key = "${JUDGE_KEY}"       '
    if not urls and os.environ.get("OPENAI_API_KEY"):
        key = 'api_key = "${OPENAI_API_KEY}"    '
    first, *others = (json.dumps(url, ensure_ascii=False) for url in urls or [os.environ.get("OPENAI_BASE_URL") or EXAMPLE])
    text = _filled("init_client.toml", path=str(path), settings=page("reference/configuration"), url=f"{first:22}", key=key)
    return text + "".join(f"\n[[endpoints]]\nbase_url = {url}\n" for url in others)


def _filled(template: str, **values: str) -> str:
    """Return a template of this folder, in which each ``<name>`` is replaced by its value."""
    text = Path(__file__).with_name(template).read_text(encoding="utf-8")
    return re.sub(r"<(\w+)>", lambda found: values[found[1]], text)
