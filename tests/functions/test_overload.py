"""What counts as overload: statuses and headers that an exception carries, and never its words; through chains and groups."""

from __future__ import annotations

import math
import re
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import numpy
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scale import SCALE

from qreward.errors import RateLimited
from qreward.functions.calls import LINKS, Overload, failure_of, overload_of
from qreward.results import AttemptRecord


class Carrying(Exception):
    """An exception with what a library's may carry."""

    def __init__(self, message: str = "failed", /, **carried: Any) -> None:
        super().__init__(message)
        self.__dict__.update(carried)


def busy(seconds: float = 3) -> Carrying:
    return Carrying(status_code=429, headers={"Retry-After": str(seconds)})


def raised(make: Any) -> BaseException:
    """What a function raises, with its traceback and its chain."""
    with pytest.raises(BaseException) as caught:  # noqa: PT011 - whatever it is
        make()
    return caught.value


def test_a_status_of_overload_counts_wherever_a_library_puts_it_and_no_other_does() -> None:
    faults = []
    others = (200, 400, 401, 404, 408, 418, 500, 502, 504, "429", 429.0, None)
    for status, expected in [*((status, Overload()) for status in (429, 503, 529)), *((status, None) for status in others)]:
        places = [
            Carrying(status_code=status),
            Carrying(status=status),
            Carrying(response=SimpleNamespace(status_code=status)),
            Carrying(response=SimpleNamespace(status=status)),
        ]
        faults += [(vars(error), found) for error in places if (found := overload_of(error)) != expected]
    assert faults == []


def test_neither_words_nor_a_bare_number_called_code_count() -> None:
    words = ["too many requests in the prompt", "429", "Rate limit exceeded", "HTTP 503 Service Unavailable: overloaded"]
    errors = [*(kind(said) for said in words for kind in (ValueError, RuntimeError, Carrying)), Carrying(code=429), SystemExit(503)]
    assert [error for error in errors if overload_of(error) is not None] == []


def test_the_wait_is_read_from_the_headers_of_the_error_or_of_its_answer() -> None:
    table: list[tuple[Any, float | None]] = [
        ({"Retry-After": "2"}, 2.0),
        ({"RETRY-AFTER-MS": "1500", "retry-after": "9"}, 1.5),
        ({"retry-after": 7}, 7.0),
        ({"x-ratelimit-remaining-requests": "0", "x-ratelimit-reset-requests": "6m0s"}, 360.0),
        ({"retry-after": "soon"}, None),
        ({}, None),
        (None, None),
    ]
    for headers, seconds in table:
        assert overload_of(Carrying(status=429, headers=headers)) == Overload(seconds), headers
        assert overload_of(Carrying(response=SimpleNamespace(status_code=429, headers=headers))) == Overload(seconds), headers
    assert overload_of(Carrying(status=429, headers={"X-Should-Retry": "false"})) == Overload(None, should_retry=False)


def test_a_wait_of_a_users_function_that_is_none_is_no_wait() -> None:
    waits = [
        failure_of(ValueError(), SimpleNamespace(exception_types=lambda _, wait=wait: wait), waits=True) for wait in (2, -5.0, math.nan)
    ]
    assert [(each.again, each.wait) for each in waits] == [(True, 2.0), (True, 0.0), (True, 0.0)]


def test_a_wait_of_no_seconds_is_no_wait_and_a_long_one_counts_for_a_minute() -> None:
    for asked, waited in ((0, None), (2, 2.0), (86_400, 60.0)):
        found = failure_of(busy(asked), SimpleNamespace(exception_types=Exception), waits=True)
        assert (found.again, found.overloaded, found.wait) == (True, True, waited), asked


def test_what_a_users_function_returns_counts_as_true_or_false_if_it_is_no_number() -> None:
    returned = (None, re.match("a", "b"), re.match("a", "a"), numpy.bool_(False), numpy.bool_(True), numpy.float32(2))
    found = [failure_of(ValueError(), SimpleNamespace(exception_types=lambda _, it=it: it), waits=True) for it in returned]
    assert [(each.again, each.wait, type(each.error)) for each in found] == [
        (again, wait, ValueError) for again, wait in ((False, None), (False, None), (True, None), (False, None), (True, None), (True, 2.0))
    ]


def test_the_wait_may_be_an_attribute_in_seconds_where_the_headers_are_silent() -> None:
    assert overload_of(Carrying(status=429, retry_after=4)) == Overload(4.0)
    assert overload_of(Carrying(status=429, retry_after=4, headers={"retry-after": "2"})) == Overload(2.0)
    assert [overload_of(Carrying(status=429, retry_after=odd)) for odd in (-1, float("nan"), "4", None)] == [Overload()] * 4
    assert overload_of(Carrying(retry_after=4)) is None


