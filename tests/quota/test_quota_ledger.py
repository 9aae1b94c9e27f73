"""Who gets how much of a shared limit, and when; the words of the ledger, one case each."""

from __future__ import annotations

from math import inf

import msgspec
import pytest
from msgspec.structs import replace

from qreward.quota.ledger import TURN, Account, Ledger, WindowQuota, water_level
from qreward.quota.messages import FRESH, LEASE, LINGER, MARGIN, MINUTE, PERIOD, STEP, Demand, Grant, RenewReply, RenewRequest


def slots(limit: int = 8, want: float = inf, hold: float = 0, using: int = 0) -> RenewRequest:
    return RenewRequest(permits=Demand(limit, hold=hold, rate=want, using=using))


def rate(limit: float = 600, want: float = 1000, **more: float) -> RenewRequest:
    return RenewRequest(requests=Demand(limit, want=want, rate=inf if want else 0.0, **more))  # type: ignore[arg-type]


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
                self.one(name)
                self.held_for[name] += 0.5 * self.hold[name]
        return self.hold

    def one(self, name: str) -> None:
        share = self.ledger.renew(self.now, name, slots(self.limit, self.wants[name], self.hold[name]))
        self.hold[name] = int(part_of(share.permits).hold)
        assert sum(self.hold.values()) <= self.limit


def part_of(part: Grant | None) -> Grant:
    assert part is not None
    return part


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


def test_what_is_in_flight_is_held_even_if_the_share_is_smaller() -> None:
    ledger = Ledger()
    ledger.renew(0.0, "a", slots())
    ledger.renew(0.1, "b", slots())
    assert part_of(ledger.renew(0.5, "a", slots(hold=8, using=8)).permits).hold == 4
    ledger.renew(1.0, "a", slots(hold=4, using=6))
    assert part_of(ledger.renew(1.1, "b", slots()).permits).hold == 2
    ledger.renew(1.5, "a", slots(hold=4, using=3))
    assert part_of(ledger.renew(1.6, "b", slots(hold=2)).permits).hold == 4


def test_a_lease_runs_out_and_what_was_in_flight_a_minute_later() -> None:
    ledger = Ledger()
    ledger.renew(0.0, "a", slots(hold=8, using=3))
    assert part_of(ledger.renew(LEASE, "b", slots()).permits).hold == 0
    assert part_of(ledger.renew(LEASE + 0.1, "b", slots()).permits).hold == 5
    assert part_of(ledger.renew(LINGER + 0.1, "b", slots(hold=5)).permits).hold == 8


def test_a_member_whose_answers_are_quick_is_not_waited_for_as_long() -> None:
    ledger = Ledger()
    ledger.renew(0.0, "a", RenewRequest(permits=Demand(8, rate=inf, hold=8, using=3, lasts=6.0)))
    assert part_of(ledger.renew(LEASE + 0.1, "b", slots()).permits).hold == 5
    assert part_of(ledger.renew(6.1, "b", slots(hold=5)).permits).hold == 8


def test_what_a_dead_process_had_is_there_at_once() -> None:
    ledger = Ledger()
    ledger.renew(0.0, "a", slots(hold=8, using=8))
    assert ledger.silent(1.0) == []
    assert ledger.silent(2.0) == ["a"]
    ledger.remove_dead(2.0, "a")
    assert part_of(ledger.renew(2.0, "b", slots()).permits).hold == 8


def test_each_kind_of_share_of_a_dead_process_is_there_at_once() -> None:
    """A member that wants all of a limit, before and after the only other one is found dead: its share."""
    shares = {}
    for kind in ("requests", "tokens", "permits"):
        ledger, held = Ledger(), []
        for now, member in ((0.0, "a"), (1.0, "b"), (2.0, "b")):
            if now == 2.0:
                ledger.remove_dead(2.0, "a")
            reply = ledger.renew(now, member, RenewRequest(**{kind: Demand(600, want=600, rate=inf)}))
            held.append(part_of(getattr(reply, kind)).hold)
        shares[kind] = (held[1], held[2] == held[0])
    assert shares == dict.fromkeys(shares, (0, True))


