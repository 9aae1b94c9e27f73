"""What tests of several folders share: a table of cases in one test, coroutines that leave nothing running, a chat completion,
a scorer that notes what it is given."""

from __future__ import annotations

import asyncio
import functools
import html
import inspect
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any, TypeVar

import pytest
from aiohttp import web
from scale import SCALE

T = TypeVar("T")
PATIENCE = 30.0  # seconds that an event may take before a test fails; never slept


def run(main: Coroutine[Any, Any, T], seconds: float = 110.0 * SCALE) -> T:
    """Run an async test in a loop of its own; nothing may be left running in it. The limit is less than the 120 s of pytest."""

    async def guarded() -> T:
        async with asyncio.timeout(seconds):
            found = await main
        await asyncio.sleep(0)
        if left := asyncio.all_tasks() - {asyncio.current_task()}:  # what was just cancelled or closed may need a turn or two
            _, left = await asyncio.wait(left, timeout=PATIENCE)
        assert not left, f"left running: {left}"
        return found

    return asyncio.run(guarded())


async def until(condition: Callable[..., Any], seconds: float = 30.0) -> Any:
    """Wait until something is true, on a real clock, and return it."""
    async with asyncio.timeout(seconds):
        while not (found := condition()):  # noqa: ASYNC110 - nobody would set an event
            await asyncio.sleep(0.001)
    return found


@asynccontextmanager
async def serving(handle: Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]) -> AsyncIterator[str]:
    """A server of the test's own; gives its base URL."""
    runner = web.ServerRunner(web.Server(handle, access_log=None))
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
    finally:
        await runner.cleanup()


def words(page: str) -> str:
    """What a reader sees of HTML."""
    return re.sub(r"\s+", " ", html.unescape(re.sub(r"<[^>]*>", " ", page)).replace("\xa0", " ")).strip()


def each(names: str, cases: Iterable[Any]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Call the test for every case of a table, as ``parametrize`` would, but as one test that reports all cases that fail.

    Fixtures are made once for all cases. Two of these on one test give all combinations.
    """
    wanted = [name.strip() for name in names.split(",")]
    table = [dict(zip(wanted, case if len(wanted) > 1 else (case,), strict=True)) for case in cases]

    def decorate(test: Callable[..., Any]) -> Callable[..., Any]:
        async def asynchronously(**others: Any) -> None:
            with _reported(len(table)) as wrong:
                for case in table:
                    with _collected(case, wrong):
                        await test(**case, **others)

        def plainly(**others: Any) -> None:
            with _reported(len(table)) as wrong:
                for case in table:
                    with _collected(case, wrong):
                        test(**case, **others)

        signature = inspect.signature(test)
        assert set(wanted) <= set(signature.parameters), f"{test.__name__} does not take {names}"
        others = [parameter for name, parameter in signature.parameters.items() if name not in wanted]
        wrapped = functools.wraps(test)(asynchronously if inspect.iscoroutinefunction(test) else plainly)
        wrapped.__signature__ = signature.replace(parameters=others)  # type: ignore[attr-defined]
        del wrapped.__wrapped__  # type: ignore[attr-defined]  # pytest would ask for the parameters of the cases
        return wrapped

    return decorate


@contextmanager
def _collected(case: dict[str, Any], wrong: list[BaseException]) -> Iterator[None]:
    try:
        yield
    except (Exception, pytest.fail.Exception) as error:
        error.add_note("the case: " + ", ".join(f"{name}={value!r:.300}" for name, value in case.items()))
        wrong.append(error)


@contextmanager
def _reported(count: int) -> Iterator[list[BaseException]]:
    wrong: list[BaseException] = []
    yield wrong
    if wrong:
        raise BaseExceptionGroup(f"{len(wrong)} of {count} cases", wrong)


def completion(content: Any = "yes", **members: Any) -> dict[str, Any]:
    """The body of a chat completion as the OpenAI API gives it."""
    message = {"role": "assistant", "content": content}
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1700000000,
        "model": "judge-7b",
        "choices": [{"index": 0, "message": message, "finish_reason": "stop", "logprobs": None}],
        "usage": {"prompt_tokens": 12, "completion_tokens": 3, "total_tokens": 15},
    } | members


class Lengths:
    """An async scorer: the reward is the length of the completion. A poisonous one spoils its whole batch.

    Attributes:
        batches: the completions of each call.
        metadata: of each completion.
        release: set to let the batches go, if it was given.
    """

    def __init__(self, seconds: float = 0.0, *, held: bool = False) -> None:
        self.seconds = seconds
        self.batches: list[list[str]] = []
        self.metadata: list[dict[str, Any]] = []
        self.release = asyncio.Event() if held else None
        self.running = self.peak = 0

    async def __call__(self, completions: list[str], metadata: list[dict[str, Any]]) -> list[float]:
        self.batches.append(completions)
        self.metadata += metadata
        self.running += 1
        self.peak = max(self.peak, self.running)
        try:
            if self.release is not None:
                await self.release.wait()
            await asyncio.sleep(self.seconds)
        finally:
            self.running -= 1
        if any("poison" in completion for completion in completions):
            raise ValueError("poison was found")
        return [float(len(completion)) for completion in completions]

    @property
    def seen(self) -> list[str]:
        return [completion for batch in self.batches for completion in batch]


def guard_buffers(patch: pytest.MonkeyPatch, engine: Any) -> Callable[[], int]:
    """From now on, the buffers of batches may be changed only under the engine's lock. Returns how to ask for the number of changes."""
    from qreward.scheduler.prefixes import AffineQueue

    changes = 0

    def guarded(method: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            nonlocal changes
            changes += 1
            assert engine.lock.locked(), f"{method.__name__} without the engine's lock"
            return method(*arguments)

        return call

    def init(self: Any, *arguments: Any) -> None:
        make(self, *arguments)
        self.append, self.extend = guarded(self.append), guarded(self.extend)

    make = AffineQueue.__init__
    patch.setattr(AffineQueue, "__init__", init)
    for name in ("appendleft", "popleft", "take", "form_groups", "keep"):
        patch.setattr(AffineQueue, name, guarded(getattr(AffineQueue, name)))
    return lambda: changes
