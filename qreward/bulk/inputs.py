"""Input of a bulk run: lines of files, rows of tables, or items from the caller's program."""

from __future__ import annotations

import codecs
import csv
import glob
import gzip
import importlib
import io
import re
import select
import sys
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from hashlib import blake2b
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec

from qreward.bulk.budget import NOTHING, Spent
from qreward.errors import ConfigError
from qreward.records import AttemptRecord

STANDARD_INPUT = "-"
LONGEST_LINE = 1 << 27
"""Maximum number of bytes of a line. If a line is longer, the file has no line breaks or is not text."""
UNREADABLE = (OSError, EOFError, zlib.error)
NEWLINE = b"\n"
CHUNK = 1 << 20  # number of bytes of a file that are read at once
WAITED = 0.25  # seconds between two checks whether the input was closed, while standard input gives nothing
ROWS = 1024  # number of rows of a table that are read or written at once

DIGEST = (1 << 60) - 1
"""The bits of a digest. A larger number would take more memory in Python."""

Inputs = str | Path | Sequence[str | Path] | Iterable[Mapping[str, Any]]


class Line(msgspec.Struct, eq=False, gc=False):
    """A line of an input: at first its text, then what is sent for it, or is given to a scorer."""

    place: str
    key: int  # the hash of its text; a line that equals an earlier line gets another key
    content: Any  # its text, then its request or item
    fault: str = ""  # why it has no text
    row_identifier: str = ""  # a longer hash
    name: str | None = None  # its identifier in the input
    reserved: Spent = NOTHING  # the maximum cost of all its attempts
    started: bool = False
    attempts: tuple[AttemptRecord, ...] = ()  # the failed attempts in provider batches

    @property
    def identifier(self) -> str:
        return self.row_identifier or f"qreward-{self.key:015x}"

    @property
    def custom_id(self) -> str:
        return self.identifier if self.name is None else self.name

    def fields(self) -> dict[str, Any]:
        """Return the line as a mapping. If the line is not a JSON object, raise ``ValueError`` with the reason."""
        if self.fault:
            raise ValueError(self.fault)
        try:
            fields = msgspec.json.decode(self.content)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise ValueError(f"it is not JSON: {error}") from None
        if not isinstance(fields, dict):
            raise ValueError(f"it is a JSON {type(fields).__name__}, not an object")
        return fields


def digest_of(content: bytes) -> int:
    return int.from_bytes(blake2b(content, digest_size=8).digest()) & DIGEST


class Input:
    def __init__(self, source: Inputs) -> None:
        self._rows: Iterable[Mapping[str, Any]] | None = None
        self._is_closed = False
        self.names: tuple[str, ...] = ()
        if isinstance(source, str | Path):
            source = [source]
        if isinstance(source, Sequence) and all(isinstance(each, str | Path) for each in source) and source:
            self.names = tuple(name for each in source for name in _matching(str(each)))
            if self.names.count(STANDARD_INPUT) > 1:
                raise ConfigError("standard input (-) can be read only once")
            for name in self.names:
                _reader(name)  # an unknown format or a missing package is reported before the run begins
        elif isinstance(source, Iterable) and not isinstance(source, Mapping):
            self._rows = source  # type: ignore[assignment]  # each row is checked when it is read
        else:
            raise ConfigError(f"the input must be paths or an iterable of mappings, not a {type(source).__name__}")

    def lines(self) -> Iterator[Line]:
        for chunk in self.chunks():
            yield from chunk

    def chunks(self) -> Iterator[list[Line]]:
        """Yield the lines in lists of consecutive lines that are read together. Raises ``ConfigError`` as ``lines`` does."""
        if self._rows is not None:
            yield from _in_chunks(_rows_of("item", self._rows))
        for name in self.names:
            read = _reader(name)
            yield from _text_chunks(name, self._next_bytes) if read is None else _in_chunks(read(name))

    def count(self) -> int | None:
        """Return the number of lines. None for standard input, compressed files, tables and iterables without a length."""
        if self._rows is not None:
            return len(self._rows) if isinstance(self._rows, Sequence) else None
        if any(name == STANDARD_INPUT or _suffixes(name) not in [(kind, False) for kind in _TEXT] for name in self.names):
            return None
        lines = 0  # with blank lines, because only the progress display uses the number
        for name in self.names:
            last = NEWLINE
            with Path(name).open("rb") as file:
                while not self._is_closed and (data := file.read(CHUNK)):
                    lines += data.count(NEWLINE)
                    last = data[-1:]
            lines += last != NEWLINE
        return lines

    def _next_bytes(self, file: Any) -> bytes:
        """Return the next bytes of a file; nothing after ``close``, also while standard input gives nothing and stays open."""
        is_standard_input = file is getattr(sys.stdin, "buffer", None)
        if is_standard_input:
            with suppress(io.UnsupportedOperation):  # it is no file of the system, and never waits
                while not select.select([file], [], [], WAITED)[0]:
                    if self._is_closed:
                        return b""
        return file.read1(CHUNK)  # type: ignore[no-any-return]

    def close(self) -> None:
        """End the calls that still read in other threads. They then return early."""
        self._is_closed = True