def test_odd_slots_go_round_so_that_no_member_starves() -> None:
    for limit, count in ((3, 8), (10, 8), (1, 2)):
        members = Slots(limit, {f"m{number}": inf for number in range(count)})
        members.rounds(int(2 * TURN * count * 4))
        times = members.held_for.values()
        assert min(times) >= 0.85 * max(times), (limit, count)
        assert sum(times) >= 0.95 * limit * members.now, (limit, count)


def test_shares_of_a_rate_add_up_to_what_may_be_handed_out_and_no_more() -> None:
    ledger, shares = Ledger(), dict.fromkeys("abcde", 0.0)
    for _ in range(4):
        for name in shares:
            share = ledger.renew(0.0, name, rate(hold=shares[name]))
            shares[name] = part_of(share.requests).hold
            assert sum(shares.values()) <= 600 * MINUTE / PERIOD + 1e-6
    assert list(shares.values()) == pytest.approx([600 * MINUTE / PERIOD / 5] * 5)


def test_a_reply_that_was_lost_costs_nothing_for_long() -> None:
    ledger = Ledger()
    lost = part_of(ledger.renew(0.0, "a", rate()).requests).grant
    assert lost >= 1
    assert ledger.requests.counted() == lost
    again = part_of(ledger.renew(0.1, "a", rate()).requests).grant
    assert again >= lost


def test_a_grant_of_tokens_is_large_enough_for_a_request_once_a_seconds_worth_has_accumulated() -> None:
    """Second -> granted to a member whose requests cost 150 tokens, of a limit of about 99 tokens a second."""
    ledger = Ledger()
    granted: dict[float, float] = {}
    all_credit = part_of(ledger.renew(0.0, "b", RenewRequest(tokens=Demand(6000, want=1e6, rate=inf))).tokens).grant
    ledger.leave(0.0, "b", RenewRequest(tokens=Demand(6000, spent=all_credit)))
    for now in (0.0, 0.5, 0.9, 1.1, 1.5, 2.5, 3.0):
        tokens = Demand(6000, want=1e6, rate=inf, least=150.0, spent=sum(granted.values()))
        granted[now] = part_of(ledger.renew(now, "a", RenewRequest(tokens=tokens)).tokens).grant
    assert granted == {0.0: 0, 0.5: 0, 0.9: 0, 1.1: 150, 1.5: 0, 2.5: 0, 3.0: 150}


def test_a_member_does_not_get_the_last_of_a_limit_before_one_whose_turn_it_is() -> None:
    quota = WindowQuota(whole=False, limit=600.0, used={0: 585.0}, credit=20.0)
    for name, served in (("a", 0.0), ("b", 5.0)):
        quota.accounts[name] = Account(0.0, 0.0, 0.0, served, want=10.0, least=10.0)
    assert [quota.grant(0.0, name) for name in ("b", "a")] == [0.0, 10.0]


def test_what_a_dead_process_had_in_hand_counts_as_used_for_a_minute() -> None:
    ledger = Ledger()
    grant = part_of(ledger.renew(0.0, "a", rate(60)).requests).grant
    ledger.remove_dead(0.0, "a")
    for now, counted in ((30.0, grant), (MINUTE + MARGIN + STEP - 0.01, grant), (MINUTE + MARGIN + STEP, 0)):
        ledger.renew(now, "b", rate(60, want=0))
        assert ledger.requests.counted() == counted, now


def test_after_a_pause_about_two_seconds_worth_of_a_limit_may_be_used_at_once_and_two_requests_at_least() -> None:
    granted = {}
    for kind, limit in (("requests", 6), ("requests", 6000), ("tokens", 6000)):
        ledger, need = Ledger(), Demand(limit, want=1e6, rate=inf)
        ledger.renew(0.0, "a", RenewRequest(**{kind: replace(need, want=0.0)}))
        granted[kind, limit] = part_of(getattr(ledger.renew(59.0, "a", RenewRequest(**{kind: need})), kind)).grant
        again = part_of(getattr(ledger.renew(59.0, "b", RenewRequest(**{kind: need})), kind)).grant
        assert again < 1, (kind, limit)
    second = 6000 / PERIOD
    assert granted == {("requests", 6): 2, ("requests", 6000): int(second), ("tokens", 6000): pytest.approx(2 * second)}


