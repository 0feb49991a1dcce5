"""Reading labelled rows from the files in which data sets come: .tsv, .csv, .jsonl, .parquet and .arrow.

    for row in read_table(Path("SST-2/dev.tsv")):
        row.line, row.values["sentence"]

In GLUE's .tsv files a quote is just a character, fields are split by tabs alone, and lines end at \\n alone
(some sentences contain other line separators). A row that does not fit raises DataError with file and line.
"""

from __future__ import annotations

import csv
import importlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from octune.errors import DataError

__all__ = ["FORMATS", "TableRow", "find_split", "numbered_lines", "read_table"]

FORMATS = ("tsv", "jsonl", "json", "csv", "parquet", "arrow")
# Where data set libraries put files inside a data set's folder.
PLACES = ("", "data", "plain_text", "default")


@dataclass(frozen=True, slots=True)
class TableRow:
    """One row of a table, and where it is, for messages."""

    file: Path
    line: int
    values: Mapping[str, Any]

    def where(self) -> str:
        return f"{self.file}, line {self.line}"


def find_split(folder: Path, stems: Sequence[str]) -> list[Path]:
    """The files of the first of these splits that exists, in one format.

    "dev" finds dev.tsv, dev-00000-of-00002.parquet, dev/data-00000-of-00001.arrow (as ``save_to_disk``
    writes) or glue-dev.arrow.
    """
    for stem in stems:
        for place in (folder / name for name in PLACES):
            for suffix in FORMATS:
                single = place / f"{stem}.{suffix}"
                found = [single] if single.is_file() else sorted(place.glob(f"{stem}-[0-9]*.{suffix}"))
                if not found and suffix == "arrow":
                    found = sorted((place / stem).glob("*.arrow")) or sorted(place.glob(f"*-{stem}*.arrow"))
                if found:
                    return found
    return []


def read_table(
    file: Path, header: Sequence[str] | None = None, broken: list[int] | None = None
) -> Iterator[TableRow]:
    """The rows of a file; ``header`` names the columns of a .tsv that has none.

    With a ``broken`` list, .tsv rows of the wrong number of fields do not raise: their line numbers are added
    to it.
    """
    readers = {
        "tsv": _read_tsv,
        "txt": _read_tsv,
        "jsonl": _read_jsonl,
        "json": _read_jsonl,
        "csv": _read_csv,
    } | dict.fromkeys(("parquet", "arrow"), _read_pyarrow)
    reader = readers.get(file.suffix.lstrip("."))
    if reader is None:
        raise DataError(f"{file} is not in a format that can be read. Expected one of: {', '.join(FORMATS)}.")
    if reader is _read_tsv:
        return _read_tsv(file, header, broken)
    return reader(file)


def numbered_lines(file: Path, *, blank: bool = False) -> Iterator[tuple[int, str]]:
    """Numbered lines without their ends; a byte order mark is left out, and so are blank lines if these say
    nothing.
    """
    try:
        handle = file.open("rb")
    except OSError as error:
        raise DataError(f"{file} cannot be read: {error.strerror}.") from error
    with handle:
        for number, raw in enumerate(handle, start=1):
            try:
                line = raw.decode("utf-8-sig" if number == 1 else "utf-8").rstrip("\r\n")
            except UnicodeDecodeError as error:
                raise DataError(
                    f"{file}, line {number} is not UTF-8: {error.reason}. Expected a UTF-8 text file."
                ) from error
            if line or blank:
                yield number, line


def _read_tsv(
    file: Path, header: Sequence[str] | None = None, broken: list[int] | None = None
) -> Iterator[TableRow]:
    columns = header
    for number, line in numbered_lines(file):
        fields = line.split("\t")
        if columns is None:
            columns = fields
            continue
        if len(fields) != len(columns):
            if broken is None:
                expected = f"Expected {len(columns)}, separated by tabs: {', '.join(columns)}."
                raise DataError(f"{file}, line {number} has {len(fields)} fields. {expected}")
            broken.append(number)
            continue
        yield TableRow(file, number, dict(zip(columns, fields, strict=True)))


def _read_jsonl(file: Path) -> Iterator[TableRow]:
    for number, line in numbered_lines(file):
        try:
            values = json.loads(line)
        except json.JSONDecodeError as error:
            raise DataError(
                f"{file}, line {number} is not JSON: {error.msg}. Expected one object per line."
            ) from error
        if not isinstance(values, dict):
            raise DataError(
                f"{file}, line {number} holds a {type(values).__name__}. Expected one object per line."
            )
        yield TableRow(file, number, values)


def _read_csv(file: Path) -> Iterator[TableRow]:
    try:
        with file.open(newline="", encoding="utf-8-sig") as handle:
            reader = csv.DictReader(handle, strict=True)
            for values in reader:
                if None in values or None in values.values():
                    expected = ", ".join(reader.fieldnames or ())
                    raise DataError(
                        f"{file}, line {reader.line_num} has the wrong number of fields. Expected: "
                        f"{expected}."
                    )
                yield TableRow(file, reader.line_num, values)
    except (OSError, csv.Error, UnicodeDecodeError) as error:
        raise DataError(f"{file} cannot be read as a UTF-8 .csv file: {error}.") from error


def _read_pyarrow(file: Path) -> Iterator[TableRow]:
    try:
        pyarrow, parquet = importlib.import_module("pyarrow"), importlib.import_module("pyarrow.parquet")
    except ImportError as error:
        raise DataError(
            f"{file} needs pyarrow to be read. Install it with: pip install pyarrow; or save the data as "
            ".jsonl."
        ) from error
    try:
        if file.suffix == ".parquet":
            table = parquet.read_table(file)
        else:
            with pyarrow.memory_map(str(file)) as source:
                table = pyarrow.ipc.open_stream(source).read_all()
    except (OSError, ValueError) as error:  # pyarrow's own errors derive from these
        raise DataError(f"{file} cannot be read as a {file.suffix} file: {error}.") from error
    for number, values in enumerate(table.to_pylist(), start=1):
        yield TableRow(file, number, values)
