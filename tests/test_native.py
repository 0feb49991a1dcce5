"""Compiled code that is kept: found again, bounded, and run only if this user made it on this machine."""

from __future__ import annotations

import json
import logging
import os
from pathlib import Path

import pytest

from octune.native import NativeCache
from octune.trust import digest_of_native, remember


@pytest.fixture(autouse=True)
def _own_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


@pytest.fixture
def kept(tmp_path: Path) -> NativeCache:
    return NativeCache(tmp_path / "cache", most=100)


def code(tmp_path: Path, content: bytes = b"native") -> Path:
    file = tmp_path / "made"
    file.write_bytes(content)
    return file


def test_what_was_kept_is_found_again(tmp_path: Path, kept: NativeCache) -> None:
    assert kept.take("key", tmp_path / "copy") is None
    kept.keep("key", code(tmp_path), 20.5)
    assert kept.take("key", tmp_path / "copy") == 20.5
    assert (tmp_path / "copy").read_bytes() == b"native"
    assert kept.take("another", tmp_path / "none") is None
    assert kept.entries() == (1, 6)


def test_what_others_put_there_is_not_run(
    tmp_path: Path, kept: NativeCache, caplog: pytest.LogCaptureFixture
) -> None:
    kept.keep("key", code(tmp_path), 1.0)
    kept.keep("another", code(tmp_path, b"other code of mine"), 1.0)
    folder = tmp_path / "cache"
    genuine = (folder / "key.code").read_bytes()
    with caplog.at_level(logging.WARNING, logger="octune"):
        for forged in (
            b"evil",
            (folder / "another.code").read_bytes(),
        ):  # also what is mine, but of another key
            (folder / "key.code").write_bytes(forged)
            assert kept.take("key", tmp_path / "copy") is None
            assert not (tmp_path / "copy").exists()
    assert caplog.text.count("it is not run") == 2
    (folder / "key.code").write_bytes(genuine)
    assert kept.take("key", tmp_path / "copy") == 1.0


def test_without_the_record_nothing_is_run(
    tmp_path: Path, kept: NativeCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept.keep("key", code(tmp_path), 1.0)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "of-another-user"))
    assert kept.take("key", tmp_path / "copy") is None


def test_a_saved_models_code_is_no_entry(tmp_path: Path, kept: NativeCache) -> None:
    """What may run as one thing may not run as another."""
    file, folder = code(tmp_path), tmp_path / "cache"
    remember(digest_of_native(file, {"signature": {}}))
    folder.mkdir()
    (folder / "key.code").write_bytes(file.read_bytes())
    (folder / "key.json").write_text(json.dumps({"seconds": 1.0}))
    assert kept.take("key", tmp_path / "copy") is None


def test_what_was_not_used_for_longest_goes_first(tmp_path: Path, kept: NativeCache) -> None:
    for age, key in enumerate(("a", "b")):
        kept.keep(key, code(tmp_path, key.encode() * 40), 1.0)
        os.utime(tmp_path / "cache" / f"{key}.code", (1000 + age, 1000 + age))
    assert kept.take("a", tmp_path / "copy") is not None  # used now, so b is the oldest
    kept.keep("c", code(tmp_path, b"c" * 40), 1.0)
    assert kept.entries() == (2, 80)
    assert kept.take("b", tmp_path / "copy") is None
    assert kept.take("a", tmp_path / "copy") is not None
    assert {path.name for path in (tmp_path / "cache").iterdir()} == {"a.code", "a.json", "c.code", "c.json"}
    kept.keep("huge", code(tmp_path, b"h" * 101), 1.0)
    assert kept.take("huge", tmp_path / "copy") is None


@pytest.mark.parametrize("damage", [b"", b"{", b'{"seconds": null}', b"[]"])
def test_a_damaged_entry_is_none(tmp_path: Path, kept: NativeCache, damage: bytes) -> None:
    kept.keep("key", code(tmp_path), 1.0)
    (tmp_path / "cache" / "key.json").write_bytes(damage)
    assert kept.take("key", tmp_path / "copy") is None


def test_where_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OCTUNE_COMPILE_CACHE", str(tmp_path))
    assert NativeCache.here().folder == tmp_path
    monkeypatch.delenv("OCTUNE_COMPILE_CACHE")
    monkeypatch.setenv("OCTUNE_CACHE", str(tmp_path))
    assert NativeCache.here().folder == tmp_path / "compiled"
    monkeypatch.setenv("OCTUNE_COMPILE_CACHE", "off")
    nowhere = NativeCache.here()
    nowhere.keep("key", code(tmp_path), 1.0)
    assert nowhere.take("key", tmp_path / "copy") is None
    assert nowhere.entries() == (0, 0)


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    kept = NativeCache(tmp_path / "file" / "cache")
    kept.keep("key", code(tmp_path), 1.0)
    assert kept.take("key", tmp_path / "copy") is None