def test_a_member_that_leaves_in_good_order_gives_back_what_it_did_not_use() -> None:
    ledger = Ledger()
    grant = part_of(ledger.renew(0.0, "a", rate()).requests).grant
    ledger.leave(0.5, "a", rate(spent=1.0, left=grant - 1))
    assert ledger.requests.counted() == 1
    assert not ledger.members


def test_what_a_member_has_left_is_part_of_what_it_wants() -> None:
    """Wanted at the second renewal, and left of the five that the first one granted -> granted."""
    granted = {}
    for want, left in ((5, 5.0), (7, 5.0), (5, 2.0), (3, 5.0)):
        ledger = Ledger()
        assert part_of(ledger.renew(0.0, "a", rate(want=5)).requests).grant == 5
        reply = ledger.renew(0.5, "a", rate(want=want, spent=5.0 - left, left=left))
        granted[want, left] = part_of(reply.requests).grant
    assert granted == {(5, 5.0): 0, (7, 5.0): 2, (5, 2.0): 3, (3, 5.0): 0}


def test_a_member_that_gives_back_what_it_got_is_not_charged_for_it() -> None:
    ledger = Ledger()
    for turn in range(8):
        ledger.renew(turn / 2, "a", rate())  # it never has anything left, nor used any: its replies are lost
        ledger.renew(turn / 2, "b", rate(want=0))
    assert ledger.requests.accounts["a"].served <= ledger.requests.most + ledger.requests.clock
    assert ledger.requests.accounts["a"].served == pytest.approx(ledger.requests.accounts["a"].out)


def test_a_share_that_shrinks_is_not_given_to_others_before_its_member_has_reported_that_it_knows() -> None:
    ledger = Ledger()

    def renewed(now: float, name: str, hold: float) -> float:
        return part_of(ledger.renew(now, name, slots(hold=hold)).permits).hold

    assert (renewed(0.0, "a", 0), renewed(0.1, "b", 0)) == (8, 0)
    assert (renewed(0.5, "a", 8), renewed(0.6, "b", 0)) == (4, 0)
    assert (renewed(1.0, "a", 8), renewed(1.1, "b", 0)) == (4, 0), "the reply was lost: it still holds all"
    assert (renewed(1.5, "a", 4), renewed(1.6, "b", 0)) == (4, 4)


def test_a_member_that_is_slow_but_within_its_lease_is_not_charged_twice() -> None:
    for late, charged_twice in ((FRESH + 0.5, False), (LEASE - 0.1, False), (LEASE + 0.1, True)):
        ledger = Ledger()
        grant = part_of(ledger.renew(0.0, "a", rate()).requests).grant
        ledger.renew(late, "b", rate(want=0))
        ledger.renew(late, "a", rate(want=0, spent=1.0, left=grant - 1))
        assert (ledger.requests.counted() > grant) is charged_twice, late


def test_nothing_is_kept_for_a_member_that_is_slow() -> None:
    ledger, got, spent = Ledger(), dict.fromkeys("ab", 0.0), dict.fromkeys("ab", 0.0)

    def renewed(now: float, name: str) -> float:
        grant = part_of(ledger.renew(now, name, rate(spent=spent[name])).requests).grant
        spent[name] += grant
        got[name] += grant
        return grant

    for turn in range(20):
        for name in "ab":
            renewed(turn / 2, name)
    assert got["a"] == pytest.approx(got["b"], rel=0.1)
    slow = [renewed(9.5 + turn / 2, "a") for turn in range(1, 8)]
    assert sum(slow[3:]) >= 0.9 * 4 * 0.5 * ledger.requests.rate, slow


def test_a_member_that_wants_nothing_for_one_renewal_does_not_go_before_one_that_waited() -> None:
    ledger = Ledger()

    def renewed(now: float, name: str, *, want: float = 1000, spent: float = 0.0) -> float:
        return part_of(ledger.renew(now, name, rate(60, want=want, spent=spent)).requests).grant

    assert (renewed(0.0, "a"), renewed(0.0, "b")) == (2, 0)
    renewed(0.6, "a", want=0, spent=2.0)
    assert (renewed(0.6, "b"), renewed(1.2, "a", spent=2.0), renewed(1.2, "b")) == (0, 0, 1)