def test_our_own_rate_limited_is_overload_unless_the_account_is_used_up() -> None:
    assert overload_of(RateLimited("an error inside", status_code=200)) == Overload()
    assert overload_of(RateLimited("used up", status_code=402)) is None
    error = RateLimited("used up", status_code=429)
    error.retry_after = 2.5  # type: ignore[attr-defined]
    error.attempts = (AttemptRecord("a", "overloaded", 0.1, 429), AttemptRecord("a", "quota", 0.1, 429))
    assert overload_of(error) is None
    error.attempts = error.attempts[::-1]
    assert overload_of(error) == Overload(2.5)


class FailsToClose:
    def __enter__(self) -> None: ...
    def __exit__(self, *_: object) -> None:
        raise OSError("cannot close")


def refuse() -> None:
    raise busy()


def test_what_an_exception_was_raised_from_counts() -> None:
    def raised_from() -> None:
        try:
            refuse()
        except Carrying as error:
            raise ValueError("the judge failed") from error

    assert overload_of(raised(raised_from)) == Overload(3.0)


def test_an_overload_that_is_only_the_context_of_another_failure_does_not_count() -> None:
    def raised_by_something_called_while_handling() -> None:
        try:
            refuse()
        except Carrying:
            fall_back()

    def fall_back() -> None:
        raise ValueError("the other judge refuses")

    def raised_by_a_clean_up() -> None:
        with FailsToClose():
            refuse()

    def raised_by_the_except_block() -> None:
        try:
            refuse()
        except Carrying:
            raise ValueError("the judge failed")  # noqa: B904 - that is the point

    for make in (raised_by_something_called_while_handling, raised_by_a_clean_up, raised_by_the_except_block):
        error = raised(make)
        assert isinstance(error.__context__, Carrying)
        assert overload_of(error) is None, make


def test_a_wrapper_with_a_status_gets_the_wait_of_what_it_wraps() -> None:
    wrapper = Carrying(status_code=503)
    wrapper.__cause__ = busy(8)
    assert overload_of(wrapper) == Overload(8.0)
    wrapper = Carrying(status_code=503, headers={"x-should-retry": "false"})
    wrapper.__cause__ = Carrying(status_code=429)
    assert overload_of(wrapper) == Overload(None, should_retry=False), "the outer one speaks first"


def test_a_chain_is_followed_for_some_links_and_a_cycle_ends() -> None:
    def chain(wrappers: int) -> BaseException:
        error: BaseException = busy()
        for _ in range(wrappers):
            outer = ValueError("wrapped")
            outer.__cause__ = error
            error = outer
        return error

    assert overload_of(chain(LINKS - 1)) == Overload(3.0)
    assert overload_of(chain(LINKS)) is None
    endless = ValueError("one")
    endless.__cause__ = ValueError("other")
    endless.__cause__.__cause__ = endless
    assert overload_of(endless) is None


def test_a_group_counts_if_all_its_members_do_and_its_longest_wait_holds() -> None:
    assert overload_of(ExceptionGroup("tasks", [busy(2), ExceptionGroup("more", [busy(5), Carrying(status=429)])])) == Overload(5.0)
    assert overload_of(ExceptionGroup("tasks", [busy(2), ValueError("wrong")])) is None
    used_up = Carrying(status_code=402)
    assert overload_of(ExceptionGroup("tasks", [busy(2), used_up])) is None
    assert overload_of(BaseExceptionGroup("tasks", [busy(2), KeyboardInterrupt()])) is None


def test_a_member_of_a_group_that_must_not_be_tried_again_speaks_for_the_group() -> None:
    refusing = Carrying(status=429, headers={"x-should-retry": "false"})
    assert overload_of(ExceptionGroup("tasks", [busy(2), refusing])) == Overload(2.0, should_retry=False)


def test_an_exception_whose_properties_raise_is_none() -> None:
    class Broken(Exception):
        @property
        def response(self) -> object:
            raise RuntimeError("not now")

    assert overload_of(Broken()) is None


ODD = st.one_of(st.none(), st.integers(), st.floats(), st.text(), st.binary(), st.sampled_from([429, 503, 402, Mock(), str.upper, int]))
TREES = st.recursive(ODD, lambda inner: st.lists(inner) | st.dictionaries(st.text() | st.integers(), inner), max_leaves=6)
NAMES = st.sampled_from(["status_code", "status", "code", "body", "response", "headers", "reason", "retry_after", "_content"])


@settings(max_examples=40 * SCALE)
@given(st.dictionaries(NAMES, TREES | st.builds(lambda given: SimpleNamespace(**given), st.dictionaries(NAMES, TREES))))
def test_whatever_an_exception_carries_looking_at_it_never_raises_and_waits_are_seconds(carried: dict[str, Any]) -> None:
    found = overload_of(Carrying(**carried))
    assert found is None or found.retry_after is None or 0 <= found.retry_after < float("inf")