def _matching(name: str) -> list[str]:
    if name == STANDARD_INPUT or Path(name).is_file():
        return [name]
    # pathlib cannot expand an absolute pattern
    if found := sorted(each for each in glob.glob(name, recursive=True) if Path(each).is_file()):  # noqa: PTH207
        return found
    if Path(name).exists() and not Path(name).is_dir():
        raise ConfigError(f"{name!r} is a pipe or a device; pass it to standard input, and name - as the input")
    what = "no file matches" if glob.has_magic(name) else "there is no file"
    raise ConfigError(f"{what} {name!r}; name a file, a glob in quotes, or - for standard input")


# lines


def _opened(name: str) -> AbstractContextManager[Any]:
    if name == STANDARD_INPUT:
        if not hasattr(sys.stdin, "buffer"):
            raise ConfigError("standard input is closed, or holds no bytes; name a file")
        return nullcontext(sys.stdin.buffer)
    return gzip.open(name, "rb") if _suffixes(name)[1] else Path(name).open("rb")


def _text_chunks(name: str, read: Callable[[Any], bytes]) -> Iterator[list[Line]]:
    label = "standard input" if name == STANDARD_INPUT else name
    number, rest = 0, b""
    try:
        with _opened(name) as file:
            while data := read(file):
                data = rest + data
                end = data.rfind(NEWLINE) + 1
                data, rest = data[:end], data[end:]
                if len(rest) >= LONGEST_LINE:
                    raise ConfigError(
                        f"{label}:{number + data.count(NEWLINE) + 1} is longer than {LONGEST_LINE >> 20} MB; each line must be one request"
                    )
                if data:
                    yield _lines(label, number, data)
                    number += data.count(NEWLINE)
        if rest:
            yield _lines(label, number, rest)
    except UNREADABLE as error:
        raise ConfigError(f"{label} cannot be read after line {number}: {error}") from None


def _lines(label: str, number: int, data: bytes) -> list[Line]:
    """Return the lines of ``data`` except blank ones. ``number`` is the number of lines of the file before ``data``."""
    if not number:
        data = data.removeprefix(codecs.BOM_UTF8)
        if _OTHER_JSON.match(data):
            how = "each line must be one object, as jq -c . writes objects and jq -c '.[]' the objects of an array"
            raise ConfigError(f"{label} holds JSON over several lines, or an array; {how}")
    contents = enumerate(map(bytes.strip, data.split(NEWLINE)), number + 1)
    return [Line(f"{label}:{place}", digest_of(content), content) for place, content in contents if content]


_OTHER_JSON = re.compile(rb"\s*([{\[][ \t\r]*\n|\[\s*\{)")


def _in_chunks(lines: Iterator[Line]) -> Iterator[list[Line]]:
    while chunk := list(islice(lines, ROWS)):
        yield chunk


# tables


def _rows_of(label: str, rows: Iterable[Any], first: int = 1) -> Iterator[Line]:
    for number, row in enumerate(rows, first):
        place = f"{label}:{number}"
        if not isinstance(row, Mapping):
            raise ConfigError(f"{place} is a {type(row).__name__}, not a mapping")
        try:
            content = msgspec.json.encode({name: _text(name, value) for name, value in row.items()}, order="deterministic")
        except (TypeError, ValueError, OverflowError, RecursionError) as error:
            yield _bad_row(place, (), f"it cannot be written as JSON: {error}")
        else:
            yield Line(place, digest_of(content), content)


