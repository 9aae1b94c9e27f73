"""Input of a bulk run: lines of files, rows of tables, or the caller's own items, as a stream.

Every line has its place, for error messages, and a digest, by which a later run notices that it has changed. Nothing here knows what a line
means.
"""

from __future__ import annotations

import csv
import glob
import gzip
import importlib
import io
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from hashlib import blake2b
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import msgspec

from qreward.errors import ConfigError

STANDARD_INPUT = "-"
LONGEST_LINE = 1 << 27
"""Bytes of the longest line. A longer one means that the file has no line breaks, or is no text."""
ROWS = 1024
"""Rows of a table that are read at once."""

Inputs = str | Path | Sequence[str | Path] | Iterable[Mapping[str, Any]]


class InputLine(NamedTuple):
    """One line of the input.

    Attributes:
        place: file and line number, such as ``requests.jsonl:17``.
        digest: 64 bits of the hash of its content.
        content: a line of JSON, or a row.
    """

    place: str
    digest: int
    content: bytes | Mapping[str, Any]

    def fields(self) -> dict[str, Any]:
        """Return the line as a mapping. Raises ``ValueError`` that says what it is instead."""
        if not isinstance(self.content, bytes):
            return dict(self.content)
        try:
            fields = msgspec.json.decode(self.content)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise ValueError(f"it is not JSON: {error}") from None
        if not isinstance(fields, dict):
            raise ValueError(f"it is a JSON {type(fields).__name__}, not an object")
        return fields


def digest_of(content: bytes) -> int:
    return int.from_bytes(blake2b(content, digest_size=8).digest())


class Input:
    """The input of a run, opened as often as it is read.

    Args:
        source: paths and globs, ``-`` for standard input, or an iterable of mappings.

    Attributes:
        names: the files, in the order in which they are read; empty for an iterable of the caller.

    Raises:
        ConfigError: a file does not exist, a glob matches none, or a format needs a package that is not installed.
    """

    def __init__(self, source: Inputs) -> None:
        self._rows: Iterable[Mapping[str, Any]] | None = None
        self._is_closed = False
        self.names: tuple[str, ...] = ()
        if isinstance(source, str | Path):
            source = [source]
        if isinstance(source, Sequence) and all(isinstance(each, str | Path) for each in source) and source:
            self.names = tuple(name for each in source for name in _matching(str(each)))
            if self.names.count(STANDARD_INPUT) > 1:
                raise ConfigError("standard input (-) can be read once")
            for name in self.names:
                _opener(name)  # raises now what would otherwise be raised in the middle of the run
        elif isinstance(source, Iterable) and not isinstance(source, Mapping):
            self._rows = source  # type: ignore[assignment]  # each row is checked when it is read
        else:
            raise ConfigError(f"the input must be paths or an iterable of mappings, not a {type(source).__name__}")

    def lines(self) -> Iterator[InputLine]:
        """Yield the lines. Blank lines of text files are left out.

        Raises:
            ConfigError: a file cannot be read to its end. The message names the file and the line.
        """
        if self._rows is not None:
            yield from _rows_of("item", self._rows)
        for name in self.names:
            yield from _opener(name)(name)

    def count(self) -> int | None:
        """Return the number of lines, or None if only reading them would tell. Compressed files and tables are not counted."""
        if self._rows is not None:
            return len(self._rows) if isinstance(self._rows, Sequence) else None
        if any(name == STANDARD_INPUT or _suffix(name) not in _TEXT for name in self.names):
            return None
        return sum(map(self._count, self.names))

    def _count(self, name: str) -> int:
        """Return the number of line breaks, and 1 for an unfinished last line. Blank lines count too: it is for the progress only."""
        lines, last = 0, b"\n"
        with Path(name).open("rb") as file:
            while not self._is_closed and (data := file.read(1 << 20)):
                lines += data.count(b"\n")
                last = data[-1:]
        return lines + (last != b"\n")

    def close(self) -> None:
        """End a ``count`` that runs in another thread."""
        self._is_closed = True


def _matching(name: str) -> list[str]:
    if name == STANDARD_INPUT or Path(name).is_file():
        return [name]
    # pathlib cannot expand an absolute pattern
    if found := sorted(each for each in glob.glob(name, recursive=True) if Path(each).is_file()):  # noqa: PTH207
        return found
    what = "no file matches" if glob.has_magic(name) else "there is no file"
    raise ConfigError(f"{what} {name!r}; name a file, a glob in quotes, or - for standard input")


# lines


