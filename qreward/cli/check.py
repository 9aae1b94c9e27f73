"""``qreward check [CONFIG]`` examines each endpoint of a configuration, and says what is wrong with its settings; ``qreward route CONFIG
MODEL`` prints the endpoints that serve a model."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
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
from qreward.errors import ConfigError, NoEndpoint, QRewardError, RequestError, RequestTimeout
from qreward.integrations.trainers.settings import SCORERS, VARIABLE, read_reward_settings, reward_config_of
from qreward.integrations.trainers.settings import check as check_reward_config
from qreward.render import text_table
from qreward.scheduler.limits.concurrency import DEFAULT_LIMIT
from qreward.scheduler.outcome import Failure
from qreward.scheduler.routing import is_glob, matches
from qreward.settings.client import CONFIG_VARIABLE, ClientConfig, config_from_env, config_of, load_config, read_config, without_effect
from qreward.settings.policies import Endpoint, Route
from qreward.spelling import closest
from qreward.transport.backend import PASSING, EndpointConnection, HttpBackend
from qreward.transport.redaction import Secrets

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
    problems: list[str] = []
    checked: list[dict[str, Any]] = []
    about = machine(args.config) if args.report else {}
    try:
        config, asked = configuration(args.config)
        checked = asyncio.run(check_all(config, args.timeout, calls=args.call, asked=asked))
        wanted = SPARE_FILES + sum(each.limits.max_concurrency or 0 for each in config.endpoints)
        if (limit := about.get("open_files")) is not None and wanted > limit:
            problems.append(
                f"the settings allow {wanted - SPARE_FILES} concurrent requests, but the process may open only {limit} files; "
                f"raise the limit with `ulimit -n {wanted}`, or lower max_concurrency"
            )
    except ConfigError as error:
        if not args.report:
            raise
        if args.config or any(map(os.environ.get, (CONFIG_VARIABLE, *ADDRESSES))):  # otherwise there are no settings to check
            problems.append(str(error))
    if args.json:
        print(json.dumps({**about, "problems": problems, "endpoints": checked} if about else {"endpoints": checked}, indent=2))
    else:
        print("\n".join([*(_about(about) if about else ()), *([report(checked)] if checked else []), *problems]))
    return 1 if problems or any(each["problems"] for each in checked) else 0


def machine(file: str | None) -> dict[str, Any]:
    """Return what ``--report`` adds: versions, the variables that are set, where the settings come from, and the limit of open files."""
    names = {match[1] for line in metadata.requires("qreward") or () if (match := _REQUIREMENT.match(line))}
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
        "versions": {"python": platform.python_version()} | {name: _version_of(name) for name in ("qreward", *sorted(names))},
        "system": f"{platform.platform()}, {os.cpu_count()} CPUs",
        "settings": Secrets().hide(used) if used else next((name for name in ADDRESSES if os.environ.get(name)), None),
        "environment": {name: any(os.environ.get(each) for each in (name, name.lower())) for name in variables},
        "open_files": open_files,
    }


def _version_of(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _about(found: Mapping[str, Any]) -> Iterator[str]:
    versions = dict(found["versions"])
    yield f"qreward {versions.pop('qreward')}, Python {versions.pop('python')}, {found['system']}"
    yield f"packages     {', '.join(f'{name} {version}' for name, version in versions.items() if version is not None)}"
    yield f"no packages  {', '.join(name for name, version in versions.items() if version is None) or 'missing'}"
    yield f"settings     {found['settings'] or 'none found; `qreward init` writes a file; name it with --config or in QREWARD_CONFIG'}"
    are_set = (f"{name} {'set' if is_set else 'not set'}" for name, is_set in found["environment"].items())
    yield f"environment  {', '.join(are_set)}"
    yield f"open files   {'no limit' if found['open_files'] is None else found['open_files']}\n"


def configuration(file: str | None) -> tuple[ClientConfig, list[ScorerModel]]:
    """Return the settings in a file, and the models of its scorers. If ``file`` is None, return what ``QRewardClient.from_env`` uses."""
    if file is None:  # ``from_env`` is not called, because it logs warnings; this command prints them as notes
        named = os.environ.get(CONFIG_VARIABLE)
        return (read_config(named)[0] if named else config_from_env()), []
    if file.startswith(("http://", "https://")):
        raise ConfigError("CONFIG is a file, not a URL; `qreward init --endpoint URL` writes one")
    content, place = read_reward_settings(file, empty="it must contain at least 'endpoints'")
    if not content.keys() & {"client", *SCORERS}:
        return config_of(content, place), []
    found = reward_config_of(content, place)
    config = found.client or config_from_env()
    check_reward_config(found, [route.pattern for route in routes_of(config)])
    asked = []
    for setting, stage in found.stages.items():
        if isinstance(stage, str):
            asked.append(ScorerModel(setting, stage, scores=True))
        else:
            asked += [ScorerModel(f"{setting}.model", model, scores=False) for model in stage.model]
    return config, asked


def routes_of(config: ClientConfig) -> list[Route]:
    """Return the routes of a client with this configuration, in the order in which they are matched."""
    return QRewardClient.from_config(config).list_routes()


async def check_all(config: ClientConfig, seconds: float, *, calls: bool, asked: Sequence[ScorerModel] = ()) -> list[dict[str, Any]]:
    """Check all endpoints concurrently, each with a timeout of ``seconds``. The requests that ``--call`` adds have their own timeout."""
    config = resolved(config)
    routes, notes = routes_of(config), list(without_effect(config))
    found = [Examination(each, routes, asked, [text for name, text in notes if name == each.name]) for each in config.endpoints]
    return await asyncio.gather(*(each.result(seconds, calls=calls) for each in found))


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


API_MODELS = "/models"
"""Path under ``base_url``. All others are under the root of the server."""
_NIM_READY = "/v1/health/ready"
STATUS_PATHS = ("/health", "/metrics", "/info", "/v1/loads", SLOTS, _NIM_READY)
GUARDED = (API_MODELS, MODELS, "/info", "/v1/loads")
"""Routes for which a server with authentication requires a key."""
DISTINCT_KINDS = ("vllm", "sglang", "tei", "openrlhf", "nim")
"""Kinds of server that can be recognised by their responses. Any server may have the API of OpenAI, and a user may register other kinds."""
NO_SUCH_API = (400, 404, 405, 422, 500, 501)
"""Statuses of servers that do not offer chat completions."""
CALL_AT_LEAST = 30.0
"""Minimum timeout in seconds of the request that ``--call`` adds, because a model is slower than a status route."""
ANY_NAME = "any"
CHAT_ITEM = [{"role": "user", "content": "Say yes."}]
REQUESTS: dict[str, Callable[[str], WireRequest]] = {
    "chat": lambda model: WireRequest(CHAT, model, CHAT.validate(CHAT_ITEM), {"max_tokens": 1}, None),
    "embeddings": lambda model: WireRequest(EMBEDDINGS, model, EMBEDDINGS.validate(["yes"]), {}, None),
    "scores": lambda model: WireRequest(SCORE, model, [SCORE.item(("Say yes.", "yes"))], {}, None),
}
"""What ``--call`` asks for -> function that makes the request to a model."""
MAX_LISTED = 6
"""Maximum number of names that a message lists."""
_EMPTY = "an empty list"
_CHECK_PATH = "check the host, the port and the path of base_url"


class ScorerModel(NamedTuple):
    """A model that a scorer of the settings requests."""

    setting: str  # setting that names the model, such as ``judge.model``
    model: str
    scores: bool  # True for a reward model, False for a judge


class Examination:
    """What is known of one endpoint."""

    def __init__(self, endpoint: Endpoint, routes: Sequence[Route], asked: Iterable[ScorerModel], notes: Sequence[str]) -> None:
        self.endpoint, self.kind, self.noted = endpoint, kind_of(endpoint.kind), notes
        self.patterns = [route.pattern for route in routes if endpoint.name in route.endpoints]
        taken = ((each, next((route for route in routes if matches(route.pattern, each.model)), None)) for each in asked)
        self.asked = [each for each, route in taken if route is not None and endpoint.name in route.endpoints]
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

    async def result(self, seconds: float, *, calls: bool) -> dict[str, Any]:
        """Check the endpoint, and return the result in the form that ``--json`` prints. Durations are in seconds; None means unknown."""
        await self.get_all(seconds)
        uncalled = calls and self.replies and not await self.call(max(seconds, CALL_AT_LEAST))
        load, seems, problems = self.load, self.seems(), list(self.problems())
        usual = "ready, answered" if self.answered else "ready" if load.ready else "reachable"
        state = next((state for state, _ in problems if state), usual)
        why = "no model was called, because no model name is known; add a name without a wildcard to models"
        return {
            "name": self.endpoint.name,
            "url": self.endpoint.base_url,
            "kind": self.endpoint.kind,
            "seems": seems if seems != self.endpoint.kind else None,
            "reachable": bool(self.replies),
            "state": state,
            "ready": load.ready if state == usual or not self.replies else False,
            "latency": None if self.seconds is None else round(self.seconds, 4),
            "models": list(load.models),
            "patterns": self.patterns,
            "limits": load.limits,
            "running": load.running,
            "waiting": load.waiting,
            "verify": self.endpoint.verify,
            "auth": self.auth(),
            "called": "answered" if self.answered else "failed" if self.error is not None else None,
            "problems": [text for _, text in problems],
            "notes": [*self.notes(is_well=not problems), *([why] if uncalled else [])],
        }

    # requests

    async def get_all(self, seconds: float) -> None:
        """Send all GET requests at once. Responses that take more than ``seconds`` are ignored."""
        try:
            connection = EndpointConnection(self.endpoint)
        except ConfigError as error:
            self.failure = str(error)
            return
        lists = (MODELS,) if self.endpoint.base_url.endswith("/v1") else (API_MODELS, MODELS)
        paths = dict.fromkeys((*lists, *self.kind.probe, *STATUS_PATHS))
        try:
            async with asyncio.timeout(seconds):
                await asyncio.gather(*(self._get(connection, path) for path in paths))
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
            reply = await connection.transport.get(path if path == API_MODELS else connection.root + path)
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
        chats, model = self.endpoint.reward is None and self.kind.chat, self._model_to_call()
        asked = self.asked or ([] if model is None else [ScorerModel("models", model, scores=not chats)])
        sent = (self._call(each.model, "scores" if each.scores else "chat", seconds) for each in asked)
        self.error = next(filter(None, await asyncio.gather(*sent)), None)
        self.called = [each.model for each in asked]
        for what in ("embeddings", "scores") if chats and not self.asked and self._status() in NO_SUCH_API else ():
            if await self._call(self.called[0], what, seconds) is None:
                self.instead, self.error = what, None
                break
        return bool(asked)

    async def _call(self, model: str, what: str, seconds: float) -> QRewardError | None:
        backend = HttpBackend()
        try:
            async with asyncio.timeout(seconds):
                outcome = await backend.send(self.endpoint, REQUESTS[what](model))
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
        known = (name for name in (*self.patterns, *self.endpoint.model_names, *served) if not is_glob(name))
        named = next((name for name in known if any(matches(pattern, name) for pattern in self.patterns)), None)
        return named if named is not None or self.kind.lists_models else next(iter(self.load.models), ANY_NAME)

    # findings

    def _status(self) -> int | None:
        return self.error.status_code if isinstance(self.error, RequestError) else None

    def statuses(self, paths: Iterable[str]) -> list[int]:
        return [self.replies[path].status for path in paths if path in self.replies]

    @property
    def denied(self) -> int | None:
        """The status with which the server refuses the key or requires one. A model request counts more than the GET requests."""
        seen = () if self.answered else (self._status(), *self.statuses(GUARDED))
        return next((status for status in seen if status in (401, 403)), None)

    def auth(self) -> str:
        """Return whether the server accepts the key."""
        has_key = self.endpoint.api_key is not None or bool(self.endpoint.headers)
        if self.denied is not None:
            return f"{'refused' if has_key else 'required'} ({self.denied})"
        if self.answered or any(200 <= status < 300 for status in self.statuses(GUARDED)):
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
            status = self.replies[moved].status
            yield "redirects", f"it redirects ({status} for {moved}); redirects are not followed; set base_url to the final address"
        if not self.answered and (found := self._of_path()):
            yield found
        if self.denied is not None and (auth := self.auth()).startswith("refused"):
            yield f"key {auth}", f"it refuses the key that was sent ({self.denied}); check api_key, or headers if it is sent there"
        elif self.denied is not None:
            remedy = "set api_key, such as ${JUDGE_KEY}, or OPENAI_API_KEY"
            yield f"key {self.auth()}", f"it requires a key, and none was sent ({self.denied}); {remedy}"
        if self.error is not None:
            yield f"call failed ({self._status()})" if self._status() else "call failed", f"a call failed: {self.error}"
        kind, seems = self.endpoint.kind, self.seems()
        if seems not in (None, kind) and kind in DISTINCT_KINDS:
            yield "", f"it seems to be a server of kind {seems!r}, not {kind!r}; set kind to {seems!r}"
        yield from (("", text) for wanted, text in self._of_models() if not self._was_answered(wanted))

    def notes(self, *, is_well: bool) -> Iterator[str]:
        """Yield what does not make calls fail. ``is_well`` says that there are no problems."""
        endpoint, kind, seems = self.endpoint, self.endpoint.kind, self.seems()
        if kind == "openai" and seems is not None:
            yield f"it seems to be a server of kind {seems!r}; with kind {seems!r} it can be asked for scores and for its load"
        if self.instead is not None:
            yield f"it answers requests for {self.instead}, and refuses chat completions"
        if any(self._was_answered(wanted) for wanted, _ in self._of_models()):
            for model in self.called:
                if not _lists(self.load.models, model):
                    yield f"its list of models has no {model!r}, but it answered a call for this model"
        if is_well and self.kind.lists_models and not self.is_listed:
            yield "it does not list its models, so their names could not be checked; check them with --call"
        if endpoint.probe is not None and not self.kind.probe:
            yield f"probe has no effect: a server of kind {kind!r} has no status route"
        if endpoint.base_url.startswith("https") and endpoint.verify is False:
            yield "its certificate is not verified; set verify to the path of its CA bundle instead of false"
        yield from self.noted

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
        bodies = {path: reply.body for path, reply in self.replies.items() if reply.status == 200}
        metrics, ready = b"\n" + bodies.get("/metrics", b""), bodies.get(_NIM_READY, b"<")
        owners = b"".join(bodies.get(path, b"") for path in (API_MODELS, MODELS)).replace(b" ", b"")
        signs = {
            "tei": b"\nte_queue_size" in metrics or b'"max_client_batch_size"' in bodies.get("/info", b""),
            "sglang": b"\nsglang:" in metrics or b'"owned_by":"sglang"' in owners,
            "vllm": b"\nvllm:" in metrics or b'"owned_by":"vllm"' in owners,
            "nim": not ready.lstrip().startswith(b"<"),
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
        remedies = dict.fromkeys(self.patterns, "change models or the route, or map names with model_names")
        for setting, model, _ in self.asked:
            if model not in self.endpoint.models:
                remedies[model] = f"change {setting}, or map the name with model_names"
        for wanted, remedy in remedies.items():
            if _lists((*renamed, *served), wanted):
                continue
            if is_glob(wanted):
                yield wanted, f"it serves {_served(wanted, served)}, none of which matches {wanted!r}; {remedy}"
            else:
                yield wanted, f"it does not serve {wanted!r}, but {_served(wanted, served)}; {remedy}"

    def _was_answered(self, wanted: str) -> bool:
        return self.answered and any(matches(wanted, model) for model in self.called)


def _lists(served: Iterable[str], wanted: str) -> bool:
    """Return whether one of the served names or patterns is the wanted name, or matches the wanted pattern."""
    return any((is_glob(wanted) and is_glob(each)) or matches(each, wanted) or matches(wanted, each) for each in served)


def _served(name: str, served: tuple[str, ...]) -> str:
    names = list(dict.fromkeys((*closest(name, served, most=MAX_LISTED), *served)))
    return ", ".join(map(repr, names[:MAX_LISTED])) + (f" and {len(names) - MAX_LISTED} more" if len(names) > MAX_LISTED else "")


# qreward route


def add_route(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(run=route)
    parser.add_argument("config", metavar="CONFIG", help="configuration file (.yaml, .json or .toml)")
    parser.add_argument("model", metavar="MODEL", help="name of the model, as calls give it")


def route(args: argparse.Namespace) -> int:
    """Print the route, and return 0. Raises ``ConfigError`` for an invalid file, and ``NoEndpoint`` if no route matches."""
    config = resolved(load_config(args.config))
    routes = routes_of(config)
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
