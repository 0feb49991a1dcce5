"""Archives are looked at before they are opened."""

from __future__ import annotations

import io
import stat
import zipfile
from pathlib import Path

import numpy as np
import pytest

from octune.archives import check_archive
from octune.arrays import ArrayBatches
from octune.errors import DataError


def archive(path: Path, *entries: zipfile.ZipInfo | str) -> Path:
    with zipfile.ZipFile(path, "w") as file:
        for entry in entries:
            file.writestr(entry, b"x")
    return path


def link() -> zipfile.ZipInfo:
    entry = zipfile.ZipInfo("inner")
    entry.external_attr = (stat.S_IFLNK | 0o777) << 16
    return entry


@pytest.mark.parametrize(
    ("entry", "why"),
    [
        ("../x.npy", "outside"),
        ("/x.npy", "outside"),
        ("a/../../x.npy", "outside"),
        ("..\\x.npy", "outside"),
        (link(), "a link"),
    ],
)
def test_what_reaches_outside_is_refused(tmp_path: Path, entry: zipfile.ZipInfo | str, why: str) -> None:
    with pytest.raises(DataError, match=why):
        check_archive(archive(tmp_path / "a.npz", entry), DataError)


def test_a_bomb_is_not_opened(tmp_path: Path) -> None:
    path = tmp_path / "bomb.npz"
    block = bytes(2**20)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file, file.open("x.npy", "w") as entry:
        for _ in range(600):
            entry.write(block)
    assert path.stat().st_size < 2**20
    with pytest.raises(DataError, match=r"would fill 0\.6 GB: it is not opened"):
        ArrayBatches(path, batch_size=4)


def test_pickles_in_arrays_are_refused(tmp_path: Path) -> None:
    class Hostile:
        def __reduce__(self) -> object:
            return open, (str(tmp_path / "marker"), "w")

    np.savez(tmp_path / "a.npz", x=np.array([Hostile()], dtype=object))
    with pytest.raises(DataError, match="cannot be read"):
        ArrayBatches(tmp_path / "a.npz", batch_size=4)
    assert not (tmp_path / "marker").exists()
    with np.load(tmp_path / "a.npz", allow_pickle=True) as file, pytest.raises(Exception, match=r"."):
        np.asarray(file["x"], dtype=np.float32)
    assert (tmp_path / "marker").exists()  # so it would have run


def test_a_header_that_promises_more_than_there_is_is_refused(tmp_path: Path) -> None:
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        header, {"descr": "<f4", "fortran_order": False, "shape": (2**44, 8)}
    )
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as file:
        file.writestr("x.npy", header.getvalue())
    with pytest.raises(DataError, match="cannot be read"):
        ArrayBatches(tmp_path / "a.npz", batch_size=4)


def test_plain_archives_pass(tmp_path: Path) -> None:
    np.savez_compressed(tmp_path / "a.npz", x=np.zeros((1000, 100), np.float32))
    check_archive(tmp_path / "a.npz", DataError)
    assert ArrayBatches(tmp_path / "a.npz", batch_size=4).rows == 1000
