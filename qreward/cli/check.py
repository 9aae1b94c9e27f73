"""``qreward check [CONFIG]`` examines each endpoint of a configuration, and says what is wrong with its settings; ``qreward route CONFIG
MODEL`` prints the endpoints that serve a model."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib import metadata
from time import perf_counter
from typing import Any, NamedTuple

import msgspec

from qreward.cli import add_timeout
from qreward.client import QRewardClient
from qreward.codecs import json as jsonio
from qreward.codecs.base import Malformed, Reply, TransportError, WireRequest
from qreward.codecs.chat import CHAT
from qreward.codecs.embeddings import EMBEDDINGS
from qreward.codecs.rewards.kinds import SCORE, kind_of, server_root
from qreward.codecs.rewards.server_info import MODELS, SLOTS, Load, read_load
from qreward.engine.fleet import resolved
from qreward.errors import ConfigError, NoEndpoint, QRewardError, RequestError, RequestTimeout, closest
from qreward.integrations.trainers.settings import SCORERS, VARIABLE, RewardConfig, name_source_in_errors, read_reward_settings
from qreward.integrations.trainers.settings import check as check_reward_config
from qreward.judge import make_scorer
from qreward.render import text_table
from qreward.scheduler.limits.concurrency import DEFAULT_LIMIT
from qreward.scheduler.outcome import Failure
from qreward.scheduler.routing import Routes, is_glob, matches
from qreward.settings.client import CONFIG_VARIABLE, ClientConfig, config_from_env, config_of, load_config, read_config, without_effect
from qreward.settings.policies import Endpoint, Route
from qreward.transport.backend import PASSING, EndpointConnection, HttpBackend
from qreward.transport.connection_settings import Secrets

ADDRESSES = ("OPENAI_BASE_URL", "OPENAI_API_BASE", "OPENAI_API_KEY")
PROXIES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY")
MODELS_SHOWN = 3
SPARE_FILES = 64
"""Number of open files that a process is assumed to need in addition to its connections."""
_REQUIREMENT = re.compile(r"([A-Za-z0-9._-]+)(?!.*extra == [\"'](dev|docs)[\"'])")


def add_check(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(run=check)
    add, default = parser.add_argument, "QREWARD_CONFIG, or OPENAI_BASE_URL and OPENAI_API_KEY"
    file = f"configuration file, or the settings file of a trainer (.yaml, .json or .toml; default: {default})"
    add("config", nargs="?", metavar="CONFIG", help=file)
    add_timeout(parser, 5.0, of="endpoint")
    requests = "one small request to each endpoint, or one for each model that scores if CONFIG is a trainer's file"
    add("--call", action="store_true", help=f"also send {requests}; each has a limit of 30 seconds or more")
    add("--report", action="store_true", help="also print versions, where the settings come from, and the limit of open files")
    add("--json", action="store_true", help="print one JSON document instead of text")


def check(args: argparse.Namespace) -> int:
    """Check all endpoints and print the result. Returns 0 if there are no problems, else 1.

    Raises ``ConfigError`` for an invalid file; with ``--report``, an invalid file is one of the problems.
    """
    found: dict[str, Any] = {"problems": []}
    try:
        config, asked = configuration(args.config)
    except ConfigError as error:
        if not args.report:
            raise
        config, asked = None, ()
        found["problems"] = [str(error)] if args.config or any(map(os.environ.get, (CONFIG_VARIABLE, *ADDRESSES))) else []
    if args.report:
        found = {**machine(args.config), **found}
        wanted = SPARE_FILES + sum(each.limits.max_concurrency or 0 for each in (() if config is None else config.endpoints))
        if (limit := found["open_files"]) is not None and wanted > limit:
            found["problems"].append(
                f"the settings allow {wanted - SPARE_FILES} concurrent requests, but the process may open only {limit} files; "
                f"raise the limit with `ulimit -n {wanted}`, or lower max_concurrency"
            )
    checked = [] if config is None else asyncio.run(check_all(config, args.timeout, calls=args.call, asked=asked))
    if args.json:
        print(json.dumps((found if args.report else {}) | {"endpoints": checked}, indent=2))
    else:
        lines = [*_about(found), ""] if args.report else []
        print("\n".join([*lines, *([report(checked)] if checked else []), *found["problems"]]))
    return 1 if found["problems"] or any(each["problems"] for each in checked) else 0


def machine(file: str | None) -> dict[str, Any]:
    """Return what ``--report`` adds: versions, the variables that are set, where the settings come from, and the limit of open files."""
    names = {match[1] for line in metadata.requires("qreward") or () if (match := _REQUIREMENT.match(line))}
    found: dict[str, str | None] = {"qreward": metadata.version("qreward"), "python": platform.python_version()}
    for name in sorted(names):
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = None
    used = file or os.environ.get(CONFIG_VARIABLE)
    try:
        import resource  # noqa: PLC0415 - not on Windows

        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        open_files = None if limit == resource.RLIM_INFINITY else limit
    except ImportError:
        open_files = None
    others = sorted(name for name in os.environ if name.startswith("QREWARD_"))
    variables = dict.fromkeys((CONFIG_VARIABLE, VARIABLE, *ADDRESSES, *PROXIES, *others))
    return {
        "versions": found,
        "system": f"{platform.platform()}, {os.cpu_count()} CPUs",
        "settings": Secrets().hide(used) if used else next((name for name in ADDRESSES if os.environ.get(name)), None),
        "environment": {name: any(os.environ.get(each) for each in (name, name.lower())) for name in variables},
        "open_files": open_files,
    }


def _about(found: Mapping[str, Any]) -> Iterator[str]:
    versions = dict(found["versions"])
    yield f"qreward {versions.pop('qreward')}, Python {versions.pop('python')}, {found['system']}"
    yield f"packages     {', '.join(f'{name} {version}' for name, version in versions.items() if version is not None)}"
    yield f"no packages  {', '.join(name for name, version in versions.items() if version is None) or 'missing'}"
    yield f"settings     {found['settings'] or 'none found; `qreward init` writes a file; name it with --config or in QREWARD_CONFIG'}"
    are_set = (f"{name} {'set' if is_set else 'not set'}" for name, is_set in found["environment"].items())
    yield f"environment  {', '.join(are_set)}"
    yield f"open files   {'no limit' if found['open_files'] is None else found['open_files']}"


def configuration(file: str | None) -> tuple[ClientConfig, tuple[ScorerModel, ...]]:
    """Return the settings in a file, and the models of its scorers. If ``file`` is None, return what ``QRewardClient.from_env`` uses."""
    if file is None:  # ``from_env`` is not called, because it logs warnings; this command prints them as notes
        named = os.environ.get(CONFIG_VARIABLE)
        return (read_config(named)[0] if named else config_from_env()), ()
    if file.startswith(("http://", "https://")):
        raise ConfigError("CONFIG is a file, not a URL; `qreward init --endpoint URL` writes one")
    content, place = read_reward_settings(file, empty="it must contain at least 'endpoints'")
    if not content.keys() & {"client", *SCORERS}:
        return config_of(content, place), ()
    found = place.validated(RewardConfig, content).at(str(place))
    config = found.client or config_from_env()
    with name_source_in_errors(found):
        check_reward_config(found, endpoints_by_pattern(config).items())
        make_scorer(QRewardClient.from_config(config), found.scorer, owns_client=False)  # sends nothing
    asked = (
        ScorerModel(*((setting, stage, True) if isinstance(stage, str) else (f"{setting}.model", model, False)))
        for setting, stage in found.stages.items()
        for model in ((stage,) if isinstance(stage, str) else stage.model)
    )
    return config, tuple(asked)


async def check_all(config: ClientConfig, seconds: float, *, calls: bool, asked: Sequence[ScorerModel] = ()) -> list[dict[str, Any]]:
    """Check all endpoints concurrently, each with a timeout of ``seconds``. The requests that ``--call`` adds have their own timeout."""
    config = resolved(config)
    return await asyncio.gather(*(examine(endpoint, config, seconds, calls=calls, asked=asked) for endpoint in config.endpoints))


def report(checked: Sequence[dict[str, Any]]) -> str:
    rows = [_row(each) for each in checked]
    findings = [
        f"{each['name']}: {text}" for each in checked for text in (*each["problems"], *(f"(note) {note}" for note in each["notes"]))
    ]
    wrong = sum(bool(each["problems"]) for each in checked)
    verdict = "all is well" if not wrong else f"{wrong} of {len(checked)} cannot serve as configured"
    return "\n".join([*text_table(rows, rows[0]), "", *findings, *([""] if findings else []), verdict])


def _row(each: dict[str, Any]) -> dict[str, str]:
    models, latency = each["models"], each["latency"]
    more = f" +{len(models) - MODELS_SHOWN}" if len(models) > MODELS_SHOWN else ""
    queue = [f"{each[name]:g} {name}" for name in ("running", "waiting") if each[name] is not None]
    return {
        "endpoint": each["name"],
        "url": each["url"],
        "kind": each["kind"] + (f" (seems {each['seems']})" if each["seems"] else ""),
        "state": each["state"],
        "latency": "-" if latency is None else f"{latency * 1000:.0f} ms",
        "models": ", ".join(models[:MODELS_SHOWN]) + more or "-",
        "server limits": " ".join(f"{name}={value}" for name, value in each["limits"].items()) or "-",
        "queue": ", ".join(queue) or "-",
        "key": each["auth"],
    }


# one endpoint


API_MODELS = "the list of models under base_url"
_NIM_READY = "/v1/health/ready"
STATUS_PATHS = ("/health", "/metrics", "/info", "/v1/loads", "/get_load", SLOTS, _NIM_READY)
GUARDED = (API_MODELS, MODELS, "/info", "/v1/loads")
"""Routes for which a server with authentication requires a key."""
DISTINCT_KINDS = ("vllm", "sglang", "tei", "openrlhf", "nim")
"""Kinds of server that can be recognised by their responses. Any server may have the API of OpenAI, and a user may register other kinds."""
NO_SUCH_API = (400, 404, 405, 422, 500, 501)
"""Statuses of servers that do not offer chat completions."""
CALL_AT_LEAST = 30.0
"""Minimum timeout in seconds of the request that ``--call`` adds, because a model is slower than a status route."""
ANY_NAME = "any"
MAX_LISTED = 6
"""Maximum number of names that a message lists."""
_REMEDY = "change models or the route, or map names with model_names"
_EMPTY = "an empty list"
_CHECK_PATH = "check the host, the port and the path of base_url"


class ScorerModel(NamedTuple):
    """A model that a scorer of the settings requests."""

    setting: str  # setting that names the model, such as ``judge.model``
    model: str
    scores: bool  # True for a reward model, False for a judge


def endpoints_by_pattern(config: ClientConfig) -> Routes[list[str]]:
    """Return pattern -> names of the endpoints that serve it. A route replaces the endpoints' own pattern, as in a client."""
    found: dict[str, list[str]] = {}
    for endpoint in config.endpoints:
        for pattern in endpoint.models:
            found.setdefault(pattern, []).append(endpoint.name)
    table: Routes[list[str]] = Routes()
    for pattern, names in {**found, **{route.pattern: list(route.endpoints) for route in config.routes}}.items():
        table.set(pattern, names)
    return table