def _text(name: Any, value: Any) -> Any:
    """Return bytes, such as those of a ``binary`` column, as text. JSON would hold them as base64."""
    if not isinstance(value, bytes | bytearray | memoryview):
        return value
    try:
        return str(value, "utf-8")
    except UnicodeDecodeError:
        raise ValueError(f"{name!r} holds bytes that are no UTF-8 text; write them as a string, such as base64") from None


def _bad_row(place: str, row: Sequence[str], fault: str) -> Line:
    return Line(place, digest_of(f"{fault} {row!r}".encode(errors="backslashreplace")), b"", fault)


def _csv(name: str) -> Iterator[Line]:
    csv.field_size_limit(max(csv.field_size_limit(), LONGEST_LINE))  # the default, 128 KB, is less than a long prompt
    delimiter = "\t" if _suffixes(name)[0] == ".tsv" else ","
    number = 0
    try:
        with _opened(name) as file, io.TextIOWrapper(file, encoding="utf-8-sig", newline="") as text:
            reader = csv.reader(text, delimiter=delimiter, strict=True)
            columns = next(reader, [])
            if twice := sorted({column for column in columns if columns.count(column) > 1}):
                raise ConfigError(f"{name}:1 names the column {twice[0]!r} twice; rename one")
            for row in filter(None, reader):
                number = reader.line_num
                if len(row) != len(columns):
                    yield _bad_row(f"{name}:{number}", row, f"it has {len(row)} columns, and the first line has {len(columns)}")
                    continue
                content = msgspec.json.encode(dict(zip(columns, row, strict=True)))
                yield Line(f"{name}:{number}", digest_of(content), content)
    except (*UNREADABLE, csv.Error, UnicodeDecodeError) as error:
        raise ConfigError(f"{name} cannot be read after line {number}: {error}") from None


def _parquet(name: str) -> Iterator[Line]:
    parquet = needed("pyarrow.parquet", name)
    arrow: type[Exception] = needed("pyarrow", name).ArrowException
    number = 1
    try:
        with parquet.ParquetFile(name) as file:
            for batch in file.iter_batches(batch_size=ROWS):
                rows = batch.to_pylist()
                yield from _rows_of(name, rows, number)
                number += len(rows)
    except (OSError, arrow) as error:
        raise ConfigError(f"{name} cannot be read after row {number - 1}: {error}") from None


def needed(module: str, name: str) -> Any:
    """Import a module that the file ``name`` needs. Raises ``ConfigError`` if its package is not installed."""
    try:
        return importlib.import_module(module)
    except ImportError:
        package = module.partition(".")[0]
        raise ConfigError(f"{name} needs the package {package}; install it with pip install 'qreward[bulk]'") from None


_TEXT = (".jsonl", ".ndjson", ".json", ".txt", "")
_TABLES: Mapping[str, Callable[[str], Iterator[Line]]] = {".csv": _csv, ".tsv": _csv, ".parquet": _parquet}


def _suffixes(name: str) -> tuple[str, bool]:
    """Return the ending of a name without ``.gz``, and whether it had that."""
    path, is_packed = Path(name), Path(name).suffix.lower() == ".gz"
    return (path.with_suffix("") if is_packed else path).suffix.lower(), is_packed


def _reader(name: str) -> Callable[[str], Iterator[Line]] | None:
    """Return the function that reads the rows of a table; None for a file of JSON lines. Raises ``ConfigError``."""
    if name == STANDARD_INPUT:
        return None
    kind, is_packed = _suffixes(name)
    if kind not in (*_TEXT, *_TABLES) or (kind == ".parquet" and is_packed):
        known = ", ".join(filter(None, (*_TEXT, *_TABLES, ".gz")))
        raise ConfigError(f"{name}: the format {f'{kind}.gz' if is_packed else kind!r} is not known; known: {known}")
    if kind == ".parquet":
        needed("pyarrow.parquet", name)
    return _TABLES.get(kind)
