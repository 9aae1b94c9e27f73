"""Who gets how much of a shared limit, and when; the words of the ledger, one case each."""

from __future__ import annotations

from math import inf
from typing import Any

import msgspec
import pytest

from qreward.quota.ledger import (
    BACKWARDS,
    FRESH,
    LEASE,
    LINGER,
    MARGIN,
    MINUTE,
    PERIOD,
    STEP,
    TURN,
    Account,
    Demand,
    Grant,
    Ledger,
    RenewReply,
    RenewRequest,
    WindowQuota,
    water_level,
)

KINDS = ("requests", "tokens", "permits")
COUNTED = MINUTE + MARGIN + STEP
"""Seconds for which a used amount counts."""


def renewed(ledger: Ledger, now: float, name: str, kind: str, need: Demand) -> Grant:
    found = getattr(ledger.renew(now, name, RenewRequest(**{kind: need})), kind)
    assert isinstance(found, Grant)
    return found


def slots(ledger: Ledger, now: float, name: str, hold: float = 0, want: float = inf, limit: int = 8, **more: Any) -> float:
    """The share of the slots after a renewal."""
    return renewed(ledger, now, name, "permits", Demand(limit, hold=hold, rate=want, **more)).hold


def granted(ledger: Ledger, now: float, name: str, want: float = 1000, limit: float = 600, kind: str = "requests", **more: Any) -> float:
    """What a renewal grants of a limit per minute."""
    return renewed(ledger, now, name, kind, Demand(limit, want=want, rate=inf if want else 0.0, **more)).grant


class Slots:
    """Members that keep to what they are told, and hold as much in flight."""

    def __init__(self, limit: int, wants: dict[str, float]) -> None:
        self.ledger, self.limit, self.wants, self.now = Ledger(), limit, wants, 0.0
        self.hold = dict.fromkeys(wants, 0)
        self.held_for = dict.fromkeys(wants, 0.0)

    def rounds(self, count: int) -> dict[str, int]:
        for _ in range(count):
            self.now += 0.5
            for name in self.wants:
                self.hold[name] = int(slots(self.ledger, self.now, name, self.hold[name], self.wants[name], self.limit))
                assert sum(self.hold.values()) <= self.limit
                self.held_for[name] += 0.5 * self.hold[name]
        return self.hold


def test_the_level_up_to_which_all_are_filled() -> None:
    assert water_level(0.0, [(1.0, 5.0)]) == 1.0
    assert water_level(3.0, [(0.0, 1.0), (0.0, 5.0), (4.0, 5.0)]) == 2.0
    assert water_level(2.0, [(0.0, 1.0), (5.0, 5.0)]) == 6.0
    assert water_level(5.0, [(0.0, 0.0), (0.0, 5.0)]) == 5.0
    assert water_level(10.0, [(0.0, 1.0), (0.0, 3.0), (0.0, 9.0)]) == 6.0
    assert water_level(9.0, []) == inf


# shares


def test_slots_are_divided_by_max_min_fairness_within_two_renewals_of_all() -> None:
    cases: list[tuple[dict[str, float], list[int]]] = [
        ({"a": inf}, [8]),
        ({"a": inf, "b": inf}, [4, 4]),
        ({"a": 1, "b": inf, "c": 0}, [1, 7, 0]),
        ({"a": 2, "b": 3, "c": 9}, [2, 3, 3]),
        ({"a": 1, "b": 1, "c": 1}, [1, 1, 1]),
    ]
    found = []
    for wants, _ in cases:
        members = Slots(8, wants)
        members.rounds(1)
        found.append(list(members.rounds(2).values()))
    assert found == [fair for _, fair in cases]


def test_odd_slots_go_round_so_that_no_member_starves() -> None:
    for limit, count, modest in ((3, 8, 0), (10, 8, 0), (1, 2, 0), (9, 3, 1)):
        members = Slots(limit, {f"m{number}": inf for number in range(count)} | dict.fromkeys(["content"] * modest, 2.0))
        members.rounds(int(2 * TURN * count * 4))
        times = list(members.held_for.values())
        assert min(times[:count]) >= 0.85 * max(times[:count]), (limit, count)
        assert sum(times) >= 0.95 * limit * members.now, (limit, count)