class Examination:
    """What is known of one endpoint."""

    def __init__(self, endpoint: Endpoint, config: ClientConfig, asked: Iterable[ScorerModel]) -> None:
        table = endpoints_by_pattern(config)
        self.endpoint, self.config, self.kind = endpoint, config, kind_of(endpoint.kind)
        self.asked = [each for each in asked if endpoint.name in (table.find(each.model) or ())]
        routed = [route.pattern for route in config.routes if endpoint.name in route.endpoints]
        self.patterns = sorted(dict.fromkeys((*routed, *endpoint.models)), key=is_glob)
        self.replies: dict[str, Reply] = {}  # by path
        self.failure: str | None = None  # why no request was answered
        self.seconds: float | None = None  # of the fastest answer
        self.load = Load()
        self.is_listed = False  # the server has a list of models
        self.called: list[str] = []  # the models that the requests of ``--call`` asked for
        self.instead: str | None = None  # what was answered instead of a chat
        self.error: QRewardError | None = None  # of the first request that failed

    @property
    def answered(self) -> bool:
        return bool(self.called) and self.error is None

    # requests

    async def get_all(self, seconds: float) -> None:
        """Send one GET request, and if it is answered all others at once. Responses that take more than ``seconds`` are ignored."""
        try:
            connection = EndpointConnection(self.endpoint)
        except ConfigError as error:
            self.failure = str(error)
            return
        first = (*self.kind.probe, "/health")[0]
        lists = (MODELS,) if self.endpoint.base_url.endswith("/v1") else (API_MODELS, MODELS)
        try:
            async with asyncio.timeout(seconds):
                await self._get(connection, first)
                if self.failure is None:
                    await asyncio.gather(*(self._get(connection, path) for path in (*lists, *STATUS_PATHS) if path != first))
        except TimeoutError:
            if not self.replies:
                self.failure = f"no answer within {seconds:g} s; check base_url, and that the server is up and not overloaded"
        finally:
            await connection.transport.aclose()
        ready = set()
        for path, reply in self.replies.items():
            listing = path in (API_MODELS, MODELS)
            load = read_load(MODELS if listing else path, reply.status, reply.body, self.kind.readers)
            if not listing and load.ready is not None and (load.ready or path in self.kind.probe):  # a proxy may answer 502 to any path
                ready.add(load.ready)
            self.load = self.load.joined(load)
            self.is_listed = self.is_listed or (listing and bool(load.models))
        self.load = msgspec.structs.replace(self.load, ready=min(ready, default=None))

    async def _get(self, connection: EndpointConnection, path: str) -> None:
        began = perf_counter()
        try:
            reply = await connection.transport.get("/models" if path == API_MODELS else connection.root + path)
        except TransportError as error:
            if not self.replies:
                self.failure = connection.secrets.hide(str(error))
                if "; " not in self.failure:  # the connection broke off, as it does if the server speaks another protocol
                    self.failure += "; check the scheme, the host and the port of base_url, and the log of the server"
            return
        took = perf_counter() - began
        self.failure, self.seconds, self.replies[path] = None, min(took, self.seconds or took), reply

    async def call(self, seconds: float) -> bool:
        """Send one small request for each model that scores, or else for one model. Returns False if no name of a model is known."""
        if self.asked:
            self.called = [each.model for each in self.asked]
            sent = (self._call(each.model, "scores" if each.scores else "chat", seconds) for each in self.asked)
            self.error = next(filter(None, await asyncio.gather(*sent)), None)
            return True
        if (model := self._model_to_call()) is None:
            return False
        chats = self.endpoint.reward is None and self.kind.chat
        self.called, self.error = [model], await self._call(model, "chat" if chats else "scores", seconds)
        for what in ("embeddings", "scores") if chats and self._status() in NO_SUCH_API else ():
            if await self._call(model, what, seconds) is None:
                self.instead, self.error = what, None
                break
        return True

    async def _call(self, model: str, what: str, seconds: float) -> QRewardError | None:
        if what == "scores":
            request = WireRequest(SCORE, model, [SCORE.item(("Say yes.", "yes"))], {}, None)
        elif what == "embeddings":
            request = WireRequest(EMBEDDINGS, model, EMBEDDINGS.validate(["yes"]), {}, None)
        else:
            request = WireRequest(CHAT, model, CHAT.validate([{"role": "user", "content": "Say yes."}]), {"max_tokens": 1}, None)
        backend = HttpBackend()
        try:
            async with asyncio.timeout(seconds):
                outcome = await backend.send(self.endpoint, request)
            return outcome.error if isinstance(outcome, Failure) else None
        except TimeoutError:
            name = self.endpoint.name
            return RequestTimeout(f"endpoint {name!r}, model {model!r}: no answer within {seconds:g} s; give it more with --timeout")
        except QRewardError as error:
            return error
        finally:
            await backend.aclose()

    def _model_to_call(self) -> str | None:
        served = [ANY_NAME if name == "*" else name for name in self.load.models if name == "*" or not is_glob(name)]
        renamed = self.endpoint.model_names
        known = [*(pattern for pattern in self.patterns if not is_glob(pattern)), *renamed, *_called(renamed, served)]
        named = next((name for name in known if any(matches(pattern, name) for pattern in self.patterns)), None)
        return named if named is not None or self.kind.lists_models else next(iter(self.load.models), ANY_NAME)

    # findings

    def _status(self) -> int | None:
        return self.error.status_code if isinstance(self.error, RequestError) else None

    def statuses(self, paths: Iterable[str]) -> list[int]:
        return [self.replies[path].status for path in paths if path in self.replies]

    def auth(self) -> str:
        """Return whether the server accepts the key. A model request counts more than the GET requests."""
        has_key = self.endpoint.api_key is not None or bool(self.endpoint.headers)
        seen = self.statuses(GUARDED)
        refused = None if self.answered else next((status for status in (self._status(), *seen) if status in (401, 403)), None)
        if refused is not None:
            return f"refused ({refused})" if has_key else f"required ({refused})"
        if self.answered or any(200 <= status < 300 for status in seen):
            return "not refused" if has_key else "not needed"
        return "?"

    def problems(self) -> Iterator[tuple[str, str]]:
        """Yield the problems, most important first: the state of the endpoint that a problem means, or ``""``, and the problem in words."""
        if self.failure is not None:
            yield "unreachable", self.failure
            return
        if self.load.ready is False:
            yield "not ready", "it answers that it is not ready; wait until it has loaded its model, or look into its log"
        if moved := next((path for path, reply in self.replies.items() if 300 <= reply.status < 400), None):
            path = "/models" if moved == API_MODELS else moved
            status = self.replies[moved].status
            yield "redirects", f"it redirects ({status} for {path}); redirects are not followed; set base_url to the final address"
        if not self.answered and (found := self._of_path()):
            yield found
        auth = self.auth()
        if auth.startswith("refused"):
            yield f"key {auth}", f"it refuses the key that was sent ({auth[9:-1]}); check api_key, or headers if it is sent there"
        if auth.startswith("required"):
            remedy = "set api_key, such as ${JUDGE_KEY}, or OPENAI_API_KEY"
            yield f"key {auth}", f"it requires a key, and none was sent ({auth[10:-1]}); {remedy}"
        if self.error is not None:
            yield f"call failed ({self._status()})" if self._status() else "call failed", f"a call failed: {self.error}"
        kind, seems = self.endpoint.kind, self.seems()
        if seems not in (None, kind) and kind in DISTINCT_KINDS:
            yield "", f"it seems to be a server of kind {seems!r}, not {kind!r}; set kind to {seems!r}"
        yield from (("", text) for wanted, text in self._of_models() if not self._was_answered(wanted))

    def notes(self) -> Iterator[str]:
        """Yield what does not make calls fail."""
        kind, endpoint, seems = self.endpoint.kind, self.endpoint, self.seems()
        if kind == "openai" and seems is not None:
            yield f"it seems to be a server of kind {seems!r}; with kind {seems!r} it can be asked for scores and for its load"
        if self.instead is not None:
            yield f"it answers requests for {self.instead}, and refuses chat completions"
        if any(self._was_answered(wanted) for wanted, _ in self._of_models()):
            for model in self.called:
                if not _lists(self.load.models, model):
                    yield f"its list of models has no {model!r}, but it answered a call for this model"
        unlisted = self.replies and not self.is_listed and self.kind.lists_models
        if unlisted and (self.answered or self._refusal() is None) and not self.auth().startswith(("refused", "required")):
            yield "it does not list its models, so their names could not be checked; check them with --call"
        if endpoint.probe is not None and not self.kind.probe:
            yield f"probe has no effect: a server of kind {kind!r} has no status route"
        if endpoint.base_url.startswith("https") and endpoint.verify is False:
            yield "its certificate is not verified; set verify to the path of its CA bundle instead of false"
        yield from (text for name, text in without_effect(self.config) if name == endpoint.name)

    def _of_path(self) -> tuple[str, str] | None:
        """Return the state and the problem if ``base_url`` seems not to be the root of an API that the endpoint can use."""
        base_url, refusal, kind = self.endpoint.base_url, self._refusal(), self.kind
        (below,) = self.statuses((MODELS,)) or [404]
        if self.statuses((API_MODELS,)) == [404] and (below in (200, 401, 403) or below >= 500) and self.endpoint.reward is None:
            return "wrong path (404)", f"its API is one level below base_url; set base_url to {base_url}/v1"
        unlisted = "; if the server has no list of models, add a model name to models and check with --call" if refusal else ""
        if set(self.statuses(self.replies)) <= {404} and kind.probe:
            return "wrong path (404)", f"it answers 404 to every request; {_CHECK_PATH}{unlisted}"
        if not kind.chat and kind.info is not None and self.statuses((kind.info,)) == [404]:
            route = f"GET {server_root(base_url)}{kind.info}"
            remedy = "check kind and base_url, or check with --call whether it answers a request"
            return "wrong path (404)", f"it answers 404 to {route}, which servers of kind {kind.name!r} have; {remedy}"
        if refusal is None or self.load.ready is False:
            return None
        state = f"failing ({refusal})" if refusal[0] == "5" else "wrong path (404)" if refusal == "404" else f"no API ({refusal})"
        remedy = f"it may be no OpenAI-compatible server; {_CHECK_PATH}{unlisted}"
        if refusal[0] == "5":
            remedy = "look into its log, and that of the gateway in front of it"
        elif refusal == _EMPTY:
            remedy = "load a model into the server"
        return state, f"it answers {refusal} to a request for its models (GET {base_url}/models); {remedy}"

    def _refusal(self) -> str | None:
        """Return what the server answered instead of a list of models. None if that does not show whether it has such a list."""
        reply = self.replies.get(API_MODELS) or self.replies.get(MODELS)
        if self.is_listed or reply is None or not (self.kind.lists_models or self.kind.chat):
            return None
        if 300 <= reply.status < 400 or reply.status in (401, 403, *PASSING):
            return None
        if not 200 <= reply.status < 300:
            return str(reply.status)
        if reply.body.lstrip()[:1] == b"<":
            return "a web page"
        try:
            document = jsonio.read_leniently(reply.body)
        except Malformed:
            document = None
        return _EMPTY if isinstance(document, dict) and document.get("data", "") in (None, []) else "something else"

    def seems(self) -> str | None:
        """Return the kind of server, or None if it is not recognised. The kind is recognised by content that only this kind returns."""
        bodies = {path: reply.body for path, reply in self.replies.items()}
        info, queue = (
            read_load(path, self.replies[path].status, bodies[path]) if path in bodies else Load() for path in ("/info", "/v1/loads")
        )
        metrics, ready = b"\n" + bodies.get("/metrics", b""), self.replies.get(_NIM_READY)
        owners = b"".join(bodies.get(path, b"") for path in (API_MODELS, MODELS)).replace(b" ", b"")
        signs = {
            "tei": info.items is not None or b"\nte_queue_size" in metrics,
            "sglang": b"\nsglang:" in metrics or b'"owned_by":"sglang"' in owners or queue.running is not None,
            "vllm": b"\nvllm:" in metrics or b'"owned_by":"vllm"' in owners,
            "nim": ready is not None and ready.status == 200 and not ready.body.lstrip().startswith(b"<"),
        }
        return next((kind for kind, shown in signs.items() if shown), None)

    def _of_models(self) -> Iterator[tuple[str, str]]:
        """Yield a name or pattern that the list of models does not have, and the problem in words."""
        served, renamed = self.load.models, self.endpoint.model_names
        if not self.kind.lists_models or not self.is_listed:
            return
        for name, there in renamed.items():
            if not _lists(served, there):
                yield name, f"model_names maps {name!r} to {there!r}, but it serves {_served(there, served)}; correct model_names"
        for pattern in self.patterns:
            if is_glob(pattern):
                if not any(is_glob(name) or matches(pattern, name) for name in _called(renamed, served)):
                    yield pattern, f"it serves {_served(pattern, served)}, none of which matches {pattern!r}; {_REMEDY}"
            elif pattern not in renamed and not _lists(served, pattern):
                yield pattern, f"it does not serve {pattern!r}, but {_served(pattern, served)}; {_REMEDY}"
        for setting, model, _ in self.asked:
            if model not in (*renamed, *self.endpoint.models) and not _lists(served, model):
                remedy = f"change {setting}, or map the name with model_names"
                yield model, f"it does not serve {model!r}, but {_served(model, served)}; {remedy}"

    def _was_answered(self, wanted: str) -> bool:
        return self.answered and any(matches(wanted, model) for model in self.called)


