"""What an actor is: a scorer, made there, and called with whole batches. What it raises comes back as a value that can travel.

Runs in the actor's process, and imports Ray's pickler only there.
"""

from __future__ import annotations

import asyncio
import importlib
import inspect
import pickle
import traceback
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

from qreward.integrations.ray.recipe import Recipe, accepted, is_async

Reply = tuple[bool, Any]
"""Whether the scorer gave results, and they; else False and what it raised."""


class Host:
    """The actor of a scorer that blocks. With several batches at once Ray gives it a thread for each."""

    def __init__(self, recipe: Recipe) -> None:
        self._made = recipe.make()
        self._score = recipe.function(self._made)

    def ready(self) -> bool:
        """It has been made."""
        return True

    def run(self, columns: tuple[Any, ...]) -> Reply:
        """Score a batch."""
        return attempt(partial(self._score, *accepted(self._score, columns)))

    def end(self) -> None:
        """Let the scorer put away what it has, if it has a ``close``."""
        if callable(close := getattr(self._made, "close", None)):
            close()


class AsyncHost:
    """The actor of a scorer that is awaited, or of which that is not known before it is made."""

    def __init__(self, recipe: Recipe, concurrency: int) -> None:
        self._made = recipe.make()
        self._score = recipe.function(self._made)
        self._threads = None if is_async(self._score) else ThreadPoolExecutor(concurrency, thread_name_prefix="scorer")

    async def ready(self) -> bool:
        """It has been made."""
        return True

    async def run(self, columns: tuple[Any, ...]) -> Reply:
        """Score a batch. A thread cannot be stopped: its batch ends with it, even when it is cancelled."""
        call = partial(self._score, *accepted(self._score, columns))
        if self._threads is not None:
            thread = asyncio.get_running_loop().run_in_executor(self._threads, attempt, call)
            try:
                return await asyncio.shield(thread)
            except asyncio.CancelledError:
                await asyncio.wait([thread])
                raise
        try:
            return given(await call())
        except asyncio.CancelledError:
            raise
        except BaseException as error:
            return raised(error)

    async def end(self) -> None:
        """Let the scorer put away what it has, if it has a ``close``."""
        if callable(close := getattr(self._made, "close", None)) and inspect.isawaitable(ended := close()):
            await ended


def attempt(call: partial[Any]) -> Reply:
    """What a blocking scorer gives or raises. One that exits does not take the actor with it."""
    try:
        return given(call())
    except BaseException as error:
        return raised(error)


def given(results: Any) -> Reply:
    """Results that can travel: exceptions among them are made fit for it."""
    if isinstance(results, list | tuple) and any(isinstance(one, BaseException) for one in results):
        return True, [portable(one) if isinstance(one, BaseException) else one for one in results]
    return True, results


def raised(error: BaseException) -> Reply:
    """What a scorer raised, with where that was in words: a traceback does not travel."""
    shown = portable(error)
    shown.add_note("In the actor:\n" + "".join(traceback.format_exception(error)).rstrip())
    return False, shown


def mild(error: BaseException) -> Exception:
    """The exception, unless it is one that would end its caller's loop or program."""
    return error if isinstance(error, Exception) else RuntimeError(f"the scorer raised {type(error).__name__}: {error}")


def portable(error: BaseException) -> BaseException:
    """The exception, or one that says the same, if it cannot be taken to another process and made again there."""
    error = mild(error)
    try:
        again = pickle.loads(importlib.import_module("ray.cloudpickle").dumps(error))  # noqa: S301
        same = type(again) is type(error) and str(again) == str(error)
    except Exception:
        same = False
    return error if same else RuntimeError(f"{type(error).__name__}: {error}")
