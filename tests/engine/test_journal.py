"""The journal: nothing that was appended is lost, whatever kills the run, and nothing of another run is
believed.
"""

from __future__ import annotations

import errno
import json
import logging
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octune.engine.journal import RANGES, Journal
from octune.errors import WorkspaceError

HEADER = {"model": "abc", "seed": 1978, "criterion": {"relative": 0.01}}

json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)
records = st.lists(
    st.tuples(
        st.sampled_from(["trial", "harm", "cost"]),
        st.dictionaries(st.text(max_size=6).filter(lambda k: k != "event"), json_values),
    ),
    max_size=6,
)


def open_journal(folder: Path, *, resume: bool = True, **changed: object) -> Journal:
    return Journal.open(folder, {**HEADER, **changed}, resume=resume)


def content(journal: Journal) -> dict[str, list[dict[str, object]]]:
    return {event: journal.records(event) for event in ("trial", "harm", "cost")}


# -- append and recover --------------------------------------------------------------------------------------


@settings(max_examples=40)
@given(records, st.data())
def test_what_was_appended_is_recovered_over_any_number_of_runs(
    appended: list[tuple[str, dict[str, object]]], data: st.DataObject
) -> None:
    expected: dict[str, list[dict[str, object]]] = {"trial": [], "harm": [], "cost": []}
    with tempfile.TemporaryDirectory() as name:
        journal = open_journal(Path(name))
        for event, record in appended:
            if data.draw(st.booleans()):
                journal.close()
                journal = open_journal(Path(name))
            journal.append(event, record)
            expected[event].append(record)
            assert content(journal) == expected
        journal.close()
        with open_journal(Path(name)) as again:
            assert content(again) == expected
            assert len(again.records("start")) == 1
        lines = (Path(name) / "journal.jsonl").read_bytes().splitlines()
        assert len(lines) == 1 + len(appended)
        assert all(json.loads(line)["event"] for line in lines)


def test_a_last_line_torn_at_any_byte_is_dropped_and_the_rest_kept(tmp_path: Path) -> None:
    with open_journal(tmp_path) as journal:
        journal.append("trial", {"n": 1, "name": "ä"})
        journal.append("trial", {"n": 2, "name": "ö", "more": [1.5, None]})
    path = tmp_path / "journal.jsonl"
    whole = path.read_bytes()
    last = whole.rindex(b"\n", 0, len(whole) - 1) + 1
    for cut in range(last, len(whole)):
        path.write_bytes(whole[:cut])
        with open_journal(tmp_path) as journal:
            assert [record["n"] for record in journal.records("trial")] == [1]
            journal.append("trial", {"n": 3})
        with open_journal(tmp_path) as journal:
            assert [record["n"] for record in journal.records("trial")] == [1, 3]


def test_a_journal_cut_anywhere_is_a_shorter_journal(tmp_path: Path) -> None:
    with open_journal(tmp_path) as journal:
        for n in range(3):
            journal.append("trial", {"n": n})
    path = tmp_path / "journal.jsonl"
    whole = path.read_bytes()
    ends = [i + 1 for i, byte in enumerate(whole) if byte == ord("\n")]
    for cut in range(len(whole)):
        path.write_bytes(whole[:cut])
        with open_journal(tmp_path) as journal:
            kept = max(0, sum(end <= cut for end in ends) - 1)
            assert [record["n"] for record in journal.records("trial")] == list(range(kept))
            assert len(journal.records("start")) == 1
        assert path.read_bytes() == whole[: max((end for end in ends if end <= cut), default=ends[0])]


def test_a_torn_line_is_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    open_journal(tmp_path).close()
    with (tmp_path / "journal.jsonl").open("ab") as file:
        file.write(b'{"event": "tri')
    with caplog.at_level(logging.WARNING, "octune"):
        open_journal(tmp_path).close()
    assert "cut short by a crash" in caplog.text


@pytest.mark.parametrize(
    "damage",
    [
        b"garbage",
        b"\x00\x00\x00",
        b'{"n": 1}',
        b"[1]",
        b'"event"',
        b"7",
        b'{"event": "trial", "n": 1',
        b"\xff\xfe",
        b"",
    ],
)
def test_a_damaged_line_in_the_middle_is_refused_with_its_number(tmp_path: Path, damage: bytes) -> None:
    with open_journal(tmp_path) as journal:
        journal.append("trial", {"n": 1})
        journal.append("trial", {"n": 2})
    path = tmp_path / "journal.jsonl"
    lines = path.read_bytes().splitlines()
    lines[1] = damage
    before = b"\n".join(lines) + b"\n"
    path.write_bytes(before)
    with pytest.raises(
        WorkspaceError, match=r"journal\.jsonl, line 2 is damaged .*Delete the lines from there on"
    ):
        open_journal(tmp_path)
    assert path.read_bytes() == before  # what cannot be read is not thrown away
    open_journal(tmp_path, resume=False).close()  # and the workspace is not left locked


def test_a_number_that_was_changed_is_not_believed(tmp_path: Path) -> None:
    with open_journal(tmp_path) as journal:
        journal.append("trial", {"score": 0.75})
        journal.append("trial", {"score": 0.5})
    path = tmp_path / "journal.jsonl"
    path.write_bytes(path.read_bytes().replace(b"0.75", b"0.95"))
    with pytest.raises(WorkspaceError, match=r"line 2 is damaged \(its checksum differs\)"):
        open_journal(tmp_path)


