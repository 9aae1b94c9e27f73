"""The error tree: how it is cut, what an error carries, and that it survives the way between processes."""

from __future__ import annotations

import copy
import importlib
import inspect
import pickle
import traceback
from pathlib import Path
from typing import Any

import pytest

import qreward
from qreward import documentation, errors
from qreward.errors import ConfigError, NoEndpoint, QRewardError, Rejected, RequestError, RequestTimeout
from qreward.results import AttemptRecord, BatchInterrupted, BatchResult, BatchStats, Result

ROOT = Path(__file__).parents[1]
CLASSES: list[Any] = [thing for _, thing in inspect.getmembers(errors, inspect.isclass) if thing.__module__ == errors.__name__]
REQUEST_ERRORS = [kind for kind in CLASSES if issubclass(kind, RequestError)]
PLAIN_ERRORS = [kind for kind in CLASSES if not issubclass(kind, RequestError | BatchInterrupted)]
TRAIL = (AttemptRecord("gpu-0", "transient", 0.25, 500, "boom"), AttemptRecord("gpu-1", "timeout", 2.0))


def full(kind: type[RequestError]) -> RequestError:
    error = kind("gpu-1 gave no answer", endpoint="gpu-1", model="judge-7b", status_code=500, request_id="req-1")
    error.attempts = TRAIL
    return error


def test_every_error_is_an_exception_with_a_docstring_that_shows_its_message() -> None:
    said = "what, where, what to change"
    for kind in CLASSES:
        assert issubclass(kind, QRewardError)
        assert issubclass(kind, Exception), "a cancellation is none"
        assert not kind.__name__.startswith("Cancel")
        assert kind.__dict__.get("__doc__")
        assert str(kind(said)) == said


def test_errors_are_also_the_builtin_errors_they_are_by_nature() -> None:
    assert issubclass(RequestTimeout, TimeoutError)
    assert issubclass(ConfigError, ValueError)


def test_what_was_tried_and_what_was_not_are_different_branches() -> None:
    assert not issubclass(Rejected, RequestError)
    assert not issubclass(RequestError, Rejected)
    assert not issubclass(NoEndpoint, RequestError | Rejected)


def test_a_request_error_keeps_its_details_between_processes_and_has_empty_ones_without() -> None:
    for kind in REQUEST_ERRORS:
        bare = kind("no answer")
        assert (bare.endpoint, bare.model, bare.status_code, bare.request_id, bare.attempts) == (None, None, None, None, ())
        for there in (pickle.loads(pickle.dumps(full(kind))), copy.copy(full(kind)), copy.deepcopy(full(kind))):
            assert type(there) is kind
            assert str(there) == "gpu-1 gave no answer"
            assert (there.endpoint, there.model, there.status_code, there.request_id) == ("gpu-1", "judge-7b", 500, "req-1")
            assert there.attempts == TRAIL


def test_any_other_error_keeps_its_message_between_processes() -> None:
    for kind in PLAIN_ERRORS:
        there = pickle.loads(pickle.dumps(kind("the queue is full")))
        assert (type(there), str(there)) == (kind, "the queue is full")


def test_an_error_keeps_the_notes_that_were_added_to_it() -> None:
    error = full(RequestTimeout)
    error.add_note("while scoring step 12")
    assert pickle.loads(pickle.dumps(error)).__notes__ == ["while scoring step 12"]


def test_every_error_names_its_section_of_the_page_of_errors_and_one_without_a_section_names_that_of_its_base() -> None:
    for module in ("bulk.journal", "integrations.areal", "integrations.roll.rewards"):
        importlib.import_module(f"qreward.{module}")  # they define errors that are not public
    headings = {line[3:].lower() for line in (ROOT / "docs/reference/errors.md").read_text().splitlines() if line.startswith("## ")}
    kinds = [QRewardError]
    for kind in kinds:
        kinds += kind.__subclasses__()
        page, _, section = kind.help_url.partition("#")
        assert (page, section in headings) == ("docs/reference/errors.md", True), kind
        if getattr(qreward, kind.__name__, None) is kind:
            assert section == kind.__name__.lower()
    assert len(kinds) > len(CLASSES) + 3

    class Mine(RequestTimeout):
        """A user's own."""

    assert Mine("too late").help_url == RequestTimeout.help_url


def test_a_traceback_of_wrong_settings_shows_the_page_and_the_message_of_an_error_does_not() -> None:
    for error in (ConfigError("no such file"), pickle.loads(pickle.dumps(ConfigError("no such file")))):
        assert str(error) == "no such file"
        shown = traceback.format_exception_only(error)
        assert shown[-1].strip() == "See docs/reference/errors.md#configerror"
        assert len(shown) == 2
    assert len(traceback.format_exception_only(RequestTimeout("too late"))) == 1


def test_the_address_of_a_page_follows_from_that_of_the_documentation(monkeypatch: pytest.MonkeyPatch) -> None:
    assert documentation.page("trainers/trl") == "docs/trainers/trl.md"
    monkeypatch.setattr(documentation, "DOCUMENTATION", "https://qreward.example/")
    assert documentation.page("reference/errors", "ratelimited") == "https://qreward.example/reference/errors/#ratelimited"


def test_an_interrupted_batch_keeps_its_results_and_cause_apart() -> None:
    done: BatchResult[object] = BatchResult([Result(0, None, full(RequestError), "gpu-1", 0.0, 0.1, TRAIL)], BatchStats(items=1, failed=1))
    there = pickle.loads(pickle.dumps(BatchInterrupted("the input raised after 1 item", done)))
    assert str(there) == "the input raised after 1 item"
    assert len(there.results) == 1
    assert there.results.stats == done.stats
    assert type(there.results[0].error) is RequestError
    assert there.results[0].attempts == TRAIL
