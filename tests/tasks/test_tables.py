"""Reading tables: the traps of the files as they are published."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from octune.errors import DataError
from octune.tasks.tables import find_split, read_table

Write = Callable[[str, str | bytes], Path]


def test_quotes_are_characters_and_only_newlines_end_a_line(write: Write) -> None:
    file = write(
        "dev.tsv",
        'sentence\tlabel\n"he said\t1\nit\'s "fine" now\u2028really\x0b\x85\t0\ncarriage\rreturn \t1\n',
    )
    rows = list(read_table(file))
    assert [row.values["sentence"] for row in rows] == [
        '"he said',
        'it\'s "fine" now\u2028really\x0b\x85',
        "carriage\rreturn ",
    ]
    assert [row.values["label"] for row in rows] == ["1", "0", "1"]
    assert [row.line for row in rows] == [2, 3, 4]


def test_byte_order_mark_crlf_and_blank_lines(write: Write) -> None:
    file = write("dev.tsv", b"\xef\xbb\xbfQuality\tText\r\n1\tcaf\xc3\xa9\r\n\r\n0\tno\r\n")
    assert [dict(row.values) for row in read_table(file)] == [
        {"Quality": "1", "Text": "café"},
        {"Quality": "0", "Text": "no"},
    ]


def test_a_row_with_too_few_or_too_many_fields_is_named(write: Write) -> None:
    for content, fields in (("a\tb\n1\t2\n3\n", 1), ("a\tb\n1\t2\n3\t4\t5\n", 3)):
        file = write("dev.tsv", content)
        with pytest.raises(DataError, match=rf"dev\.tsv, line 3 has {fields} fields\. Expected 2.*a, b"):
            list(read_table(file))
        broken: list[int] = []
        assert len(list(read_table(file, broken=broken))) == 1
        assert broken == [3]


def test_not_utf8_is_named(write: Write) -> None:
    file = write("dev.tsv", b"a\tb\n1\t2\n\xff\t2\n")
    with pytest.raises(DataError, match="line 3 is not UTF-8"):
        list(read_table(file))


def test_csv_and_jsonl(write: Write) -> None:
    table = write("a.csv", 'sentence,label\n"one, ""two""\nthree",1\n')
    assert [dict(row.values) for row in read_table(table)] == [
        {"sentence": 'one, "two"\nthree', "label": "1"}
    ]
    lines = write("a.jsonl", '{"sentence": "x\\ty", "label": 1}\n\n{"sentence": "z", "label": 0}\n')
    assert [row.values["label"] for row in read_table(lines)] == [1, 0]
    assert [row.line for row in read_table(lines)] == [1, 3]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.csv", "x,y\n1,2\n1\n", "line 3 has the wrong number of fields"),
        ("a.csv", "x,y\n1,2,3\n", "line 2 has the wrong number of fields"),
        ("a.csv", 'x,y\n1,"2\n', "cannot be read as a UTF-8 .csv"),
        ("a.jsonl", '{"x": 1}\n{"x": \n', "line 2 is not JSON"),
        ("a.jsonl", "[1]\n", "line 1 holds a list"),
        ("a.xlsx", "", "not in a format"),
        ("a.parquet", "nonsense", "pyarrow|cannot be read as a .parquet"),
    ],
)
def test_broken_files_are_named(write: Write, name: str, content: str, message: str) -> None:
    with pytest.raises(DataError, match=message) as caught:
        list(read_table(write(name, content)))
    assert name in str(caught.value)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    for name in ("no.tsv", "no.csv"):
        with pytest.raises(DataError, match=name):
            list(read_table(tmp_path / name))


def test_parquet_says_what_to_install(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    with pytest.raises(DataError, match="pip install pyarrow"):
        list(read_table(write("a.parquet", "")))


def test_parquet(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    parquet.write_table(pyarrow.table({"sentence": ["x", "y"], "label": [1, 0]}), tmp_path / "a.parquet")
    assert [(row.values["sentence"], row.values["label"]) for row in read_table(tmp_path / "a.parquet")] == [
        ("x", 1),
        ("y", 0),
    ]


def test_splits_are_found_whole_or_in_parts(write: Write, tmp_path: Path) -> None:
    write("data/train-00001-of-00002.jsonl", "{}")
    write("data/train-00000-of-00002.jsonl", "{}")
    write("validation.csv", "x\n")
    assert [file.name for file in find_split(tmp_path, ("train",))] == [
        "train-00000-of-00002.jsonl",
        "train-00001-of-00002.jsonl",
    ]
    assert [file.name for file in find_split(tmp_path, ("dev", "validation"))] == ["validation.csv"]
    assert find_split(tmp_path, ("test",)) == []
