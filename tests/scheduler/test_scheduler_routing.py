"""A model's exact name goes first, then the most specific glob that matches, whatever the order in which routes were added."""

from __future__ import annotations

from fnmatch import fnmatchcase
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st
from scheduler_memory import bytes_left_by

from qreward.scheduler.routing import Routes, is_glob, specificity

models = st.text("ab-7", min_size=1, max_size=5)
patterns = st.lists(st.sampled_from(["a", "b", "-", "7", "*", "?", "[ab]", "[!a]"]), min_size=1, max_size=5).map("".join)


def table(patterns: list[str]) -> Routes[str]:
    routes: Routes[str] = Routes()
    for pattern in patterns:
        routes.set(pattern, pattern)
    return routes


@given(st.lists(patterns, unique=True, max_size=12), models)
def test_the_exact_name_wins_else_the_most_specific_glob_that_matches_else_nothing(names: list[str], model: str) -> None:
    found = table(names).find(model)
    assert table(names[::-1]).find(model) == found, "whatever the order in which they are added"
    matching = [pattern for pattern in names if is_glob(pattern) and fnmatchcase(model, pattern)]
    if model in names:
        assert found == model
    elif matching:
        assert found == max(matching, key=specificity)
    else:
        assert found is None


@given(st.lists(patterns, unique=True, min_size=1, max_size=8), models, st.data())
def test_a_route_that_was_removed_is_as_if_it_had_never_been(names: list[str], model: str, data: st.DataObject) -> None:
    gone = data.draw(st.sampled_from(names))
    routes = table(names)
    routes.find(model)
    routes.remove(gone)
    assert routes.find(model) == table([name for name in names if name != gone]).find(model)


def test_more_letters_then_fewer_stars_then_fewer_wildcards_make_a_pattern_more_specific() -> None:
    ascending = [
        ("*", "gpt-*", "gpt-4*", "gpt-4o-*"),
        ("*-7b", "judge-*", "judge-?", "judge-[ab]x"),
        ("judge-?*", "judge-?"),
        ("*judge*", "judge*"),
        ("[abcdefgh]*", "ab*"),  # a set of characters counts as one wildcard, not as letters
    ]
    pairs = [pair for patterns in ascending for pair in pairwise(patterns)]
    assert not [(general, specific) for general, specific in pairs if not specificity(general) < specificity(specific)]


def test_matching_looks_at_the_whole_name_and_its_case() -> None:
    routes = table(["judge-*"])
    assert routes.find("judge-7b") == "judge-*"
    assert routes.find("Judge-7b") is None
    assert routes.find("my-judge-7b") is None
    assert routes.find("judge-\n7b") == "judge-*"


def test_a_route_with_the_same_pattern_is_replaced_and_earlier_answers_are_forgotten() -> None:
    routes: Routes[int] = Routes()
    assert routes.find("judge-7b") is None
    routes.set("judge-*", 1)
    assert routes.find("judge-7b") == 1
    routes.set("judge-*", 2)
    assert routes.find("judge-7b") == 2
    routes.set("judge-7b", 3)
    assert routes.find("judge-7b") == 3
    routes.set("*", 4)
    assert list(routes.items().items()) == [("judge-7b", 3), ("judge-*", 2), ("*", 4)], "in the order in which they are tried"


def test_names_that_callers_make_up_do_not_fill_the_memory() -> None:
    routes = table(["judge-*"])

    def look_up(first: int) -> None:
        for number in range(first, first + 4000):
            assert routes.find(f"judge-{number}") == "judge-*"
            assert routes.find(f"other-{number}") is None

    look_up(0)
    assert bytes_left_by(lambda: look_up(4000)) < 100_000
