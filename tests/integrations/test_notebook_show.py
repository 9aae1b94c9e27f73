"""Streams shown in a notebook: how often they are drawn, what stands there at the end, and what goes on outside a notebook."""

from __future__ import annotations

import asyncio
import re
import time
from itertools import pairwise
from typing import Any

import pytest
from notebook_tools import BROKEN, MODEL, Notebook, chat, speaking

from qreward import BatchInterrupted, ConfigError, ServerError, StreamInterrupted, SyncQRewardClient
from qreward.integrations import notebook as display
from qreward.integrations.notebook import show, show_batch
from qreward.testing import FakeEndpoint, FakeFleet, Latency, echo_of


@pytest.fixture(autouse=True)
def virtual_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Streams are timed by the loop that runs, if one does."""

    def now() -> float:
        try:
            return asyncio.get_running_loop().time()
        except RuntimeError:
            return time.monotonic()

    monkeypatch.setattr(display, "monotonic", now)


SLOW = [1.0, *(step for number in range(100) for step in (f"{number} ", 0.01))]  # a second, then 100 tokens a second


async def shown(steps: Any, **settings: Any) -> Any:
    """Show one stream to its end."""
    async with speaking({"hi": steps}) as client:
        return await show(client.stream_chat_completion(chat("hi"), MODEL, **settings))


async def shown_batch(scripts: dict[str, Any], cards: int = 12, **settings: Any) -> Any:
    async with speaking(scripts) as client:
        stream = client.batch_stream_chat_completion(map(chat, scripts), MODEL, **settings)
        return await show_batch(stream, cards=cards)


# one stream


def at_most_ten_times_a_second(notebook: Notebook) -> None:
    times = [drawn.at for drawn in notebook.shown]
    assert min(after - before for before, after in pairwise(times[:-1])) >= 0.0999
    assert 10 <= len(times) <= 20
    assert {drawn.output for drawn in notebook.shown} == {"output 1"}
    assert [drawn.update for drawn in notebook.shown] == [False] + [True] * (len(notebook.shown) - 1)


async def test_a_stream_is_drawn_in_one_output_at_most_ten_times_a_second_and_once_at_its_end(notebook: Notebook) -> None:
    completion = await shown([SLOW])
    text = "".join(f"{number} " for number in range(100))
    assert completion == {"content": text}
    at_most_ten_times_a_second(notebook)
    assert (notebook.shown[0].at, notebook.shown[-1].at) == (0, pytest.approx(2.0, abs=0.01))
    assert notebook.shown[-1].plain.startswith(text)


async def test_nothing_is_drawn_while_nothing_changes_but_the_seconds_and_tokens_before_a_pause_within_it(notebook: Notebook) -> None:
    await shown([[10.5, "one ", "two ", 5.0, "three"]])
    assert [drawn.words for drawn in notebook.shown[:11]] == [f"waiting {second} s" for second in range(11)]
    assert "one two" in notebook.shown[11].words
    assert notebook.shown[11].at <= 10.61


async def test_the_facts_are_endpoint_first_token_tokens_as_the_server_counts_them_and_their_rate(notebook: Notebook) -> None:
    await shown([[0.5, "a", 0.25, "b", 5.0, "c", 0.5]])
    (words,) = {drawn.words for drawn in notebook.shown if drawn.words.startswith("streaming 2 s")}
    assert words == "streaming 2 s · first token after 500 ms · about 2 tokens · 4 tokens/s ab"
    # thirty tokens in three pieces: two of the pieces came in the 5.25 s after the first
    assert notebook.shown[-1].words == "done gpu-0 · 6.25 s · first token after 500 ms · 30 tokens · 3.8 tokens/s abc"


async def test_a_stream_that_fails_keeps_its_text_shows_the_error_and_raises_it(notebook: Notebook) -> None:
    with pytest.raises(StreamInterrupted) as caught:
        await shown([[0.1, "half an ", 0.1, "answ", BROKEN]])
    assert caught.value.text == "half an answ"
    words = notebook.shown[-1].words
    assert words.startswith("interrupted gpu-0 · 200 ms")
    assert "half an answ StreamInterrupted: the stream broke off after 12 characters: endpoint 'gpu-0' answered 500" in words
    with pytest.raises(ServerError):
        await shown([[BROKEN]])
    assert notebook.shown[-1].words.startswith("failed gpu-0")
    assert "ServerError: endpoint 'gpu-0' answered 500" in notebook.shown[-1].words


async def test_an_answer_that_begins_anew_voids_its_text_and_tells_of_it_to_the_end(notebook: Notebook) -> None:
    await shown([[0.2, "void", 0.2, BROKEN], [1.0, "new", 0.2]], on_interrupt="restart")
    assert any("void" in drawn.plain for drawn in notebook.shown)
    words = notebook.shown[-1].words
    assert re.match(r"done gpu-0 · 1\.6\d s · first token after 1\.4\d s · 10 tokens · restarted once new it began anew after", words)
    assert words.endswith("ServerError: endpoint 'gpu-0' answered 500")


async def test_a_cell_that_is_stopped_keeps_what_has_come_and_closes_the_stream(notebook: Notebook) -> None:
    async with speaking({"hi": [SLOW]}) as client:
        cell = asyncio.create_task(show(client.stream_chat_completion(chat("hi"), MODEL)))
        await asyncio.sleep(1.502)
        cell.cancel()
        with pytest.raises(asyncio.CancelledError):
            await cell
        await asyncio.sleep(0.01)
        assert client.stats()["gpu-0"].cancelled == 1
    assert notebook.shown[-1].words.startswith("stopped 1.50 s")
    assert notebook.shown[-1].words.endswith(" 48 49 50")


async def test_a_stream_that_was_read_before_is_shown_whole_and_without_times_that_are_not_known(notebook: Notebook) -> None:
    async with speaking({"hi": [[0.1, "a", 0.1, "b", 0.1, "c"]]}) as client:
        stream = await client.stream_chat_completion(chat("hi"), MODEL)
        events = stream.events()
        assert await anext(events) == "a"
        await show(stream)
        assert notebook.shown[0].words == "waiting 0 s a"
        assert notebook.shown[-1].words == "done gpu-0 · 200 ms · 30 tokens abc"
        assert await show(stream) == {"content": "abc"}, "also when it has ended"
    assert notebook.shown[-1].words == "done gpu-0 · 0.0 ms · 30 tokens abc"


# many streams


async def test_a_batch_is_drawn_as_one_grid_at_most_ten_times_a_second(notebook: Notebook) -> None:
    results = await shown_batch({f"p{number}": [[0.5 + number / 100, *SLOW[1:]]] for number in range(4)})
    assert [result.text for result in results] == ["".join(f"{number} " for number in range(100))] * 4
    at_most_ten_times_a_second(notebook)
    assert notebook.shown[-1].words.startswith("4 done · 1.53 s · 263 tokens/s #0 done gpu-0 · 1.50 s · first token after 500 ms")


async def test_a_grid_shows_what_failed_and_what_began_anew_beside_what_is_done(notebook: Notebook) -> None:
    scripts = {"good": [[0.1, "fine"]], "bad": [[BROKEN]], "again": [[0.1, "void", BROKEN], [0.3, "new"]]}
    results = await shown_batch(scripts, on_interrupt="restart")
    assert [result.ok for result in results] == [True, False, True]
    words = notebook.shown[-1].words
    assert words.startswith("2 done · 1 failed")
    assert re.search("#1 failed gpu-0 · [^ ]+ ms ServerError: endpoint 'gpu-0' answered 500", words)
    assert "restarted once new it began anew after ServerError" in words
    assert "void" not in words


async def test_a_grid_whose_input_breaks_or_that_is_stopped_shows_that_and_raises_it(notebook: Notebook) -> None:
    def breaking() -> Any:
        yield chat("a")
        raise RuntimeError("the file is cut off")

    async with speaking({"a": [[0.1, "fine"]], "b": [SLOW]}) as client:
        with pytest.raises(BatchInterrupted) as caught:
            await show_batch(client.batch_stream_chat_completion(breaking(), MODEL))
        assert caught.value.results is not None
        assert "1 done" in notebook.shown[-1].words
        assert "the file is cut off" in notebook.shown[-1].words

        cell = asyncio.create_task(show_batch(client.batch_stream_chat_completion([chat("b")] * 2, MODEL)))
        await asyncio.sleep(1.5)
        cell.cancel()
        with pytest.raises(asyncio.CancelledError):
            await cell
        await asyncio.sleep(0.01)
    assert notebook.shown[-1].words.startswith("0 done · 2 stopped · 1.50 s")


# what is not a stream, and where there is no notebook


async def test_what_is_no_stream_is_refused_and_the_right_function_is_named() -> None:
    async with speaking({}) as client:
        with pytest.raises(ConfigError, match="show_batch takes many"):
            show(client.batch_stream_chat_completion([], MODEL))  # type: ignore[call-overload]
        with pytest.raises(ConfigError, match="show takes a single"):
            show_batch(client.stream_chat_completion(chat("hi"), MODEL))  # type: ignore[call-overload]
        with pytest.raises(ConfigError, match="cards"):
            show_batch(client.batch_stream_chat_completion([], MODEL), cards=-1)  # type: ignore[unused-coroutine]


async def test_outside_a_notebook_the_text_of_one_stream_and_the_counts_of_many_are_printed_at_the_end(
    capsys: pytest.CaptureFixture[str],
) -> None:
    await shown([[0.5, "a", 0.25, "b", 0.25, "c", 0.5]])
    assert capsys.readouterr().out == "abc\n[done · gpu-0 · 1.50 s · first token after 500 ms · 30 tokens · 40 tokens/s]\n"
    await shown_batch({"slow": [[0.5, "later"]], "quick": [[0.1, "sooner"]]})
    assert capsys.readouterr().out.startswith("[2 done · 500 ms")


def test_blocking_streams_are_shown_too(capsys: pytest.CaptureFixture[str]) -> None:
    pace = Latency(base=0.01, per_token=0.001, tokens=10)
    with FakeFleet([FakeEndpoint("a", latency=pace)]) as fleet, SyncQRewardClient(fleet.endpoints) as client:
        completion = show(client.stream_chat_completion(chat("hi"), MODEL))
        batch = show_batch(client.batch_stream_chat_completion([chat("x"), chat("y")], MODEL))
    assert completion.choices[0].message.content == echo_of(chat("hi"))
    assert batch.texts() == [echo_of(chat("x")), echo_of(chat("y"))]
    out = capsys.readouterr().out
    assert out.startswith(f"{echo_of(chat('hi'))}\n[done · a · ")
    assert "[2 done · " in out