def test_shares_of_a_rate_are_equal_parts_of_what_is_granted_in_a_minute_and_what_some_do_not_want_is_for_the_others() -> None:
    for kind in ("requests", "tokens"):
        modest = 60 * PERIOD / MINUTE / 600
        for rates, parts in (
            ([inf] * 4, [1 / 4] * 4),
            ([60.0, inf, inf], [modest, (1 - modest) / 2, (1 - modest) / 2]),
            ([0.0, inf], [0.0, 1.0]),
        ):
            ledger = Ledger()
            for _ in range(2):
                found = [
                    renewed(ledger, 0.0, f"m{number}", kind, Demand(600, want=1000, rate=rate)).hold / (600 * MINUTE / PERIOD)
                    for number, rate in enumerate(rates)
                ]
            assert found == pytest.approx(parts), (kind, rates)


def test_a_share_that_shrinks_is_not_given_to_others_before_its_member_has_reported_that_it_knows() -> None:
    ledger = Ledger()
    assert (slots(ledger, 0.0, "a", 0), slots(ledger, 0.1, "b", 0)) == (8, 0)
    assert (slots(ledger, 0.5, "a", 8), slots(ledger, 0.6, "b", 0)) == (4, 0)
    assert (slots(ledger, 1.0, "a", 8), slots(ledger, 1.1, "b", 0)) == (4, 0), "the reply was lost: it still holds all"
    assert (slots(ledger, 1.5, "a", 4), slots(ledger, 1.6, "b", 0)) == (4, 4)


def test_what_is_in_flight_is_held_even_if_the_share_is_smaller() -> None:
    ledger = Ledger()
    slots(ledger, 0.0, "a")
    slots(ledger, 0.1, "b")
    assert slots(ledger, 0.5, "a", hold=8, using=8) == 4
    slots(ledger, 1.0, "a", hold=4, using=6)
    assert slots(ledger, 1.1, "b") == 2
    slots(ledger, 1.5, "a", hold=4, using=3)
    assert slots(ledger, 1.6, "b", hold=2) == 4


def test_a_lease_runs_out_and_what_was_in_flight_when_it_has_certainly_ended() -> None:
    for lasts in (LINGER, 6.0, 1.0):
        ledger, ends = Ledger(), max(lasts, LEASE)
        slots(ledger, 0.0, "a", hold=8, using=3, lasts=lasts)
        assert slots(ledger, LEASE, "b") == 0
        if lasts > LEASE:
            assert slots(ledger, LEASE + 0.1, "b") == slots(ledger, ends, "b") == 5, lasts
        assert slots(ledger, ends + 0.1, "b", hold=5) == 8, lasts


def test_each_kind_of_share_of_a_dead_process_is_there_at_once() -> None:
    """A member that wants all of a limit, before and after the only other one is found dead: its share."""
    ledger = Ledger()
    ledger.renew(0.0, "a", RenewRequest(permits=Demand(8)))
    assert (ledger.silent(FRESH), ledger.silent(FRESH + 0.1)) == ([], ["a"])
    shares = {}
    for kind in KINDS:
        ledger, held = Ledger(), []
        for now, member in ((0.0, "a"), (1.0, "b"), (2.0, "b")):
            if now == 2.0:
                ledger.remove_dead(2.0, "a")
            held.append(renewed(ledger, now, member, kind, Demand(600, want=600, rate=inf, using=600)).hold)
        shares[kind] = (held[1] / held[0], held[2] == held[0])
    assert shares == {"requests": (0.5, True), "tokens": (0.5, True), "permits": (0, True)}


def test_a_member_that_is_silent_for_ever_leaves_nothing_in_the_ledger() -> None:
    ledger = Ledger()
    need = Demand(600, want=600, rate=inf)
    ledger.renew(0.0, "the first", RenewRequest(need, need, need))
    ledger.renew(LINGER + LEASE, "another", RenewRequest(need, need, need))
    assert b"the first" not in msgspec.msgpack.encode(ledger)


def test_of_different_limits_the_smallest_counts_as_long_as_its_member_is_there() -> None:
    found = {}
    for kind in KINDS:
        ledger = Ledger()

        def limit(now: float, name: str, configured: float, ledger: Ledger = ledger, kind: str = kind) -> float:
            return renewed(ledger, now, name, kind, Demand(configured, want=1000, rate=inf)).limit

        told = [limit(0.0, "a", 600), limit(0.0, "b", 60), limit(0.5, "a", 600)]
        ledger.leave(0.6, "b", RenewRequest(**{kind: Demand(60)}))
        found[kind] = [*told, limit(1.0, "a", 600)]
    assert found == {kind: [600, 60, 60, 600] for kind in KINDS}


