"""Ordinary fleets, in virtual time: servers that fail now and then, slow with load, or have a small limit. None of that is an emergency.

Whatever endpoint is added to a fleet, a batch does not take longer than without it, except for one answer of the slowest server.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import product
from math import ceil
from random import Random
from typing import Any

from ordinary_fleets import Fleet, Server, lengths
from scale import seeds

from qreward.settings.policies import Retry

EQUAL = 100
"""Tokens of an answer where all are equally long."""


def service(server: Server, tokens: float, inflight: float) -> float:
    """Seconds of an answer, on average, while so many are worked on."""
    return (server.base + server.per_token * tokens) * (1 + server.load * inflight) + server.slow * server.slow_for


def least(servers: list[Server], sizes: list[int]) -> float:
    """The seconds that a client needs who knows everything: all servers without a limit on requests have all their slots in use."""
    rates = [server.slots / service(server, sum(sizes) / len(sizes), server.slots) for server in servers if server.rpm is None]
    return len(sizes) / sum(rates)


@dataclass
class Row:
    """A fleet, its work, and what is demanded besides the time.

    Args:
        servers: the fleet.
        sizes: output lengths for a seed.
        how: ``batch``, a number of calls at once, or ``steps`` of 24 calls.
        slow: seconds of one slow answer, or until an item that fails three times is sent again.
        equal: the servers are equal, and get between 40 % and 60 % each.
    """

    servers: list[Server]
    sizes: Callable[[int], list[int]]
    how: str | int = "batch"
    slow: float = 3.0
    equal: bool = False


def quick(**more: Any) -> Server:
    return replace(Server(base=0.3, slots=64), **more)


def same(number: int) -> Callable[[int], list[int]]:
    return lambda _seed: [EQUAL] * number


def mixed(seed: int) -> list[int]:
    return lengths(seed, 700)


VLLM = Server(base=0.05, per_token=0.004, slots=16)
ROWS = {
    "a twentieth fails": Row([quick(errors=0.05)], same(1500)),
    "and a healthy key with a known limit": Row([quick(errors=0.05), Server(rpm=60, known=True)], same(1500)),
    "and a healthy key whose limit is not known": Row([quick(errors=0.05), Server(rpm=60)], same(1500)),
    "both fail now and then": Row([quick(errors=0.03)] * 2, same(2000), equal=True),
    "connections are reset now and then": Row([quick(resets=0.02)] * 2, same(2000), equal=True),
    "one in a hundred answers is very slow": Row([quick(slow=0.01, slow_for=10.5)] * 2, same(1500), slow=10.8),
    "at the only server": Row([quick(slow=0.01, slow_for=10.5)], same(1500), slow=10.8),
    "one is full for two seconds of eight": Row([quick(), quick(away=(8.0, 2.0))], same(2500)),
    "mixed lengths, 48 calls at a time": Row([VLLM] * 2, mixed, how=48, slow=12.0, equal=True),
    "mixed lengths, servers that slow with load": Row([replace(VLLM, load=0.05, slots=64)] * 2, mixed, how=24, slow=20.0, equal=True),
    "mixed lengths, calls to eight equal servers": Row([replace(VLLM, slots=4)] * 8, mixed, how=24, slow=12.0),
    "mixed lengths, a batch": Row([VLLM] * 2, mixed, slow=12.0, equal=True),
    "steps after one long answer": Row([VLLM] * 2, lambda _: [2000, *[EQUAL] * 480], how="steps", equal=True),
    "steps on servers that slow with load": Row([Server(load=0.05)] * 2, lambda _: [EQUAL] * 481, how="steps", equal=True),
}


def run(row: Row, seed: int) -> tuple[Fleet, float, float]:
    """Run the work. Returns the fleet, the seconds, and the seconds of a client who knows everything."""
    sizes = row.sizes(seed)
    fleet = Fleet([replace(server, waiting=[], starts=[]) for server in row.servers], seed)
    if row.how == "batch":
        return fleet, fleet.batch(sizes), least(row.servers, sizes)
    if row.how == "steps":
        begun = fleet.steps(sizes[:1])
        each = service(row.servers[0], EQUAL * 1.5, 24 / len(row.servers))
        return fleet, fleet.steps(sizes[1:]) - begun, (len(sizes) - 1) / 24 * each
    at_once = int(row.how)
    servers = [replace(server, slots=min(server.slots, at_once // len(row.servers))) for server in row.servers]
    return fleet, fleet.calls(sizes, at_once), least(servers, sizes)


def test_ordinary_fleets_lose_nothing_keep_their_sources_in_service_and_are_nearly_as_fast_as_possible() -> None:
    wrong = []
    for name, row in ROWS.items():
        for seed in seeds(2, first=1):
            fleet, seconds, ideal = run(row, seed)
            served = [server.served for server in fleet.servers]
            found = f"{name}, seed {seed}: {seconds:.1f} s, least {ideal:.1f} s, lost {fleet.lost}, served {served}, down {fleet.downs}"
            unequal = row.equal and not 0.4 <= served[0] / sum(served) <= 0.6
            if fleet.lost or fleet.downs or unequal or seconds > 1.1 * ideal + row.slow:
                wrong.append(found)
    assert not wrong, "\n".join(wrong)


Cases = dict[str, tuple[list[Server], Callable[[Fleet], float], float]]
"""The servers, the work, and the most seconds that it may take."""


def too_slow(cases: Cases, count: int) -> list[str]:
    """Do the work of each case with so many seeds. Returns what took too long or lost something."""
    wrong = []
    for name, (servers, work, most) in cases.items():
        for seed in seeds(count, first=1):
            fleet = Fleet([replace(server, waiting=[], starts=[]) for server in servers], seed)
            seconds = work(fleet)
            if fleet.lost or seconds > most:
                wrong.append(f"{name}, seed {seed}: {seconds:.1f} s, lost {fleet.lost}")
    return wrong


def steps_of(items: int) -> Callable[[Fleet], float]:
    """Ten batches of so many equal items, one after the other."""

    def work(fleet: Fleet) -> float:
        for _ in range(10):
            fleet.batch([EQUAL] * items)
        return fleet.now

    return work


def test_a_server_that_never_answers_costs_one_wait_and_nothing_is_lost() -> None:
    """Work and the seconds in which it is done; without the silent server it takes 0.3 s for each 32 items."""
    silent, good = Server(hangs=1.0), Server(base=0.3, slots=32)
    cases: Cases = {
        "a batch": ([silent, good], lambda fleet: fleet.batch([EQUAL] * 1000), 13.0),
        "a small batch": ([silent, good], lambda fleet: fleet.batch([EQUAL] * 40), 13.0),
        "one whose copies use up the budget": ([silent, good], lambda fleet: fleet.batch([EQUAL] * 36), 15.0),
        "calls": ([silent, good], lambda fleet: fleet.calls([EQUAL] * 500, 24), 13.0),
        "steps": ([silent, good], lambda fleet: fleet.steps([EQUAL] * 480), 35.0),
        "one call after the other": ([silent, good], lambda fleet: fleet.calls([EQUAL] * 30, 1), 40.0),
        "two of three": ([silent, silent, good], lambda fleet: fleet.batch([EQUAL] * 500), 25.0),
        "half of the requests": ([replace(silent, hangs=0.5), good], lambda fleet: fleet.calls([EQUAL] * 500, 24), 13.0),
    }
    assert not (wrong := too_slow(cases, 2)), "\n".join(wrong)


def test_what_hangs_at_the_only_server_is_sent_again_before_its_timeout_and_nothing_is_lost() -> None:
    lost = []
    for seed in seeds(4, first=1):
        for how in ("batch", "calls"):
            fleet = Fleet([replace(VLLM, slots=8, hangs=0.003, waiting=[], starts=[])], seed)
            seconds = fleet.batch(mixed(seed)) if how == "batch" else fleet.calls(mixed(seed), 24)
            lost += [f"{how}, seed {seed}: {seconds:.1f} s"] * fleet.lost
    assert len(lost) <= len(seeds(4)) // 12, "\n".join(lost)  # one request in 10^5 hangs twice


def test_an_item_that_hangs_at_two_servers_is_sent_a_third_time_before_its_timeout() -> None:
    """While an attempt was not given up before its time limit if it had a copy, 3 items of 40 batches were lost."""
    lost = []
    for seed in seeds(40, first=1):
        fleet = Fleet([replace(VLLM, hangs=0.04, waiting=[], starts=[]) for _ in range(3)], seed)
        seconds = fleet.batch(lengths(seed, 500))
        lost += [f"seed {seed}: {seconds:.1f} s"] * fleet.lost
    assert len(lost) <= len(seeds(40)) // 60, "\n".join(lost)  # one item in 10^4 hangs three times


def test_servers_that_are_slow_or_hang_do_not_hold_up_the_end_of_a_small_batch() -> None:
    hanging = [Server(), Server(base=0.15), Server(base=1.2), Server(base=0.2, slots=16, hangs=0.02)]
    loaded = [Server(load=0.02), Server(load=0.05), Server(base=1.2, load=0.1)]
    away = [Server(load=0.05, away=(20, 5)), Server(load=0.1, away=(8, 2))]
    cases: Cases = {
        "hangs": (hanging, lambda fleet: fleet.batch([EQUAL] * 300), 2.0),
        "slow with load": (loaded, lambda fleet: fleet.batch([EQUAL] * 800), 6.5),
        "away in turn": (away, lambda fleet: fleet.batch([EQUAL] * 1500), 35.0),
    }
    assert not (wrong := too_slow(cases, 4)), "\n".join(wrong)


def test_what_hangs_at_the_end_of_a_batch_is_copied_as_soon_as_a_server_that_was_full_has_nothing_to_do() -> None:
    """All servers have a queue, one of them hangs now and then, and one dies. While a copy was expected to take as long as the answers of
    the last seconds, which had to wait in the queue, the mean was 9.5 s.
    """
    server = Server(base=0.05, per_token=0.0025, slots=16)
    broken = [replace(server, hangs=0.05), replace(server, per_token=0.003, dead=(1.5, 1e9))]
    servers = [server, server, *broken, replace(server, per_token=0.0035)]
    seconds = []
    for seed in seeds(6, first=1):
        fleet = Fleet([replace(server, waiting=[], starts=[]) for server in servers], seed)
        seconds.append(fleet.batch(lengths(seed, 1000, 5.2, 0.3)))
        assert not fleet.lost, f"seed {seed}: lost {fleet.lost}"
    assert sum(seconds) / len(seconds) < 9.15, seconds


def test_a_server_that_is_away_again_and_again_is_used_as_before_when_it_is_back() -> None:
    """It rejects everything for a moment, and serves what it received before. With all slots in use: 188, 105, 53, 35, 75 and 5 s.

    When a rejected try, or a reject before the first whole round, made the limit forget what had been served at once, the last two took
    up to 210 and 13 s.
    """

    def batch(fleet: Fleet) -> float:
        return fleet.batch(lengths(1, 1500) if fleet.servers[0].per_token else [EQUAL] * 1500)

    slower = replace(VLLM, per_token=0.01, slots=16)
    cases: Cases = {
        "0.3 s of 20": ([Server(base=1.0, slots=8, away=(20, 0.3))], batch, 190.0),
        "0.3 s of 4": ([replace(slower, away=(4, 0.3))], batch, 130.0),
        "1 s of 5": ([replace(slower, slots=32, away=(5, 1))], batch, 85.0),
        "two": ([replace(slower, away=(9, 2)), replace(slower, slots=32, away=(30, 7))], batch, 80.0),
        "2 s of 8, soon after a try": (
            [Server(base=0.05, per_token=0.015, cap=32, away=(8, 2))],
            lambda fleet: fleet.batch(lengths(1, 1000)),
            95.0,
        ),
        "2 s of 8, soon after the start": (
            [Server(base=1.0, per_token=0.002, away=(8, 2))],
            lambda fleet: fleet.calls(lengths(1, 64), 48),
            8.0,
        ),
    }
    assert not (wrong := too_slow(cases, 2)), "\n".join(wrong)


def test_rejects_at_random_cost_hardly_more_than_the_requests_whatever_wait_they_ask_for() -> None:
    """Share of rejects, their wait -> most seconds of a batch; with all slots in use: 7.2, 7.8 and 29 s, and 7.2 s of calls.

    When each reject with a wait paused the whole server and lowered its limits, the first took 720 s, and the last did not end.
    """

    def batch(number: int) -> Callable[[Fleet], float]:
        return lambda fleet: fleet.batch([EQUAL] * number)

    cases: Cases = {
        f"{rejects} {hint} {number}": ([quick(rejects=rejects, hint=hint)], batch(number), most)
        for rejects, number, most in ((0.02, 1500, 9.0), (0.05, 1500, 45.0), (0.1, 6000, 150.0))
        for hint in (None, 1.0, 5.0)
    }
    cases["calls"] = ([quick(rejects=0.02, hint=5.0)], lambda fleet: fleet.calls([EQUAL] * 1500, 64), 9.0)
    cases["one of two"] = ([quick(rejects=0.02, hint=5.0), quick()], batch(3000), 9.0)
    assert not (wrong := too_slow(cases, 2)), "\n".join(wrong)


def test_calls_of_which_few_are_in_flight_survive_a_restart_of_the_only_server() -> None:
    """A server that has answered and now refuses connections restarts. Nobody has five failures to show that it is out of service."""
    lost = {}
    for seed, each, down in product(seeds(2), (1, 3, 4, 24), (3.0, 20.0)):
        fleet = Fleet([Server(dead=(5.0, 5.0 + down))], seed)
        seconds = fleet.steps([EQUAL] * 24 * each, each)
        if fleet.lost or seconds > 24 * 0.35 + down + 4.0:
            lost[seed, each, down] = fleet.lost, seconds
    assert lost == {}


def test_an_address_that_never_answered_fails_its_calls_at_once() -> None:
    fleet = Fleet([Server(dead=(0.0, 1e9))], 1)
    assert fleet.calls([EQUAL], 1) < 5.0
    assert fleet.lost == 1


def test_when_every_server_fails_for_ten_seconds_small_steps_wait_and_hardly_a_call_is_lost() -> None:
    """A server answers or fails whatever the call is, so the calls are not the cause, although each has failed at several servers."""
    lost = {}
    for seed, (servers, each) in product(seeds(3), ((1, 24), (2, 4), (2, 8), (4, 24), (8, 8), (8, 24))):
        fleet = Fleet([Server(broken=(5.0, 15.0)) for _ in range(servers)], seed)
        fleet.steps([EQUAL] * 24 * each, each)
        if fleet.lost > each / 2 + 1:  # without the rule: the calls of four steps
            lost[seed, servers, each] = fleet.lost
    assert lost == {}


def test_small_batches_one_after_the_other_are_divided_by_what_each_server_can_do() -> None:
    """Each batch of 128 items fits into the concurrency limits of both servers."""
    cases: Cases = {
        "slow with load": ([Server(base=0.15, load=0.05), Server(load=0.1)], steps_of(128), 20.0),
        "half as many slots": ([replace(VLLM, slots=8), VLLM], steps_of(128), 46.0),
        "four slow slots": ([Server(load=0.02), Server(base=0.8, slots=4)], steps_of(128), 18.0),
        "eight times slower": ([Server(base=0.15, load=0.1), Server(base=1.2, load=0.05)], steps_of(128), 35.0),
        "half as fast": ([Server(base=0.6, load=0.1), Server(load=0.05)], steps_of(128), 38.0),
        "one is hardly needed": ([Server(base=0.1, slots=64), Server(base=0.8, slots=4)], steps_of(128), 3.0),
    }
    assert not (wrong := too_slow(cases, 2)), "\n".join(wrong)


def test_calls_that_are_made_together_wait_for_a_fast_server_that_will_answer_them_sooner() -> None:
    """Ten steps of so many calls. When calls were sent to any server with a free slot: 104, 299, 28 and 30 s."""

    def calls(each: int) -> Callable[[Fleet], float]:
        def work(fleet: Fleet) -> float:
            for _ in range(10):
                fleet.calls([EQUAL] * each, each)
            return fleet.now

        return work

    cases: Cases = {
        f"{name} {each}": ([slow, fast], calls(each), most[each])
        for name, slow, fast, most in (
            ("slots", Server(base=2.4, slots=4), Server(base=0.2, cap=4), {24: 17.0, 64: 70.0}),
            ("much slower", Server(base=3.0), Server(base=0.2, cap=8), {24: 11.0, 64: 23.0}),
        )
        for each in (24, 64)
    }
    assert not (wrong := too_slow(cases, 2)), "\n".join(wrong)


def test_steps_of_more_calls_than_slots_do_not_gather_at_the_equal_server_with_the_highest_limit() -> None:
    """All slots in use: 19 s. When a server took calls that the others would have answered sooner: 40 to 52 s."""
    servers = [Server(base=0.3, per_token=0.005, slots=16)] * 16
    cases: Cases = {"steps": (servers, lambda fleet: fleet.steps([EQUAL] * 6144, each=1024), 37.0)}
    assert not (wrong := too_slow(cases, 2)), "\n".join(wrong)


def test_workers_that_make_the_next_call_when_one_is_answered_use_a_slow_server_too() -> None:
    """What waits never ends. When calls waited for the fast server as in a step: 87 s."""
    slots = [Server(base=2.4), Server(base=0.2, cap=4)]
    cases: Cases = {"workers": (slots, lambda fleet: fleet.calls([EQUAL] * 2560, 64), 72.0)}
    assert not (wrong := too_slow(cases, 2)), "\n".join(wrong)


def test_a_server_whose_capacity_is_exceeded_is_not_held_at_a_rate_because_its_rejects_ask_for_a_wait() -> None:
    """All slots in use: 2.3, 7.5, 1.6 and 5 s, and a wait. When the first reject set a rate, the batches took 19, 49, 5.7 and 9.2 s."""
    slow, quick, other = Server(cap=40, hint=5.0), Server(base=0.05, cap=32, hint=1.0), Server(base=0.1, cap=32, hint=1.0)
    cases: Cases = {
        "few items": ([slow], lambda fleet: fleet.batch([EQUAL] * 300), 10.0),
        "many": ([slow], lambda fleet: fleet.batch([EQUAL] * 1000), 16.0),
        "short answers": ([quick], lambda fleet: fleet.batch([EQUAL] * 1000), 3.0),
        "two servers": ([other, replace(other, base=0.2, cap=16)], lambda fleet: fleet.batch([EQUAL] * 2000), 7.0),
    }
    assert not (wrong := too_slow(cases, 2)), "\n".join(wrong)


def test_a_dead_server_beside_one_that_fails_now_and_then_does_not_keep_what_failed_there() -> None:
    """When a retry waited for the next test of the dead server, a batch took up to 122 s, and lost 39 items.

    One of 160,000 fails four times in a row.
    """
    for seed, base in product(seeds(2), (1.0, 3.0)):
        fails = Server(base=base, slots=64, errors=0.05)
        for dead in (Server(base=base, dead=(3 * base, 1e9)), Server(base=base, away=(1e9, 1e9))):
            fleet = Fleet([replace(fails), dead], seed)
            seconds = fleet.batch([EQUAL] * 1500)
            assert seconds < 28 * base, (seed, base, dead, seconds)
            assert fleet.lost <= 1, (seed, base, dead)


def test_a_call_that_failed_at_a_fast_server_is_not_sent_to_a_slow_one_that_would_answer_it_later() -> None:
    """Ten steps of 24 calls take 3 s without a failure, and 6 s on average with the backoff of those that fail."""

    def steps(fleet: Fleet) -> float:
        for _ in range(10):
            fleet.calls([EQUAL] * 24, 24)
        return fleet.now

    cases: Cases = {f"{base:g} s": ([quick(errors=0.05), quick(base=base)], steps, 9.0 + 2 * base) for base in (3.0, 10.0)}
    assert not (wrong := too_slow(cases, 4)), "\n".join(wrong)


def test_what_hangs_in_one_of_the_first_small_batches_costs_seconds() -> None:
    cases: Cases = {"hangs": ([Server(load=0.02), Server(base=0.2, slots=64, hangs=0.01)], steps_of(24), 10.0)}
    assert not (wrong := too_slow(cases, 8)), "\n".join(wrong)


def test_a_server_that_is_back_is_used_within_seconds_also_if_the_other_one_could_do_everything() -> None:
    """For steps of so many calls: the most seconds from its return, or from its last failure, until the server answers a call."""
    wrong = []
    faults = {"dead": (Server(base=0.1, dead=(10.0, 14.0)), 4.0), "broken": (Server(base=0.1, broken=(10.0, 14.0)), 20.0)}
    for at_once in (1, 2, 4, 8, 24):
        for fault, (server, most) in faults.items():
            for seed in seeds(3, first=1):
                back = replace(server, waiting=[], starts=[])
                fleet = Fleet([back, Server(base=0.1)], seed)
                while fleet.now < 14.0:
                    fleet.calls([EQUAL] * at_once, at_once)
                served = back.served
                while back.served == served and fleet.now < 60.0:
                    fleet.calls([EQUAL] * at_once, at_once)
                if fleet.lost or fleet.now - 14.0 > most:
                    wrong.append(f"{fault}, {at_once} at once, seed {seed}: after {fleet.now - 14.0:.1f} s, lost {fleet.lost}")
    assert not wrong, "\n".join(wrong)


def test_one_live_server_among_many_that_refuse_connections_answers_everything_as_fast_as_alone() -> None:
    wrong = []
    for dead in (1, 4, 10, 30):
        for at_once in (1, 4, 24):
            fleet = Fleet([Server(base=0.1), *(Server(base=0.1, dead=(0.0, 1e9)) for _ in range(dead))], 1)
            seconds = fleet.calls([EQUAL] * 50 * at_once, at_once)
            if fleet.lost or seconds > 1.1 * 5.0 or max(fleet.latencies) > 1.0:
                wrong.append(f"{dead} dead, {at_once} at once: {seconds:.1f} s, lost {fleet.lost}, longest {max(fleet.latencies):.1f} s")
    assert not wrong, "\n".join(wrong)


def test_one_server_among_many_that_break_every_request_answers_everything_nearly_as_fast_as_alone() -> None:
    """So many broken servers and calls at once, and how many of 600 calls may be lost: each fails at four servers before it is lost."""
    wrong = []
    faults = {"reset": Server(resets=1.0), "500": Server(errors=1.0, error_after=0.02)}
    for fault, broken in faults.items():
        for count, at_once, most in ((1, 1, 0), (4, 1, 0), (10, 1, 0), (30, 1, 0), (1, 24, 0), (4, 24, 0), (10, 24, 1), (30, 24, 3)):
            for seed in seeds(3, first=1):
                servers = [Server(base=0.1), *(replace(broken, waiting=[], starts=[]) for _ in range(count))]
                fleet = Fleet(servers, seed)
                seconds, alone = fleet.calls([EQUAL] * 600, at_once), 0.1 * 600 / at_once
                if fleet.lost > most or seconds > alone + 3.0:
                    wrong.append(f"{count} of {fault}, {at_once} at once, seed {seed}: {seconds:.1f} s of {alone:.1f}, lost {fleet.lost}")
    assert not wrong, "\n".join(wrong)


def test_a_known_limit_of_requests_a_minute_is_used_at_once() -> None:
    for servers, how, most in (
        ([Server(rpm=600, known=True)] * 2, "batch", 5.0),
        ([Server(rpm=600, known=True)], "steps", 7.0),
        ([Server(rpm=600, known=True)], "calls", 7.0),
    ):
        fleet = Fleet([replace(server, waiting=[], starts=[]) for server in servers], 1)
        sizes = [EQUAL] * 480
        seconds = fleet.batch(sizes) if how == "batch" else fleet.steps(sizes) if how == "steps" else fleet.calls(sizes, 24)
        assert (fleet.lost, [source.tally.rejected for source in fleet.sources]) == (0, [0] * len(servers))
        assert seconds <= most, how


# adding an endpoint

START = 64
"""Requests that a server may be sent before much is known of it: 32 before the first answers, and then twice as many."""


def slow_answer(server: Server, tokens: int) -> float:
    """The seconds after which a server has answered the requests that it is sent before anything is known of it."""
    seconds = (server.base + 1.5 * server.per_token * tokens) * (1 + server.load * min(server.slots, START))
    return seconds * ceil(START / server.slots)


def any_server(rng: Random, *, limited: bool) -> Server:
    rpm = rng.choice([None, None, 30, 60, 600]) if limited else None
    base = 0.05 * 100 ** rng.random()
    return Server(
        base=base,
        per_token=rng.choice([0.0, base / 100]),
        slots=rng.choice([4, 16, 64, 10**9]),
        load=rng.choice([0.0, 0.0, 0.02, 0.05]),
        errors=rng.choice([0.0, 0.0, 0.02, 0.05, 0.1, 0.2]),
        error_after=rng.choice([0.02, 0.1]),
        rpm=rpm,
        known=rpm is not None and rng.random() < 0.5,
    )


def added(seed: int) -> str | None:
    """Run the same work on a random fleet without and with one more endpoint. Returns what is wrong."""
    rng = Random(seed)
    servers = [any_server(rng, limited=False), *(any_server(rng, limited=True) for _ in range(rng.randint(0, 3)))]
    extra = any_server(rng, limited=True)
    batch, number = rng.random() < 0.67, rng.choice([300, 1000])
    sizes = rng.choice([[EQUAL] * number, lengths(seed, number)])
    seconds, lost, served = [], [], []
    for fleet_of in (servers, [*servers, extra]):
        fleet = Fleet([replace(server, waiting=[], starts=[]) for server in fleet_of], seed, Retry(attempts=12, base=0.1, cap=0.5))
        seconds.append(fleet.batch(sizes, timeout=600.0) if batch else fleet.calls(sizes, 48, timeout=600.0))
        lost.append(fleet.lost)
        served.append([server.served for server in fleet.servers])
    most = 1.1 * seconds[0] + max(slow_answer(server, max(sizes)) for server in (*servers, extra)) + 1.0
    if seconds[1] <= most and not any(lost):
        return None
    return f"seed {seed}: {seconds} s, most {most:.1f} s, lost {lost}, served {served}, servers {servers}, added {extra}"


def test_adding_any_endpoint_to_any_fleet_loses_nothing_and_makes_no_batch_slower_by_more_than_one_slow_answer() -> None:
    """Items have much time and many attempts with short waits, so that the scheduler decides, and not chance."""
    wrong = [found for seed in seeds(60) if (found := added(seed)) is not None]
    assert not wrong, "\n".join(wrong)