def test_what_proves_unused_later_is_taken_off_what_was_used_first() -> None:
    ledger = Ledger()
    grant = part_of(ledger.renew(0.0, "a", rate()).requests).grant
    assert grant >= 8
    ledger.renew(0.5, "a", rate(want=0, spent=4.0, left=grant - 4))
    ledger.renew(3.5, "a", rate(want=0, spent=4.0, left=grant - 4))
    ledger.renew(7.0, "a", rate(want=0, spent=8.0, left=0.0))
    assert ledger.requests.counted() == 8
    ledger.renew(7.5, "a", rate(want=0, spent=8.0, returned=5.0))
    assert ledger.requests.counted() == 3
    ledger.renew(63.0, "b", rate(want=0))
    assert ledger.requests.counted() == 3, "what was used first would not count any more"
    ledger.renew(69.0, "b", rate(want=0))
    assert ledger.requests.counted() == 0


def test_of_different_limits_the_smallest_counts() -> None:
    ledger = Ledger()
    assert part_of(ledger.renew(0.0, "a", rate(600)).requests).limit == 600
    assert part_of(ledger.renew(0.0, "b", rate(60)).requests).limit == 60
    assert part_of(ledger.renew(0.5, "a", rate(600)).requests).limit == 60
    ledger.leave(0.6, "b", rate(60))
    assert part_of(ledger.renew(1.0, "a", rate(600)).requests).limit == 600


def test_a_new_ledger_lets_those_go_on_that_hold_something_and_gives_nothing_to_others() -> None:
    ledger = Ledger(100.0)
    holder = ledger.renew(100.0, "a", RenewRequest(rate(hold=70.0).requests, None, slots(hold=3).permits))
    newcomer = ledger.renew(100.0, "b", RenewRequest(rate().requests, None, slots().permits))
    assert holder.young
    assert (part_of(holder.requests).hold, part_of(holder.permits).hold, part_of(holder.requests).grant) == (70.0, 3, 0)
    assert (part_of(newcomer.requests).hold, part_of(newcomer.permits).hold, part_of(newcomer.requests).grant) == (0, 0, 0)
    more = ledger.renew(100.0, "c", RenewRequest(rate(hold=700.0).requests, None, slots(hold=9).permits))
    most = 600 * MINUTE / PERIOD
    assert (part_of(more.requests).hold, part_of(more.permits).hold) == (pytest.approx(most), 8), "no more than the limit"
    ledger.remove_dead(100.0, "c")
    later = ledger.renew(100.0 + LEASE, "b", slots())
    assert not later.young
    assert part_of(later.permits).hold == 4


def test_a_clock_that_goes_back_a_little_changes_nothing_and_one_of_another_time_is_told_apart() -> None:
    ledger = Ledger()
    ledger.renew(1000.0, "a", slots())
    ledger.renew(999.9, "a", slots(hold=8))
    assert ledger.now == 1000.0
    assert ledger.is_of(999.5)
    assert not ledger.is_of(20.0)


def test_a_ledger_and_its_replies_are_the_same_after_they_were_encoded() -> None:
    ledger = Ledger(3.0)
    for name in "abc":
        ledger.renew(
            9.0, name, RenewRequest(rate(spent=2.0).requests, Demand(6e4, want=300.0, rate=inf, least=30.0), slots(using=1).permits)
        )
    again = msgspec.msgpack.decode(msgspec.msgpack.encode(ledger), type=Ledger)
    assert again == ledger
    share = again.renew(9.5, "a", slots())
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(share), type=RenewReply) == share


def test_the_level_up_to_which_all_are_filled() -> None:
    assert water_level(0.0, [(1.0, 5.0)]) == 1.0
    assert water_level(3.0, [(0.0, 1.0), (0.0, 5.0), (4.0, 5.0)]) == 2.0
    assert water_level(2.0, [(0.0, 1.0), (5.0, 5.0)]) == 6.0
    assert water_level(9.0, []) == inf
