"""What ``ps``, ``top`` and notebooks show: blocks of text and tables, which become lines or HTML."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from html import escape
from operator import itemgetter
from typing import Any, NamedTuple

import msgspec

from qreward.live.directory import Process
from qreward.notebook.render import frame, number, seconds, table

NONE = "no program shows itself; start one with QREWARD_LIVE=1, or call client.live() in it"
WORDS = {"program", "state", "endpoint", "now", "limit because"}
"""Columns with words; all others hold numbers."""
WIDTH = 30
"""Number of characters that are shown of the reason of a pause."""
MOST_CHANGES = 3
"""Number of latest orders that are shown."""


def as_json(found: Iterable[Process]) -> str:
    """Return what ``--json`` prints: the number, the state and the document of each process."""
    return msgspec.json.encode([{"pid": each.pid, "state": each.state, **each.document} for each in found]).decode()


class Block(NamedTuple):
    """A line, or a table if it has rows. ``style`` is ``bold``, ``red`` or ``""``."""

    text: str = ""
    style: str = ""
    rows: Sequence[Mapping[str, str]] = ()


def _since(at: float) -> str:
    """Return the time since a moment of the wall clock, such as ``12 min``."""
    passed = max(0.0, time.time() - at)
    size, unit = next((each for each in ((86400, "d"), (3600, "h"), (60, "min")) if passed >= 2 * each[0]), (1, "s"))
    return f"{passed / size:.0f} {unit}"


def _state(process: Process) -> str:
    if process.state != "running":
        return f"{process.state}, last seen {_since(process.document['at'])} ago" if process.document else process.state
    late = max((each["seconds"] for each in process.document["blocked"]), default=0.0)
    return f"event loop blocked for {seconds(late)}" if late else "running"


def _head(process: Process) -> dict[str, str]:
    document = process.document
    totals = [client["totals"] for client in document.get("clients", {}).values()]
    counts = {words: number(sum(int(each[name]) for each in totals)) for words, name in COUNTED.items()}
    return {
        "pid": str(process.pid),
        "program": document.get("program", "?"),
        "state": _state(process),
        "age": _since(document["started"]) if document else "",
        **counts,
        "/s": number(sum(each["answers_per_second"] for each in totals)),
    }


COUNTED = {"waiting": "waiting", "in flight": "in_flight", "answered": "answered"}


def listed(processes: Iterable[Process]) -> Block:
    """Return the table of ``qreward ps``."""
    return Block(rows=[_head(each) for each in processes])


def blocks(processes: Sequence[Process]) -> Iterator[Block]:
    """Yield what ``qreward top`` shows."""
    if not processes:
        yield Block(NONE)
    for process in processes:
        document = process.document
        head = _head(process)
        words = [f"{head['pid']} {head['program']}", head["state"], f"{head['waiting']} wait"]
        words += [*(f"{head[name]} {name}" for name in ("in flight", "answered")), f"{head['/s']}/s"]
        yield Block("  ".join(words), "bold" if process.state == "running" else "red")
        for each in document.get("blocked", []):
            yield from (Block(f"    {place}", "red") for place in each["stack"])
        for client in document.get("clients", {}).values():
            yield from _client(client)
        for change in document.get("changes", [])[-MOST_CHANGES:]:
            why = f" ({change['reason']})" if change["reason"] else ""
            yield Block(f"  {_since(change['at'])} ago: {change['action']}{why}: {'; '.join(change['effects'])}")


def _client(client: Mapping[str, Any]) -> Iterator[Block]:
    yield from (Block(f"  {why}", "red") for why in client["why"])
    for model in client["models"]:
        if model["eta"] is not None and model["waiting"]:
            least, most = model["eta"]
            yield Block(f"  {model['route']}: {number(model['waiting'])} wait, about {seconds(least)} to {seconds(most)}")
    for batch in client["batches"]:
        of = "" if batch["total"] is None else f" of {number(batch['total'])}"
        failed = f", {number(batch['failed'])} failed" if batch["failed"] else ""
        yield Block(f"  batch {batch['number']} for {batch['model']}: {number(batch['done'])}{of} done{failed}")
    if endpoints := sorted(client["endpoints"], key=itemgetter("name")):
        yield Block(rows=[{name: cell(each) for name, cell in COLUMNS.items()} for each in endpoints])


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


# the three forms


STYLES = {"bold": "1", "red": "31"}
"""Style -> its code in a terminal."""


def plain(shown: Iterable[Block], *, styled: bool = False) -> Iterator[str]:
    """Yield lines of text, without characters that a terminal would carry out, but for the styles."""
    for block in shown:
        if not block.rows:
            text = _printable(block.text)
            yield f"\x1b[{STYLES[block.style]}m{text}\x1b[0m" if styled and block.style else text
            continue
        heads = [head for head in block.rows[0] if any(row[head] for row in block.rows)]
        rows = [dict(zip(heads, heads, strict=True)), *block.rows]
        widths = {head: max(len(row[head]) for row in rows) for head in heads}
        for row in rows:
            cells = (row[head].ljust(widths[head]) if head in WORDS else row[head].rjust(widths[head]) for head in heads)
            yield _printable(f"  {'  '.join(cells)}".rstrip())


def _printable(text: str) -> str:
    return "".join(character if character.isprintable() else "?" for character in text)


def html(shown: Iterable[Block]) -> str:
    """Return HTML, in which all texts are escaped."""
    look = {"bold": "font-weight:600;margin-top:1em", "red": "color:#e5534b", "": ""}
    return frame(
        *(
            table(block.rows, WORDS)
            if block.rows
            else f'<div style="{look[block.style]};overflow-wrap:anywhere;white-space:pre-wrap">{escape(block.text)}</div>'
            for block in shown
        )
    )
