"""The processes of a user that show themselves: where they are found, and what ``ps``, ``top`` and notebooks show of them.

One directory has a socket and the last document of each process.
"""

from __future__ import annotations

import os
import socket
import stat
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from html import escape
from http.client import HTTPConnection, HTTPException
from math import inf
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from qreward.errors import ConfigError
from qreward.render import frame, number, seconds, text_table

VERSION = 1
"""Version of the documents. A document of another version is not shown."""
VARIABLE = "QREWARD_LIVE_DIR"
"""Environment variable: the directory. The default is the same for all processes of a user, whatever their ``TMPDIR`` is."""
KEPT, KEPT_AFTER_DEATH = 3600.0, 86400.0
"""Seconds for which the document of a process is kept that has ended, or that was killed."""
PATIENCE = 1.0
"""Seconds within which a process must answer. A process that was stopped accepts connections and never answers."""

NONE = "no program shows itself; start one with QREWARD_LIVE=1, or call client.live() in it"
WORDS = {"program", "state", "endpoint", "now", "limit because"}
"""Columns with words; all others hold numbers."""
WIDTH = 30
"""Number of characters that are shown of the reason of a pause."""
MOST_CHANGES = 3
"""Number of latest orders that are shown."""


def directory() -> Path:
    """Return the directory, made if needed. Raises ``ConfigError`` if other users could read it or own it."""
    path = Path(os.environ.get(VARIABLE) or f"/tmp/qreward-{os.geteuid()}")  # noqa: S108 - the owner and the mode are checked
    try:
        path.mkdir(mode=0o700, exist_ok=True)
        found = path.lstat()
    except OSError as error:
        raise ConfigError(f"the directory {str(path)!r} cannot be used: {error.strerror}; name another one in {VARIABLE}") from None
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o077:
        raise ConfigError(f"{str(path)!r} must be a directory of yours that nobody else can open (chmod 700); {VARIABLE} names another")
    return path


class Process(NamedTuple):
    pid: int
    state: str
    document: dict[str, Any]


def processes(folder: Path, patience: float = PATIENCE) -> Iterator[Process]:
    """Yield the processes of a directory, those that run first, and remove what is left of others."""
    names = {path.stem for path in folder.iterdir()}
    found = [_process(folder, int(name), patience) for name in sorted(names, key=len) if name.isdecimal()]
    yield from sorted(filter(None, found), key=lambda each: (each.state in ("ended", "died"), -each.document.get("started", 0.0)))


def _process(folder: Path, pid: int, patience: float) -> Process | None:
    path, state = folder / f"{pid}.sock", "died"
    try:
        return _of_this_version(pid, "running", request(path, "GET", "/snapshot", patience=patience))
    except (ConnectionRefusedError, FileNotFoundError):
        path.unlink(missing_ok=True)
    except (OSError, HTTPException):
        state = "no answer"
    try:
        document = msgspec.json.decode((folder / f"{pid}.json").read_bytes(), type=dict[str, Any])
    except (OSError, msgspec.DecodeError):
        return None if state == "died" else Process(pid, state, {})
    state = "ended" if document.get("ended") and state == "died" else state
    if time.time() - document.get("at", 0.0) > {"ended": KEPT, "died": KEPT_AFTER_DEATH}.get(state, inf):
        (folder / f"{pid}.json").unlink(missing_ok=True)
        return None
    return _of_this_version(pid, state, document)


def _of_this_version(pid: int, state: str, document: dict[str, Any]) -> Process:
    same = document.get("version") == VERSION
    return Process(pid, state, document) if same else Process(pid, f"{state}, of another version of qreward", {})


def request(path: Path, method: str, route: str, body: object = None, *, patience: float = PATIENCE) -> Any:
    """Send a request to the socket of a process. Returns its JSON. Raises ``OSError``, or ``ConfigError`` with what the process refused."""
    with closing(HTTPConnection("localhost")) as connection:
        connection.sock = socket.socket(socket.AF_UNIX)
        connection.sock.settimeout(patience)
        connection.sock.connect(str(path))
        connection.request(method, route, None if body is None else msgspec.json.encode(body))
        response = connection.getresponse()
        answer = msgspec.json.decode(response.read())
    if response.status != 200:
        raise ConfigError(answer["error"])
    return answer


# what is shown: lines, each with its style, which become text or HTML

Line = tuple[str, str]
"""A text, and its style: ``bold``, ``red`` or ``""``."""


def as_json(found: Iterable[Process]) -> str:
    """Return what ``--json`` prints: the number, the state and the document of each process."""
    return msgspec.json.encode([{"pid": each.pid, "state": each.state, **each.document} for each in found]).decode()


def _since(at: float) -> str:
    """Return the time since a moment of the wall clock, such as ``12 min``."""
    passed = max(0.0, time.time() - at)
    size, unit = next((each for each in ((86400, "d"), (3600, "h"), (60, "min")) if passed >= 2 * each[0]), (1, "s"))
    return f"{passed / size:.0f} {unit}"