# a limit per minute


def test_a_reply_that_was_lost_costs_nothing_for_long() -> None:
    ledger = Ledger()
    lost = granted(ledger, 0.0, "a")
    assert lost >= 1
    assert ledger.requests.counted() == lost
    assert granted(ledger, 0.1, "a") >= lost
    for turn in range(1, 8):
        granted(ledger, turn / 2, "a")  # it never has anything left, nor used any
        granted(ledger, turn / 2, "b", want=0)
    account = ledger.requests.accounts["a"]
    assert account.served == pytest.approx(account.out), "it is not charged for it"


def test_a_grant_of_tokens_is_large_enough_for_a_request_once_a_seconds_worth_has_accumulated() -> None:
    """Second -> granted to a member whose requests cost 150 tokens, of a limit of about 99 tokens a second."""
    ledger, got = Ledger(), dict[float, float]()
    all_credit = granted(ledger, 0.0, "b", 1e6, 6000, "tokens")
    ledger.leave(0.0, "b", RenewRequest(tokens=Demand(6000, spent=all_credit)))
    for now in (0.0, 0.5, 0.9, 1.1, 1.5, 2.5, 3.0):
        got[now] = granted(ledger, now, "a", 1e6, 6000, "tokens", least=150.0, spent=sum(got.values()))
    assert got == {0.0: 0, 0.5: 0, 0.9: 0, 1.1: 150, 1.5: 0, 2.5: 0, 3.0: 150}


def test_a_member_does_not_get_the_last_of_a_limit_before_one_whose_turn_it_is() -> None:
    quota = WindowQuota(whole=False, limit=600.0, used={0: 585.0}, credit=20.0)
    for name, served in (("a", 0.0), ("b", 5.0)):
        quota.accounts[name] = Account(0.0, Demand(600, want=10.0, least=10.0), served=served)
    assert [quota.grant(0.0, name) for name in ("b", "a")] == [0.0, 10.0]


def test_credit_that_is_too_little_for_the_requests_of_two_members_is_for_the_one_whose_turn_it_is() -> None:
    quota = WindowQuota(whole=False, limit=6000.0, credit=120.0)
    for name, served in (("a", 0.0), ("b", 5.0)):
        quota.accounts[name] = Account(0.0, Demand(6000, want=1000.0, least=100.0), served=served)
    assert [quota.grant(0.0, name) for name in ("b", "a", "b")] == [0.0, pytest.approx(100, abs=13), 0.0]
    assert quota.accounts["a"].want == 1000 - quota.accounts["a"].out


def test_after_a_pause_about_two_seconds_worth_of_a_limit_may_be_used_at_once_and_two_requests_at_least() -> None:
    got = {}
    for kind, limit in (("requests", 6), ("requests", 6000), ("tokens", 6000)):
        ledger = Ledger()
        granted(ledger, 0.0, "a", 0, limit, kind)
        got[kind, limit] = granted(ledger, 59.0, "a", 1e6, limit, kind)
        assert granted(ledger, 59.0, "b", 1e6, limit, kind) < 1, (kind, limit)
    second = 6000 / PERIOD
    assert got == {("requests", 6): 2, ("requests", 6000): int(second), ("tokens", 6000): pytest.approx(2 * second)}


def test_what_a_dead_process_had_in_hand_counts_as_used_for_a_minute_after_its_end() -> None:
    """It may have sent all of it until it was found dead, or until its lease ran out."""
    for noticed, ended in ((True, 0.0), (False, LEASE)):
        ledger = Ledger()
        grant = granted(ledger, 0.0, "a", limit=60)
        if noticed:
            ledger.remove_dead(0.0, "a")
        for now, counted in ((ended + 30.0, grant), (ended + COUNTED - 0.01, grant), (ended + COUNTED, 0)):
            granted(ledger, now, "b", want=0, limit=60)
            assert ledger.requests.counted() == counted, now


