"""Blocking iterators over asynchronous iterables: order, back-pressure, one task and context for all of it, and every way out."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import signal
import sys
import threading
from collections.abc import AsyncIterator
from itertools import product
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scale import SCALE

from qreward import ClientClosed
from qreward.engine.portal import Portal, portal

INSIDE: contextvars.ContextVar[str] = contextvars.ContextVar("INSIDE")


class Source:
    """Numbers from 0, and what became of their generator. A context variable is set at its start and reset at its end."""

    def __init__(self, count: int = 1_000_000, *, patient: bool = True, fails: Exception | None = None, close_fails: bool = False) -> None:
        self.count, self.patient, self.fails, self.close_fails = count, patient, fails, close_fails
        self.made = 0
        self.opened = False
        self.closed = threading.Event()
        self.tasks: set[Any] = set()

    async def __aiter__(self) -> AsyncIterator[int]:
        self.opened = True
        token = INSIDE.set("the generator")  # may be reset only in the context in which it was set
        try:
            for number in range(self.count):
                self.tasks.add(asyncio.current_task())
                if self.patient:
                    await asyncio.sleep(0)
                self.made += 1
                yield number
            if self.fails is not None:
                raise self.fails
        finally:
            try:
                await asyncio.sleep(0)
            finally:  # a reader may stop while the source is just being closed because it has ended
                self.tasks.add(asyncio.current_task())
                INSIDE.reset(token)
                self.closed.set()
            if self.close_fails:
                raise OSError("cannot be closed")


async def settled() -> None:
    """A few turns of the loop, for whoever would still go on."""
    for _ in range(50):
        await asyncio.sleep(0)


def test_all_items_come_in_their_order_and_then_no_more_from_one_task_with_one_context() -> None:
    for count, ahead, patient in product((0, 1, 300), (1, 2, 7, 64, 1000), (True, False)):
        source = Source(count, patient=patient)
        stream = portal().iterate(source, ahead)
        case = (count, ahead, patient)
        assert (list(stream), list(stream), source.closed.is_set(), len(source.tasks)) == (list(range(count)), [], True, 1), case


@settings(max_examples=30 * SCALE)
@given(count=st.integers(0, 80), ahead=st.integers(1, 12), taken=st.integers(0, 90), patient=st.booleans())
def test_a_reader_that_stops_has_the_first_items_and_closes_the_source(count: int, ahead: int, taken: int, patient: bool) -> None:
    source = Source(count, patient=patient)
    with portal().iterate(source, ahead) as stream:
        read = [number for number, _ in zip(stream, range(taken), strict=False)]
    assert read == list(range(min(count, taken)))
    assert source.made <= taken + 1 + ahead
    assert source.closed.is_set() == source.opened
    assert len(source.tasks) <= 1
    assert list(stream) == []


def test_the_source_waits_for_its_reader_and_goes_on_when_half_is_read() -> None:
    source = Source(patient=False)
    with portal().iterate(source, 10) as stream:
        made = []
        for _ in range(7):
            next(stream)
            portal().call(settled)
            made.append(source.made)
    assert made == [10, 10, 10, 10, 15, 15, 15]


def test_nothing_begins_before_the_first_item_is_asked_for_in_the_context_of_its_reader() -> None:
    seen: contextvars.ContextVar[str] = contextvars.ContextVar("seen")
    source = Source()
    unread = portal().iterate(source)
    portal().call(settled)
    unread.close()
    assert (list(unread), source.opened) == ([], False)

    async def look() -> AsyncIterator[str]:
        yield seen.get()
        yield seen.get()

    stream = portal().iterate(look())
    seen.set("first")
    assert next(stream) == "first"
    seen.set("second")
    assert next(stream) == "first"
    stream.close()


def test_an_error_of_the_source_or_of_its_closing_comes_after_its_items_and_once() -> None:
    source = Source(5, fails=LookupError("no more"))
    stream = portal().iterate(source, 2)
    read: list[int] = []
    with pytest.raises(LookupError, match="no more"):
        read.extend(stream)  # extend keeps what came before
    assert read == [0, 1, 2, 3, 4]
    assert list(stream) == []
    assert source.closed.is_set()
    closing = portal().iterate(Source(close_fails=True))
    next(closing)
    with pytest.raises(OSError, match="cannot be closed"):
        closing.close()


def leave_by_break(source: Source) -> None:
    for number in portal().iterate(source):
        if number == 3:
            break


def leave_by_error(source: Source) -> None:
    def read() -> None:
        with portal().iterate(source) as stream:
            for number in stream:
                _ = 1 // (number - 3)

    with pytest.raises(ZeroDivisionError):
        read()
    assert source.closed.is_set()


def leave_to_the_collector(source: Source) -> None:
    ring: list[Any] = [portal().iterate(source)]
    ring.append(ring)
    next(ring[0])
    del ring
    gc.collect()


def leave_where_the_source_waits(source: Source) -> None:
    source.patient = False
    stream = portal().iterate(source, 2)
    next(stream)
    portal().call(settled)
    stream.close()
    assert source.closed.is_set(), "close waits for it"
    stream.close()
    assert list(stream) == []


def test_a_reader_that_leaves_closes_the_source() -> None:
    for leave in (leave_by_break, leave_by_error, leave_to_the_collector, leave_where_the_source_waits):
        source = Source()
        leave(source)
        assert source.closed.wait(30), leave


def test_an_interrupt_of_the_waiting_reader_closes_the_source() -> None:
    ident = threading.main_thread().ident
    assert ident is not None
    closed, received = threading.Event(), threading.Event()

    async def interrupts() -> AsyncIterator[int]:
        yield 0
        while not received.is_set() or sys._current_frames()[ident].f_code.co_name != "__next__":  # noqa: ASYNC110 - nobody tells us
            await asyncio.sleep(0)
        await asyncio.sleep(0.02)  # in which it certainly has come to wait
        signal.pthread_kill(ident, signal.SIGINT)
        try:
            await asyncio.sleep(60)
        finally:
            closed.set()

    stream = portal().iterate(interrupts())
    assert next(stream) == 0
    received.set()
    with pytest.raises(KeyboardInterrupt):
        next(stream)
    assert closed.is_set()
    assert list(stream) == []


def test_a_stream_is_not_read_in_the_portals_own_thread_but_may_be_closed_there() -> None:
    source = Source()
    stream = portal().iterate(source)
    next(stream)

    async def read() -> None:
        next(stream)

    async def close() -> None:
        stream.close()

    with pytest.raises(RuntimeError, match="in on_result or in the input of a batch"):
        portal().call(read)
    assert not source.closed.is_set()
    portal().call(close)
    assert source.closed.wait(30)
    assert list(stream) == []


def test_a_reader_whose_portal_ends_has_the_items_that_were_there_and_is_told() -> None:
    mine, at_the_end = Portal(), threading.Event()

    async def hangs() -> AsyncIterator[int]:
        for number in range(3):
            yield number
        at_the_end.set()
        await asyncio.sleep(60)

    stream = mine.iterate(hangs())
    assert next(stream) == 0
    assert at_the_end.wait(30)
    mine.close()
    read: list[int] = []
    with pytest.raises(ClientClosed, match="the request was dropped"):
        read.extend(stream)
    assert read == [1, 2]
    assert list(stream) == []
