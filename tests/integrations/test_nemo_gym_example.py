"""The server for NeMo Gym on the page of trainers, called as NeMo Gym calls it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from adapter_fakes import stub_modules
from openai.types.responses import Response
from pydantic import BaseModel
from trainers_tools import fleet_of, settings_of

from qreward.integrations.trainers.rewarder import close_all

pytestmark = pytest.mark.real_time

PAGE = Path(__file__).parents[2] / "docs" / "trainers" / "index.md"


class JudgeError(Exception):
    """``nemo_gym.judge.JudgeError``, after which NeMo Gym 07d6b0d0 excludes the sample."""


class BaseVerifyRequest(BaseModel):
    responses_create_params: dict[str, Any]
    response: Response


class BaseVerifyResponse(BaseVerifyRequest):
    reward: float


def posted(answer: str) -> dict[str, Any]:
    """The request to the model, its response, and the columns of the data."""
    text = {"type": "output_text", "text": answer, "annotations": []}
    message = {"id": "m", "type": "message", "role": "assistant", "status": "completed", "content": [text]}
    response = {"id": "r", "object": "response", "created_at": 0.0, "model": "policy", "output": [message]}
    response |= {"parallel_tool_calls": True, "tool_choice": "auto", "tools": []}
    return {"responses_create_params": {"input": "2 + 2?"}, "response": response, "question": "2 + 2?", "expected_answer": "4"}


async def test_the_page_says_a_server_that_scores_and_excludes_what_could_not_be_judged(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    bases = {"BaseVerifyRequest": BaseVerifyRequest, "BaseVerifyResponse": BaseVerifyResponse, "SimpleResourcesServer": object}
    stub_modules(monkeypatch, {"nemo_gym.base_resources_server": bases, "nemo_gym.judge": {"JudgeError": JudgeError}})
    (code,) = (block for block in re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL) if "nemo_gym" in block)
    names: dict[str, Any] = {"__name__": "page"}
    exec(compile(code, str(PAGE), "exec", dont_inherit=True), names)
    monkeypatch.chdir(tmp_path)
    with fleet_of() as fleet:
        settings_of(fleet, tmp_path).rename(tmp_path / "reward.yaml")  # JSON is YAML
        answered = [await names["JudgedServer"]().verify(names["JudgedRequest"](**posted(answer))) for answer in ("4", "5")]
        assert [found.reward for found in answered] == [1.0, 0.0]
        assert answered[0].response.output_text == "4"
        fleet.set("judge-0", responder=lambda messages: "I cannot say")
        with pytest.raises(JudgeError, match=r"^InvalidResponse: "):
            await names["JudgedServer"]().verify(names["JudgedRequest"](**posted("4")))
        close_all()
