"""What the terminal and notebooks show of the same documents."""

from __future__ import annotations

import re
import sys
import time
import types
from typing import Any

import pytest
from live_tools import opened
from test_live_channel import new_client

from qreward.live import processes as view
from qreward.live.processes import VERSION, Process

EVIL = "<script>x</script>\x1b[31m"


def document(**changes: Any) -> dict[str, Any]:
    client = new_client()
    snapshot = client.snapshot().model_dump(mode="json")
    calm = snapshot["endpoints"][0]
    late = calm | {"name": f"gpu-1{EVIL}", "state": "rate_limit", "ready_in": 0.9, "in_flight": 3, "failed": 7, "p95": 2.5}
    snapshot["totals"]["answers_per_second"] = 40
    snapshot |= {
        "endpoints": [calm, late],
        "why": ["5 items wait for judge-7b: gpu-1 has a limit of 60 requests a minute"],
        "batches": [{"number": 4, "model": "judge-7b", "done": 20, "ok": 19, "failed": 1, "total": 100, "in_flight": 3, "seconds": 9.0}],
    }
    order = {"at": time.time(), "action": "pause", "target": None, "reason": "new weights", "effects": ["gpu-0: nothing new is sent"]}
    basis = {"version": VERSION, "pid": 12, "program": "train.py", "started": time.time() - 180, "at": time.time(), "ended": False}
    return basis | {"clients": {"1": snapshot}, "blocked": [], "changes": [order]} | changes


def shown(process: Process) -> str:
    return "\n".join(view.plain(view.lines([process])))


def test_top_says_what_waits_and_why_and_what_an_operator_did() -> None:
    text = shown(Process(12, "running", document()))
    for expected in (
        "12 train.py  running  0 wait  0 in flight  0 answered  40/s",
        "5 items wait for judge-7b: gpu-1 has a limit of 60 requests a minute",
        "batch 4 for judge-7b: 20 of 100 done, 1 failed",
        "rate limit, for 900 ms",
        "0 s ago: pause (new weights): gpu-0: nothing new is sent",
    ):
        assert expected in text
    assert "hedged" not in text, "a column without a value is left out"
    assert "\x1b" not in text
    blocked = document(blocked=[{"seconds": 3.5, "stack": ["train.py:7 in main"]}])
    assert "event loop blocked for 3.50 s" in shown(Process(12, "running", blocked))
    assert "train.py:7 in main" in shown(Process(12, "running", blocked))
    assert "12 ?  no answer" in shown(Process(12, "no answer", {}))
    assert "died, last seen 0 s ago" in shown(Process(12, "died", document()))
    assert view.NONE in "\n".join(view.plain(view.lines([])))


def test_ps_has_one_line_for_each_process() -> None:
    lines = list(view.plain(view.listed([Process(12, "running", document()), Process(7, "no answer", {})])))
    assert [line.split()[0] for line in lines] == ["pid", "12", "7"]
    assert lines[1].split() == ["12", "train.py", "running", "3", "min", "0", "0", "0", "40"]


def test_a_terminal_shows_the_same_text_with_styles() -> None:
    shown = list(view.lines([Process(12, "running", document())]))
    styled = "\n".join(view.plain(shown, styled=True))
    assert "\x1b[31m  5 items wait" in styled
    assert re.sub(r"\x1b\[\d+m", "", styled) == "\n".join(view.plain(shown)), "nothing of the text is carried out"


def test_html_escapes_every_text_and_loads_nothing_from_elsewhere() -> None:
    html = view.html(view.lines([Process(12, "running", document(program=EVIL))]))
    assert "<script" not in html
    assert "&lt;script&gt;" in html
    assert not re.search(r"https?://|url\(|@import|src=", html)


def test_a_notebook_shows_the_table_and_updates_it_until_the_client_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    pages: list[str] = []

    class Handle:
        def update(self, page: dict[str, str], raw: bool) -> None:
            pages.append(page["text/html"])

    def display(page: dict[str, str], **_: Any) -> Handle:
        pages.append(page["text/html"])
        return Handle()

    monkeypatch.setitem(sys.modules, "IPython.display", types.SimpleNamespace(display=display))
    client = new_client()
    with opened() as made:
        made.close()
        cell = client.live()
        cell._ipython_display_()
        client.pause(reason="new weights")
        made._write()
        assert ["paused: new weights" in page for page in pages] == [False, True]
        cell._ipython_display_()
        assert len(made.listeners) == 1, "the cell that is run again takes the place of the first"
        client._runtime.engine.closed = True
        made._write()
        made._write()
        assert (len(pages), made.listeners) == (3, [])
