"""The model server: it computes what it says, shares only what is equal, holds no more than fits, and serves in the order of arrival."""

from __future__ import annotations

from math import inf

import pytest
from fakes.model_server import MODELS, ModelRequest, ModelServer, ServedModel, ideal_prefill
from hypothesis import given
from hypothesis import strategies as st

SMALL = ServedModel(step=1.0, prefill=0.01, decode=0.1, cache_tokens=640, budget=64, sequences=4)


def request(*parts: tuple[str, int], output: int = 1) -> ModelRequest:
    """A request whose prompt consists of parts: name and tokens."""
    keys, ends, path, end = [], [], "", 0
    for name, tokens in parts:
        path, end = f"{path}/{name}", end + tokens
        keys.append(path)
        ends.append(end)
    return ModelRequest(end, output, keys, ends)


def finish(server: ModelServer, until: float = inf) -> list[tuple[float, ModelRequest]]:
    """Run a server until nothing is left: when each request finished."""
    done = []
    while server.next_at < until:
        at = server.next_at
        done += [(at, each) for each in server.run(at)]
    return done


def serve(server: ModelServer, *requests: ModelRequest) -> list[float]:
    for each in requests:
        server.submit(0.0, each)
    server.run(0.0)
    ends = {id(each): at for at, each in finish(server)}
    return [ends[id(each)] for each in requests]


# time


def test_a_request_takes_one_step_per_budget_of_prompt_and_one_per_further_token() -> None:
    server = ModelServer(SMALL)
    assert serve(server, request(("a", 100), output=3)) == [pytest.approx(1.64 + 1.36 + 1.1 + 1.1)]
    assert (server.prefilled, server.decoded, server.steps) == (100, 3, 4)


def test_running_requests_get_their_token_before_prompts_are_continued() -> None:
    server = ModelServer(SMALL)
    first, second = request(("a", 32), output=3), request(("b", 64))
    ends = serve(server, first, second)
    assert first.first_at == pytest.approx(1.64), "the first step holds the first prompt and half of the second"
    assert second.first_at == ends[1] == pytest.approx(1.64 + 1.42)
    assert ends[0] == pytest.approx(1.64 + 1.42 + 1.1)


def test_a_request_that_arrives_between_steps_is_admitted_when_the_present_step_ends() -> None:
    server = ModelServer(SMALL)
    server.submit(0.0, request(("a", 16), output=100))
    server.run(0.0)
    server.run(1.16)
    assert server.next_at == pytest.approx(1.16 + 99 * 1.1), "nothing changes until it ends"
    late = request(("b", 16))
    server.submit(2.0, late)
    assert server.next_at == pytest.approx(1.16 + 1.1)
    server.run(server.next_at)
    assert late.admitted_at == pytest.approx(1.16 + 1.1)


# the cache


def test_equal_prefixes_are_computed_once_in_whole_blocks_and_at_least_one_token_is_computed_until_a_restart() -> None:
    server = ModelServer(SMALL)
    for number, expected in enumerate([(100, 0), (100 - 48, 48), (100 - 48, 48)]):
        each = request(("rubric", 50), (f"answer {number}", 50))
        before = server.prefilled
        serve(server, each)
        assert (server.prefilled - before, each.cached) == expected
    found = []
    for restart in (False, False, True):
        if restart:
            server.clear()
        serve(server, again := request(("a", 64)))
        found.append(again.cached)
    assert found == [0, 48, 0]


def test_a_prefix_is_shared_from_the_step_that_computes_it_but_not_without_caching() -> None:
    for caching, shared in ((True, 32), (False, 0)):
        first, second = request(("a", 32), ("b", 16)), request(("a", 32), ("c", 16))
        serve(ModelServer(SMALL.model_copy(update={"caching": caching})), first, second)
        assert (first.cached, second.cached) == (0, shared)


def test_what_was_used_least_recently_is_evicted_from_its_end() -> None:
    server = ModelServer(SMALL)  # 40 blocks
    for name in ("a", "b", "a", "c"):
        serve(server, request((name, 208)))  # 13 blocks, and one for the output
    known = {}
    for name in ("a", "c", "b"):
        each = request((name, 208))
        serve(server, each)
        known[name] = each.cached
    assert known == {"a": 192, "c": 192, "b": 192}
    serve(server, request(("d", 200)))
    part = request(("a", 208))
    serve(server, part)
    assert part.cached is not None
    assert 0 < part.cached < 192, "only as many blocks as were needed"


def test_a_request_waits_for_blocks_and_those_behind_it_wait_too() -> None:
    server = ModelServer(SMALL)  # 640 tokens
    big, blocked, small = request(("a", 400), output=8), request(("b", 400)), request(("c", 16))
    ends = serve(server, big, blocked, small)
    assert blocked.admitted_at == ends[0]
    assert small.admitted_at >= blocked.admitted_at


def test_a_request_larger_than_the_cache_is_refused() -> None:
    with pytest.raises(ValueError, match="do not fit"):
        ModelServer(SMALL).submit(0.0, request(("a", 640)))


def test_a_cancelled_request_frees_its_place_wherever_it_is() -> None:
    server = ModelServer(SMALL)
    starting, partial, waiting = request(("a", 16), output=50), request(("b", 200)), request(("c", 16))
    for each in (starting, partial, waiting):
        server.submit(0.0, each)
    server.run(0.0)
    for each in (waiting, partial, starting, starting):
        server.cancel(0.5, each)
    assert not server.running
    assert not server.waiting
    last = request(("d", 16), output=2)
    server.submit(0.5, last)
    assert [each for _, each in finish(server)] == [last]
    assert server.cache.used == server.cache.spare


