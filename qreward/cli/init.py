"""``qreward init [PATH]``: writes a commented configuration file, from options, or with an example of a server.

A key is never written. Instead, the file names the environment variable that holds the key. Existing files are replaced only if ``--force``
is given. With the name of a judge model, the command also writes the settings of a judge, for ``qreward run --judge`` and for trainers. A
judge can be added to an existing configuration file. The judge's settings go into a second file, which names the configuration file.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from qreward.cli.config_files import Document, client_document, judge_document
from qreward.documentation import page
from qreward.errors import ConfigError
from qreward.integrations.trainers.settings import VARIABLE
from qreward.scheduler.routing import is_glob, matches
from qreward.settings.base import variables_in
from qreward.settings.client import USUAL_FILES, ClientConfig, read_config, usual_file
from qreward.settings.files import read_settings
from qreward.settings.policies import SERVER_KINDS

DEFAULT = USUAL_FILES[0]
ENDINGS = (".toml", ".yaml", ".yml", ".json")
TRAINERS = {
    "areal": 'workflow="qreward.integrations.areal.workflow.QRewardRLVRWorkflow"',
    "art": "after_each=score_group",
    "ms_swift": 'orms["qreward"] = QRewardORM',
    "openenv": "super().__init__(rubric=QRewardRubric())",
    "openrlhf": '--train.agent_func_path "$(python -m qreward.integrations.openrlhf agent)"',
    "roll": "worker_cls: qreward.integrations.roll.JudgeRewardWorker",
    "skyrl": 'skyrl_gym.register(id="qreward", entry_point="qreward.integrations.skyrl:QRewardEnv")',
    "slime": "--custom-rm-path qreward.integrations.slime.reward",
    "tinker_cookbook": "class JudgedGroup(QRewardGroup, ProblemGroupBuilder)",
    "trl": 'reward_funcs=reward("reward.yaml")',
    "verl": "reward.custom_reward_function.path=pkg://qreward.integrations.verl",
}
"""Trainer -> the setting that makes the trainer use the judge. The trainer's page of the documentation shows the same setting."""
IMPORTS = {
    "art": "from qreward.integrations.art import score_group",
    "ms_swift": "from qreward.integrations.ms_swift import QRewardORM",
    "openenv": "from qreward.integrations.openenv import QRewardRubric",
    "tinker_cookbook": "from qreward.integrations.tinker_cookbook import QRewardGroup",
    "trl": "from qreward.integrations.trl import reward",
}
"""Trainer -> the import that its setting needs."""
EXAMPLE = "http://gpu-0:8000/v1"
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_UNSET_VARIABLE = re.compile(r"[A-Z][A-Z0-9]{0,15}(_[A-Z0-9]{1,16})*")
"""Pattern of the names that are accepted for a variable that is not set. The pattern rejects a key that is typed instead of a name."""


class _NewEndpoint(argparse.Action):
    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: Any = None) -> None:  # noqa: ARG002
        namespace.endpoints = [*namespace.endpoints, {"base_url": values}]