def _text_lines(name: str, file: BinaryIO) -> Iterator[InputLine]:
    label = "standard input" if name == STANDARD_INPUT else name
    number = 0
    try:
        while line := file.readline(LONGEST_LINE):
            number += 1
            content = line.strip()
            if number == 1:
                content = content.removeprefix(b"\xef\xbb\xbf")
            if len(line) == LONGEST_LINE:
                raise ConfigError(f"{label}:{number} is longer than {LONGEST_LINE >> 20} MB; each line must be one request")
            if content:
                yield InputLine(f"{label}:{number}", digest_of(content), content)
    except (OSError, EOFError, _zlib_error()) as error:
        raise ConfigError(f"{label} cannot be read after line {number}: {error}") from None


def _zlib_error() -> type[Exception]:
    import zlib  # noqa: PLC0415

    return zlib.error


def _plain(name: str) -> Iterator[InputLine]:
    with Path(name).open("rb") as file:
        yield from _text_lines(name, file)


def _standard_input(name: str) -> Iterator[InputLine]:
    yield from _text_lines(name, sys.stdin.buffer)


def _gzip(name: str) -> Iterator[InputLine]:
    with gzip.open(name, "rb") as file:
        yield from _text_lines(name, file)  # type: ignore[arg-type]


def _zstandard(name: str) -> Iterator[InputLine]:
    zstandard = _needed("zstandard", name)
    with Path(name).open("rb") as raw, zstandard.ZstdDecompressor().stream_reader(raw, read_across_frames=True) as stream:
        yield from _text_lines(name, io.BufferedReader(stream))


# tables


def _rows_of(label: str, rows: Iterable[Any], first: int = 1) -> Iterator[InputLine]:
    for number, row in enumerate(rows, first):
        if not isinstance(row, Mapping):
            raise ConfigError(f"{label}:{number} is a {type(row).__name__}, not a mapping")
        try:
            content = msgspec.json.encode(row, order="deterministic")
        except (TypeError, ValueError) as error:
            raise ConfigError(f"{label}:{number} cannot be written as JSON: {error}") from None
        yield InputLine(f"{label}:{number}", digest_of(content), content)


def _csv(name: str) -> Iterator[InputLine]:
    with ExitStack() as stack:
        file = stack.enter_context(Path(name).open(newline="", encoding="utf-8-sig"))
        reader = csv.DictReader(file, delimiter="\t" if _suffix(name) == ".tsv" else ",", strict=True)
        try:
            for row in reader:
                place = f"{name}:{reader.line_num}"
                if None in row or None in row.values():
                    raise ConfigError(f"{place} does not have {len(reader.fieldnames or ())} columns, as the first line has")
                content = msgspec.json.encode(row)
                yield InputLine(place, digest_of(content), content)
        except (csv.Error, UnicodeDecodeError) as error:
            raise ConfigError(f"{name}:{reader.line_num + 1} cannot be read: {error}") from None


def _parquet(name: str) -> Iterator[InputLine]:
    parquet = _needed("pyarrow.parquet", name)
    number = 1
    with parquet.ParquetFile(name) as file:
        for batch in file.iter_batches(batch_size=ROWS):
            rows = batch.to_pylist()
            yield from _rows_of(name, rows, number)
            number += len(rows)


def _needed(module: str, name: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError:
        package = module.partition(".")[0]
        raise ConfigError(f"{name} needs the package {package}; install it with pip install 'qreward[bulk]'") from None


_READERS: Mapping[str, tuple[Callable[[str], Iterator[InputLine]], str]] = {
    ".jsonl": (_plain, ""), ".ndjson": (_plain, ""), ".json": (_plain, ""), ".txt": (_plain, ""), "": (_plain, ""),
    ".gz": (_gzip, ""), ".zst": (_zstandard, "zstandard"),
    ".csv": (_csv, ""), ".tsv": (_csv, ""), ".parquet": (_parquet, "pyarrow.parquet"),
}  # fmt: skip
_TEXT = (".jsonl", ".ndjson", ".json", ".txt", "")


def _suffix(name: str) -> str:
    return Path(name).suffix.lower()


def _opener(name: str) -> Callable[[str], Iterator[InputLine]]:
    """Return the reader of a file. Raises ``ConfigError`` if its format is not known, or needs a package that is missing."""
    if name == STANDARD_INPUT:
        return _standard_input
    if _suffix(name) not in _READERS:
        raise ConfigError(f"{name}: the format {_suffix(name)!r} is not known; known: {', '.join(filter(None, _READERS))}")
    reader, package = _READERS[_suffix(name)]
    if package:
        _needed(package, name)
    return reader