def test_a_cancelled_request_among_others_makes_their_steps_shorter() -> None:
    server = ModelServer(SMALL)
    stays, goes = request(("a", 16), output=11), request(("b", 16), output=11)
    for each in (stays, goes):
        server.submit(0.0, each)
    server.run(0.0)
    server.run(1.32)
    server.cancel(2.0, goes)
    ((at, done),) = finish(server)
    assert done is stays
    assert at == pytest.approx(1.32 + 1.2 + 9 * 1.1)


def test_the_named_models_have_the_constants_of_their_page() -> None:
    eight, seventy = MODELS["8B"], MODELS["70B"]
    assert (eight.step, eight.prefill, eight.decode, eight.cache_tokens) == (0.010, 0.00006, 0.00005, 300_000)
    assert (seventy.step, seventy.prefill, seventy.decode, seventy.cache_tokens) == (0.025, 0.0003, 0.0001, 120_000)
    assert {each.budget for each in MODELS.values()} == {2048}


# properties


SPECS = st.lists(
    st.tuples(
        st.floats(0, 40),  # arrival
        st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 120)), min_size=1, max_size=3, unique_by=lambda part: part[0]),
        st.integers(1, 30),  # output
        st.none() | st.floats(0, 60),  # cancelled after
    ),
    min_size=1,
    max_size=25,
)


def sized(parts: list[tuple[str, int]]) -> list[tuple[str, int]]:
    """Parts whose names carry their length, so that equal keys mean equal text."""
    return [(f"{name}{tokens // 20}", 20 * (tokens // 20) + 7) for name, tokens in parts]


@given(specs=SPECS, caching=st.booleans())
def test_tokens_are_conserved_and_memory_is_bounded_whatever_comes_and_goes(specs: list, caching: bool) -> None:
    server = ModelServer(SMALL.model_copy(update={"caching": caching}))
    requests = [request(*sized(parts), output=output) for _, parts, output, _ in specs]
    events = [(at, 0, each) for (at, *_), each in zip(specs, requests, strict=True)]
    events += [(at + gone, 1, each) for (at, *_, gone), each in zip(specs, requests, strict=True) if gone is not None]
    done: list[ModelRequest] = []
    for at, kind, each in [*sorted(events, key=lambda event: event[:2]), (inf, 2, requests[0])]:
        while server.next_at <= at and server.next_at < inf:
            done += server.run(server.next_at)
            assert 0 <= server.cache.spare <= server.cache.used <= server.cache.capacity
            assert server.running <= SMALL.sequences
        if kind < 2:
            (server.submit if kind == 0 else server.cancel)(at, each)
            done += server.run(at)
    cancelled = len(requests) - len(done)
    assert len(set(map(id, done))) == len(done)
    assert cancelled <= sum(gone is not None for *_, gone in specs)
    assert server.cache.used == server.cache.spare, "only what may be evicted is left"
    for each in done:
        assert each.cached is not None
        assert 0 <= each.cached < each.prompt
        assert each.cached % SMALL.block == 0
    if not cancelled:
        assert server.prefilled == sum(each.prompt - (each.cached or 0) for each in requests)
        assert server.decoded == sum(each.output for each in requests)
    assert server.hits <= server.queried
    admitted = [each.admitted_at for each in done]
    order = {id(each): place for place, (_, _, each) in enumerate(sorted((e for e in events if e[1] == 0), key=lambda event: event[:2]))}
    by_arrival = sorted(done, key=lambda each: order[id(each)])
    assert [each.admitted_at for each in by_arrival] == sorted(admitted), "first come first served"


@given(specs=SPECS)
def test_steps_taken_at_once_end_when_single_steps_would(specs: list) -> None:
    def ends(server: ModelServer, *, stepwise: bool) -> list[float]:
        requests = [request(*sized(parts), output=output) for _, parts, output, _ in specs]
        for each in requests:
            server.submit(0.0, each)
        server.run(0.0)
        found: dict[int, float] = {}
        while server.next_at < inf:
            if stepwise:  # somebody looks in at each step
                server._cut(server._begun)
            at = server.next_at
            found |= {id(each): at for each in server.run(at)}
        return [found[id(each)] for each in requests]

    assert ends(ModelServer(SMALL), stepwise=True) == pytest.approx(ends(ModelServer(SMALL), stepwise=False))


@given(specs=SPECS)
def test_no_server_computes_less_than_the_ideal(specs: list) -> None:
    requests = [request(*sized(parts), output=output) for _, parts, output, _ in specs]
    server = ModelServer(SMALL.model_copy(update={"cache_tokens": 10**6}))
    serve(server, *requests)
    assert server.prefilled == ideal_prefill(requests), "one server with a large cache reaches it"
    scattered = [ModelServer(SMALL) for _ in range(3)]
    for place, each in enumerate(requests):
        scattered[place % 3].submit(0.0, ModelRequest(each.prompt, each.output, each.keys, each.ends))
    for one in scattered:
        one.run(0.0)
        finish(one)
    assert sum(each.prefilled for each in scattered) >= ideal_prefill(requests)