class _OfEndpoint(argparse.Action):
    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: Any = None) -> None:
        if not namespace.endpoints:
            parser.error(f"{option_string} belongs to an endpoint; write it after --endpoint URL")
        endpoint = namespace.endpoints[-1]
        if self.dest == "models":
            endpoint["models"] = [*endpoint.get("models", ()), values]
        elif self.dest in ("max_concurrency", "rpm", "tpm"):
            endpoint["limits"] = {**endpoint.get("limits", {}), self.dest: values}
        else:
            endpoint[self.dest] = values


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("path", nargs="?", type=Path, metavar="PATH", help=f"file to write: .toml, .yaml, or .json without comments (default: {DEFAULT})")
    add(
        "--endpoint", action=_NewEndpoint, dest="endpoints", default=[], metavar="URL",
        help="root of the API of a server, such as http://gpu-0:8000/v1; repeat it for each (default: OPENAI_BASE_URL, or an example)",
    )  # fmt: skip
    of = parser.add_argument_group("options of an endpoint", "Each belongs to the --endpoint before it.")
    for option, dest, metavar, kind, words in (
        ("--name", "name", "NAME", str, "its name in results and errors (default: host and port)"),
        ("--kind", "kind", "KIND", str, f"kind of its server: {', '.join(SERVER_KINDS)} (default: openai)"),
        ("--model", "models", "GLOB", str, "pattern of the models that it serves, such as 'judge-*'; may be repeated (default: any model)"),
        ("--key-variable", "api_key", "NAME", str, "environment variable with its API key; the key itself is never written"),
        ("--max-concurrency", "max_concurrency", "N", int, "maximum number of concurrent requests (default: measured by the client)"),
        ("--rpm", "rpm", "N", int, "maximum number of requests per minute (default: no limit)"),
        ("--tpm", "tpm", "N", int, "maximum number of tokens per minute (default: no limit)"),
    ):
        of.add_argument(option, action=_OfEndpoint, dest=dest, default=argparse.SUPPRESS, metavar=metavar, type=kind, help=words)
    add("--timeout", type=float, metavar="SECONDS", help="timeout of one call in seconds, including time in the queue (default: 600)")
    add(
        "--judge",
        metavar="MODEL",
        help="also write judge.toml, the settings of a judge with this model, for qreward run --judge; without --endpoint it uses the "
        "endpoints of PATH, which is kept (default: no such file)",
    )
    add(
        "--trainer",
        choices=sorted(TRAINERS),
        help="name the judge's file reward.toml, and print how the trainer uses this file; needs --judge",
    )
    add("--force", action="store_true", help="replace files that exist")


def run(args: argparse.Namespace) -> int:
    """Write the files, and return 0. If a file exists or a setting is wrong, raise ``ConfigError`` and write nothing."""
    path = args.path or Path(DEFAULT)
    present = args.path or Path(usual_file() or DEFAULT)
    if args.judge and not args.endpoints and present.is_file():
        return _add_judge(args, present)
    second = _judge_path(path, args.trainer)
    _check_path(path, replace=args.force)
    endpoints, judge = _described(args), args.judge
    if judge is not None:
        _check_path(second, replace=args.force)
    command = f"qreward check {path}"
    documents = {path: client_document(endpoints, command, args.timeout)}
    config = _validated(documents[path])
    if judge is not None:
        _check_judge(judge, [pattern for endpoint in config.endpoints for pattern in endpoint.models])
        documents[second] = judge_document(judge, path.name, _about(args.trainer, second.name))
    for file, document in documents.items():
        _write(file, document.render(path.suffix.lower()), replace=args.force)
        print(f"written  {file}")
    unset = [name for name in _variables(endpoints) if not os.environ.get(name)]
    print("\n".join(["", "Next:", *_next(command, second if judge else None, args.trainer, unset)]))
    return 0


def _add_judge(args: argparse.Namespace, path: Path) -> int:
    second = _judge_path(path, args.trainer)
    _check_path(second, replace=args.force)
    content, place = read_settings(path, empty=_ENDPOINTS, expand=False)
    endpoints = content.get("endpoints")
    if not isinstance(endpoints, list) or not all(isinstance(each, dict) for each in endpoints):
        raise ConfigError(f"{place}: is not a configuration file of a client; {_ENDPOINTS}")
    routes = content.get("routes", ())  # a mapping of pattern to route, or a list of routes
    patterns = [pattern for each in endpoints for pattern in each.get("models", ["*"])]
    patterns += [str(each["pattern"] if isinstance(each, dict) else each) for each in routes]
    _check_judge(args.judge, patterns, place=f" in {path}")
    document = judge_document(args.judge, path.name, _about(args.trainer, second.name))
    _write(second, document.render(path.suffix.lower()), replace=args.force)
    print(f"kept     {path}\nwritten  {second}")
    unset = [name for name in variables_in(json.dumps(endpoints)) if not os.environ.get(name)]
    print("\n".join(["", "Next:", *_next(f"qreward check {path}", second, args.trainer, unset)]))
    return 0


_ENDPOINTS = "it must hold a list 'endpoints'"


def _judge_path(path: Path, trainer: str | None) -> Path:
    return path.with_name(f"{'reward' if trainer else 'judge'}{path.suffix}")


