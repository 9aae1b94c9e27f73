"""The error tree: how it is cut, what an error carries, and that it survives the way between processes."""

from __future__ import annotations

import ast
import copy
import importlib
import inspect
import pickle
import re
import traceback
from pathlib import Path
from typing import Any

import qreward
from qreward import errors
from qreward.errors import ConfigError, NoEndpoint, QRewardError, Rejected, RequestError, RequestTimeout, StreamInterrupted
from qreward.records import AttemptRecord
from qreward.results import BatchInterrupted, BatchResult, BatchStats, Result

ROOT = Path(__file__).parents[1]
CLASSES: list[Any] = [thing for _, thing in inspect.getmembers(errors, inspect.isclass) if thing.__module__ == errors.__name__]
TRAIL = (AttemptRecord("gpu-0", "transient", 0.25, 500, "boom"), AttemptRecord("gpu-1", "timeout", 2.0))


def full(kind: type[RequestError]) -> RequestError:
    error = kind("gpu-1 gave no answer", endpoint="gpu-1", model="judge-7b", status_code=500, request_id="req-1")
    error.attempts = TRAIL
    return error


def test_errors_are_exceptions_that_show_their_message_and_what_was_tried_and_what_was_not_are_different_branches() -> None:
    for kind in CLASSES:
        assert issubclass(kind, QRewardError)
        assert issubclass(kind, Exception), "a cancellation is none"
        assert not kind.__name__.startswith("Cancel")
        assert kind.__dict__.get("__doc__")
        assert str(kind("what, where, what to change")) == "what, where, what to change"
    assert issubclass(RequestTimeout, TimeoutError)
    assert issubclass(ConfigError, ValueError)
    assert not issubclass(Rejected, RequestError)
    assert not issubclass(RequestError, Rejected)
    assert not issubclass(NoEndpoint, RequestError | Rejected)


def test_an_error_keeps_its_message_and_details_between_processes_and_has_empty_ones_without() -> None:
    for kind in CLASSES:
        if not issubclass(kind, RequestError):
            there = pickle.loads(pickle.dumps(kind("the queue is full")))
            assert (type(there), str(there)) == (kind, "the queue is full")
            continue
        bare = kind("no answer")
        assert (bare.endpoint, bare.model, bare.status_code, bare.request_id, bare.attempts) == (None, None, None, None, ())
        for there in (pickle.loads(pickle.dumps(full(kind))), copy.copy(full(kind)), copy.deepcopy(full(kind))):
            assert (type(there), str(there)) == (kind, "gpu-1 gave no answer")
            assert (there.endpoint, there.model, there.status_code, there.request_id) == ("gpu-1", "judge-7b", 500, "req-1")
            assert there.attempts == TRAIL
    broken = StreamInterrupted("broke off", text="so far", endpoint="gpu-1")
    broken.add_note("while scoring step 12")
    there = pickle.loads(pickle.dumps(broken))
    assert (there.text, there.endpoint, there.__notes__) == ("so far", "gpu-1", ["while scoring step 12"])


def test_an_interrupted_batch_keeps_its_results_between_processes() -> None:
    done: BatchResult[object] = BatchResult([Result(0, None, full(RequestError), "gpu-1", 0.0, 0.1, TRAIL)], BatchStats(items=1, failed=1))
    there = pickle.loads(pickle.dumps(BatchInterrupted("the input raised after 1 item", done)))
    assert (str(there), len(there.results), there.results.stats) == ("the input raised after 1 item", 1, done.stats)
    assert (type(there.results[0].error), there.results[0].attempts) == (RequestError, TRAIL)


def test_every_error_names_its_section_of_the_page_of_errors_and_one_without_a_section_names_that_of_its_base() -> None:
    for module in ("bulk.journal", "integrations.areal", "integrations.roll"):
        importlib.import_module(f"qreward.{module}")  # they define errors that are not public
    headings = {line[3:].lower() for line in (ROOT / "docs/reference/errors.md").read_text().splitlines() if line.startswith("## ")}
    kinds = [QRewardError]
    for kind in kinds:
        kinds += kind.__subclasses__()
        page, _, section = kind.help_url.partition("#")
        assert (page, section in headings) == ("documentation page reference/errors", True), kind
        if getattr(qreward, kind.__name__, None) is kind:
            assert section == kind.__name__.lower()
    assert len(kinds) > len(CLASSES) + 3
    assert type("Mine", (RequestTimeout,), {})("too late").help_url == RequestTimeout.help_url


def test_no_message_names_a_file_that_an_installed_package_does_not_have() -> None:
    named = re.compile(r"(?<![\w/.-])(docs|examples|benchmarks|tests)/|\.md\b")
    found, scanned = [], 0
    for path in sorted((ROOT / "qreward").rglob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        docstrings = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
        texts = [(node, node.value) for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)]
        scanned += len(texts)
        found += [f"{path}:{node.lineno}: {text}" for node, text in texts if id(node) not in docstrings and named.search(text)]
    assert (found, scanned > 10_000) == ([], True)
    for where in re.findall(r"page\(f?[\"']([\w/.-]+)", "".join(path.read_text() for path in (ROOT / "qreward").rglob("*.py"))):
        assert where.endswith("/") or (ROOT / "docs" / f"{where}.md").is_file(), where


def test_a_traceback_of_wrong_settings_shows_the_page_and_the_message_of_an_error_does_not() -> None:
    for error in (ConfigError("no such file"), pickle.loads(pickle.dumps(ConfigError("no such file")))):
        assert str(error) == "no such file"
        _, note = traceback.format_exception_only(error)
        assert note.strip() == "See documentation page reference/errors#configerror"
    assert len(traceback.format_exception_only(RequestTimeout("too late"))) == 1
    assert errors.page("trainers/trl") == "documentation page trainers/trl"
    assert errors.page("reference/errors", "ratelimited") == "documentation page reference/errors#ratelimited"
