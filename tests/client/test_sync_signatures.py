"""The two clients are one: the same methods with the same arguments, of which every one is passed on."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest
from shared_tools import each

from qreward import QRewardClient
from qreward.options import ClientSettings
from qreward.sync_client import SyncQRewardClient

OTHER_NAMES = {"aclose": "close", "__aenter__": "__enter__", "__aexit__": "__exit__"}
"""What the blocking client calls otherwise."""


OWN_RETURNS = {
    "stream_chat_completion": "SyncStream",
    "batch_stream_chat_completion": "SyncBatchStream",
    "chat": "ChatNamespace[SyncCompletions]",
}
"""What is not awaited itself, and so has a blocking counterpart."""


def public(client: type) -> set[str]:
    return {name for name in dir(client) if not name.startswith("_")}


METHODS = sorted(public(QRewardClient) | {"__init__", "__reduce__", "__aenter__", "__aexit__"})
BLOCKING = [name for name in METHODS if inspect.iscoroutinefunction(getattr(QRewardClient, name)) and not name.startswith("__")]


def signature(client: type, name: str) -> str:
    """Parameters, annotations and defaults; a client is called by one name."""
    found = inspect.getattr_static(client, name)
    if isinstance(found, property):
        assert found.fget is not None
        found = found.fget
    text = str(inspect.signature(found.__func__ if isinstance(found, classmethod) else found))
    if name in OWN_RETURNS:
        text = text.replace(f"-> '{OWN_RETURNS[name]}'", f"-> '{OWN_RETURNS[name].replace('Sync', '')}'")
    return text.replace(client.__name__, "Client")


def test_the_clients_have_the_same_methods_with_the_same_signatures_but_none_is_awaited() -> None:
    assert public(SyncQRewardClient) == {OTHER_NAMES.get(name, name) for name in public(QRewardClient)}
    for name in METHODS:
        called = OTHER_NAMES.get(name, name)
        assert signature(SyncQRewardClient, called) == signature(QRewardClient, name)
        ours, theirs = inspect.getattr_static(SyncQRewardClient, called), inspect.getattr_static(QRewardClient, name)
        assert type(ours) is type(theirs), name
        assert not inspect.iscoroutinefunction(ours), name


def test_a_method_has_a_docstring_that_is_not_the_async_ones() -> None:
    words = {name: getattr(SyncQRewardClient, name).__doc__ for name in public(SyncQRewardClient)}
    assert [name for name, said in words.items() if not said or "await" in said] == []


def recorder(seen: list[Any], *, blocking: bool) -> Callable[..., Any]:
    def note(*args: Any, **kwargs: Any) -> str:
        seen.append((args, kwargs))
        return "what it returned"

    async def note_awaited(*args: Any, **kwargs: Any) -> str:
        return note(*args, **kwargs)

    return note_awaited if blocking else note


PASSED_ON = [name for name in METHODS if name not in {"chat", "config", "from_config", "from_env"} and not name.startswith("__")]


@each("name", PASSED_ON)
def test_every_argument_is_passed_on_by_its_name(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []
    method = getattr(QRewardClient, name)
    parameters = list(inspect.signature(method).parameters.values())[1:]
    given: dict[str, Any] = {each.name: object() for each in parameters if each.kind is not each.VAR_KEYWORD}
    if any(each.kind is each.VAR_KEYWORD for each in parameters):
        given |= {"temperature": object(), "something_new": object()}
    monkeypatch.setattr(QRewardClient, name, staticmethod(recorder(seen, blocking=name in BLOCKING)))
    with_it = SyncQRewardClient(["http://a.example/v1"])
    returned = getattr(with_it, OTHER_NAMES.get(name, name))(**given)
    ((args, kwargs),) = seen
    assert inspect.signature(method).bind(with_it, *args, **kwargs).arguments == inspect.signature(method).bind(with_it, **given).arguments
    if name in OWN_RETURNS:
        assert type(returned).__name__ == OWN_RETURNS[name]
        returned = returned._async
    assert returned == (None if name == "aclose" else "what it returned")


def test_the_constructor_passes_everything_on(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []
    given: dict[str, Any] = {name: object() for name in ClientSettings.__optional_keys__}
    endpoints = object()
    monkeypatch.setattr("qreward.sync_client.QRewardClient", lambda *args, **kwargs: seen.append((args, kwargs)))
    SyncQRewardClient(endpoints, **given)  # type: ignore[arg-type]
    assert seen == [((endpoints,), given)]