def _lists(served: Iterable[str], name: str) -> bool:
    return any(name == each or matches(each, name) for each in served)


def _called(renamed: Mapping[str, str], there: Iterable[str]) -> list[str]:
    """Return the names under which the served models can be requested."""
    there = list(there)
    return [*(name for name, target in renamed.items() if target in there), *(name for name in there if name not in renamed.values())]


def _served(name: str, served: tuple[str, ...]) -> str:
    names = list(dict.fromkeys((*closest(name, served, most=MAX_LISTED), *served)))
    return ", ".join(map(repr, names[:MAX_LISTED])) + (f" and {len(names) - MAX_LISTED} more" if len(names) > MAX_LISTED else "")


async def examine(
    endpoint: Endpoint, config: ClientConfig, seconds: float, *, calls: bool, asked: Iterable[ScorerModel] = ()
) -> dict[str, Any]:
    """Check one endpoint, and return the result in the form that ``--json`` prints. Durations are in seconds; None means unknown."""
    found = Examination(endpoint, config, asked)
    await found.get_all(seconds)
    uncalled = calls and found.replies and not await found.call(max(seconds, CALL_AT_LEAST))
    load, seems, problems = found.load, found.seems(), list(found.problems())
    usual = "ready, answered" if found.answered else "ready" if load.ready else "reachable"
    state = next((state for state, _ in problems if state), usual)
    why = "no model was called, because no model name is known; add a name without a wildcard to models"
    return {
        "name": endpoint.name,
        "url": endpoint.base_url,
        "kind": endpoint.kind,
        "seems": seems if seems != endpoint.kind else None,
        "reachable": bool(found.replies),
        "state": state,
        "ready": load.ready if state == usual or not found.replies else False,
        "latency": None if found.seconds is None else round(found.seconds, 4),
        "models": list(load.models),
        "patterns": found.patterns,
        "limits": load.limits,
        "running": load.running,
        "waiting": load.waiting,
        "verify": endpoint.verify,
        "auth": found.auth(),
        "called": "answered" if found.answered else "failed" if found.error is not None else None,
        "problems": [text for _, text in problems],
        "notes": [*found.notes(), *([why] if uncalled else [])],
    }


