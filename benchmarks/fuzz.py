"""Damaged and forged journals, workspaces and model folders: is every one of them used, or refused with a
message?

    python benchmarks/fuzz.py --count 2000
    python benchmarks/fuzz.py --count 2000 --markdown docs/reliability.md

A real run is made once; its files are then changed at random: bytes flipped, cut, filled with zeros, lines
dropped or doubled, values in their JSON replaced by others of any type (and the checksums made to fit), files
deleted, emptied or made folders. What reads them (replay, its report, rebuilding, resuming, loading) must end
in a result or in an error of Octune's own. Anything else is a traceback that a user would see. Ends with 1 if
there is one.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import random
import shutil
import sys
import tempfile
import traceback
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml
from fault_jobs import project
from fault_page import write

import octune
from octune.artifact import _digest
from octune.engine.journal import _summed
from octune.errors import OctuneError

NUMBERS = (0, -1, 2**70, 1.5, float("nan"), float("inf"))
VALUES: list[Any] = [None, True, *NUMBERS, "", "x", [], [1], {}, {"a": 1}]
Change = Callable[[Any, Any, random.Random], None]


def main() -> int:
    options = _options()
    here = Path.cwd()
    with tempfile.TemporaryDirectory(prefix="octune-fuzz-") as folder:
        found, tracebacks = fuzzed(Path(folder), options.count, random.Random(options.seed))
        os.chdir(here)
    for kind, trace in tracebacks[:20]:
        print(f"--- {kind}\n{trace}", file=sys.stderr)
    print(json.dumps({"count": options.count, "outcomes": found, "tracebacks": len(tracebacks)}))
    if options.markdown:
        write(options.markdown, "fuzz", _lines(options, found, len(tracebacks)))
    return 1 if tracebacks else 0


def fuzzed(folder: Path, count: int, chance: random.Random) -> tuple[dict[str, int], list[tuple[str, str]]]:
    """Outcomes by reader, and the tracebacks there were. Changes the working directory."""
    logging.getLogger("octune").setLevel(logging.CRITICAL)
    settings = _made(folder)
    readers: dict[str, tuple[str, Callable[[Path], object]]] = {
        "replay": ("ws", octune.replay),
        "report": ("ws", lambda place: octune.replay(place).report(folder / "report.html")),
        "rebuild": ("ws", lambda place: octune.replay(place, rebuild=True)),
        "resume": ("ws", lambda place: _resumed(settings, place)),
        "load": ("model", octune.load),
    }
    outcomes: Counter[str] = Counter()
    tracebacks = []
    for number in range(count):
        name = list(readers)[number % len(readers)]
        original, read = readers[name]
        place = folder / "damaged"
        shutil.rmtree(place, ignore_errors=True)
        shutil.copytree(folder / original, place)
        done = [_damaged(place, chance) for _ in range(chance.choice((1, 1, 1, 2, 4)))]
        try:
            read(place)
            outcomes[f"{name}: used"] += 1
        except OctuneError:
            outcomes[f"{name}: refused"] += 1
        except Exception:
            outcomes[f"{name}: traceback"] += 1
            tracebacks.append((f"{name} after {', '.join(done)}", traceback.format_exc(limit=-6)))
    return dict(sorted(outcomes.items())), tracebacks


def _made(folder: Path) -> dict[str, Any]:
    """A finished run in ``ws`` and its model in ``model``."""
    project(folder, "onnx", criterion={"absolute": 0.5}, tuning={"max_trials": 3, "timeout": 600})
    os.chdir(folder)
    sys.path.insert(0, str(folder))
    settings: dict[str, Any] = yaml.safe_load(Path("conf.yaml").read_text())
    octune.tune(config={**settings, "workspace": {"path": "ws"}}, progress=False).save("model")
    return settings


def _resumed(settings: dict[str, Any], place: Path) -> None:
    octune.tune(config={**settings, "workspace": {"path": str(place), "resume": True}}, progress=False)


def _damaged(place: Path, chance: random.Random) -> str:
    """Damage one file of a folder; says how."""
    files = [path for path in sorted(place.rglob("*")) if path.is_file()]
    if not files:
        return "nothing left"
    # the journal and the manifest are what is read most
    told = [path for path in files if path.suffix in (".json", ".jsonl")]
    path = chance.choice(told) if told and chance.random() < 0.7 else chance.choice(files)
    how = chance.choice([*BYTES, *(STRUCTURE if path in told else {})])
    if how in BYTES:
        BYTES[how](path, chance)
    else:
        _restructured(path, STRUCTURE[how], chance)
    return f"{how} in {path.name}"


def _cut(path: Path, chance: random.Random) -> None:
    content = path.read_bytes()
    path.write_bytes(content[: chance.randint(0, len(content))])


def _flipped(path: Path, chance: random.Random) -> None:
    content = bytearray(path.read_bytes())
    for _ in range(chance.randint(1, 8) if content else 0):
        content[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
    path.write_bytes(bytes(content))


def _zeroed(path: Path, chance: random.Random) -> None:
    content = bytearray(path.read_bytes())
    start = chance.randint(0, len(content))
    stop = min(len(content), start + chance.randint(1, 4096))
    content[start:stop] = bytes(stop - start)
    path.write_bytes(bytes(content))


def _a_folder(path: Path, chance: random.Random) -> None:
    path.unlink()
    path.mkdir()


def _lines_changed(path: Path, chance: random.Random) -> None:
    lines = path.read_bytes().splitlines(keepends=True)
    if not lines:
        return
    number = chance.randrange(len(lines))
    if chance.random() < 0.5:
        del lines[number]
    else:
        lines.insert(chance.randrange(len(lines)), lines[number])
    path.write_bytes(b"".join(lines))


BYTES: dict[str, Callable[[Path, random.Random], object]] = {
    "cut": _cut,
    "bits flipped": _flipped,
    "zeros": _zeroed,
    "deleted": lambda path, chance: path.unlink(),
    "emptied": lambda path, chance: path.write_bytes(b""),
    "made a folder": _a_folder,
    "lines changed": _lines_changed,
}


def _restructured(path: Path, change: Change, chance: random.Random) -> None:
    """Change a value somewhere in the JSON of a file, whose checksums then fit."""
    many = path.suffix == ".jsonl"
    try:
        text = path.read_text()
        lines = [json.loads(line) for line in (text.splitlines() if many else [text])]
    except ValueError:  # damaged already
        return
    places = list(_places(chance.choice(lines))) if lines else []
    if places:
        change(*chance.choice(places), chance)
    if many:
        path.write_bytes(b"".join(map(_signed, lines)))
        return
    if isinstance(lines[0], dict) and "digest" in lines[0]:
        lines[0]["digest"] = _digest(lines[0])
    path.write_text(json.dumps(lines[0]))


def _signed(line: Any) -> bytes:
    plain = {key: value for key, value in line.items() if key != "sum"} if isinstance(line, dict) else line
    return _summed(json.dumps(plain).encode())


def _places(value: Any) -> Any:
    """All (container, key) in plain data."""
    keys = list(value) if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    for key in keys:
        yield value, key
        yield from _places(value[key])


def _replaced(container: Any, key: Any, chance: random.Random) -> None:
    container[key] = chance.choice(VALUES)


def _removed(container: Any, key: Any, chance: random.Random) -> None:
    del container[key]


STRUCTURE = {"value replaced": _replaced, "value removed": _removed}


def _lines(options: argparse.Namespace, found: dict[str, int], tracebacks: int) -> list[str]:
    readers = list(dict.fromkeys(name.partition(":")[0] for name in found))
    kinds = ("used", "refused", "traceback")
    rows = [
        " | ".join([f"| {name}", *(str(found.get(f"{name}: {kind}", 0)) for kind in kinds)]) + " |"
        for name in readers
    ]
    return [
        f"{options.count:,} folders, damaged or forged at random (seed {options.seed}), gave {tracebacks} "
        "tracebacks.",
        "",
        "| what reads it | used all the same | refused with a message | traceback |",
        "|---|---|---|---|",
        *rows,
    ]


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Damage journals, workspaces and folders, and read them.")
    parser.add_argument("--count", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--markdown", type=Path, help="write the figures into this page")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
