"""``qreward init [PATH]``: writes a commented configuration file, from options, or with an example of a server."""

from __future__ import annotations

import argparse
import json
import os
import re
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from qreward.documentation import page
from qreward.errors import ConfigError
from qreward.integrations.trainers.settings import VARIABLE
from qreward.scheduler.routing import is_glob, matches
from qreward.settings.base import variables_in
from qreward.settings.client import USUAL_FILES, read_config, usual_file
from qreward.settings.files import read_settings
from qreward.settings.policies import SERVER_KINDS

DEFAULT = USUAL_FILES[0]
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
WIDEST = 48
"""Maximum column at which the comments of a section are aligned. The comment of a longer setting is further to the right."""
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_UNSET_VARIABLE = re.compile(r"[A-Z][A-Z0-9]{0,15}(_[A-Z0-9]{1,16})*")
"""Pattern of the names that are accepted for a variable that is not set. The pattern rejects a key that is typed instead of a name."""

CLIENT = """\
# The endpoints of qreward, and how they may be used.
# Check them:    qreward check {path}
# All settings:  {settings}

{timeout}  # timeout of one call in seconds, including time in the queue
"""
ENDPOINT = {
    "base_url": ("", "root of the API, without /chat/completions"),
    "name": ("gpu-0", "name in results and errors; default: host and port"),
    "kind": ("vllm", "openai (default), vllm, sglang, tei, openrlhf or nim"),
    "models": (["judge-*"], "patterns of the models that it serves; default: any model"),
    "api_key": ("${JUDGE_KEY}", "read from the environment; do not write the key itself here"),
    "limits": (
        {"max_concurrency": 64, "rpm": 600, "tpm": 200000},
        "concurrent requests, requests per minute, tokens per minute; measured if not set",
    ),
    "price": ([0.15, 0.6], "US dollars per million prompt and completion tokens, to report costs"),
}
"""Setting of an endpoint -> an example, and what it means."""
JUDGE = """\
# A judge that turns responses into rewards.
{use}

client = {client}  # the file with the endpoints, in the folder of this file
# deadline = 60                       # timeout of one reward in seconds, including time in the queue and retries
# on_failure = "raise"                # for a missing reward: raise an error, none (if the trainer supports it), or a number
# columns = {{reference = "solution"}}  # field of the prompt -> column of your data, if the names differ

[judge]
model = {model}  # the model that judges
# prompt = "{{answer_form}}\\n\\nQuestion: {{prompt}}\\nReference answer: {{reference}}\\nCandidate answer: {{response}}"
scale = [0, 10]                               # lowest and highest score that the judge may give
range = [0, 1]                                # the rewards for the lowest and the highest score
# samples = 3                                 # number of answers for each item; the majority decides
# params = {{temperature = 0.6, max_tokens = 1024}}  # parameters of each request
"""


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
    add("path", nargs="?", type=Path, metavar="PATH", help=f"file to write, in TOML (default: {DEFAULT})")
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
    if args.trainer and not args.judge:
        raise ConfigError("--trainer needs --judge MODEL, the model that judges")
    path = args.path or Path(DEFAULT)
    present = args.path or Path(usual_file() or DEFAULT)
    keeps = args.judge is not None and not args.endpoints and present.is_file()
    files: dict[Path, str] = {}
    if keeps:
        path = present
        endpoints, patterns, variables = _present(path)
    else:
        _check_path(path, replace=args.force)
        endpoints = _described(args)
        files[path] = _client_file(path, endpoints, args.timeout)
        content = tomllib.loads(files[path])
        keyless = [{name: value for name, value in each.items() if name != "api_key"} for each in content["endpoints"]]
        try:  # without the keys, whose variables may be set later
            config = read_config({**content, "endpoints": keyless})[0]
        except ConfigError as error:
            raise ConfigError(str(error).replace("configuration: ", "")) from None
        patterns = [pattern for endpoint in config.endpoints for pattern in endpoint.models]
        variables = [each["api_key"][2:-1] for each in endpoints if "api_key" in each]
    judge = path.with_name(f"{'reward' if args.trainer else 'judge'}.toml")
    if args.judge is not None:
        _check_path(judge, replace=args.force)
        _check_judge(args.judge, patterns, place=f" in {path}" if keeps else "")
        use = "\n".join(f"# {line}" for line in _use(args.trainer, judge.name))
        names = {"client": f"{json.dumps(path.name):27}", "model": f"{json.dumps(args.judge):37}"}
        files[judge] = JUDGE.format(use=use, **names)
    if keeps:
        print(f"kept     {path}")
    for file, text in files.items():
        try:
            with file.open("w" if args.force else "x", encoding="utf-8") as opened:
                opened.write(text)
        except OSError as error:
            raise ConfigError(f"{file} cannot be written: {error.strerror}; name another file") from None
        print(f"written  {file}")
    unset = [name for name in dict.fromkeys(variables) if not os.environ.get(name)]
    print("\n".join(["", "Next:", *_next(path, judge if args.judge else None, args.trainer, unset)]))
    return 0


