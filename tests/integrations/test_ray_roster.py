"""Which actor takes which batch: the rules, and the invariants under any sequence of events."""

from __future__ import annotations

from typing import Any

import hypothesis.strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from qreward.integrations.ray.supervisor import (
    STARTS,
    Actor,
    ActorState,
    Assignment,
    BatchRequest,
    Command,
    Hire,
    Placement,
    Refuse,
    delay_of,
)


def opened(count: int = 2, concurrency: int = 1, max_restarts: int = 3) -> Placement:
    """A roster of which all actors are ready."""
    placement = Placement(count, concurrency, max_restarts)
    for command in placement.begin():
        assert isinstance(command, Hire)
        placement.ready(command.actor, command.life)
    return placement


def seated(commands: list[Command]) -> list[BatchRequest]:
    return [command.ticket for command in commands if isinstance(command, Assignment)]


def places(tickets: list[BatchRequest]) -> list[int]:
    return [ticket.actor.number for ticket in tickets if ticket.actor is not None]


def asked(placement: Placement, count: int) -> list[BatchRequest]:
    tickets = [BatchRequest() for _ in range(count)]
    for ticket in tickets:
        placement.ask(ticket)
    return tickets


def test_nothing_is_bound_to_an_actor_that_is_not_ready() -> None:
    placement = Placement(2, 1, 3)
    first, second = placement.begin()
    assert isinstance(first, Hire)
    assert isinstance(second, Hire)
    tickets = asked(placement, 3)
    assert places(tickets) == []
    assert seated(placement.ready(second.actor, 0)) == [tickets[0]]
    assert places(tickets) == [1]
    assert seated(placement.ready(first.actor, 0)) == [tickets[1]]


def test_a_batch_goes_to_the_actor_with_the_fewest() -> None:
    placement = opened(count=3, concurrency=2)
    tickets = asked(placement, 7)
    assert places(tickets[:6]) == [0, 1, 2, 0, 1, 2]
    assert tickets[6].actor is None
    assert seated(placement.leave(tickets[1], well=True)) == [tickets[6]]
    assert places(tickets[6:]) == [1]


def test_a_batch_that_must_be_alone_goes_first_and_holds_an_actor_free_for_itself() -> None:
    placement = opened(count=1, concurrency=2)
    one, two = asked(placement, 2)
    (late,) = asked(placement, 1)
    suspect = BatchRequest(alone=True)
    assert placement.ask(suspect) == []
    assert placement.leave(one, well=True) == []  # there is room, but not for company
    assert seated(placement.leave(two, well=True)) == [suspect]
    assert late.actor is None
    assert seated(placement.leave(suspect, well=True)) == [late]


def test_others_use_the_other_actors_while_one_is_held_free() -> None:
    placement = opened(count=2, concurrency=3)
    asked(placement, 3)
    suspect = BatchRequest(alone=True)
    placement.ask(suspect)
    (late,) = asked(placement, 1)
    assert suspect.actor is None
    assert places([late]) == [0]


def test_the_first_death_is_made_good_at_once_and_later_ones_ever_slower() -> None:
    placement = opened(count=1, max_restarts=100)
    delays = []
    for life in range(12):
        (start_actor,) = placement.died(placement.actors[0], life)
        assert isinstance(start_actor, Hire)
        delays.append(start_actor.delay)
    assert delays == [delay_of(deaths) for deaths in range(1, 13)]
    assert delays[:4] == [0.0, 0.1, 0.2, 0.4]
    assert max(delays) == 30.0
    assert placement.deaths == 12


def test_a_batch_that_is_done_ends_the_succession_of_deaths() -> None:
    placement = opened(count=1, max_restarts=1)
    actor = placement.actors[0]
    for _ in range(5):
        (start_actor,) = placement.died(actor, actor.life)
        placement.ready(actor, actor.life)
        (ticket,) = asked(placement, 1)
        placement.leave(ticket, well=True)
        assert isinstance(start_actor, Hire)
        assert start_actor.delay == 0.0


def test_an_actor_that_dies_too_often_is_given_up_and_with_the_last_all_that_waits() -> None:
    placement = opened(count=2, max_restarts=1)
    tickets = asked(placement, 4)
    for actor in placement.actors:
        placement.died(actor, 0)
    first, second = placement.actors
    assert placement.died(first, 1) == []
    assert placement.count_of(ActorState.LOST) == 1
    assert [type(command) for command in placement.died(second, 1)] == [Refuse, Refuse]  # those that had no seat
    assert isinstance(placement.ask(BatchRequest())[0], Refuse)
    assert places(tickets) == [0, 1]


