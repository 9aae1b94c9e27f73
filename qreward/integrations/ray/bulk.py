"""Bulk runs over a Ray Dataset."""

from __future__ import annotations

import asyncio
import fcntl
import importlib
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from qreward.bulk.keyed import JournalFolder, KeyedRun, RowResult, keyed_settings
from qreward.bulk.outputs import BulkReport
from qreward.client import QRewardClient
from qreward.engine.portal import portal
from qreward.errors import ConfigError
from qreward.integrations.ray.pool import require_ray
from qreward.judge import make_scorer
from qreward.judge.calibration import digest
from qreward.judge.config import JudgeConfig
from qreward.runtime import runtime_of
from qreward.settings.client import ClientConfig
from qreward.settings.files import read_settings

RESULT, SCORE, ERROR = "result", "score", "error"
"""Columns that are added to each row."""

ClientSource = str | Path | Mapping[str, Any] | ClientConfig | None
JudgeSource = str | Path | Mapping[str, Any] | JudgeConfig | None


class BulkRequests:
    """Sends the rows of a Dataset, for ``Dataset.map_batches`` with ``batch_format="pyarrow"``. One object is made in each worker.

    Columns are added to the rows: ``result``, the response body or the verdict as JSON text, and ``error``, the error as JSON text, of
    which one is null. With a judge or a reward model, ``score`` is a number or null. A row that fails does not raise an exception.

    Args:
        output: folder of the journals. It must exist, on a file system that all workers share.
        config: the client's settings: a mapping, or a file that all workers can read. None takes the settings that
            ``QRewardClient.from_env`` finds in the worker. ``Limits(shared="ray")`` holds for all workers together.
        judge, reward_model: settings of a judge or a file with them, or the name of a reward model. Each row is then an item to score.
        counts_only: True returns one row with counts for each batch, instead of the rows of the batch. :func:`run` needs only the counts.
        options: ``model``, ``params``, ``template``, ``system``, ``columns``, ``timeout``, ``priority``, ``tenant``, ``retry_failed`` and
            ``resume`` of :class:`~qreward.bulk.requests.BulkSettings`.

    Raises:
        ConfigError: a setting is wrong, or the folder has journals of other settings.

    Example:
        dataset.map_batches(
            BulkRequests, fn_constructor_args=("/shared/answers", "client.yaml"), fn_constructor_kwargs={"model": "judge-7b"},
            batch_format="pyarrow", batch_size=256, compute=ray.data.ActorPoolStrategy(size=4),
        )
    """

    def __init__(
        self,
        output: str | Path,
        config: ClientSource = None,
        *,
        judge: JudgeSource = None,
        reward_model: str | None = None,
        counts_only: bool = False,
        **options: Any,
    ) -> None:
        self._settings, scorer = keyed_settings(options), _scorer_of(judge, reward_model)
        self._client = QRewardClient.from_env() if config is None else QRewardClient.from_config(config)
        self._scorer = None if scorer is None else make_scorer(self._client, scorer, owns_client=False)
        self._folder = _open(output, options, scorer)
        self._counts_only = counts_only
        self._run: KeyedRun | None = None

    async def __call__(self, batch: Any) -> Any:
        """Send the rows of a ``pyarrow.Table``. Return the table with the columns of the results added."""
        pyarrow = importlib.import_module("pyarrow")
        if not isinstance(batch, pyarrow.Table):
            raise ConfigError(f'the batch is a {type(batch).__name__}; call map_batches with batch_format="pyarrow"')
        if not self._counts_only and (taken := sorted({RESULT, SCORE, ERROR} & set(batch.column_names))):
            raise ConfigError(f"the rows have a column {taken[0]!r} already; rename it with dataset.rename_columns")
        # Ray may block its event loop, so the client runs in another event loop
        results = await asyncio.to_thread(portal().call, self._results, batch.to_pylist())
        if self._counts_only:
            return pyarrow.Table.from_pylist([counts(results)])
        for name, values in columns(results, scored=self._scorer is not None).items():
            batch = batch.append_column(name, pyarrow.array(values, pyarrow.float64() if name == SCORE else pyarrow.string()))
        return batch

    async def _results(self, rows: list[dict[str, Any]]) -> list[RowResult]:
        if self._run is None:
            self._run = KeyedRun(runtime_of(self._client), self._folder, self._settings, self._scorer)
        return await self._run.results(rows)