# qreward route


def add_route(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(run=route)
    parser.add_argument("config", metavar="CONFIG", help="configuration file (.yaml, .json or .toml)")
    parser.add_argument("model", metavar="MODEL", help="name of the model, as calls give it")


def route(args: argparse.Namespace) -> int:
    """Print the route, and return 0. Raises ``ConfigError`` for an invalid file, and ``NoEndpoint`` if no route matches."""
    config = resolved(load_config(args.config))
    routes = QRewardClient.from_config(config).list_routes()
    found = [route for route in routes if matches(route.pattern, args.model)]
    if not found:
        patterns = ", ".join(repr(route.pattern) for route in routes)
        raise NoEndpoint(f"no route matches the model {args.model!r}; there are routes for {patterns}")
    taken, *others = found
    endpoints = {endpoint.name: endpoint for endpoint in config.endpoints}
    reason = "the most specific pattern that matches" if is_glob(taken.pattern) else "an exact name goes first"
    print(f"{args.model!r} takes the route {taken.pattern!r}: {reason}; {taken.strategy} among {len(taken.endpoints)}")
    for name in taken.endpoints:
        print(f"  {_described(endpoints[name], taken, args.model)}")
    for route in others:
        print(f"not used: {route.pattern!r}, which is less specific")
    return 0


def _described(endpoint: Endpoint, route: Route, model: str) -> str:
    parts, limits = [f"{endpoint.name}  {endpoint.base_url}"], endpoint.limits
    if (renamed := endpoint.model_names.get(model)) is not None:
        parts.append(f"as {renamed!r}")
    weight = route.weights.get(endpoint.name, endpoint.weight)
    if weight != 1:
        parts.append(f"weight {weight:g}")
    if limits.adaptive:
        parts.append("concurrency adapts" + (f" up to {limits.max_concurrency}" if limits.max_concurrency is not None else ""))
    else:
        parts.append(f"concurrency fixed at {limits.max_concurrency or DEFAULT_LIMIT}")
    parts += [f"{name} {value:g}" for name in ("rpm", "tpm") if (value := getattr(limits, name)) is not None]
    return ", ".join(parts)