def _present(path: Path) -> tuple[list[dict[str, Any]], list[str], list[str]]:
    """Return the endpoints of a file, the patterns of the models that they serve, and the variables of their keys."""
    content, place = read_settings(path, empty="it must hold a list 'endpoints'", expand=False)
    endpoints = content.get("endpoints")
    if not isinstance(endpoints, list) or not all(isinstance(each, dict) for each in endpoints):
        raise ConfigError(f"{place}: is not a configuration file of a client; it must hold a list 'endpoints'")
    patterns = [pattern for each in endpoints for pattern in each.get("models", ["*"])]
    routes = content.get("routes", ())  # a mapping of pattern to route, or a list of routes
    patterns += [str(each["pattern"] if isinstance(each, dict) else each) for each in routes]
    return endpoints, patterns, variables_in(json.dumps(endpoints))


def _described(args: argparse.Namespace) -> list[dict[str, Any]]:
    """Return the endpoints of the options, or an example. ``api_key`` becomes ``${NAME}``."""
    for endpoint in args.endpoints:
        if "api_key" in endpoint:
            endpoint["api_key"] = _reference(endpoint["api_key"])
    key = {"api_key": "${OPENAI_API_KEY}"} if os.environ.get("OPENAI_API_KEY") else {}
    return args.endpoints or [{"base_url": os.environ.get("OPENAI_BASE_URL") or EXAMPLE, **key}]


def _check_path(path: Path, *, replace: bool) -> None:
    if path.suffix.lower() != ".toml":
        raise ConfigError(f"{path}: its name must end in .toml")
    if path.is_dir() or (path.exists() and not replace):
        keep = "; to add a judge to a configuration file, leave out --endpoint and name the model with --judge"
        raise ConfigError(f"{path} exists; name another file, or replace it with --force{keep}")
    if not path.parent.is_dir():
        raise ConfigError(f"{path}: there is no folder {str(path.parent)!r}; make it, or name another file")


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


def _client_file(path: Path, endpoints: Sequence[dict[str, Any]], timeout: float | None) -> str:
    seconds = "# timeout = 600" if timeout is None else f"timeout = {toml(timeout)}"
    text = CLIENT.format(path=path, settings=page("reference/configuration"), timeout=seconds)
    for given in endpoints:
        is_first = given is endpoints[0]
        rows = [
            (f"{'' if name in given else '# '}{name} = {toml(given.get(name, example))}", f"  # {meaning}" if is_first else "")
            for name, (example, meaning) in ENDPOINT.items()
            if is_first or name in given
        ]
        width = max((len(row) for row, _ in rows if len(row) <= WIDEST), default=0) if is_first else 0
        text += "\n[[endpoints]]\n" + "".join(f"{row.ljust(width)}{meaning}\n" for row, meaning in rows)
    return text


def toml(value: Any) -> str:
    """Return a value in TOML, on one line. Strings, numbers and lists are written as in JSON."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{name} = {toml(inner)}" for name, inner in value.items()) + "}"
    return json.dumps(value, ensure_ascii=False)


def _check_judge(model: str, patterns: Sequence[str], place: str) -> None:
    if is_glob(model):
        raise ConfigError(f"--judge must be the name of one model, not the pattern {model!r}")
    if not any(matches(pattern, model) for pattern in patterns):
        remedy = f"add it to models{place}" if place else "add it with --model"
        raise ConfigError(f"--judge: no endpoint{place} serves {model!r}; they serve {', '.join(map(repr, patterns))}; {remedy}")


def _use(trainer: str | None, file: str) -> Iterator[str]:
    if trainer is None:
        yield f"Judge the lines of a file:  qreward run items.jsonl --judge {file} --output results.jsonl"
        return
    if trainer in IMPORTS:
        yield f"For {trainer}:  {IMPORTS[trainer]}"
    yield f"For {trainer}:  {TRAINERS[trainer].replace('reward.yaml', file)}"
    yield f"See {page(f'trainers/{trainer}')}"


def _next(path: Path, judge: Path | None, trainer: str | None, unset: Sequence[str]) -> Iterator[str]:
    for name in unset:
        yield f"  export {name}=...    # not set yet; the API key is read from it"
    yield f"  qreward check {path}"
    if judge is not None and trainer is None:
        yield f"  qreward run items.jsonl --judge {judge} --output results.jsonl"
    if judge is not None and trainer is not None:
        yield f"  export {VARIABLE}={judge.resolve()}"
        if trainer in IMPORTS:
            yield f"  {IMPORTS[trainer]}"
        yield f"  {TRAINERS[trainer].replace('reward.yaml', judge.name)}    # in {trainer}; see {page(f'trainers/{trainer}')}"
