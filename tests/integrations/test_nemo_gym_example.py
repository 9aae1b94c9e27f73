"""The server for NeMo Gym on the page of trainers, asked through FastAPI, which serves it as NeMo Gym does."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from adapter_fakes import stub_modules
from fastapi import FastAPI
from fastapi.responses import JSONResponse
from openai.types.responses import Response
from pydantic import BaseModel
from trainers_tools import fleet_of, settings_of

from qreward.integrations.trainers.rewarder import close_all
from qreward.testing import FakeFleet

pytestmark = pytest.mark.real_time

PAGE = Path(__file__).parents[2] / "docs" / "trainers" / "index.md"


class JudgeError(Exception):
    """``nemo_gym.judge.JudgeError``."""


class BaseVerifyRequest(BaseModel):
    """As that of ``nemo_gym.base_resources_server``, of which ``responses_create_params`` is more."""

    responses_create_params: dict[str, Any]
    response: Response


class BaseVerifyResponse(BaseVerifyRequest):
    reward: float


class SimpleResourcesServer:
    """The endpoint that NeMo Gym 07d6b0d0 makes of ``verify``."""

    def setup_webserver(self) -> FastAPI:
        app = FastAPI()
        app.post("/verify")(judge_failsafe(getattr(self, "verify")))  # noqa: B009 - the subclass has it
        return app


def judge_failsafe(verify: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(verify)
    async def wrapper(*args: Any, **kwargs: Any) -> Any:
        try:
            return await verify(*args, **kwargs)
        except JudgeError as error:
            return JSONResponse({"reward": 0.0, "_ng_failure_class": "judge_failed", "_ng_failure_judge_error": str(error)})

    return wrapper


@pytest.fixture
def fleet() -> Iterator[FakeFleet]:
    with fleet_of() as made:
        yield made
    close_all()


def server_of_the_page(monkeypatch: pytest.MonkeyPatch) -> Any:
    bases = {cls.__name__: cls for cls in (BaseVerifyRequest, BaseVerifyResponse, SimpleResourcesServer)}
    stub_modules(monkeypatch, {"nemo_gym.base_resources_server": bases, "nemo_gym.judge": {"JudgeError": JudgeError}})
    (code,) = (block for block in re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL) if "nemo_gym" in block)
    names: dict[str, Any] = {"__name__": "page"}
    exec(compile(code, str(PAGE), "exec", dont_inherit=True), names)
    return names["JudgedServer"]()


def row(answer: str) -> dict[str, Any]:
    """What NeMo Gym posts: the request to the model, its response, and the columns of the data."""
    text = {"type": "output_text", "text": answer, "annotations": []}
    message = {"id": "m", "type": "message", "role": "assistant", "status": "completed", "content": [text]}
    response = {"id": "r", "object": "response", "created_at": 0.0, "model": "policy", "output": [message]}
    response |= {"parallel_tool_calls": True, "tool_choice": "auto", "tools": []}
    return {"responses_create_params": {"input": "2 + 2?"}, "response": response, "question": "2 + 2?", "expected_answer": "4"}


async def test_the_page_says_a_server_that_scores_and_excludes_what_could_not_be_judged(
    monkeypatch: pytest.MonkeyPatch, fleet: FakeFleet, tmp_path: Path
) -> None:
    settings_of(fleet, tmp_path).rename(tmp_path / "reward.yaml")  # JSON is YAML
    monkeypatch.chdir(tmp_path)
    app = server_of_the_page(monkeypatch).setup_webserver()

    async with httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://gym") as client:
        right, wrong = [await client.post("/verify", json=row(answer)) for answer in ("4", "5")]
        fleet.set("judge-0", responder=lambda messages: "I cannot say")
        failed = await client.post("/verify", json=row("4"))
    assert [answer.status_code for answer in (right, wrong, failed)] == [200] * 3
    assert (right.json()["reward"], wrong.json()["reward"]) == (1.0, 0.0)
    assert right.json()["response"]["output"][0]["content"][0]["text"] == "4"
    assert failed.json()["_ng_failure_class"] == "judge_failed"
    assert failed.json()["_ng_failure_judge_error"].startswith("InvalidResponse: ")
