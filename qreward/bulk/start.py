"""``run_bulk``: checks the settings, opens the input, the journal and the output of a bulk run, and runs it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from qreward.bulk.inputs import Input, Inputs
from qreward.bulk.journal import Journal, JournalFull
from qreward.bulk.outputs import OutputFile
from qreward.bulk.report import BulkReport
from qreward.bulk.requests import RequestReader
from qreward.bulk.run import BulkRun
from qreward.bulk.settings import BulkSettings
from qreward.errors import ConfigError
from qreward.judge.scorers import AnyScorer, described, unblocked
from qreward.runtime import Client, runtime_of


async def run_bulk(
    client: Client,
    source: Inputs,
    output: str | Path,
    settings: Mapping[str, Any],
    *,
    scorer: AnyScorer | None = None,
    on_start: Callable[[BulkRun], object] = lambda _: None,
) -> BulkReport:
    """Run a bulk run and return its report. See :meth:`QRewardClient.run`. Raises ``ConfigError``."""
    checked = BulkSettings(**settings)
    runtime, lines, path = runtime_of(client), Input(source), Path(output)
    if checked.max_cost is not None and not runtime.prices:
        raise ConfigError(
            "max_cost needs the price of the endpoints; set Endpoint(price=(dollars for a million prompt tokens, completion tokens))"
        )
    judge = None if scorer is None else unblocked(scorer, "scorer", ["batch_score"])
    if judge is not None and checked.is_limited:
        raise ConfigError("max_cost and max_tokens cannot limit a scorer: the cost of an item is not known in advance; leave them out")
    written = OutputFile(path)
    failures = OutputFile(path.with_name(f"{written.stem}.failed.jsonl"))
    journal_path = path.with_name(f"{path.name}.journal")
    _check_apart(lines.names, (path, failures.path, journal_path))
    if not journal_path.exists():
        for file in (written, failures):
            file.check_replaceable()
    reader = RequestReader(checked)
    try:
        journal = Journal(
            journal_path,
            checked.shared_settings(lines.names, None if judge is None else described(judge)),
            force=checked.resume == "force",
            retry_failed=checked.retry_failed,
            start_over=True,
        )
    except JournalFull as error:
        return BulkReport(reason=str(error))
    run = BulkRun(runtime, lines, (written, failures), journal, checked, reader, judge)
    on_start(run)
    return await run.run()


def _check_apart(inputs: Iterable[str], written: Iterable[Path]) -> None:
    read = {Path(name).resolve() for name in inputs}
    for path in written:
        if path.resolve() in read:
            raise ConfigError(f"{str(path)!r} is an input; name another output")
