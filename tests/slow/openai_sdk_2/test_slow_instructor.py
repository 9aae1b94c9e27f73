"""instructor over our transport: answers as pydantic objects, by tools and by JSON, asked again where they do not fit."""

from __future__ import annotations

import json
from typing import Any

import instructor
import pytest
from aiohttp import web
from openai_tools import MODEL, PERSON, ToolServer, ask, tools_and_client
from pydantic import BaseModel, Field

from qreward import SyncQRewardClient
from qreward.integrations.openai import async_openai_client, openai_client
from qreward.testing import FakeEndpoint, FakeFleet

pytestmark = pytest.mark.real_time
MODES = [instructor.Mode.TOOLS, instructor.Mode.JSON, instructor.Mode.JSON_SCHEMA, instructor.Mode.MD_JSON]


class Person(BaseModel):
    """A person."""

    name: str
    age: int


class Grown(Person):
    age: int = Field(ge=18)


class Verdict(BaseModel):
    verdict: str
    score: int
    reason: str


class Learning(ToolServer):
    """Says first that the person is a child."""

    async def __call__(self, request: web.BaseRequest) -> web.StreamResponse:
        self.person["age"] = 36 if self.bodies else 3
        return await super().__call__(request)


@pytest.mark.parametrize("mode", MODES, ids=str)
async def test_instructor_gives_objects(mode: Any) -> None:
    async with tools_and_client(ToolServer()) as client:
        asking = instructor.from_openai(async_openai_client(client), mode=mode)
        given = {"response_format": {"type": "json_object"}} if mode is instructor.Mode.MD_JSON else {}
        found = await asking.chat.completions.create(model=MODEL, messages=ask(), response_model=Person, **given)
        assert isinstance(found, Person)
        assert found.model_dump() == PERSON


async def test_instructor_asks_again_for_what_does_not_fit() -> None:
    server = Learning()

    async with tools_and_client(server) as client:
        asking = instructor.from_openai(async_openai_client(client))
        found = await asking.chat.completions.create(model=MODEL, messages=ask(), response_model=Grown, max_retries=2)
        assert found.age == 36
        assert len(server.bodies) == 2
        assert "greater than or equal to 18" in json.dumps(server.bodies[1]["messages"])


async def test_instructor_streams_an_object_that_grows() -> None:
    async with tools_and_client(ToolServer()) as client:
        asking = instructor.from_openai(async_openai_client(client))
        stream = asking.chat.completions.create_partial(model=MODEL, messages=ask(), response_model=Person)
        states = [each async for each in stream]
        assert len(states) > 2
        assert (states[-1].name, states[-1].age) == ("Ada", 36)


def test_instructor_without_await() -> None:
    with FakeFleet([FakeEndpoint("a", responder="judge")]) as fleet, SyncQRewardClient(fleet.endpoints) as client:
        asking = instructor.from_openai(openai_client(client), mode=instructor.Mode.JSON)
        words = "Question: ?\nReference answer: 1/2\nCandidate answer: 50%"
        found = asking.chat.completions.create(model=MODEL, messages=ask(words), response_model=Verdict)
        assert (found.verdict, found.score) == ("correct", 1)