# -- whose journal is it -------------------------------------------------------------------------------------


def test_a_journal_of_another_run_is_refused(tmp_path: Path) -> None:
    open_journal(tmp_path).close()
    with pytest.raises(
        WorkspaceError,
        match=r"belongs to another run: its model differs \(there 'abc', here 'xyz'\).*workspace.resume",
    ):
        open_journal(tmp_path, model="xyz")
    with pytest.raises(WorkspaceError, match="its strategy differs"):
        open_journal(tmp_path, strategy="basic")
    with open_journal(tmp_path) as journal:  # refusing changed nothing
        assert len(journal.records("start")) == 1


def test_a_header_survives_json(tmp_path: Path) -> None:
    open_journal(tmp_path, choices=("a", "b")).close()
    open_journal(tmp_path, choices=("a", "b")).close()


def test_an_earlier_journal_is_set_aside_and_never_deleted(tmp_path: Path) -> None:
    for n in range(3):
        with open_journal(tmp_path, resume=False) as journal:
            assert journal.records("trial") == []
            journal.append("trial", {"n": n})
        (tmp_path / RANGES).write_bytes(b"old")
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == ["journal-1.jsonl", "journal-2.jsonl", "journal.jsonl", "lock", RANGES]
    for name, n in (("journal-1.jsonl", 0), ("journal-2.jsonl", 1), ("journal.jsonl", 2)):
        line = json.loads((tmp_path / name).read_text().splitlines()[1])
        assert {key: line[key] for key in ("event", "n")} == {"event": "trial", "n": n}


@pytest.mark.parametrize("resume", [True, False])
def test_ranges_without_their_journal_are_not_believed(tmp_path: Path, resume: bool) -> None:
    (tmp_path / RANGES).write_bytes(b"of another model")
    open_journal(tmp_path, resume=resume).close()
    assert not (tmp_path / RANGES).exists()


def test_ranges_stay_when_a_run_is_resumed(tmp_path: Path) -> None:
    open_journal(tmp_path).close()
    (tmp_path / RANGES).write_bytes(b"mine")
    open_journal(tmp_path).close()
    assert (tmp_path / RANGES).exists()


def test_nothing_to_resume_starts_anew_and_says_so(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "octune"):
        open_journal(tmp_path / "new" / "folder").close()
    assert "nothing to resume" in caplog.text


# -- the lock ------------------------------------------------------------------------------------------------


def test_two_runs_cannot_share_a_workspace(tmp_path: Path) -> None:
    with open_journal(tmp_path), pytest.raises(WorkspaceError, match="Another run is using the workspace"):
        open_journal(tmp_path)
    open_journal(tmp_path).close()


def test_another_process_is_kept_out_too_and_a_dead_one_leaves_no_lock(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from octune.engine.journal import Journal; "
        f"j = Journal.open(Path({str(tmp_path)!r}), {HEADER!r}); j.append('trial', {{'n': 1}}); "
        "print('ready', flush=True); sys.stdin.read()"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        with pytest.raises(WorkspaceError, match="Another run"):
            open_journal(tmp_path)
    finally:
        process.kill()
        process.communicate()
    with open_journal(tmp_path) as journal:
        assert journal.records("trial") == [{"n": 1}]


# -- disks ---------------------------------------------------------------------------------------------------

needs_full = pytest.mark.skipif(
    not Path("/dev/full").exists(), reason="needs /dev/full, a device that is always full"
)


@needs_full
def test_a_full_disk_does_not_stop_the_run(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "journal.jsonl").symlink_to("/dev/full")
    with caplog.at_level(logging.ERROR, "octune"), open_journal(tmp_path, resume=False) as journal:
        journal.append("trial", {"n": 1})
        journal.append("trial", {"n": 2})
        assert journal.records("trial") == [{"n": 1}, {"n": 2}]
        assert journal.broken is not None
        assert os.strerror(errno.ENOSPC) in journal.broken
        assert "cannot be resumed" in journal.broken
    assert len(caplog.records) == 1  # said once


@needs_full
def test_a_disk_that_fills_up_in_the_middle_leaves_a_journal_that_can_be_resumed(tmp_path: Path) -> None:
    journal = open_journal(tmp_path)
    journal.append("trial", {"n": 1})
    assert journal._file is not None
    with Path("/dev/full").open("wb") as full:
        os.dup2(full.fileno(), journal._file.fileno())
    journal.append("trial", {"n": 2})
    assert journal.broken is not None
    journal.close()
    with open_journal(tmp_path) as again:
        assert again.records("trial") == [{"n": 1}]


def test_a_workspace_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(WorkspaceError, match=r"cannot be used: .*Choose another workspace\.path"):
        open_journal(tmp_path / "file")
    (tmp_path / "journal.jsonl").mkdir()
    with pytest.raises(WorkspaceError, match="cannot be used"):
        open_journal(tmp_path, resume=True)


def test_without_a_folder_it_is_kept_in_memory() -> None:
    with Journal.open(None, HEADER) as journal:
        journal.append("trial", {"n": 1})
        journal.append("trial", {"n": 2})
        assert journal.last("trial") == {"n": 2}
        assert journal.last("cost") is None
    assert journal.folder is None