def test_a_member_that_leaves_in_good_order_gives_back_what_it_did_not_use_and_is_not_charged_again_when_it_returns() -> None:
    for kind in ("requests", "tokens"):
        ledger = Ledger()
        quota: WindowQuota = getattr(ledger, kind)
        grant = granted(ledger, 0.0, "a", kind=kind)
        assert granted(ledger, 0.0, "b", kind=kind) == 0, kind
        assert granted(ledger, 0.0, "a", want=grant, kind=kind, left=grant) == 0, kind
        assert granted(ledger, 0.0, "b", kind=kind) == 0, f"{kind}: what is left is not credit"
        ledger.leave(0.5, "a", RenewRequest(**{kind: Demand(600, spent=1.0, left=grant - 1, want=9.0)}))
        assert (quota.counted(), list(ledger.members)) == (1, ["b"]), kind
        assert granted(ledger, 0.5, "b", kind=kind) >= grant - 1, kind
        counted = quota.counted()
        granted(ledger, 0.5, "a", want=0, kind=kind, spent=1.0, returned=0.0)
        assert quota.counted() == counted, kind
        ledger.leave(0.5, "b", RenewRequest())
        assert list(ledger.members) == ["a"], f"{kind}: also if it has no such limit any more"


def test_what_a_member_has_left_is_part_of_what_it_wants() -> None:
    """Wanted at the second renewal, and left of the five that the first one granted -> granted."""
    got = {}
    for want, left in ((5, 5.0), (7, 5.0), (5, 2.0), (3, 5.0)):
        ledger = Ledger()
        assert granted(ledger, 0.0, "a", want=5) == 5
        got[want, left] = granted(ledger, 0.5, "a", want=want, spent=5.0 - left, left=left)
    assert got == {(5, 5.0): 0, (7, 5.0): 2, (5, 2.0): 3, (3, 5.0): 0}
    assert granted(Ledger(), 0.0, "a", want=1) == 1


def test_a_member_that_comes_or_returns_does_not_make_up_for_the_time_before() -> None:
    for kind in ("new", "idle"):
        ledger, got = Ledger(), dict.fromkeys("ab", 0.0)
        for turn in range(80):
            if turn == 40:
                before = dict(got)
            for name in "ab":
                if name == "a" or turn >= 40:
                    got[name] += granted(ledger, turn / 2, name, spent=got[name])
                elif kind == "idle":
                    granted(ledger, turn / 2, name, want=0)
        parts = [got[name] - before[name] for name in "ab"]
        assert sum(parts) >= 0.9 * 20 * ledger.requests.rate, kind
        assert max(parts) <= 1.1 * min(parts), (kind, parts)


def test_a_member_that_comes_or_returns_starts_level_with_the_one_that_waits_and_has_had_least() -> None:
    """Not with the one that has had most, nor with one that was slow and had less: what each gets of a credit of 36."""
    quota = WindowQuota(whole=False, limit=6000.0)
    for name, at, had in (("little", 0.0, 10.0), ("much", 0.0, 40.0), ("slow", -FRESH - 1, 4.0), ("idle", 0.0, 2.0)):
        quota.accounts[name] = Account(at, Demand(6000, want=0.0 if name == "idle" else 99.0), served=had)
    quota.grant(0.0, "much")
    for name in ("slow", "idle", "new"):
        quota.report(0.0, name, Demand(6000, want=99.0))
        quota.grant(0.0, name)
    quota.credit = 36.0
    got = {name: quota.grant(0.0, name) for name in ("little", "slow", "idle", "new", "much")}
    assert got == {"little": 7.5, "slow": 13.5, "idle": 7.5, "new": 7.5, "much": 0}


def test_a_member_that_is_slow_but_within_its_lease_is_not_charged_twice() -> None:
    for late, charged_twice in ((FRESH + 0.5, False), (LEASE, False), (LEASE + 0.1, True)):
        ledger = Ledger()
        grant = granted(ledger, 0.0, "a")
        granted(ledger, late, "b", want=0)
        granted(ledger, late, "a", want=0, spent=1.0, left=grant - 1)
        assert (ledger.requests.counted() > grant) is charged_twice, late


def test_nothing_is_kept_for_a_member_that_is_slow_but_it_is_served_first_when_it_is_back() -> None:
    ledger, got = Ledger(), dict.fromkeys("ab", 0.0)

    def use(now: float, name: str) -> float:
        grant = granted(ledger, now, name, spent=got[name])
        got[name] += grant
        return grant

    for turn in range(20):
        for name in "ab":
            use(turn / 2, name)
    assert got["a"] == pytest.approx(got["b"], rel=0.1)
    slow = [use(9.5 + turn / 2, "a") for turn in range(1, 8)]
    assert sum(slow[3:]) >= 0.9 * 4 * 0.5 * ledger.requests.rate, slow
    before = dict(got)
    for turn in range(8, 16):
        for name in "ab":
            use(9.5 + turn / 2, name)
    a, b = (got[name] - before[name] for name in "ab")
    assert b > 1.5 * a, (a, b)


