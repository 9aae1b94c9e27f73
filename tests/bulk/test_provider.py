"""What is known of a provider batch, its records in the journal, and its file on disk."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from bulk_fakes import MODEL

from qreward.bulk import provider
from qreward.bulk.budget import NOTHING, Spent
from qreward.bulk.inputs import Line
from qreward.bulk.journal import Journal
from qreward.bulk.provider import (
    END,
    BatchObject,
    HeldBatch,
    ResultLine,
    apply_event,
    inputs_in,
    partial_request,
    read,
    url_of,
)
from qreward.bulk.requests import BulkSettings, RequestReader
from qreward.codecs.base import Malformed
from qreward.codecs.embeddings import EMBEDDINGS, inputs_of


def test_only_these_states_are_the_end_of_a_batch() -> None:
    ended = {"completed", "expired", "cancelled", "failed"}
    states = {"validating", "failed", "in_progress", "finalizing", "completed", "expired", "cancelling", "cancelled"}
    assert {state for state in states if BatchObject("b", state).has_ended} == ended


def test_the_answers_of_providers_are_read_as_far_as_they_matter() -> None:
    whole = read(
        BatchObject,
        b'{"id":"b","object":"batch","status":"failed","x":1,"metadata":{"qreward":"t","own":"x"},'
        b'"errors":{"object":"list","data":[{"code":"c","line":3,"message":"m","param":null}]},"request_counts":{"total":3}}',
    )
    assert whole.errors is not None
    assert [fault.line for fault in whole.errors.data or ()] == [3]
    assert (whole.tag, whole.files) == ("t", [])
    assert read(BatchObject, b'{"id":"b","status":"expired","errors":null,"metadata":null}').tag is None
    line = read(ResultLine, b'{"id":"r","custom_id":"7","response":{"status_code":400,"body":{"a":1}},"error":"as vLLM writes it"}')
    assert (line.key, line.code, line.response and bytes(line.response.body)) == (7, None, b'{"a":1}')
    assert read(ResultLine, b'{"custom_id":"7","response":null,"error":{"code":"batch_expired","message":"m"}}').code == "batch_expired"
    assert read(ResultLine, b'{"custom_id":"not ours"}').key is None
    for broken in (b"", b"[]", b"<html>", b'{"id":1}', b'{"custom_id":'):
        for kind in (BatchObject, ResultLine):
            with pytest.raises(Malformed):
                read(kind, broken)


def test_the_request_of_a_line_says_where_it_goes_and_how_its_response_is_checked() -> None:
    reader = RequestReader(BulkSettings())
    cases: dict[str, tuple[dict[str, Any], int]] = {
        "/v1/chat/completions": ({"messages": [{"role": "user", "content": "hi"}]}, 1),
        "/v1/embeddings": ({"input": ["a", "b", "c"]}, 3),
        "/v1/responses": ({"input": "hi"}, 1),
        "/v1/moderations": ({"input": ["a", "b"]}, 1),
    }
    for url, (body, inputs) in cases.items():
        row = {"url": url, "body": {"model": MODEL, **body}}
        reader.read(line := Line("item:1", 0, json.dumps(row).encode()))
        call = line.content
        assert (url_of(call), inputs_in(call)) == (url, inputs)
        again = partial_request(url, MODEL, inputs)
        assert again.codec is call.codec
        if call.codec is EMBEDDINGS:
            assert len(inputs_of(again)) == inputs
    row = {"url": "/v1/embeddings", "body": {"model": MODEL, "input": [1, 2, 3]}}
    reader.read(tokens := Line("item:1", 0, json.dumps(row).encode()))
    assert inputs_in(tokens.content) == 1


def begun(lines: dict[int, tuple[int, float]]) -> bytes:
    """The event of a batch of these lines."""
    costs = {key: Spent(*cost) for key, cost in lines.items()}
    return msgspec.json.encode(HeldBatch("p", "/v1/chat/completions", MODEL, "t:0", costs))


def test_a_batch_is_held_from_its_record_to_its_end() -> None:
    held: dict[int, HeldBatch] = {}
    apply_event(held, 4, begun({5: (70, 0.5), 2**60 - 1: (0, 0.0), 9: (30, 0.25)}))
    assert [held[4].lines[key] for key in (2**60 - 1, 5, 9)] == [NOTHING, Spent(70, 0.5), Spent(30, 0.25)]
    assert (held[4].endpoint, held[4].tag, held[4].id, list(held[4].lines)) == ("p", "t:0", None, [5, 2**60 - 1, 9])
    apply_event(held, 4, b'"batch_1"')
    assert held[4].id == "batch_1"
    apply_event(held, 4, END)
    apply_event(held, 4, b'"late"')
    assert held == {}


def test_the_journal_returns_the_batches_that_have_not_ended(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    journal = Journal(path, {})
    for number in range(3):
        journal.record_batch(number, begun({number: (0, 0.0)}))
    journal.finish(0, b'{"a":1}', ok=True)
    journal.record_batch(0, END)
    journal.record_batch(1, b'"batch_1"')
    content = path.read_bytes()  # as a killed run leaves it
    journal.close()
    for whole in (content, path.read_bytes(), content.rstrip(b"\0") + b'["B",1,0,0,0.0,nu'):
        path.write_bytes(whole)
        journal = Journal(path, {})
        assert (journal.done, journal.batches, {number: held.id for number, held in journal.held.items()}) == (
            1,
            3,
            {1: "batch_1", 2: None},
        )
        assert journal.take(0) == (0, True)
        assert [line.content for line in journal.in_order()] == [b'{"a":1}']
        journal.close()


def test_the_line_of_a_request_is_that_of_the_batch_api() -> None:
    assert provider.request_line(7, "/v1/x", b'{"a":1}') == b'{"custom_id":"7","method":"POST","url":"/v1/x","body":{"a":1}}\n'
