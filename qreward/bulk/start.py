"""``run_bulk``: opens what a run needs, and runs it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from qreward.bulk.inputs import Input, Inputs
from qreward.bulk.journal import Journal
from qreward.bulk.outputs import OutputFile
from qreward.bulk.report import BulkReport
from qreward.bulk.run import BulkRun
from qreward.bulk.settings import BulkSettings
from qreward.errors import ConfigError
from qreward.runtime import Client, runtime_of


async def run_bulk(
    client: Client,
    source: Inputs,
    output: str | Path,
    settings: Mapping[str, Any],
    *,
    on_start: Callable[[BulkRun], object] = lambda _: None,
) -> BulkReport:
    """See :meth:`QRewardClient.run`. ``on_start`` receives the run, which it may stop."""
    checked = BulkSettings(**settings)
    runtime, lines, path = runtime_of(client), Input(source), Path(output)
    if checked.max_cost is not None and not runtime.prices:
        raise ConfigError(
            "max_cost needs the price of the endpoints; set Endpoint(price=(dollars for a million prompt tokens, completion tokens))"
        )
    written, failures = OutputFile(path), OutputFile(path.with_name(f"{path.stem}.failed.jsonl"))
    journal = Journal(
        path.with_name(f"{path.name}.journal"),
        checked.of_the_journal(lines.names),
        force=checked.resume == "force",
        retry_failed=checked.retry_failed,
    )
    run = BulkRun(runtime, lines, written, failures, journal, checked)
    on_start(run)
    return await run.run()
