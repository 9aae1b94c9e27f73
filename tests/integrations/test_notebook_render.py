"""Batches and statistics as a notebook shows them: counts, times and errors, escaped, bounded, and without secrets."""

from __future__ import annotations

import json
import pickle
import re
from typing import Any
from xml.etree import ElementTree as ET

import httpx
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from notebook_tools import MODEL, chat
from shared_tools import words

from qreward import BadRequest, BatchResult, BatchStats, Endpoint, EndpointState, EndpointStats, QRewardClient, RateLimited, Result, Retry
from qreward.render import MOST_ROWS, clip, number, seconds
from qreward.results import FleetStats

pytestmark = pytest.mark.real_time

READY = EndpointState(3, 16, "rejected while 16 were served", "ready", 0.0)


def answered(index: int, latency: float, endpoint: str = "gpu-0") -> Result[Any]:
    return Result(index, object(), None, endpoint, latency, 0.0)  # type: ignore[arg-type]


def failed(index: int, error: Any) -> Result[Any]:
    return Result(index, None, error, None, 0.0, 0.0)


def batch(*results: Result[Any], **endpoints: EndpointStats) -> BatchResult[Any]:
    bad = sum(not result.ok for result in results)
    return BatchResult(list(results), BatchStats(len(results), len(results) - bad, bad, 2.0, endpoints))


def page_of(thing: Any) -> str:
    """What a notebook shows; it must be well-formed, as a browser mends silently what is not."""
    page: str = thing._repr_html_()
    ET.fromstring(page)
    return page


def rows(page: str) -> list[list[str]]:
    return [[words(cell) for cell in re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row)] for row in re.findall(r"<tr>(.*?)</tr>", page)]


def table(page: str, heading: str) -> list[dict[str, str]]:
    """The table whose first heading this is."""
    every = rows(page)
    at = [number for number, row in enumerate(every) if row[0] == heading]
    head = every[at[0]]
    return [dict(zip(head, row, strict=True)) for row in every[at[0] + 1 :] if len(row) == len(head) and row != head]


def test_a_batch_says_how_many_how_fast_at_which_endpoints_and_what_went_wrong() -> None:
    stats = EndpointStats(sent=5, answered=3, rejected=2, prompt_tokens=12_000, completion_tokens=30, p50=0.2, p95=1.5, p99=2.5)
    results = [*(answered(index, 0.2) for index in range(3)), failed(3, RateLimited("no room")), failed(4, RateLimited("no more"))]
    page = page_of(batch(*results, failed(5, BadRequest("no messages")), **{"gpu-0": stats}))
    assert words(page).startswith("6 items · 3 ok · 3 failed · 2.00 s · 3 items/s · 12,000 tokens in, 30 out")
    (row,) = table(page, "endpoint")
    assert row == {
        "endpoint": "gpu-0",
        "sent": "5",
        "answered": "3",
        "rejected": "2",
        "tokens in": "12,000",
        "out": "30",
        "p50": "200 ms",
        "p95": "1.50 s",
        "p99": "2.50 s",
    }
    assert table(page, "error") == [
        {"error": "RateLimited", "items": "2", "the first of them": "no room"},
        {"error": "BadRequest", "items": "1", "the first of them": "no messages"},
    ]
    assert "latency of 3 answers: shortest 200 ms · p50 200 ms · p95 200 ms · longest 200 ms" in words(page)


def test_statistics_stay_a_plain_dict_of_the_endpoints() -> None:
    stats = FleetStats({"gpu-0": EndpointStats(sent=2, answered=2, state=READY)})
    assert stats == {"gpu-0": EndpointStats(sent=2, answered=2, state=READY)}
    assert isinstance(stats, dict)
    assert repr(stats) == repr(dict(stats))
    assert pickle.loads(pickle.dumps(stats)) == stats
    assert json.loads(json.dumps(stats, default=lambda each: each.sent)) == {"gpu-0": 2}


def test_statistics_say_where_each_endpoint_stands() -> None:
    shut = EndpointState(0, 4, "start", "out of service after failures", 2.5)
    page = page_of(FleetStats({"a": EndpointStats(state=READY), "b": EndpointStats(failed=3, state=shut)}))
    assert words(page).startswith("2 endpoints")
    states = [[row[name] for name in ("endpoint", "now", "in flight", "window", "because")] for row in table(page, "endpoint")]
    assert states == [
        ["a", "ready", "3", "16", "rejected while 16 were served"],
        ["b", "out of service after failures, for 2.50 s", "0", "4", "start"],
    ]
    client = QRewardClient([Endpoint("http://gpu-0.example/v1", name="gpu-0")])
    assert words(page_of(client.stats())).startswith("1 endpoint endpoint sent answered now")
    assert words(page_of(FleetStats())) == "0 endpoints"


def test_a_batch_of_many_items_and_endpoints_is_a_small_page() -> None:
    results = [answered(index, 1.0 + index % 999) for index in range(10_000)]
    endpoints = {f"gpu-{index}": EndpointStats(sent=10, answered=9, p50=0.1, p95=0.2, p99=0.3) for index in range(1000)}
    page = page_of(batch(*results, failed(0, RateLimited("no " * 10_000)), **endpoints))
    assert len(page) < 80_000
    assert f"and {1000 - MOST_ROWS} more" in words(page)
    assert "latency of 10,000 answers" in words(page)


@example("<b>name</b>", "<i>said</i>")
@given(st.text(min_size=1, max_size=30), st.text(max_size=60))
def test_no_name_and_no_message_becomes_markup(name: str, said: str) -> None:
    state = EndpointState(0, 1, said, said, None)
    thing = batch(failed(0, RateLimited(said)), **{name: EndpointStats(sent=1, state=state)})
    for page in (thing._repr_html_(), FleetStats(thing.stats.endpoints)._repr_html_()):
        assert set(re.findall(r"<(\w+)", page)) <= {"div", "b", "span", "table", "tr", "th", "td"}
        assert page.count("<b>") == 1


async def test_no_key_and_no_header_is_shown_even_if_a_server_quotes_them() -> None:
    secrets = ("sk-Kx81-very-secret", "team-token-4471")

    def quote(request: httpx.Request) -> httpx.Response:
        return httpx.Response(400, json={"error": {"message": f"<b>you sent {dict(request.headers)}</b>"}})

    made = Endpoint(
        "http://gpu-0.example/v1",
        name="gpu-0",
        api_key=secrets[0],
        headers={"x-token": secrets[1]},
        http_client=httpx.MockTransport(quote),
    )
    async with QRewardClient([made], retry=Retry(attempts=1)) as client:
        result = await client.batch_chat_completion([chat("hi")], MODEL)
        page = page_of(result) + page_of(client.stats())
    assert "BadRequest" in page
    assert "you sent" in page
    assert "<b>you" not in page
    assert not [secret for secret in secrets if secret in page]


def test_times_numbers_and_texts_are_said_as_people_read_them() -> None:
    times = {0.0: "0.0 ms", 0.0042: "4.2 ms", 0.25: "250 ms", 0.9994: "999 ms", 0.9996: "1.00 s", 12.34: "12.3 s", 4000.0: "4,000 s"}
    numbers = {0: "0", 7: "7", 2.04: "2", 41.26: "41.3", 1234.6: "1,235"}
    assert {value: seconds(value) for value in times} == times
    assert {value: number(value) for value in numbers} == numbers
    assert clip("abc", 3) == "abc"
    assert clip("abcdef", 2) == "ab\u2026 (4 more characters)"
