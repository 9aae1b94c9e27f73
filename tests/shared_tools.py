"""What tests of several folders share: a table of cases in one test, async tests that leave nothing running, a chat completion."""

from __future__ import annotations

import asyncio
import functools
import html
import inspect
import re
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, TypeVar

import pytest

T = TypeVar("T")
PATIENCE = 10.0  # seconds that an event may take before a test fails; never slept
_FAILURES = (Exception, pytest.fail.Exception)


def run(main: Coroutine[Any, Any, T], seconds: float = 110.0) -> T:
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


async def until(condition: Callable[[], Any], seconds: float = 30.0) -> Any:
    """Wait until something is true, on a real clock, and return it."""
    async with asyncio.timeout(seconds):
        while not (found := condition()):  # noqa: ASYNC110 - nobody would set an event
            await asyncio.sleep(0.001)
    return found


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
            wrong: list[BaseException] = []
            for case in table:
                try:
                    await test(**case, **others)
                except _FAILURES as error:
                    wrong.append(_named(error, case))
            _report(wrong, len(table))

        def plainly(**others: Any) -> None:
            wrong: list[BaseException] = []
            for case in table:
                try:
                    test(**case, **others)
                except _FAILURES as error:
                    wrong.append(_named(error, case))
            _report(wrong, len(table))

        signature = inspect.signature(test)
        assert set(wanted) <= set(signature.parameters), f"{test.__name__} does not take {names}"
        others = [parameter for name, parameter in signature.parameters.items() if name not in wanted]
        wrapped = functools.wraps(test)(asynchronously if inspect.iscoroutinefunction(test) else plainly)
        wrapped.__signature__ = signature.replace(parameters=others)  # type: ignore[attr-defined]
        del wrapped.__wrapped__  # type: ignore[attr-defined] - pytest would ask for the parameters of the cases
        return wrapped

    return decorate


def _named(error: BaseException, case: dict[str, Any]) -> BaseException:
    error.add_note("the case: " + ", ".join(f"{name}={value!r:.300}" for name, value in case.items()))
    return error


def _report(wrong: list[BaseException], count: int) -> None:
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


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run an async test; a module may name another function for it than ``run``, as ``run_async_test``."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    arguments = {name: pyfuncitem.funcargs[name] for name in inspect.signature(pyfuncitem.obj).parameters}
    getattr(pyfuncitem.module, "run_async_test", run)(pyfuncitem.obj(**arguments))
    return True