def _head(process: Process) -> dict[str, str]:
    document, state = process.document, process.state
    if state == "running" and document["blocked"]:
        state = f"event loop blocked for {seconds(max(each['seconds'] for each in document['blocked']))}"
    elif state != "running" and document:
        state = f"{state}, last seen {_since(document['at'])} ago"
    totals = [client["totals"] for client in document.get("clients", {}).values()]
    columns = {"waiting": "waiting", "in flight": "in_flight", "answered": "answered", "/s": "answers_per_second"}
    counts = {words: number(sum(each[name] for each in totals)) for words, name in columns.items()}
    return {
        "pid": str(process.pid),
        "program": document.get("program", "?"),
        "state": state,
        "age": _since(document["started"]) if document else "",
        **counts,
    }


def listed(processes: Sequence[Process]) -> Iterator[Line]:
    """Yield what ``qreward ps`` shows: a table."""
    return _table([_head(each) for each in processes]) if processes else iter([(NONE, "")])


def _table(rows: Sequence[Mapping[str, str]]) -> Iterator[Line]:
    return ((f"  {line}", "") for line in text_table(rows, WORDS))


def lines(processes: Sequence[Process]) -> Iterator[Line]:
    """Yield what ``qreward top`` shows."""
    if not processes:
        yield NONE, ""
    for process in processes:
        document = process.document
        head = _head(process)
        words = [f"{head['pid']} {head['program']}", head["state"], f"{head['waiting']} wait"]
        words += [*(f"{head[name]} {name}" for name in ("in flight", "answered")), f"{head['/s']}/s"]
        yield "  ".join(words), "bold" if process.state == "running" else "red"
        for each in document.get("blocked", []):
            yield from ((f"    {place}", "red") for place in each["stack"])
        for client in document.get("clients", {}).values():
            yield from _client(client)
        for change in document.get("changes", [])[-MOST_CHANGES:]:
            why = f" ({change['reason']})" if change["reason"] else ""
            yield f"  {_since(change['at'])} ago: {change['action']}{why}: {'; '.join(change['effects'])}", ""


def _client(client: Mapping[str, Any]) -> Iterator[Line]:
    yield from ((f"  {why}", "red") for why in client["why"])
    for model in client["models"]:
        if model["eta"] is not None and model["waiting"]:
            least, most = model["eta"]
            yield f"  {model['route']}: {number(model['waiting'])} wait, about {seconds(least)} to {seconds(most)}", ""
    for batch in client["batches"]:
        of = "" if batch["total"] is None else f" of {number(batch['total'])}"
        failed = f", {number(batch['failed'])} failed" if batch["failed"] else ""
        yield f"  batch {batch['number']} for {batch['model']}: {number(batch['done'])}{of} done{failed}", ""
    if endpoints := sorted(client["endpoints"], key=itemgetter("name")):
        yield from _table([{name: cell(each) for name, cell in COLUMNS.items()} for each in endpoints])


def _state_of(endpoint: Mapping[str, Any]) -> str:
    if endpoint["state"] == "paused":  # with the operator's reason
        text = str(endpoint["why"]).removeprefix(f"{endpoint['name']} is ")
        return text if len(text) <= WIDTH else f"{text[: WIDTH - 1]}…"
    left = endpoint["ready_in"]
    return str(endpoint["state"]).replace("_", " ") + (f", for {seconds(left)}" if left else "")


def _some(name: str, show: Callable[[float], str] = number) -> Callable[[Mapping[str, Any]], str]:
    return lambda each: show(each[name]) if each[name] else ""


COLUMNS: Mapping[str, Callable[[Mapping[str, Any]], str]] = {
    "endpoint": lambda each: each["name"],
    "now": _state_of,
    "in flight": lambda each: f"{each['in_flight']}/{each['limit']}",
    "/s": _some("answers_per_second"),
    "tok/s": _some("tokens_per_second"),
    "p50": _some("p50", seconds),
    "p95": _some("p95", seconds),
    "answered": _some("answered"),
    "rejected": _some("rejected"),
    "5xx": _some("server_errors"),
    "failed": _some("failed"),
    "hedged": _some("hedged"),
    "cached": _some("cached_share", lambda share: f"{share:.0%}"),
    "cost": _some("cost", lambda cost: f"${cost:,.2f}"),
    "limit because": lambda each: each["limit_why"],
}


STYLES = {"bold": ("1", "font-weight:600"), "red": ("31", "color:#e5534b")}
"""How a terminal and a browser show a style."""


def plain(shown: Iterable[Line], *, styled: bool = False) -> Iterator[str]:
    """Yield lines of text, without characters that a terminal would carry out, but for the styles."""
    for given, style in shown:
        text = "".join(character if character.isprintable() else "?" for character in given)
        yield f"\x1b[{STYLES[style][0]}m{text}\x1b[0m" if styled and style else text


def html(shown: Iterable[Line]) -> str:
    """Return HTML, in which all texts are escaped."""
    text = "\n".join(f'<span style="{STYLES[style][1]}">{escape(line)}</span>' if style else escape(line) for line, style in shown)
    return frame(f'<pre style="margin:0;overflow-x:auto;white-space:pre">{text}</pre>')
