"""This package at real servers: single calls, or batches if the job says ``batch``; its defaults but for ``settings``."""

from __future__ import annotations

import time
from typing import Any

from _real import Job, main, rounds

from qreward import Endpoint, QRewardClient

WHOLE = {"ignore_eos": True}


async def send(job: Job) -> dict[str, Any]:
    endpoints = [Endpoint(url, name=f"{place}", kind="vllm", api_key=job["key"], proxy="") for place, url in enumerate(job["urls"])]
    async with QRewardClient(endpoints, timeout=600, **job["settings"]) as client:

        async def call(_: int, messages: list[dict[str, str]], length: int) -> bool:
            await client.chat_completion(messages, model=job["model"], max_tokens=length, temperature=0, extra_body=WHOLE)
            return True

        if not job.get("batch"):
            done = await rounds(job, call)
        else:
            failed, begin = 0, time.perf_counter()
            for work in job["rounds"]:
                chats, length = [messages for messages, _ in work], work[0][1]
                batch = await client.batch_chat_completion(chats, job["model"], max_tokens=length, temperature=0, extra_body=WHOLE)
                failed += len(batch.errors)
            done = {"wall_s": time.perf_counter() - begin, "failed": failed, "latencies": [each.latency for each in batch]}
        return done | {"hedged": sum(each.hedged for each in client.stats().values())}


if __name__ == "__main__":
    main(send)
