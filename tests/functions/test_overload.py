"""What counts as overload: statuses, headers and codes that an exception carries, and never its words; through chains and groups."""

from __future__ import annotations

import io
import subprocess
import sys
import time
import urllib.error
from email.message import Message
from email.utils import formatdate
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qreward.errors import BadRequest, QRewardError, RateLimited, ServerError
from qreward.functions.overload import LINKS, Overload, overload_of
from qreward.results import AttemptRecord


class Told(Exception):
    """An exception with what a library's may carry."""

    def __init__(self, message: str = "told", **carried: Any) -> None:
        super().__init__(message)
        self.__dict__.update(carried)


def busy(seconds: float = 3) -> Told:
    return Told(status_code=429, headers={"Retry-After": str(seconds)})


def raised(make: Any) -> BaseException:
    """What a function raises, with its traceback and its chain."""
    with pytest.raises(BaseException) as caught:  # noqa: PT011 - whatever it is
        make()
    return caught.value


# what one exception says


@pytest.mark.parametrize("status", [429, 503, 529])
def test_a_status_of_overload_counts_wherever_a_library_puts_it(status: int) -> None:
    places = [
        Told(status_code=status),
        Told(status=status),
        Told(response=SimpleNamespace(status_code=status)),
        Told(response=SimpleNamespace(status=status)),
        Told(code=status, response=SimpleNamespace()),
    ]
    assert [overload_of(error) for error in places] == [Overload()] * 5


@pytest.mark.parametrize("status", [200, 400, 401, 404, 408, 418, 500, 502, 504, "429", 429.0, None])
def test_no_other_status_counts(status: object) -> None:
    assert overload_of(Told(status_code=status)) is None
    assert overload_of(Told(response=SimpleNamespace(status_code=status))) is None


@pytest.mark.parametrize(
    "words", ["too many requests in the prompt", "429", "Rate limit exceeded", "HTTP 503 Service Unavailable: overloaded"]
)
@pytest.mark.parametrize("kind", [ValueError, RuntimeError, Told])
def test_words_never_count(kind: type[Exception], words: str) -> None:
    assert overload_of(kind(words)) is None


def test_a_status_that_was_put_onto_a_plain_exception_counts() -> None:
    error = RuntimeError("the judge failed")
    error.status_code = 429  # type: ignore[attr-defined]
    assert overload_of(error) == Overload()


def test_a_bare_number_called_code_is_not_a_status() -> None:
    assert overload_of(Told(code=429)) is None
    assert overload_of(SystemExit(503)) is None


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"Retry-After": "2"}, 2.0),
        ({"RETRY-AFTER-MS": "1500", "retry-after": "9"}, 1.5),
        ({"retry-after": 7}, 7.0),
        ({"x-ratelimit-remaining-requests": "0", "x-ratelimit-reset-requests": "6m0s"}, 360.0),
        ({"retry-after": "soon"}, None),
        ({}, None),
        (None, None),
    ],
)
def test_the_wait_is_read_from_the_headers_of_the_error_or_of_its_answer(headers: Any, seconds: float | None) -> None:
    assert overload_of(Told(status=429, headers=headers)) == Overload(seconds)
    assert overload_of(Told(response=SimpleNamespace(status_code=429, headers=headers))) == Overload(seconds)


def test_a_wait_until_a_date_is_counted_from_now() -> None:
    found = overload_of(Told(status=503, headers={"retry-after": formatdate(time.time() + 3600, usegmt=True)}))
    assert found is not None
    assert found.retry_after == pytest.approx(3600, abs=60)


def test_the_wait_may_be_an_attribute_in_seconds_where_the_headers_are_silent() -> None:
    assert overload_of(Told(status=429, retry_after=4)) == Overload(4.0)
    assert overload_of(Told(status=429, retry_after=4, headers={"retry-after": "2"})) == Overload(2.0)
    assert [overload_of(Told(status=429, retry_after=odd)) for odd in (-1, float("nan"), "4", None)] == [Overload()] * 4
    assert overload_of(Told(retry_after=4)) is None


def test_the_servers_word_on_trying_again_is_passed_on() -> None:
    assert overload_of(Told(status=429, headers={"X-Should-Retry": "false"})) == Overload(None, should_retry=False)


def test_an_http_error_of_the_standard_library_counts() -> None:
    headers = Message()
    headers["Retry-After"] = "5"
    error = urllib.error.HTTPError("http://x", 429, "Too Many Requests", headers, io.BytesIO())
    assert overload_of(error) == Overload(5.0)
    error.close()


# a code in the body