def run(
    dataset: Any,
    output: str | Path,
    config: ClientSource = None,
    *,
    judge: JudgeSource = None,
    reward_model: str | None = None,
    actors: int = 1,
    batch_size: int = 256,
    ray_options: Mapping[str, Any] | None = None,
    **options: Any,
) -> BulkReport:
    """Send all rows of a Ray Dataset, and write the results to a folder. After an interruption, the same call continues where it stopped.

    Args:
        dataset: the ``ray.data.Dataset``.
        output: folder for results, failures and journals, on a file system that all workers share. It is created if it does not exist.
        config, judge, reward_model, options: see :class:`BulkRequests`.
        actors: number of workers.
        batch_size: number of rows in a batch. A worker sends ``RAY_DATA_DEFAULT_ASYNC_BATCH_UDF_MAX_CONCURRENCY`` batches at once (4).
        ray_options: further arguments of ``Dataset.map_batches``, such as ``{"num_cpus": 0.5}``.

    Returns:
        The report. ``lines`` is the number of rows, and ``done`` that of distinct rows with a result or a failure. ``reason`` says why
        other rows have neither. Tokens of earlier runs and of workers that died are not counted.

    Raises:
        ConfigError: a setting is wrong, another run has the same output, or the settings have changed.

    Example:
        report = run(ray.data.read_json("s3://bucket/requests/"), "/shared/answers", "client.yaml", actors=8)
    """
    require_ray()
    data = importlib.import_module("ray.data")
    wanted = {"judge": judge, "reward_model": reward_model, **options}
    scorer, began = _scorer_of(judge, reward_model), time.monotonic()
    with _locked(Path(output)):
        folder = _open(output, options, scorer)
        resumed, sent, again = folder.done, folder.sent, folder.sent_again
        del folder  # the index of a large folder takes memory
        counted = dataset.map_batches(
            BulkRequests,
            fn_constructor_args=(str(output), config),
            fn_constructor_kwargs={**wanted, "counts_only": True},
            batch_size=batch_size,
            batch_format="pyarrow",
            compute=data.ActorPoolStrategy(size=actors),
            **{"max_concurrency": 2, **(ray_options or {})},  # the second task begins while the first waits for its last rows
        )
        total: dict[str, Any] = Counter()
        reasons = []
        for row in counted.iter_rows():
            reasons.append(row.pop("reason"))
            total.update(row)
        reason = next(filter(None, reasons), None)
        folder = _open(output, {name: value for name, value in options.items() if name != "retry_failed"}, scorer)
        files = folder.write() if reason is None else 0
        return BulkReport(
            **total,
            done=folder.done,
            failed=folder.failed,
            resumed=resumed,
            sent=folder.sent - sent,
            sent_again=folder.sent_again - again,
            in_flight=folder.in_flight,
            seconds=time.monotonic() - began,
            output=folder.path if files else None,
            reason=reason,
        )


# results as columns


def columns(results: list[RowResult], *, scored: bool) -> dict[str, list[Any]]:
    def answer(line: Mapping[str, msgspec.Raw]) -> str:
        body = line["verdict"] if "verdict" in line else msgspec.json.decode(line["response"], type=dict[str, msgspec.Raw])["body"]
        return bytes(body).decode()

    raw = [msgspec.json.decode(each.line, type=dict[str, msgspec.Raw]) for each in results]
    found: dict[str, list[Any]] = {
        RESULT: [answer(line) if each.ok else None for each, line in zip(results, raw, strict=True)],
        ERROR: [None if each.ok else bytes(line["error"]).decode() for each, line in zip(results, raw, strict=True)],
    }
    if scored:
        found[SCORE] = [msgspec.json.decode(text)["score"] if text is not None else None for text in found[RESULT]]
    return found


def counts(results: list[RowResult]) -> dict[str, Any]:
    """Return the counts of a batch, and a reason if rows have no result. :func:`run` adds up the counts of all batches."""
    lost = [each for each in results if not each.is_kept]
    usages = [each.usage for each in results if each.usage is not None]
    prompt, completion = (sum(getattr(usage, name) or 0 for usage in usages) for name in ("prompt_tokens", "completion_tokens"))
    return {
        "lines": len(results),
        "tokens": prompt + completion,
        "prompt_tokens": prompt,
        "cached_tokens": sum(usage.cached_tokens or 0 for usage in usages),
        "reason": f"rows have no result: {msgspec.json.decode(lost[0].line)['error']['message']}" if lost else "",
    }


# settings


def _scorer_of(judge: JudgeSource, reward_model: str | None) -> JudgeConfig | str | None:
    if judge is not None and reward_model is not None:
        raise ConfigError("judge and reward_model are both set; set one of them")
    if judge is None or isinstance(judge, JudgeConfig):
        return judge or reward_model
    content, place = read_settings(judge, empty="it must contain at least model")
    return place.validated(JudgeConfig, content)


def _open(output: str | Path, options: Mapping[str, Any], scorer: JudgeConfig | str | None) -> JournalFolder:
    settings = keyed_settings(options)
    if isinstance(scorer, JudgeConfig):
        scorer = f"judge {', '.join(scorer.model)}, settings {digest(scorer.model_dump())[:16]}"
    common = {"keyed": True, **settings.shared_settings((), scorer)}
    return JournalFolder(Path(output), common, force=settings.resume == "force", retry_failed=settings.retry_failed)


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Create the folder if it does not exist. Inside the context, other runs are refused. Raises ``ConfigError``."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"the output {str(folder)!r} cannot be a folder: {error.strerror}; name another") from None
    with (folder / ".lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise ConfigError(f"another run writes to {str(folder)!r}; wait for it, or name another output") from None
        yield
