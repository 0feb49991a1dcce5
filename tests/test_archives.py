"""Archives are looked at before they are opened."""

from __future__ import annotations

import io
import stat
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from octune.archives import check_archive
from octune.arrays import ArrayBatches
from octune.backends.example import from_bytes
from octune.errors import DataError, WorkspaceError


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


def _damaged(path: Path) -> None:
    """The first bytes of what is compressed."""
    with zipfile.ZipFile(path) as file:
        start = file.infolist()[0].header_offset + 30 + len("x.npy") + 20
    content = bytearray(path.read_bytes())
    content[start : start + 8] = b"\xff" * 8
    path.write_bytes(bytes(content))


def _of_another_method(path: Path) -> None:
    """One that no reader knows, in the directory of the archive and before the entry."""
    content = bytearray(path.read_bytes())
    content[8:10] = b"\x63\0"
    at = content.index(b"PK\x01\x02") + 10
    content[at : at + 2] = b"\x63\0"
    path.write_bytes(bytes(content))


def _of_a_size_beyond_numbers(path: Path) -> None:
    header = b"{'descr': '<f4', 'fortran_order': False, 'shape': (99999999999999999999,)}\n"
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("x.npy", b"\x93NUMPY\x01\0" + len(header).to_bytes(2, "little") + header)


@pytest.mark.parametrize("damage", [_damaged, _of_another_method, _of_a_size_beyond_numbers])
def test_damage_of_every_kind_is_told(tmp_path: Path, damage: Callable[[Path], None]) -> None:
    np.savez_compressed(tmp_path / "a.npz", x=np.arange(1000, dtype=np.float32))
    damage(tmp_path / "a.npz")
    with pytest.raises(DataError, match="cannot be read"):
        ArrayBatches(tmp_path / "a.npz", batch_size=4)


def test_a_bomb_in_a_workspace_is_not_opened() -> None:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as file, file.open("header.npy", "w") as entry:
        for _ in range(600):
            entry.write(bytes(2**20))
    with pytest.raises(WorkspaceError, match="it is not opened"):
        from_bytes(buffer.getvalue(), Path("example.npz"))


def test_plain_archives_pass(tmp_path: Path) -> None:
    np.savez_compressed(tmp_path / "a.npz", x=np.zeros((1000, 100), np.float32))
    check_archive(tmp_path / "a.npz", DataError)
    assert ArrayBatches(tmp_path / "a.npz", batch_size=4).rows == 1000
