"""A bulk as it is often written by hand: a semaphore, ``AsyncOpenAI``, and a file to which answers are appended.

python bulk_script.py INPUT OUTPUT URL AT_ONCE
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

from openai import AsyncOpenAI


async def main(source: str, output: str, url: str, at_once: int) -> None:
    client, semaphore = AsyncOpenAI(base_url=url, api_key="key-of-the-benchmark"), asyncio.Semaphore(at_once)

    async def one(line: dict[str, Any]) -> None:
        async with semaphore:
            try:
                answer = await client.chat.completions.create(**line["body"])
                row = {"custom_id": line["custom_id"], "response": answer.model_dump(mode="json"), "error": None}
            except Exception as error:
                row = {"custom_id": line["custom_id"], "response": None, "error": repr(error)}
        with Path(output).open("a") as file:  # noqa: ASYNC230 - as such scripts do
            file.write(json.dumps(row) + "\n")

    with Path(source).open() as file:  # noqa: ASYNC230 - as such scripts do
        lines = [json.loads(line) for line in file]
    await asyncio.gather(*map(one, lines))
    await client.close()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])))