def test_an_actor_that_cannot_be_made_is_given_up_sooner() -> None:
    placement = Placement(1, 1, 100)
    placement.begin()
    actor = placement.actors[0]
    for life in range(STARTS - 1):
        assert placement.died(actor, life, in_making=True)
    assert placement.died(actor, STARTS - 1, in_making=True) == []
    assert actor.state is ActorState.LOST


def test_a_death_that_is_told_twice_counts_once() -> None:
    placement = opened(count=1, concurrency=2)
    actor = placement.actors[0]
    assert len(placement.died(actor, 0)) == 1
    assert placement.died(actor, 0) == []
    assert placement.deaths == 1
    assert placement.ready(actor, 0) == []  # of the actor before
    assert actor.state is ActorState.STARTING


def test_what_leaves_an_actor_that_is_gone_leaves_the_new_one_alone() -> None:
    placement = opened(count=1)
    (old,) = asked(placement, 1)
    actor = placement.actors[0]
    placement.died(actor, 0)
    placement.ready(actor, 1)
    (new,) = asked(placement, 1)
    placement.leave(old)
    assert new.actor is actor
    assert actor.load == 1


class AnyOrder(RuleBasedStateMachine):
    """Actors start, die and are given up, batches come, leave, and come back, in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.placement = Placement(3, 2, 4)
        self.coming: list[tuple[Actor, int]] = []
        self.waiting: list[BatchRequest] = []
        self.sitting: list[BatchRequest] = []
        self.refused: list[BatchRequest] = []
        self.carry(self.placement.begin())

    def carry(self, commands: list[Command]) -> None:
        for command in commands:
            if isinstance(command, Hire):
                assert command.delay >= 0
                self.coming.append((command.actor, command.life))
            else:
                self.waiting.remove(command.ticket)
                (self.sitting if isinstance(command, Assignment) else self.refused).append(command.ticket)

    @rule(alone=st.booleans())
    def ask(self, alone: bool) -> None:
        ticket = BatchRequest(alone)
        self.waiting.append(ticket)
        self.carry(self.placement.ask(ticket))

    @precondition(lambda self: self.coming)
    @rule(which=st.integers(0, 99), comes=st.booleans())
    def start(self, which: int, comes: bool) -> None:
        actor, life = self.coming.pop(which % len(self.coming))
        self.carry(self.placement.ready(actor, life) if comes else self.placement.died(actor, life, in_making=True))

    @rule(which=st.integers(0, 2))
    def die(self, which: int) -> None:
        actor = self.placement.actors[which]
        if actor.state is ActorState.READY:
            self.carry(self.placement.died(actor, actor.life))

    @precondition(lambda self: self.sitting)
    @rule(which=st.integers(0, 99), well=st.booleans())
    def done(self, which: int, well: bool) -> None:
        ticket = self.sitting.pop(which % len(self.sitting))
        self.carry(self.placement.leave(ticket, well))

    @precondition(lambda self: self.waiting)
    @rule(which=st.integers(0, 99))
    def give_up(self, which: int) -> None:
        ticket = self.waiting.pop(which % len(self.waiting))
        self.carry(self.placement.leave(ticket))

    @invariant()
    def nothing_is_lost_and_nobody_has_too_much(self) -> None:
        placement = self.placement
        assert sorted(map(id, placement.line)) == sorted(map(id, self.waiting))
        for actor in placement.actors:
            on_it = [ticket for ticket in self.sitting if ticket.actor is actor and ticket.life == actor.life]
            assert actor.load == len(on_it) <= placement.concurrency
            assert not any(ticket.alone for ticket in on_it) or len(on_it) == 1
            assert actor.state is ActorState.READY or not on_it

    @invariant()
    def nobody_waits_without_a_reason(self) -> None:
        states = {actor.state for actor in self.placement.actors}
        if states == {ActorState.LOST}:
            assert not self.waiting
        elif self.waiting:
            idle = [actor for actor in self.placement.actors if actor.state is ActorState.READY and not actor.load]
            assert not idle


TestAnyOrder: Any = AnyOrder.TestCase