def test_a_member_that_wants_nothing_for_one_renewal_does_not_go_before_one_that_waited() -> None:
    ledger = Ledger()
    assert (granted(ledger, 0.0, "a", limit=60), granted(ledger, 0.0, "b", limit=60)) == (2, 0)
    granted(ledger, 0.6, "a", want=0, limit=60, spent=2.0)
    after = [granted(ledger, now, name, limit=60, spent=spent) for now, name, spent in ((0.6, "b", 0), (1.2, "a", 2.0), (1.2, "b", 0))]
    assert after == [0, 0, 1]


def test_what_proves_unused_later_is_taken_off_what_was_used_first_and_others_may_use_it() -> None:
    ledger = Ledger()
    grant = granted(ledger, 0.0, "a")
    assert grant >= 8
    granted(ledger, 0.5, "a", want=0, spent=4.0, left=grant - 4)
    granted(ledger, 3.5, "a", want=0, spent=4.0, left=grant - 4)
    granted(ledger, 7.0, "a", want=0, spent=8.0, left=0.0)
    assert ledger.requests.counted() == 8
    taken = granted(ledger, 7.0, "b")
    for returned in (2.0, 5.0):
        granted(ledger, 7.0, "a", want=0, spent=8.0, returned=returned)
    assert ledger.requests.counted() == 3 + taken
    assert granted(ledger, 7.0, "b", spent=taken) == 5
    ledger.leave(7.0, "b", RenewRequest(requests=Demand(600, spent=taken, returned=taken)))
    granted(ledger, 63.0, "c", want=0)
    assert ledger.requests.counted() == 3, "what was used first would not count any more"
    granted(ledger, 69.0, "c", want=0)
    assert ledger.requests.counted() == 0


# a new ledger, clocks, messages


def test_a_new_ledger_lets_those_go_on_that_hold_slots_and_gives_none_to_others_for_the_time_of_a_lease() -> None:
    ledger = Ledger(100.0)
    found = {name: slots(ledger, 100.0, name, hold) for name, hold in (("holder", 3), ("newcomer", 0), ("greedy", 9))}
    assert found == {"holder": 3, "newcomer": 0, "greedy": 8}
    for name in ("greedy", "newcomer"):
        ledger.remove_dead(100.0, name)
    assert [slots(ledger, 100.0 + LEASE - early, "newcomer") for early in (0.01, 0.0)] == [0, 4]


def test_a_new_ledger_waits_for_the_credit_of_a_burst_and_for_what_members_have_left_of_the_ledger_before() -> None:
    for kind, limit, left, until in (("requests", 6000, 30.0, 1.31), ("tokens", 6000, 30.0, 2.31), ("requests", 60, 0.0, 3.0)):
        ledger, per_second = Ledger(100.0), limit / PERIOD
        assert granted(ledger, 100.0, "a", 1000, limit, kind, left=left) == 0, kind
        early, later = (granted(ledger, 100.0 + after, "b", 1000, limit, kind) for after in (until - 0.01, until + 0.5))
        assert early == 0, (kind, limit)
        assert 0 < later <= 0.52 * per_second + 1, (kind, limit)


def test_a_clock_that_goes_back_a_little_changes_nothing_and_one_of_another_time_is_told_apart() -> None:
    ledger = Ledger()
    slots(ledger, 1000.0, "a")
    slots(ledger, 999.9, "a", hold=8)
    assert ledger.now == 1000.0
    assert [ledger.is_of(1000.0 - back) for back in (-5000.0, 0.5, BACKWARDS, 2.0, 980.0)] == [True, True, True, False, False]


def test_a_ledger_and_its_replies_are_the_same_after_they_were_encoded() -> None:
    ledger = Ledger(3.0)
    minute = Demand(6e4, want=300.0, rate=inf, least=30.0, spent=2.0)
    for name in "abc":
        ledger.renew(9.0, name, RenewRequest(minute, minute, Demand(8, rate=inf, using=1)))
    again = msgspec.msgpack.decode(msgspec.msgpack.encode(ledger), type=Ledger)
    assert again == ledger
    share = again.renew(9.5, "a", RenewRequest(minute))
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(share), type=RenewReply) == share
