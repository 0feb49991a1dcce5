"""An append-only journal: every line is one thing that was learned, written and synced before the next
begins.

    with Journal.open(path, header={...}, resume=True) as journal:
        # runs it, unless the answer is known already
        journal.once("trial", {"digest": plan.digest}, lambda: run(plan))
        journal.records("trial")

Killed in the middle of a line, the run loses that line and nothing else. Results are found again by what they
belong to (a plan's digest), never by their position.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import logging
import os
import zlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import IO, Any

from octune.errors import OctuneError, WorkspaceError
from octune.folders import write_whole
from octune.plain_json import loads

__all__ = ["EXAMPLE", "JOURNAL", "RANGES", "Journal", "difference", "not_a_workspace"]

log = logging.getLogger("octune")
VERSION = 4
SUM = b', "sum": "%08x"}\n'
JOURNAL, RANGES, EXAMPLE, LOCK = "journal.jsonl", "ranges.npz", "example.npz", "lock"


class Journal:
    """Records of one run. Without a folder they are kept in memory only."""

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = folder
        self._records: list[tuple[str, dict[str, Any]]] = []
        self._file: IO[bytes] | None = None
        self._lock: IO[bytes] | None = None
        self.broken: str | None = None
        self.heard: Callable[[str, Mapping[str, Any]], object] = lambda event, data: None  # of every record
        self._made = False

    @classmethod
    def open(cls, folder: Path | None, header: Mapping[str, Any], *, resume: bool = False) -> Journal:
        """Start a journal, or continue one that was started by an equal run (``header``).

        An earlier journal that is not resumed is set aside under a numbered name, never deleted.
        """
        journal = cls(folder)
        if folder is None:
            return journal
        try:
            journal._made = not folder.exists()
            folder.mkdir(parents=True, exist_ok=True)
            journal._lock = (folder / LOCK).open("ab")
            fcntl.flock(journal._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise WorkspaceError(
                f"Another run is using the workspace {folder}. Wait for it, or choose another workspace.path."
            ) from error
        except OSError as error:
            raise WorkspaceError(
                f"The workspace {folder} cannot be used: {error}. Choose another workspace.path."
            ) from error
        try:
            journal._begin(folder, header, resume)
        except BaseException as error:
            journal.close()  # or the workspace would stay locked for as long as the exception is held
            if isinstance(error, OSError):
                raise WorkspaceError(
                    f"The workspace {folder} cannot be used: {error}. Choose another workspace.path."
                ) from error
            raise
        return journal

    @classmethod
    def read(cls, folder: Path) -> Journal:
        """The records of a workspace as they are, for looking at them: takes no lock, and writes nothing."""
        path = folder / JOURNAL
        if not path.is_file():
            raise WorkspaceError(not_a_workspace(folder, JOURNAL))
        journal = cls(folder)
        try:
            journal._load(path)
        except OSError as error:
            raise WorkspaceError(f"{path} cannot be read: {error}.") from error
        start = journal.last("start")
        if start is None or start.get("version") != VERSION:
            found = None if start is None else start.get("version")
            raise WorkspaceError(
                f"{path} has version {found}, this Octune reads {VERSION}. Look at it with the Octune that "
                "wrote it."
            )
        return journal

    def _begin(self, folder: Path, header: Mapping[str, Any], resume: bool) -> None:
        path = folder / JOURNAL
        if path.exists() and path.stat().st_size:
            if resume:
                self._recover(path)
                if self._records:
                    _same_run(self._records[0][1], header, folder)
            else:
                _set_aside(folder)
        elif resume:
            log.warning("nothing to resume in %s: starting from the beginning", folder)
        self._file = path.open("ab")
        if not self._records:
            # Files without a journal are another run's: nothing says which model they belong to.
            for file in (folder / EXAMPLE, *folder.glob(RANGES.replace(".", "*."))):
                file.unlink(missing_ok=True)
            self.append("start", {"version": VERSION, **header})

    def _recover(self, path: Path) -> None:
        kept = self._load(path)
        if kept < path.stat().st_size:
            log.warning("the last line of %s was cut short by a crash: that trial is run again", path)
        os.truncate(path, kept)

    def _load(self, path: Path) -> int:
        """Take in all whole lines; returns how many bytes they have."""
        kept = 0
        with path.open("rb") as file:
            for number, line in enumerate(file, 1):
                try:
                    if not line.endswith(b"\n"):
                        raise ValueError("cut short")
                    record = loads(_checked(line))
                    self._records.append((record.pop("event"), record))
                except (ValueError, KeyError, AttributeError, TypeError) as error:
                    if file.read(1):
                        raise WorkspaceError(
                            f"{path}, line {number} is damaged ({error}). Delete the lines from there on to "
                            "resume."
                        ) from error
                    break  # by a crash, or while it is being written
                kept += len(line)
        return kept

    def append(self, event: str, data: Mapping[str, Any]) -> None:
        """Add a record and sync it. A full disk does not stop the run: that is reported once, and records
        stay in memory.
        """
        self._records.append((event, dict(data)))
        self.heard(event, data)
        if self._file is None or self.broken is not None:
            return
        try:
            self._file.write(_summed(json.dumps({"event": event, **data}, allow_nan=False).encode()))
            self._file.flush()
            os.fsync(self._file.fileno())
            if not os.fstat(self._file.fileno()).st_nlink:
                raise FileNotFoundError("it was deleted meanwhile")
        except OSError as error:
            self.broken = (
                f"the journal in {self.folder} could not be written ({error}): this run goes on, "
                "but cannot be resumed"
            )
            log.error("%s", self.broken)

    @contextlib.contextmanager
    def understood(self) -> Iterator[None]:
        """While what the journal says is made into something: what cannot be made of it is a damaged journal,
        not a bug.
        """
        try:
            yield
        except OctuneError:
            raise
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
            where = "The journal" if self.folder is None else str(self.folder / JOURNAL)
            raise WorkspaceError(
                f"{where} does not hold what the journal of a run holds ({type(error).__name__}: {error}): "
                "it was edited or damaged. Start again with workspace.resume: false."
            ) from error

    def keep(self, name: str, content: bytes, **about: Any) -> None:
        """Keep a file beside the journal, which notes its checksum and what else is known of it. What cannot
        be written is reported, and done again by a resumed run.
        """
        if self._file is None or self.folder is None or self.broken is not None:
            return
        try:
            write_whole(self.folder / name, content)
        except OSError as error:
            log.error("%s could not be kept in %s for a resumed run: %s", name, self.folder, error)
            return
        self.append("kept", {"name": name, **about, "sha256": hashlib.sha256(content).hexdigest()})

    def kept(self, name: str) -> bytes | None:
        """A file that was kept, if it is there as it was written."""
        noted = [record.get("sha256") for record in self.records("kept") if record.get("name") == name]
        if self.folder is None or not noted:
            return None
        path = self.folder / name
        try:
            if path.exists() and not path.is_file():  # reading a pipe would never end
                raise OSError("it is not a file")
            content = path.read_bytes()
        except OSError as error:
            log.warning("%s cannot be read: %s", path, error)
            return None
        if hashlib.sha256(content).hexdigest() != noted[-1]:
            log.warning("%s is not the file that this run has written, so it is not used", path)
            return None
        return content

    def once(self, event: str, key: Mapping[str, Any], compute: Callable[[], Any]) -> Any:
        """The answer to a question, which is asked only if no record has it: that is all there is to
        resuming.

        Question and answer are plain data. None means that there was no answer, and is not kept.
        """
        if (known := self.known(event, key)) is not None:
            return known
        answer = compute()
        if answer is not None:
            self.append(event, {**key, "answer": answer})
        return answer

    def known(self, event: str, key: Mapping[str, Any]) -> Any:
        """The recorded answer to a question, or None."""
        return next((record["answer"] for record in self.records(event) if _has(record, key)), None)

    def begin(self, event: str, key: Mapping[str, Any]) -> None:
        """Note that an answer is being looked for; see :meth:`broken_off`."""
        self.append("begun", {"of": event, **key})

    def broken_off(self, event: str, key: Mapping[str, Any]) -> bool:
        """Whether a process that worked on this run has begun to look for an answer, and ended without one:
        it was killed, or what it ran has crashed it. Not so if it was interrupted, and noted that.
        """
        of = {"of": event, **key}
        ends = [name for name, record in self.sequence("begun", "interrupted") if _has(record, of)]
        return ends[-1:] == ["begun"] and self.known(event, key) is None

    def records(self, event: str) -> list[dict[str, Any]]:
        """All records of that kind, oldest first."""
        return [data for name, data in self._records if name == event]

    def last(self, event: str) -> dict[str, Any] | None:
        """The newest record of that kind."""
        found = self.records(event)
        return found[-1] if found else None

    @property
    def ended_by_error(self) -> str | None:
        """What the last process that worked on this run failed with, if it did."""
        ends = self.sequence("run", "failed")
        return ends[-1][1]["error"] if ends and ends[-1][0] == "failed" else None

    @property
    def spent(self) -> float:
        """Seconds that all processes together have worked on this run, up to the last stage of each."""
        total = latest = 0.0
        for event, record in self.sequence("run", "stage", "result"):
            total, latest = (
                (total + latest, 0.0) if event == "run" else (total, record.get("seconds", latest))
            )
        return total + latest

    def sequence(self, *events: str) -> list[tuple[str, dict[str, Any]]]:
        """All records of several kinds, in the order they were made."""
        return [(name, data) for name, data in self._records if name in events]

    def close(self) -> None:
        """Release the workspace."""
        for file in (self._file, self._lock):
            if file is not None:
                try:
                    file.close()
                except OSError as error:  # a full disk shows again here; the run has its result already
                    log.debug("closing %s: %s", file.name, error)
        self._file = self._lock = None

    def discard(self) -> None:
        """Release the workspace, and remove it if this run has made it: nothing was learned."""
        self.close()
        if self.folder is None or not self._made:
            return
        for name in (JOURNAL, RANGES, EXAMPLE, LOCK):
            with contextlib.suppress(OSError):
                (self.folder / name).unlink(missing_ok=True)
        with contextlib.suppress(OSError):  # somebody else keeps something there
            self.folder.rmdir()

    def __enter__(self) -> Journal:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def not_a_workspace(folder: Path, lacking: str) -> str:
    """What to say of a folder that is not the workspace of a run."""
    what = f"it has no {lacking}" if folder.is_dir() else "there is no such folder"
    return (
        f"{folder} is not the workspace of a run: {what}. Expected the folder that was given as --workspace "
        "or workspace.path, or the one that 'octune tune' has made in octune_runs/."
    )


def _set_aside(folder: Path) -> None:
    number = 1
    while (folder / f"journal-{number}.jsonl").exists():
        number += 1
    (folder / JOURNAL).rename(folder / f"journal-{number}.jsonl")
    log.info("the earlier journal in %s is now journal-%d.jsonl", folder, number)


def _summed(line: bytes) -> bytes:
    """A line with its checksum: a number that was changed on the disk would else be believed."""
    return line[:-1] + SUM % zlib.crc32(line)


def _checked(line: bytes) -> bytes:
    """A line without its checksum, which must be that of the line; lines of people's own have none."""
    at = len(line) - len(SUM % 0)
    if at > 0 and line[at : at + 9] == SUM[:9]:
        plain = line[:at] + b"}"
        if line[at:] != SUM % zlib.crc32(plain):
            raise ValueError("its checksum differs")
        return plain
    return line


