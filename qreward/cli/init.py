"""``qreward init [PATH]``: writes a commented configuration file, from options or by asking on a terminal.

A key is never written: the file names the environment variable that holds it. A file that exists is kept, unless ``--force`` is given.
With the name of a judge model it also writes the settings of a judge, for ``qreward run --judge`` and for trainers.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib.util
import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from qreward.cli import check
from qreward.cli.config_files import Document, client_document, judge_document
from qreward.documentation import page
from qreward.errors import ConfigError
from qreward.integrations.trainers.settings import VARIABLE
from qreward.scheduler.routing import is_glob, matches
from qreward.settings.client import ClientConfig, read_config
from qreward.settings.policies import SERVER_KINDS

ENDINGS = (".yaml", ".yml", ".toml", ".json")
TRAINERS = {
    "areal": 'workflow="qreward.integrations.areal.workflow.QRewardRLVRWorkflow"',
    "openrlhf": '--train.agent_func_path "$(python -m qreward.integrations.openrlhf agent)"',
    "roll": "worker_cls: qreward.integrations.roll.JudgeRewardWorker",
    "slime": "--custom-rm-path qreward.integrations.slime.reward",
    "trl": 'reward_funcs=reward("reward.yaml")',
    "verl": "reward.custom_reward_function.path=pkg://qreward.integrations.verl",
}
"""Trainer -> the line of its configuration to change, as its page has it."""
PATIENCE = 5.0
"""Seconds for which a server is looked at while the settings are asked for."""
MOST_NAMED = 8
"""A server with more models is proposed as ``*``."""
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_UNSET_VARIABLE = re.compile(r"[A-Z][A-Z0-9]{0,15}(_[A-Z0-9]{1,16})*")
"""How a variable that is not set must be called: a key that was typed instead of a name looks different."""


class _NewEndpoint(argparse.Action):
    """Begins another endpoint. The options of an endpoint that follow belong to it."""

    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: Any = None) -> None:  # noqa: ARG002
        namespace.endpoints = [*namespace.endpoints, {"base_url": values}]


class _OfEndpoint(argparse.Action):
    """Sets an option of the endpoint before it."""

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
    default = "qreward.yaml, or qreward.toml if PyYAML is not installed"
    add("path", nargs="?", type=Path, metavar="PATH", help=f"file to write: .yaml, .toml, or .json without comments (default: {default})")
    add(
        "--endpoint", action=_NewEndpoint, dest="endpoints", default=[], metavar="URL",
        help="root of the API of a server, such as http://gpu-0:8000/v1; once for each server; without any it asks for them",
    )  # fmt: skip
    of = parser.add_argument_group("options of an endpoint", "Each belongs to the --endpoint before it.")
    for option, dest, metavar, kind, words in (
        ("--name", "name", "NAME", str, "its name in results and errors (default: host and port)"),
        ("--kind", "kind", "KIND", str, f"kind of its server: {', '.join(SERVER_KINDS)} (default: openai)"),
        ("--model", "models", "GLOB", str, "pattern of the models that it serves, such as 'judge-*'; may be repeated (default: any model)"),
        ("--key-variable", "api_key", "NAME", str, "environment variable that holds its API key; the key itself is never written"),
        ("--max-concurrency", "max_concurrency", "N", int, "most requests at one time (default: found out while it runs)"),
        ("--rpm", "rpm", "N", int, "most requests a minute (default: no limit)"),
        ("--tpm", "tpm", "N", int, "most tokens a minute (default: no limit)"),
    ):
        of.add_argument(option, action=_OfEndpoint, dest=dest, default=argparse.SUPPRESS, metavar=metavar, type=kind, help=words)
    add("--timeout", type=float, metavar="SECONDS", help="limit of one call in seconds, time in the queue included (default: 600)")
    add(
        "--judge",
        metavar="MODEL",
        help="also write judge.yaml, the settings of a judge with this model, for qreward run --judge (default: no such file)",
    )
    add("--trainer", choices=sorted(TRAINERS), help="call that file reward.yaml, and say how the trainer uses it; needs --judge")
    add("--yes", action="store_true", help="ask nothing, as without a terminal")
    add("--force", action="store_true", help="replace files that exist")


def run(args: argparse.Namespace) -> int:
    """Write the files; 0 if they are written. Raises ``ConfigError`` if a file exists or a setting is wrong; then nothing is written."""
    path = args.path or Path("qreward.yaml" if importlib.util.find_spec("yaml") else "qreward.toml")
    second = path.with_name(f"{'reward' if args.trainer else 'judge'}{path.suffix}")
    _check_path(path, replace=args.force)
    may_ask = sys.stdin is not None and sys.stdin.isatty() and not args.yes
    endpoints, judge = _described(args, may_ask)
    if judge is not None:
        _check_path(second, replace=args.force)
    command = f"qreward check {path}"
    documents = {path: client_document(endpoints, command, args.timeout)}
    config = _validated(documents[path])
    if judge is not None:
        _check_judge(judge, config)
        documents[second] = judge_document(judge, path.name, _about(args.trainer, second.name))
    for file, document in documents.items():
        _write(file, document.render(path.suffix.lower()), replace=args.force)
        print(f"written  {file}")
    unset = [name for name in _variables(endpoints) if not os.environ.get(name)]
    print("\n".join(["", "Next:", *_next(command, second if judge else None, args.trainer, unset)]))
    if may_ask and not unset and _ask("\nCheck it now? y or n", "y", _yes_or_no) == "y":
        print()
        check.run(argparse.Namespace(config=str(path), timeout=PATIENCE, call=False, json=False))
    return 0


def _described(args: argparse.Namespace, may_ask: bool) -> tuple[list[dict[str, Any]], str | None]:
    """The endpoints and the judge model, from the options or by asking. ``api_key`` becomes ``${NAME}``."""
    if args.trainer and not (args.judge or (may_ask and not args.endpoints)):
        raise ConfigError("--trainer needs --judge MODEL, the model that judges")
    if args.endpoints:
        for endpoint in args.endpoints:
            if "api_key" in endpoint:
                endpoint["api_key"] = _reference(endpoint["api_key"])
        return args.endpoints, args.judge
    if not may_ask:
        raise ConfigError("there is no terminal to ask on; name the servers with --endpoint, such as --endpoint http://gpu-0:8000/v1")
    return _Questions().ask_all(args.judge, needs_judge=args.trainer is not None)


def _check_path(path: Path, *, replace: bool) -> None:
    ending = path.suffix.lower()
    if ending not in ENDINGS:
        raise ConfigError(f"{path}: its name must end in {', '.join(ENDINGS)}")
    if ending in (".yaml", ".yml") and not importlib.util.find_spec("yaml"):
        raise ConfigError(f"{path}: PyYAML is needed to read YAML; pip install 'qreward[yaml]', or name a .toml file")
    if path.is_dir() or (path.exists() and not replace):
        raise ConfigError(f"{path} exists; name another file, or replace it with --force")
    if not path.parent.is_dir():
        raise ConfigError(f"{path}: there is no folder {str(path.parent)!r}; make it, or name another file")


def _reference(name: str) -> str:
    """``${NAME}`` for the name of a variable. Raises ``ConfigError``, without the text, for what may be a key."""
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
    """The settings as a client reads them, without the keys, whose variables need not be set yet. Raises ``ConfigError``."""
    content = document.content()
    keyless = [{name: value for name, value in each.items() if name != "api_key"} for each in content["endpoints"]]
    try:
        return read_config({**content, "endpoints": keyless})[0]
    except ConfigError as error:
        raise ConfigError(str(error).replace("configuration: ", "")) from None


def _check_judge(model: str, config: ClientConfig) -> None:
    patterns = [pattern for endpoint in config.endpoints for pattern in endpoint.models]
    if is_glob(model):
        raise ConfigError(f"--judge must be the name of one model, not the pattern {model!r}")
    if not any(matches(pattern, model) for pattern in patterns):
        raise ConfigError(f"--judge: no endpoint serves {model!r}; they serve {', '.join(map(repr, patterns))}; add it with --model")


def _about(trainer: str | None, file: str) -> tuple[str, ...]:
    if trainer is None:
        return (f"Judge the lines of a file:  qreward run items.jsonl --judge {file} --output results.jsonl",)
    return (f"For {trainer}:  {TRAINERS[trainer].replace('reward.yaml', file)}", f"See {page(f'trainers/{trainer}')}")


def _write(path: Path, text: str, *, replace: bool) -> None:
    try:
        with path.open("w" if replace else "x", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error.strerror}; name another file") from None


def _next(command: str, judge: Path | None, trainer: str | None, unset: Sequence[str]) -> Iterator[str]:
    for name in unset:
        yield f"  export {name}=...    # not set yet; the file takes the key from it"
    yield f"  {command}"
    if judge is not None and trainer is None:
        yield f"  qreward run items.jsonl --judge {judge} --output results.jsonl"
    if judge is not None and trainer is not None:
        yield f"  export {VARIABLE}={judge.resolve()}"
        yield f"  {TRAINERS[trainer].replace('reward.yaml', judge.name)}    # in {trainer}; see {page(f'trainers/{trainer}')}"


# Questions


def _ask(question: str, default: str, read: Callable[[str], Any] = str) -> Any:
    """Ask until ``read`` accepts the answer. An empty answer is the default. Raises ``KeyboardInterrupt`` at the end of the input."""
    while True:
        try:
            answer = input(f"{question}{f' [{default}]' if default else ''}: ").strip()
        except EOFError:
            raise KeyboardInterrupt from None
        try:
            return read(answer or default)
        except ConfigError as error:
            print(f"  {error}")


def _yes_or_no(answer: str) -> str:
    if answer.lower() not in ("y", "yes", "n", "no"):
        raise ConfigError("answer y or n")
    return answer.lower()[0]


def _limit(answer: str) -> int | None:
    if answer and not (answer.isdecimal() and int(answer)):
        raise ConfigError("answer with a whole number such as 64, or with nothing")
    return int(answer) if answer else None


def _one_of(base_url: str) -> dict[str, Any]:
    """An endpoint with this URL, if it is one."""
    _validated(client_document([{"base_url": base_url}], ""))
    return {"base_url": base_url}


class _Questions:
    """Asks for endpoints and a judge, and looks at each server to propose answers."""

    def __init__(self) -> None:
        self._models: list[str] = []

    def ask_all(self, judge: str | None, *, needs_judge: bool) -> tuple[list[dict[str, Any]], str | None]:
        print("Enter takes the answer in brackets. Nothing is written before the last question; Ctrl-C stops.\n")
        url = os.environ.get("OPENAI_BASE_URL") or os.environ.get("OPENAI_API_BASE") or ""
        first = "Base URL of a server, such as http://gpu-0:8000/v1"
        endpoints = [self._endpoint(_ask(first, url, _one_of))]
        while more := _ask("\nBase URL of another server, or Enter if there is none", "", lambda url: _one_of(url) if url else None):
            endpoints.append(self._endpoint(more))
        if judge is None:
            proposed = self._models[0] if needs_judge and self._models else ""
            judge = _ask("\nModel that judges, for a file with a judge, or Enter for no such file", proposed) or None
        if judge is None and needs_judge:
            raise ConfigError("--trainer needs a model that judges")
        return endpoints, judge

    def _endpoint(self, endpoint: dict[str, Any]) -> dict[str, Any]:
        seen = _look(endpoint)
        while len(seen["problems"]) > seen["auth"].startswith("wanted"):  # what a missing key cannot explain
            other = _ask("Another base URL, or Enter to keep it", "", lambda url: _one_of(url) if url else None)
            if other is None:
                break
            endpoint, seen = other, _look(other)
        if seen["auth"] != "not needed":
            named = "OPENAI_API_KEY" if os.environ.get("OPENAI_API_KEY") and seen["auth"] != "?" else ""
            key = _ask("Environment variable that holds its key, or Enter if it needs none", named, lambda name: name and _reference(name))
            if key:
                endpoint["api_key"] = key
                seen = _look(endpoint) if os.environ.get(key[2:-1]) else seen
        if seen["seems"] in SERVER_KINDS:
            endpoint["kind"] = seen["seems"]
        models = seen["models"] if len(seen["models"]) <= MOST_NAMED else []
        self._models += models
        patterns = _ask("Models that it serves, with blanks between; * is any", " ".join(models) or "*").split()
        if patterns != ["*"]:
            endpoint["models"] = patterns
        limit = _ask("Most requests at one time, or Enter to find out while it runs", "", _limit)
        return endpoint | ({"limits": {"max_concurrency": limit}} if limit else {})


def _look(endpoint: dict[str, Any]) -> dict[str, Any]:
    """What ``qreward check`` finds at the server, after a line about it."""
    config, _ = read_config({"endpoints": [endpoint]})
    (seen,) = asyncio.run(check.check_all(config, PATIENCE, calls=False))
    if seen["reachable"]:
        kind = f" as a server of kind {seen['seems']}" if seen["seems"] else ""
        models = f" with the models {', '.join(seen['models'][:MOST_NAMED])}" if seen["models"] else ""
        print(f"  it answers in {seen['latency'] * 1000:.0f} ms{kind}{models}")
    for problem in seen["problems"]:
        print(f"  {problem}")
    return seen
