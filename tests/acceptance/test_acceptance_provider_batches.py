"""Provider batches over real sockets: a run that is killed between any two steps goes on, and nothing is lost, doubled or paid twice."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import httpx
import openai
from bulk_tools import chat_line, read_lines, write_lines
from openai.types import Batch, BatchCreateParams, FileObject
from provider_server import ProviderServer, provider_server
from pydantic import TypeAdapter

from qreward import Endpoint, QRewardClient, Retry
from qreward.testing import FakeEndpoint, FakeFleet, Faults
from qreward.testing.spec import Batching

LINES = 40


def start(folder: Path, url: str) -> subprocess.Popen[str]:
    config = folder / "qreward.json"
    config.write_text(
        json.dumps({"endpoints": [{"base_url": url, "kind": "openai_batch", "name": "provider", "api_key": "key", "probe": 0.05}]})
    )
    command = [
        sys.executable,
        "-m",
        "qreward",
        "run",
        str(folder / "in.jsonl"),
        "--output",
        str(folder / "out.jsonl"),
        "--progress",
        "none",
    ]
    return subprocess.Popen([*command, "--config", str(config)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def check(folder: Path, server: ProviderServer, step: Any) -> None:
    """Each line has its own answer once, and was worked on once."""
    found = read_lines(folder / "out.jsonl")
    assert [row["custom_id"] for row in found] == [f"id-{number}" for number in range(LINES)], step
    texts = [row["response"]["body"]["choices"][0]["message"]["content"] for row in found]
    assert texts == [f"re: item {number}" for number in range(LINES)], step
    assert (len(server.service.worked), max(server.service.worked.values())) == (LINES, 1), step


def test_a_run_that_is_killed_at_each_call_goes_on_loses_nothing_and_pays_once(tmp_path: Path) -> None:
    steps = [(call, served) for call in range(4) for served in (False, True)]
    names = ["POST /v1/files", "POST /v1/batches", "GET /v1/batches/batch_1", "GET /v1/files/file-2/content"]
    for call, served in steps:
        step = names[call], "after it was served" if served else "before"
        folder = tmp_path / f"{call}-{served}"
        folder.mkdir()
        write_lines(folder / "in.jsonl", [chat_line(number) for number in range(LINES)])
        with provider_server() as server:
            process = start(folder, server.url)
            server.killing = process.pid, call, served
            printed, _ = process.communicate(timeout=100)
            assert process.returncode == -signal.SIGKILL, (step, printed)
            assert [f"{method} {path}" for method, path in server.calls] == names[: call + 1], step
            process = start(folder, server.url)
            printed, _ = process.communicate(timeout=100)
            assert process.returncode == 0, (step, printed)
            check(folder, server, step)


def test_the_first_interrupt_leaves_the_batch_at_the_provider_and_the_same_command_takes_its_results(tmp_path: Path) -> None:
    write_lines(tmp_path / "in.jsonl", [chat_line(number) for number in range(LINES)])
    with provider_server(duration=3600.0) as server:
        process = start(tmp_path, server.url)
        while ("GET", "/v1/batches/batch_1") not in server.calls and process.poll() is None:
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        printed, _ = process.communicate(timeout=100)
        assert process.returncode == 75, printed
        assert f"{LINES} lines are in 1 provider batches that still run; run the same command again to take their results" in printed
        server.service.settings = server.service.settings.model_copy(update={"duration": 0.0})
        process = start(tmp_path, server.url)
        printed, _ = process.communicate(timeout=100)
        assert process.returncode == 0, printed
        check(tmp_path, server, "interrupt")


async def test_a_fleet_with_faults_serves_a_bulk_through_aiohttp_and_through_a_client_of_the_user(tmp_path: Path) -> None:
    faults = Faults(reset=0.1, error_500=0.1, error_503=0.1, cut=0.1, truncated=0.05, malformed=0.05, seed=4)
    for own in (False, True):
        output = tmp_path / f"{own}.jsonl"
        fake = FakeEndpoint(
            "provider", kind="openai_batch", faults=faults, batching=Batching(duration=0.1, expires=0.3, failures={500: 0.1})
        )
        async with FakeFleet([fake]) as fleet, httpx.AsyncClient() as theirs:
            (given,) = fleet.endpoints
            settings: dict[str, Any] = {"http_client": theirs} if own else {}
            assert given.kind == "openai_batch"
            endpoint = Endpoint(given.base_url, name="provider", kind="openai_batch", probe=0.02, **settings)
            async with QRewardClient([endpoint], retry=Retry(attempts=9)) as client:
                report = await client.run([chat_line(number) for number in range(200)], output=output, progress=False)
            seen = fleet.seen("provider")
        assert (report.exit_code, report.done) == (0, 200), str(report)
        assert len({row["custom_id"] for row in read_lines(output)}) == 200
        assert seen.answered == 200


def test_the_types_of_the_openai_sdk_accept_what_we_send_and_what_the_fake_answers(tmp_path: Path) -> None:
    sent: list[tuple[str, str, bytes]] = []
    write_lines(tmp_path / "in.jsonl", [chat_line(number) for number in range(LINES)])
    with provider_server() as server:
        respond = server.service.respond
        server.service.respond = lambda method, path, *rest: (sent.append((method, path, rest[2])), respond(method, path, *rest))[1]  # type: ignore[method-assign]
        process = start(tmp_path, server.url)
        printed, _ = process.communicate(timeout=100)
        assert process.returncode == 0, printed
        created = next(json.loads(body) for method, path, body in sent if (method, path) == ("POST", "/v1/batches"))
        TypeAdapter(BatchCreateParams).validate_python(created)
        with openai.OpenAI(base_url=server.url, api_key="key", max_retries=0) as sdk:
            found = sdk.batches.list(limit=1)
            assert [Batch.model_validate(batch.to_dict(), strict=True).status for batch in found.data] == ["completed"]
            assert found.data[0].output_file_id is not None
            assert sdk.batches.retrieve(found.data[0].id) == found.data[0]
            text = sdk.files.content(found.data[0].output_file_id).text
            file = sdk.files.create(file=("requests.jsonl", b"{}\n"), purpose="batch")
            FileObject.model_validate(file.to_dict(), strict=True)
            batch = sdk.batches.create(input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h")
            assert batch.status == "failed"
            assert batch.errors is not None
            Batch.model_validate(batch.to_dict(), strict=True)
            assert sdk.batches.cancel(found.data[0].id).status == "completed"
    for row in (json.loads(line) for line in text.splitlines()):
        openai.types.chat.ChatCompletion.model_validate(row["response"]["body"], strict=True)
