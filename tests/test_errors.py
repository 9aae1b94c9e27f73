"""The error tree: how it is cut, what an error carries, and that it survives the way between processes."""

from __future__ import annotations

import copy
import inspect
import pickle

import pytest

from qreward import errors
from qreward.errors import ConfigError, NoEndpoint, QRewardError, Rejected, RequestError, RequestTimeout
from qreward.results import AttemptRecord, BatchInterrupted, BatchResult, BatchStats, Result

CLASSES = [thing for _, thing in inspect.getmembers(errors, inspect.isclass) if thing.__module__ == errors.__name__]
REQUEST_ERRORS = [kind for kind in CLASSES if issubclass(kind, RequestError)]
PLAIN_ERRORS = [kind for kind in CLASSES if not issubclass(kind, RequestError | BatchInterrupted)]
TRAIL = (AttemptRecord("gpu-0", "transient", 0.25, 500, "boom"), AttemptRecord("gpu-1", "timeout", 2.0))


def full(kind: type[RequestError]) -> RequestError:
    error = kind("gpu-1 gave no answer", endpoint="gpu-1", model="judge-7b", status_code=500, request_id="req-1")
    error.attempts = TRAIL
    return error


@pytest.mark.parametrize("kind", CLASSES)
def test_every_error_is_caught_by_the_base_and_documented(kind: type[Exception]) -> None:
    assert issubclass(kind, QRewardError)
    assert kind.__dict__.get("__doc__")


@pytest.mark.parametrize("kind", CLASSES)
def test_no_error_hides_from_except_exception_or_looks_like_a_cancellation(kind: type[Exception]) -> None:
    assert issubclass(kind, Exception)
    assert not kind.__name__.startswith("Cancel")


@pytest.mark.parametrize("kind", CLASSES)
def test_the_message_is_what_is_shown(kind: type[Exception]) -> None:
    assert str(kind("what, where, what to change")) == "what, where, what to change"


def test_errors_are_also_the_builtin_errors_they_are_by_nature() -> None:
    assert issubclass(RequestTimeout, TimeoutError)
    assert issubclass(ConfigError, ValueError)


def test_what_was_tried_and_what_was_not_are_different_branches() -> None:
    assert not issubclass(Rejected, RequestError)
    assert not issubclass(RequestError, Rejected)
    assert not issubclass(NoEndpoint, RequestError | Rejected)


@pytest.mark.parametrize("kind", REQUEST_ERRORS)
def test_a_request_error_without_details_has_empty_ones(kind: type[RequestError]) -> None:
    error = kind("no answer")
    assert (error.endpoint, error.model, error.status_code, error.request_id, error.attempts) == (None, None, None, None, ())


@pytest.mark.parametrize("kind", REQUEST_ERRORS)
@pytest.mark.parametrize("send", [lambda error: pickle.loads(pickle.dumps(error)), copy.copy, copy.deepcopy])
def test_a_request_error_keeps_its_details_between_processes(kind: type[RequestError], send: object) -> None:
    assert callable(send)
    there = send(full(kind))
    assert type(there) is kind
    assert str(there) == "gpu-1 gave no answer"
    assert (there.endpoint, there.model, there.status_code, there.request_id) == ("gpu-1", "judge-7b", 500, "req-1")
    assert there.attempts == TRAIL


@pytest.mark.parametrize("kind", PLAIN_ERRORS)
def test_any_other_error_keeps_its_message_between_processes(kind: type[Exception]) -> None:
    there = pickle.loads(pickle.dumps(kind("the queue has no room")))
    assert type(there) is kind
    assert str(there) == "the queue has no room"


def test_an_error_keeps_the_notes_that_were_added_to_it() -> None:
    error = full(RequestTimeout)
    error.add_note("while scoring step 12")
    assert pickle.loads(pickle.dumps(error)).__notes__ == ["while scoring step 12"]


def test_an_interrupted_batch_keeps_its_results_and_cause_apart() -> None:
    done: BatchResult[object] = BatchResult([Result(0, None, full(RequestError), "gpu-1", 0.0, 0.1, TRAIL)], BatchStats(items=1, failed=1))
    there = pickle.loads(pickle.dumps(BatchInterrupted("the input raised after 1 item", done)))
    assert str(there) == "the input raised after 1 item"
    assert len(there.results) == 1
    assert there.results.stats == done.stats
    assert type(there.results[0].error) is RequestError
    assert there.results[0].attempts == TRAIL
