"""An answer with the vectors of several callers, taken apart: each gets a document as if it had asked alone.

Vectors stay as they came, for nobody may ever look at them. Knows the members of the answer, nothing of who asked.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from qreward.errors import InvalidResponse
from qreward.results import Usage
from qreward.wire import jsonio
from qreward.wire.embeddings import EmbeddingsAnswer
from qreward.wire.rewards.answers import share

_Document = dict[str, msgspec.Raw]
_DOCUMENT = msgspec.json.Decoder(_Document)
_ROWS = msgspec.json.Decoder(list[_Document])
_INDEX = msgspec.json.Decoder(int)


class SharedEmbeddings(EmbeddingsAnswer, gc=False):
    """Embeddings that came with those of others; the usage is a share, by the size of the inputs."""

    estimated: bool = True


def parts_of(answer: EmbeddingsAnswer, counts: Sequence[int], sizes: Sequence[float]) -> list[EmbeddingsAnswer | InvalidResponse]:
    """One answer for each caller, of so many vectors and of inputs of such a size.

    An answer that is too odd to be taken apart with certainty gives an error to all, so that they ask again, each alone.
    """
    try:
        document = _DOCUMENT.decode(answer.body)
        rows = _in_order(_ROWS.decode(document["data"]))
    except (*jsonio.REFUSED, KeyError):
        odd = f"an answer for {len(counts)} callers could not be taken apart"
        return [InvalidResponse(odd, model=answer.model) for _ in counts]
    used = answer.usage
    prompts = share(used.prompt_tokens if used else None, sizes)
    totals = share(used.total_tokens if used else None, sizes)
    parts: list[EmbeddingsAnswer | InvalidResponse] = []
    start = 0
    for count, prompt, total in zip(counts, prompts, totals, strict=True):
        usage = None if used is None else Usage(prompt, None, total)
        body = _document(document, rows[start : start + count], usage)
        parts.append(SharedEmbeddings(body, answer.model, usage))
        start += count
    return parts


def _in_order(rows: list[_Document]) -> list[_Document]:
    """By ``index`` if the indexes are 0..n-1 in some order; else as they came."""
    try:
        indexes = [_INDEX.decode(row["index"]) for row in rows]
    except (*jsonio.REFUSED, KeyError):
        return rows
    if sorted(indexes) != list(range(len(rows))):
        return rows
    return [row for _, row in sorted(zip(indexes, rows, strict=True), key=lambda pair: pair[0])]


def _document(whole: _Document, rows: list[_Document], usage: Usage | None) -> bytes:
    data = [{**row, "index": index} for index, row in enumerate(rows)]
    told = {} if usage is None else {"usage": {"prompt_tokens": usage.prompt_tokens or 0, "total_tokens": usage.total_tokens or 0}}
    return msgspec.json.encode({**whole, "data": data, **told})
