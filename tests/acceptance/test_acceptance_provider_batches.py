"""Provider batches over real sockets: the types of the openai SDK accept what we send, and what the fake provider answers."""

from __future__ import annotations

import json
from pathlib import Path

import httpx
import openai
from bulk_tools import chat_line, read_lines
from fakes.batch_api import BatchEndpoint
from openai.types import Batch, BatchCreateParams, FileObject
from pydantic import TypeAdapter

from qreward import Endpoint, QRewardClient
from qreward.testing import FakeFleet


async def test_the_types_of_the_openai_sdk_accept_what_we_send_and_what_the_fake_answers(tmp_path: Path) -> None:
    created: list[bytes] = []

    async def note(request: httpx.Request) -> None:
        if (request.method, request.url.path) == ("POST", "/v1/batches"):
            created.append(await request.aread())

    async with (
        FakeFleet([BatchEndpoint("provider")]) as fleet,
        httpx.AsyncClient(event_hooks={"request": [note]}) as own,
    ):
        url = fleet.urls["provider"]
        endpoint = Endpoint(url, name="provider", kind="openai_batch", probe=0.02, http_client=own)
        async with QRewardClient([endpoint]) as client:
            report = await client.run([chat_line(number) for number in range(40)], output=tmp_path / "out.jsonl", progress=False)
        assert (report.exit_code, len(read_lines(tmp_path / "out.jsonl"))) == (0, 40), str(report)
        TypeAdapter(BatchCreateParams).validate_python(json.loads(created[0]))
        async with openai.AsyncOpenAI(base_url=url, api_key="key", max_retries=0) as sdk:
            (batch,) = (await sdk.batches.list(limit=1)).data
            assert Batch.model_validate(batch.to_dict(), strict=True).status == "completed"
            assert await sdk.batches.retrieve(batch.id) == batch
            assert batch.output_file_id is not None
            text = (await sdk.files.content(batch.output_file_id)).text
            file = await sdk.files.create(file=("requests.jsonl", b"{}\n"), purpose="batch")
            FileObject.model_validate(file.to_dict(), strict=True)
            wrong = await sdk.batches.create(input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h")
            assert wrong.errors is not None
            assert Batch.model_validate(wrong.to_dict(), strict=True).status == "failed"
            assert (await sdk.batches.cancel(batch.id)).status == "completed"
    for row in map(json.loads, text.splitlines()):
        openai.types.chat.ChatCompletion.model_validate(row["response"]["body"], strict=True)
