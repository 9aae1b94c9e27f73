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
    """Run a bulk run and return its report. See :meth:`QRewardClient.run`.

    Args:
        client: the client that sends the requests. With a scorer, this client must be the scorer's client.
        source: paths, globs, ``-`` for standard input, or an iterable of mappings.
        output: the file of the results. The journal and the file of failures are created beside this file.
        settings: the fields of :class:`BulkSettings`.
        scorer: a judge or reward model that scores each line as an item. None sends each line as a request. All runs on one journal must
            use the same scorer.
        on_start: function that is called with the run before the run begins. The caller can use it to stop the run later.

    Raises:
        ConfigError: a setting is wrong, a file cannot be read or written, or the journal belongs to another run.
    """
    checked = BulkSettings(**settings)
    runtime, lines, path = runtime_of(client), Input(source), Path(output)
    if checked.max_cost is not None and not runtime.prices:
        raise ConfigError(
            "max_cost needs the price of the endpoints; set Endpoint(price=(dollars for a million prompt tokens, completion tokens))"
        )
    judge = None if scorer is None else unblocked(scorer, "scorer", ["batch_score"])
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
    """Raise ``ConfigError`` if a file is both read and written."""
    read = {Path(name).resolve() for name in inputs}
    for path in written:
        if path.resolve() in read:
            raise ConfigError(f"{str(path)!r} is an input; name another output")