@pytest.mark.parametrize("carried", [{"status_code": 200}, {"status_code": 400}, {"status_code": 500}, {}])
def test_a_code_in_the_body_counts_where_the_status_tells_nothing(carried: dict[str, int]) -> None:
    assert overload_of(Told(body={"error": {"type": "overloaded_error", "message": "x"}}, **carried)) == Overload()
    assert overload_of(Told(body={"code": "rate_limit_exceeded"}, **carried)) == Overload()
    assert overload_of(Told(body={"error": {"type": "invalid_request_error", "message": "Too many requests"}}, **carried)) is None
    assert overload_of(Told(body={"message": "Too many requests: rate limit exceeded"}, **carried)) is None


@pytest.mark.parametrize("code", ["insufficient_quota", "billing_hard_limit_reached"])
def test_a_used_up_account_is_no_overload(code: str) -> None:
    assert overload_of(Told(status_code=429, body={"code": code})) is None
    assert overload_of(Told(status_code=429, body={"error": {"type": code}}, headers={"retry-after": "1"})) is None
    assert overload_of(Told(response=SimpleNamespace(status_code=429, _content=f'{{"error":{{"code":"{code}"}}}}'.encode()))) is None
    assert overload_of(Told(status_code=402)) is None


@pytest.mark.parametrize("refusal", [{"status_code": 429, "body": {"code": "insufficient_quota"}}, {"status_code": 402}])
def test_a_used_up_account_is_none_however_it_is_wrapped(refusal: dict[str, Any]) -> None:
    def refuse() -> None:
        raise Told(**refusal)

    def wrap() -> None:
        try:
            refuse()
        except Told as error:
            raise Told(status_code=503) from error

    assert overload_of(raised(wrap)) is None


def test_a_body_that_was_not_read_is_not_read_now() -> None:
    class Unread:
        status_code = 429
        _content = False

        @property
        def content(self) -> bytes:
            raise AssertionError("reading blocks")

    assert overload_of(Told(response=Unread())) == Overload()


# our own


def test_our_own_rate_limited_is_overload_whatever_its_status() -> None:
    assert overload_of(RateLimited("no room")) == Overload()
    assert overload_of(RateLimited("an error inside", status_code=200)) == Overload()
    error = RateLimited("no room")
    error.retry_after = 2.5  # type: ignore[attr-defined]
    assert overload_of(error) == Overload(2.5)


def test_our_own_rate_limited_for_a_used_up_account_is_none() -> None:
    assert overload_of(RateLimited("used up", status_code=402)) is None
    error = RateLimited("used up", status_code=429)
    error.attempts = (AttemptRecord("a", "overloaded", 0.1, 429), AttemptRecord("a", "quota", 0.1, 429))
    assert overload_of(error) is None
    error.attempts = error.attempts[::-1]
    assert overload_of(error) == Overload()


def test_our_other_errors_are_none() -> None:
    others = [ServerError("x", status_code=500), BadRequest("x", status_code=400), QRewardError("rate limit exceeded")]
    assert [overload_of(error) for error in others] == [None] * 3


# botocore's shape


def test_a_throttled_call_of_aws_counts_by_its_code_or_its_status() -> None:
    assert overload_of(Told(response={"Error": {"Code": "ThrottlingException"}})) == Overload()
    about = {"HTTPStatusCode": 503, "HTTPHeaders": {"retry-after": "2"}}
    assert overload_of(Told(response={"Error": {"Code": "Odd"}, "ResponseMetadata": about})) == Overload(2.0)
    assert overload_of(Told(response={"Error": {"Code": "ValidationException"}, "ResponseMetadata": {"HTTPStatusCode": 400}})) is None
    assert overload_of(Told(response={"Error": {"Code": "LimitExceededException", "Message": "Throttling"}})) is None
    assert overload_of(Told(response={})) is None


# chains


def test_what_an_exception_was_raised_from_counts() -> None:
    def wrap() -> None:
        try:
            raise busy()
        except Told as error:
            raise ValueError("the judge failed") from error

    assert overload_of(raised(wrap)) == Overload(3.0)


def test_what_an_except_block_itself_raises_counts_for_what_it_caught() -> None:
    def wrap() -> None:
        try:
            deeper()
        except Told:
            raise ValueError("the judge failed")  # noqa: B904 - that is the point

    def deeper() -> None:
        raise busy()

    assert overload_of(raised(wrap)) == Overload(3.0)