def _has(record: Mapping[str, Any], key: Mapping[str, Any]) -> bool:
    return all(record.get(name) == value for name, value in key.items())


def _same_run(found: Mapping[str, Any], header: Mapping[str, Any], folder: Path) -> None:
    differs = difference(found, json.loads(json.dumps({"version": VERSION, **header})))
    if differs is not None:
        raise WorkspaceError(
            f"The journal in {folder} belongs to another run: its {differs[0]} differs ({differs[1]}). "
            "Choose another workspace.path, or set workspace.resume to false."
        )


def difference(found: Mapping[str, Any], here: Mapping[str, Any]) -> tuple[str, str] | None:
    """What tells one run from another, and how; None if nothing does. What could not be found out, there or
    here, is None and is not compared.
    """
    for key, value in here.items():
        known = key not in found or None not in (found[key], value)
        if known and found.get(key) != value:
            return key, _difference("", found.get(key), value)
    return None


def _difference(path: str, there: Any, here: Any) -> str:
    """Where two values differ, by the keys that lead there."""
    if isinstance(there, Mapping) and isinstance(here, Mapping):
        for key in (*here, *there):
            if there.get(key) != here.get(key):
                return _difference(f"{path}.{key}".lstrip("."), there.get(key), here.get(key))
    return f"{path + ': ' if path else ''}there {there!r:.80}, here {here!r:.80}"
