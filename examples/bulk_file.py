"""A file of rows is judged in two runs. The second run continues where the first one stopped, and judges no row twice.

Run it: ``python examples/bulk_file.py``.
"""

from __future__ import annotations

import asyncio
import json
import tempfile
from pathlib import Path

from connect import MODEL, connect

from qreward.judge import Judge
from qreward.testing import FakeEndpoint, Latency

FLEET = [FakeEndpoint(name, responder="judge", latency=Latency(base=0.02), max_concurrency=8) for name in ("judge-0", "judge-1")]
ROWS = [{"id": f"row-{n}", "question": f"What is {n} times 7?", "truth": str(n * 7), "answer": str(n * 7 + n % 3)} for n in range(200)]
COLUMNS = {"prompt": "question", "response": "answer", "reference": "truth"}


async def main(folder: Path) -> None:
    source, output = folder / "rows.jsonl", folder / "verdicts.jsonl"
    source.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    async with connect(*FLEET) as client:
        judge = Judge(client, model=MODEL, scale=(0, 1), temperature=0)
        first = await client.run(source, output, scorer=judge, columns=COLUMNS, sample=120)
        print(f"first run:  {first.done} of {len(ROWS)} rows judged, then {first.reason}; output: {first.output}")
        second = await client.run(source, output, scorer=judge, columns=COLUMNS)
    print(f"second run: {second.resumed} rows were done before, {second.sent} judged now, {second.failed} failed")
    verdicts = [json.loads(line) for line in output.read_text().splitlines()]
    right = [verdict["custom_id"] for verdict in verdicts if verdict["verdict"]["score"] == 1]
    print(f"{len(verdicts)} verdicts, {len(right)} answers are right, the first of them {right[0]}")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as name:
        asyncio.run(main(Path(name)))