def test_what_is_raised_by_something_called_while_handling_does_not_count() -> None:
    def wrap() -> None:
        try:
            raise busy()
        except Told:
            fall_back()

    def fall_back() -> None:
        raise ValueError("the other judge refuses")

    error = raised(wrap)
    assert isinstance(error.__context__, Told)
    assert overload_of(error) is None


def test_what_a_clean_up_raises_does_not_count() -> None:
    class Handle:
        def __enter__(self) -> None: ...
        def __exit__(self, *_: object) -> None:
            raise OSError("cannot close")

    def use() -> None:
        with Handle():
            raise busy()

    error = raised(use)
    assert isinstance(error.__context__, Told)
    assert overload_of(error) is None


def test_a_suppressed_context_does_not_count() -> None:
    def wrap() -> None:
        try:
            raise busy()
        except Told:
            raise ValueError("the judge failed") from None

    assert overload_of(raised(wrap)) is None


def test_an_overload_raised_while_something_else_was_handled_counts() -> None:
    def wrap() -> None:
        try:
            _ = {}["cache"]
        except KeyError:
            raise busy()  # noqa: B904

    assert overload_of(raised(wrap)) == Overload(3.0)


def test_a_wrapper_with_a_status_gets_the_wait_of_what_it_wraps() -> None:
    wrapper = Told(status_code=503)
    wrapper.__cause__ = busy(8)
    assert overload_of(wrapper) == Overload(8.0)


def test_what_a_wrapper_holds_as_its_reason_counts() -> None:
    assert overload_of(Told(reason=busy())) == Overload(3.0)
    assert overload_of(Told(reason="Too Many Requests")) is None


def test_an_exception_that_lost_its_traceback_counts_only_by_its_cause() -> None:
    error = ValueError("unpickled")
    error.__context__ = busy()
    assert overload_of(error) is None


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
    one, other = ValueError("one"), ValueError("other")
    one.__cause__, other.__cause__ = other, one
    assert overload_of(one) is None


# groups


def test_a_group_counts_if_all_of_it_does_and_its_longest_wait_holds() -> None:
    assert overload_of(ExceptionGroup("tasks", [busy(2), ExceptionGroup("more", [busy(5), Told(status=429)])])) == Overload(5.0)
    assert overload_of(ExceptionGroup("tasks", [busy(2), ValueError("wrong")])) is None
    used_up = Told(status_code=402)
    assert overload_of(ExceptionGroup("tasks", [busy(2), used_up])) is None
    assert overload_of(BaseExceptionGroup("tasks", [busy(2), KeyboardInterrupt()])) is None


def test_a_member_of_a_group_that_must_not_be_tried_again_speaks_for_the_group() -> None:
    refusing = Told(status=429, headers={"x-should-retry": "false"})
    assert overload_of(ExceptionGroup("tasks", [busy(2), refusing])) == Overload(2.0, should_retry=False)


# strangers


def test_a_mocked_answer_is_looked_at_without_harm() -> None:
    assert overload_of(Told(response=Mock(status_code=429))) == Overload()
    assert overload_of(Told(response=Mock(status_code=429, headers={"Retry-After": "1"}))) == Overload(1.0)
    assert overload_of(Told(response=Mock())) is None


def test_an_exception_whose_properties_raise_is_none() -> None:
    class Broken(Exception):
        @property
        def response(self) -> object:
            raise RuntimeError("not now")

    assert overload_of(Broken()) is None


ODD = st.one_of(st.none(), st.integers(), st.floats(), st.text(), st.binary(), st.sampled_from([429, 503, 402, Mock(), str.upper, int]))
TREES = st.recursive(ODD, lambda inner: st.lists(inner) | st.dictionaries(st.text() | st.integers(), inner), max_leaves=6)
NAMES = st.sampled_from(["status_code", "status", "code", "body", "response", "headers", "reason", "retry_after", "_content"])


@given(st.dictionaries(NAMES, TREES | st.builds(lambda given: SimpleNamespace(**given), st.dictionaries(NAMES, TREES))))
def test_whatever_an_exception_carries_looking_at_it_never_raises_and_waits_are_seconds(carried: dict[str, Any]) -> None:
    found = overload_of(Told(**carried))
    assert found is None or found.retry_after is None or 0 <= found.retry_after < float("inf")


def test_the_room_imports_none_of_the_libraries() -> None:
    script = "import sys; before = set(sys.modules); import qreward.functions.overload; print(*set(sys.modules) - before)"
    loaded = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60).stdout.split()
    libraries = {"httpx", "httpx2", "aiohttp", "requests", "urllib3", "openai", "grpc", "botocore", "anthropic", "google"}
    assert libraries.isdisjoint(name.partition(".")[0] for name in loaded)