def _described(args: argparse.Namespace) -> list[dict[str, Any]]:
    """Return the endpoints of the options, or an example. ``api_key`` becomes ``${NAME}``."""
    if args.trainer and not args.judge:
        raise ConfigError("--trainer needs --judge MODEL, the model that judges")
    for endpoint in args.endpoints:
        if "api_key" in endpoint:
            endpoint["api_key"] = _reference(endpoint["api_key"])
    key = {"api_key": "${OPENAI_API_KEY}"} if os.environ.get("OPENAI_API_KEY") else {}
    return args.endpoints or [{"base_url": os.environ.get("OPENAI_BASE_URL") or EXAMPLE, **key}]


def _check_path(path: Path, *, replace: bool) -> None:
    ending = path.suffix.lower()
    if ending not in ENDINGS:
        raise ConfigError(f"{path}: its name must end in {', '.join(ENDINGS)}")
    if ending in (".yaml", ".yml") and not importlib.util.find_spec("yaml"):
        raise ConfigError(f"{path}: PyYAML is needed to read YAML; pip install 'qreward[yaml]', or name a .toml file")
    if path.is_dir() or (path.exists() and not replace):
        raise ConfigError(f"{path} exists; name another file, or replace it with --force{_KEEP}")
    if not path.parent.is_dir():
        raise ConfigError(f"{path}: there is no folder {str(path.parent)!r}; make it, or name another file")


_KEEP = "; to add a judge to a configuration file, leave out --endpoint and name the model with --judge"


def _reference(name: str) -> str:
    """Return ``${NAME}`` for the name of a variable. If ``name`` may be a key, raise a ``ConfigError`` that does not show the key."""
    bare = name.removeprefix("${").removesuffix("}").removeprefix("$")
    is_name = _VARIABLE.fullmatch(bare) if os.environ.get(bare) else _UNSET_VARIABLE.fullmatch(bare)
    if not is_name:
        raise ConfigError(
            "the key variable must be the name of an environment variable, such as JUDGE_KEY: in capitals, or one that is set; "
            "the key itself is not written into files"
        )
    return f"${{{bare}}}"


def _variables(endpoints: Sequence[dict[str, Any]]) -> list[str]:
    return list(dict.fromkeys(each["api_key"][2:-1] for each in endpoints if "api_key" in each))


def _validated(document: Document) -> ClientConfig:
    """Return the settings as a client reads them, without ``api_key``, because the environment variable of the key may be set later.

    Raises:
        ConfigError: a setting is invalid.
    """
    content = document.content()
    keyless = [{name: value for name, value in each.items() if name != "api_key"} for each in content["endpoints"]]
    try:
        return read_config({**content, "endpoints": keyless})[0]
    except ConfigError as error:
        raise ConfigError(str(error).replace("configuration: ", "")) from None


def _check_judge(model: str, patterns: Sequence[str], place: str = "") -> None:
    if is_glob(model):
        raise ConfigError(f"--judge must be the name of one model, not the pattern {model!r}")
    if not any(matches(pattern, model) for pattern in patterns):
        remedy = f"add it to models{place}" if place else "add it with --model"
        raise ConfigError(f"--judge: no endpoint{place} serves {model!r}; they serve {', '.join(map(repr, patterns))}; {remedy}")


def _about(trainer: str | None, file: str) -> tuple[str, ...]:
    if trainer is None:
        return (f"Judge the lines of a file:  qreward run items.jsonl --judge {file} --output results.jsonl",)
    lines = [*([IMPORTS[trainer]] if trainer in IMPORTS else []), TRAINERS[trainer].replace("reward.yaml", file)]
    return (*(f"For {trainer}:  {line}" for line in lines), f"See {page(f'trainers/{trainer}')}")


def _write(path: Path, text: str, *, replace: bool) -> None:
    try:
        with path.open("w" if replace else "x", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error.strerror}; name another file") from None


def _next(command: str, judge: Path | None, trainer: str | None, unset: Sequence[str]) -> Iterator[str]:
    for name in unset:
        yield f"  export {name}=...    # not set yet; the API key is read from it"
    yield f"  {command}"
    if judge is not None and trainer is None:
        yield f"  qreward run items.jsonl --judge {judge} --output results.jsonl"
    if judge is not None and trainer is not None:
        yield f"  export {VARIABLE}={judge.resolve()}"
        if trainer in IMPORTS:
            yield f"  {IMPORTS[trainer]}"
        yield f"  {TRAINERS[trainer].replace('reward.yaml', judge.name)}    # in {trainer}; see {page(f'trainers/{trainer}')}"
