"""JSON as models write it: the errors that are accepted, what they come to, and those that are refused."""

from __future__ import annotations

import json
from typing import Any

from qreward.judge.parsing.text import DEEPEST, NotAnObject, object_at


def read(text: str) -> Any:
    """The members of an object that is the whole text; None if it is refused."""
    try:
        members, end = object_at(text, 0)
    except NotAnObject:
        return None
    return members if end == len(text) else None


def check(cases: dict[str, Any]) -> None:
    found = {text: read(text) for text in cases}
    wrong = {text: (found[text], cases[text]) for text in cases if json.dumps(found[text]) != json.dumps(cases[text])}
    assert wrong == {}


def test_common_errors_are_accepted() -> None:
    check(
        {
            '{"a": 1,}': {"a": 1},
            '{"a": [1, 2,],}': {"a": [1, 2]},
            '{"a": {"b": 1,},}': {"a": {"b": 1}},
            "{'a': 'b'}": {"a": "b"},
            '{"a": \'say "b"\'}': {"a": 'say "b"'},
            "{\u201ca\u201d: \u2018b\u2019}": {"a": "b"},
            '{"a": True, "b": False, "c": None}': {"a": True, "b": False, "c": None},
            '{"a": nan, "b": NaN}': {"a": float("nan"), "b": float("nan")},
            "{a: 1, b_c-d: 2}": {"a": 1, "b_c-d": 2},
            '{"a": 1 // why\n}': {"a": 1},
            '{"a": /* why */ 1}': {"a": 1},
            '{"a": 1 # why\n}': {"a": 1},
            '{"a": "b\nc"}': {"a": "b\nc"},
            '{"a": "b\\\nc"}': {"a": "bc"},
            '{"a": "50\\%"}': {"a": "50\\%"},
            '{"a": "it\\\'s"}': {"a": "it's"},
            '{"a": "\\ud83d"}': {"a": "\ufffd"},
            '{"a\\ud83d": 1}': {"a\ufffd": 1},
            '{"a": "\\ud83d\\ude00"}': {"a": "\U0001f600"},
            '{"a": 1, "a": 1}': {"a": 1},
            "{}": {},
            '{"a": []}': {"a": []},
        }
    )


def test_every_other_error_is_refused() -> None:
    refused = [
        "{,}", "{,,}", '{"a": [,]}', '{"a": [1,,]}', '{"a": [1,,2]}', '{"a": 1,,}', '{,"a": 1}', '{"a": {,}}',
        '{"a": 1', '{"a": [1}', '{"a": 1]', '{"a"}', '{"a":}', '{"a" 1}', '{"a": 1 2}', '{"a": 1 "b": 2}', '{: 1}', "{1: 2}",
        '{"a": "b" c"}', '{"a": "b}', '{"a": yes}', '{"a": TRUE}', '{"a": 4/5}', '{"a": 07}', '{"a": .5}', '{"a": +1}', '{"a": 1.}',
        '{"a": 1, "a": 2}', '{"a": 1, "a": true}', '{"a": 1, "a": 1.0}', '{"a": 0, "a": false}', '{"a": [1], "a": [2]}',
        '{"a": 1 /* why }', '{"a" = 1}', '{"a": (1)}', '{"a b: 1}',
    ]  # fmt: skip
    check(dict.fromkeys(refused))


def test_a_comment_that_may_hide_a_value_is_refused() -> None:
    check(
        dict.fromkeys(
            (
                '{"reason": "It says X", "score": 10 // it", "score": 2\n}',
                "{'a': 'A' # it', 'a': 'B'\n}",
                '{"a": 10 // full marks would be 10, I give 8\n}',
            )
        )
    )


def test_nesting_is_bounded() -> None:
    deep = {depth: '{"a":' * depth + "1" + "}" * depth for depth in (DEEPEST, DEEPEST + 1)}
    assert read(deep[DEEPEST]) is not None
    assert read(deep[DEEPEST + 1]) is None
