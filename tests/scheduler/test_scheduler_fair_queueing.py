"""Fair shares: tenants of a level, and the bulks of a tenant, get equal parts of what their tasks cost, known before or only after."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable
from random import Random

from hypothesis import given
from hypothesis import strategies as st
from scheduler_driver import Driver
from scheduler_queue import A, B, feed, order, queue, task
from scheduler_warm import live, warm_all

from qreward.scheduler.fair_queueing import MOST_OWED, Fair, Flow
from qreward.scheduler.outcome import FailureKind
from qreward.scheduler.queue import Queue
from qreward.scheduler.state import BatchFeed, Task
from qreward.settings.policies import Priority


def name(task: Task) -> str | None:
    """Whose it is."""
    return task.tenant if task.feed is None else task.feed.tenant


def served(waiting: Queue, takes: int, *, now: float = 1e6) -> Counter[str | None]:
    """The cost each tenant is served by so many takes."""
    sums: Counter[str | None] = Counter()
    for _ in range(takes):
        entry = waiting.take(A, now)
        assert entry is not None
        sums[name(entry[0])] += entry[0].payload
    return sums


def gap(first: Iterable[float], second: Iterable[float]) -> float:
    """The largest difference of service over any interval, from what each of two was served at each take."""
    ahead, most, least = 0.0, 0.0, 0.0
    for one, other in zip(first, second, strict=True):
        ahead += one - other
        most, least = max(most, ahead), min(least, ahead)
    return most - least


# shares

costs = st.lists(st.floats(1.0, 1000.0), min_size=1, max_size=40)
shapes = st.sampled_from(["singles", "feed", "two feeds", "both"])


def fill(waiting: Queue, tenant: str, costs: list[float], shape: str) -> None:
    singles = costs if shape == "singles" else costs[::2] if shape == "both" else []
    items = [] if shape == "singles" else costs[1::2] if shape == "both" else costs
    for cost in singles:
        waiting.put(task(tenant=tenant, cost=cost))
    for part in (items[::2], items[1::2]) if shape == "two feeds" else (items,):
        if part:
            waiting.put_feed(feed(part, tenant=tenant))


@given(costs, shapes, costs, shapes, st.lists(st.tuples(st.integers(0, 60), st.floats(1.0, 1000.0), st.booleans()), max_size=30))
def test_between_tenants_that_both_wait_the_service_differs_by_at_most_two_requests(
    ones: list[float], one: str, others: list[float], other: str, passers_by: list[tuple[int, float, bool]]
) -> None:
    """P7: a quantum, here the largest request, and the largest request; over any interval, whoever else comes and goes."""
    waiting = queue()
    fill(waiting, "one", ones, one)
    fill(waiting, "other", others, other)
    left: dict[str | None, int] = {"one": len(ones), "other": len(others)}
    given_to: dict[str, list[float]] = {"one": [], "other": []}
    take = 0
    while all(left.values()):
        for when, cost, retried in passers_by:
            if when == take:
                waiting.put(task(tenant=f"passer-by {cost}", cost=cost, avoids=(B,) if retried else None))
        take += 1
        entry = waiting.take(A, 0.0)
        assert entry is not None
        for tenant, sums in given_to.items():
            sums.append(entry[0].payload if name(entry[0]) == tenant else 0.0)
        if name(entry[0]) in left:
            left[name(entry[0])] -= 1
    assert gap(given_to["one"], given_to["other"]) <= max(ones) + max(others) + 1e-6


@given(costs, costs, st.booleans())
def test_between_bulks_of_a_tenant_the_service_differs_by_at_most_two_requests(ones: list[float], others: list[float], third: bool) -> None:
    one, other = feed(ones), feed(others)
    waiting = queue(*[feed([7.0] * 99)] * third, one, other)
    given_to: dict[BatchFeed, list[float]] = {one: [], other: []}
    while one.buffer and other.buffer:
        entry = waiting.take(A, 0.0)
        assert entry is not None
        for each, sums in given_to.items():
            sums.append(entry[0].payload if entry[1] is each else 0.0)
    assert gap(*given_to.values()) <= max(ones) + max(others) + 1e-6


def test_tenants_of_a_level_share_by_cost_however_many_bulks_each_has_and_a_cost_below_one_counts_as_one() -> None:
    waiting = queue(*(feed(100, tenant="x") for _ in range(9)), feed([0.0] * 100))
    assert Counter(name(each) for each in order(waiting, now=1e6)[:100]) == {"x": 50, None: 50}


def test_an_idle_tenant_gets_no_credit_for_the_past() -> None:
    for absent in (10, 1000):
        waiting = queue(*(task(tenant="x") for _ in range(2)), *(task(tenant="y") for _ in range(absent + 100)))
        served(waiting, absent)
        for _ in range(100):
            waiting.put(task(tenant="x"))
        assert abs(served(waiting, 60)["x"] - 30) <= 1, absent


def serve(fair: Fair[int, One], requests: int) -> None:
    for _ in range(requests):
        first = fair.first()
        assert first is not None
        first.left -= 1
        fair.charge(first, 1.0)


class One(Flow):
    """A flow with so many requests."""

    __slots__ = ("left",)

    def __init__(self, left: int) -> None:
        self.left = left

    def waits(self) -> bool:
        return self.left > 0


def shares(ratios: dict[str, float], *, answers: int, slots: int = 64, retried: str = "", tenants: bool = True) -> Counter[str | None]:
    """The cost that tenants (or bulks of one tenant) really caused, while all have work, if it is so many times what was expected."""
    rng, waiting = Random(0), queue()
    feeds = {owner: feed(rng.choices([10.0, 100.0, 1000.0], k=4 * answers), tenant=owner if tenants else None) for owner in ratios}
    owners = {each: owner for owner, each in feeds.items()}
    for each in feeds.values():
        waiting.put_feed(each)
    under_way: deque[Task] = deque()
    used: Counter[str | None] = Counter()
    for answer in range(answers + slots):
        if answer >= slots:
            done = under_way.popleft()
            assert done.feed is not None
            owner = owners[done.feed]
            cost = ratios[owner] * float(done.payload)
            used[owner] += cost  # type: ignore[assignment]
            waiting.settle(done, cost)
        entry = waiting.take(A, 0.0)
        assert entry is not None
        if name(entry[0]) == retried and entry[1] is not None:
            entry[0].sent_at = 0.0
            waiting.put(entry[0])
            entry = waiting.take(A, 0.0)
            assert entry is not None
        under_way.append(entry[0])
    return used


def test_the_estimated_tokens_of_prompts_count_and_then_those_that_answers_report() -> None:
    for payloads, prompts in (((100.0, 1.0), (None, None)), ((1.0, 1.0), (60, 0))):
        driver = Driver({"a": 1}, estimate=lambda payload: (payload, 0.0))
        for _ in range(20):
            for tenant, payload in zip(("long", "short"), payloads, strict=True):
                driver.submit(tenant=tenant, payload=payload)
        tenants = []
        for _ in range(16):
            [attempt] = driver.at("a")
            tenants.append(attempt.task.tenant)
            driver.ok(attempt, prompt=prompts[tenants[-1] == "short"], output=None if prompts[0] is None else 1)
        assert tenants[1:].count("short") >= 13, payloads


def test_tenants_with_longer_or_shorter_answers_than_expected_or_with_retries_get_only_their_share() -> None:
    found = {}
    for ratio, tenants, retried in ((0.2, True, ""), (5.0, True, ""), (5.0, False, ""), (1.0, True, "odd")):
        used = shares({"odd": ratio, "even": 1.0}, answers=8000, tenants=tenants, retried=retried)
        if abs(used["odd"] / used["even"] - 1.0) > 0.05:
            found[ratio, tenants, retried] = used
    assert not found


def test_a_request_that_was_sent_and_brought_no_answer_costs_its_tenant_what_was_expected() -> None:
    """Of two tenants one gets answers; how the requests of the other end -> how many of 40 it is served."""
    served = {}
    for end in ("answered", "refused", "withdrawn"):
        driver = Driver({"a": 1})
        for number in range(80):
            driver.submit(tenant=("odd", "even")[number % 2])
        served[end] = 0
        for _ in range(40):
            (attempt,) = driver.at("a")
            odd = attempt.task.tenant == "odd"
            served[end] += odd
            if odd and end == "refused":
                driver.fail(attempt, FailureKind.REFUSED)
            elif odd and end == "withdrawn":
                driver.withdraw(attempt.task)
                driver.cancelled(attempt)
            else:
                driver.ok(attempt, prompt=0)
    assert served == dict.fromkeys(served, 20)


def test_what_is_dropped_before_it_is_sent_costs_its_tenant_nothing() -> None:
    driver = warm_all(Driver({"a": 1}))
    busy = live(driver.submit())
    for _ in range(10):
        driver.submit(tenant="odd", timeout=1.5)
    for _ in range(20):
        driver.submit(tenant="odd")
        driver.submit(tenant="even")
    driver.ok(busy)
    tenants = []
    for _ in range(16):
        [attempt] = driver.at("a")
        tenants.append(attempt.task.tenant)
        driver.ok(attempt)
    assert abs(tenants.count("odd") - 8) <= 1


def test_one_absurd_answer_does_not_lock_a_tenant_out() -> None:
    waiting = queue(feed(5000, tenant="x"), feed(5000, tenant="y"))
    entry = waiting.take(A, 0.0)
    assert entry is not None
    victim = name(entry[0])
    waiting.settle(entry[0], 1e15)
    assert served(waiting, 1000)[victim] >= 500 - MOST_OWED


def test_refunds_are_no_credit_for_the_time_after_an_absence() -> None:
    waiting = Queue(lambda _task: 100.0)
    for count, tenant in ((40, "x"), (500, "y")):
        for _ in range(count):
            waiting.put(task(tenant=tenant))
    taken = [entry[0] for _ in range(180) if (entry := waiting.take(A, 0.0)) is not None]
    for each in taken:
        if each.tenant == "x":
            waiting.settle(each, 1.0)
    for _ in range(100):
        waiting.put(task(tenant="x"))
    assert served(waiting, 60)["x"] <= 32


def test_a_task_that_passes_those_that_wait_is_charged_to_its_tenant_unless_all_of_them_are_its_own() -> None:
    waiting = queue(*(feed(99, tenant=tenant) for tenant in ("x", "y")))
    for _ in range(20):
        waiting.passed(task(tenant="x"))
    assert served(waiting, 60) == {"x": 20, "y": 40}
    waiting, alone = queue(feed(9, tenant="x")), task(tenant="x")
    waiting.passed(alone)
    waiting.passed(task(Priority.HIGH, tenant="y"))
    assert alone.charge == 0.0


def test_a_tenant_that_passed_those_that_wait_for_long_is_not_locked_out_afterwards() -> None:
    """Where part of a window is kept for single tasks, a tenant may use it beyond its share; that is not a debt for hours."""
    waiting = queue(*(feed(999, tenant=tenant) for tenant in ("x", "y")))
    for _ in range(5000):
        waiting.passed(task(tenant="x"))
    assert served(waiting, 500)["x"] >= (500 - MOST_OWED) // 2


def test_a_bulks_turn_does_not_keep_another_tenants_single_task_from_its_place_among_the_levels() -> None:
    """The bulk alone would go after the LOW task, for it waits a minute for single ones; with the NORMAL one waiting its level is first."""
    waiting = queue(feed([1.0] * 3, level=5, tenant="bulk"), task(5, born=5.0, tenant="x", cost=9.0), task(5, born=6.0, tenant="x"))
    waiting.put(task(6, born=10.0))
    assert [(each.level, name(each)) for each in order(waiting)][:3] == [(5, "bulk"), (5, "x"), (5, "bulk")]


def test_a_tenant_that_comes_when_all_others_are_gone_has_no_credit_over_one_that_comes_later() -> None:
    fair, gone = Fair[int, One](), [One(50), One(50)]
    for number, flow in enumerate(gone):
        fair.add(number, flow)
        fair.awake(flow)
    serve(fair, 100)
    fair.forget(0)
    fair.forget(1)
    late, later = One(99), One(0)
    fair.add(2, late)
    fair.add(3, later)
    fair.awake(later)
    later.left = 99
    serve(fair, 50)
    assert abs(late.left - later.left) <= 1
