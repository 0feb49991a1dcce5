"""The page of the zoo's results, from the rows that were run and from what the originals published.

write_page(Path("benchmarks/zoo_rows"), Path("docs/results.md"))
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench_machine import BUSY_NEIGHBOURS

from octune.report.text import in_evaluations

__all__ = ["PUBLISHED", "Published", "write_page"]


@dataclass(frozen=True)
class Published:
    """What a release of an original said about itself: scores in per cent."""

    task: str
    framework: str
    model: str
    release: str
    int8: float
    fp32: float | None
    speedup: float | None

    @property
    def relative(self) -> float | None:
        return None if self.fp32 is None else (self.int8 - self.fp32) / self.fp32


# From the result tables that the originals published with their releases.
PUBLISHED = [
    Published("SQuAD v1.1", "tensorflow", "BERT-large", "first release", 92.33, 92.98, 2.89),
    Published("SQuAD v1.1", "tensorflow", "BERT-large", "LPOT 1.6", 92.48, 92.98, 2.82),
    Published("SQuAD v1.1", "tensorflow", "BERT-large", "Neural Compressor 2.6", 92.44, 92.99, 2.28),
    Published("MRPC", "pytorch", "BERT-base", "Neural Compressor 2.6", 89.56, 90.42, 2.30),
    Published("CoLA", "pytorch", "BERT-base", "Neural Compressor 2.6", 52.86, 53.39, 2.23),
    Published("STS-B", "pytorch", "BERT-base", "Neural Compressor 2.6", 87.39, 88.05, 2.28),
    Published("SST-2", "pytorch", "BERT-base", "Neural Compressor 2.6", 91.97, 92.32, 2.26),
    Published("RTE", "pytorch", "BERT-base", "Neural Compressor 2.6", 73.29, 72.56, 2.17),
    Published("SQuAD v1.1", "pytorch", "BERT-large", "Neural Compressor 2.6", 92.29, 93.16, 1.93),
    Published("MRPC", "pytorch", "BERT-large", "Neural Compressor 2.6", 89.36, 90.38, 2.64),
    Published("MRPC", "onnx", "BERT-base, dynamic", "Neural Compressor", 85.78, 86.03, 3.28),
    Published("SQuAD v1.1", "onnx", "BERT-large, dynamic", "Neural Compressor", 92.99, 93.16, 2.46),
    Published("SQuAD v1.1", "onnx", "BERT-large, static", "Neural Compressor", 92.34, 93.16, 2.19),
]
NAMES = {"pytorch": "PyTorch", "tensorflow": "TensorFlow", "onnx": "ONNX"}
HEADER = """# Results

Written by `python benchmarks/zoo.py --models DIR --data DIR`; do not edit by hand. Every row is one run of
`octune.tune` with default settings: at most 1 % of the fp32 score may be lost. Scores are on the whole
official development sets unless a row says otherwise, calibration is on training data; every fifth of
ImageNet's images is used for calibration, the others are scored.

"""
READING = """
- **relative** is the change of the score, and **interval** contains it with 95 % confidence: answers
  are compared with fp32's one by one.
- **flips** are answers that were right and became wrong, and the other way round.
- **int8 share** is the share of the weights of linears and convolutions that is int8.
- **trials** are the plans that were evaluated; fp32 is evaluated once more. **seconds** are those of the
  whole run. Of these, **compiling** is what it took to make other forms of the winner, and **fp32
  evaluations** is all the rest, fp32's own evaluation, calibration, harm and timing included, over the time
  of one evaluation of fp32.
- **speed-up** is over the fp32 model as it came, in the same framework, measured in turns.
- **originals** is what the last release said about the same task and framework, on larger models and other
  machines: int8 / fp32, the change, the speed-up.
"""


def write_page(rows: Path, page: Path) -> None:
    """Writes the page from the rows that are there."""
    found = [json.loads(file.read_text()) for file in sorted(rows.glob("*.json"))] if rows.is_dir() else []
    order = {"pytorch": 0, "tensorflow": 1, "onnx": 2}
    found.sort(key=lambda row: (order[row["framework"]], row["task"] == "ImageNet", row["task"]))
    text = HEADER
    if found:
        text += _table(COLUMNS, [_cells(row) for row in found]) + READING + _doubts(found) + _where(found)
    else:
        text += "No row has been run yet.\n"
    page.write_text(text + _originals())


COLUMNS = [
    "task",
    "framework",
    "model",
    "items",
    "fp32",
    "int8",
    "relative",
    "interval",
    "flips",
    "int8 share",
    "trials",
    "seconds",
    "fp32 evaluations",
    "compiling",
    "speed-up",
]
COLUMNS += ["originals"]


def _time(row: dict[str, Any]) -> tuple[str, str, str]:
    """All seconds, what they are in evaluations of fp32, and those of compiling, which the second leaves
    out.
    """
    counted = in_evaluations(row["stages"])
    evaluations, compiling = ("-", "-") if counted is None else (f"{counted[0]:.1f}", f"{counted[1]:.0f}")
    return f"{row['seconds']:.0f}", evaluations, compiling


def _cells(row: dict[str, Any]) -> list[str]:
    change = (row["int8"] - row["fp32"]) / row["fp32"]
    sides = None if row["low"] is None else (-row["high"] / row["fp32"], -row["low"] / row["fp32"])
    task = row["task"] + (f" (first {row['questions']:,} questions)" if row["questions"] else "")
    return [
        task,
        NAMES[row["framework"]],
        row["model"],
        f"{row['n']:,}" if row["n"] else "-",
        _score(row["fp32"]),
        _score(row["int8"]) + ("" if row["met"] else " (criterion not met)"),
        f"{change:+.2%}",
        "-" if sides is None else f"{sides[0]:+.2%} to {sides[1]:+.2%}",
        "-" if row["lost"] is None else f"-{row['lost']} +{row['gained']}",
        f"{row['share']:.0%}",
        str(row["trials"]),
        *_time(row),
        "-" if row["speedup"] is None else f"{row['speedup']:.2f}x ({row['form']})",
        "; ".join(_said(one) for one in _same(row)) or "-",
    ]


def _same(row: dict[str, Any]) -> list[Published]:
    """What the last release of the originals said about the same task and framework."""
    matching = [one for one in PUBLISHED if (one.task, one.framework) == (row["task"], row["framework"])]
    return [one for one in matching if one.release == matching[-1].release]


def _said(one: Published) -> str:
    scores = (
        f"{one.int8:.2f} / {one.fp32:.2f}, {one.relative:+.2%}"
        if one.fp32 is not None and one.relative is not None
        else f"{one.int8:.2f}"
    )
    return f"{one.model}: {scores}" + (f", {one.speedup:.2f}x" if one.speedup is not None else "")


def _score(value: float) -> str:
    """In per cent, as published tables have it: F1 of SQuAD is already."""
    return f"{value * 100 if abs(value) <= 1 else value:.2f}"


def _doubts(rows: list[dict[str, Any]]) -> str:
    busy = [row["name"] for row in rows if row["neighbours"] > BUSY_NEIGHBOURS]
    return (
        f"\n**warning**: other processes kept the machine busy during {', '.join(busy)}: their times are "
        "not reliable.\n"
        if busy
        else ""
    )


def _where(rows: list[dict[str, Any]]) -> str:
    lines = ["\n## Where\n"]
    for row in rows:
        where = row["where"]
        versions = ", ".join(f"{name} {version}" for name, version in where["versions"].items())
        machine = f"{where['cpu']}, {where['cores']} cores; {', '.join(where['features'])}"
        lines.append(f"- {row['name']}: {where['date']}; {machine}; Python {where['python']}, {versions}")
    return "\n".join(lines) + "\n"


def _originals() -> str:
    cells = [
        [
            one.task,
            NAMES[one.framework],
            one.model,
            one.release,
            "-" if one.fp32 is None else f"{one.fp32:.2f}",
            f"{one.int8:.2f}",
            "-" if one.relative is None else f"{one.relative:+.2%}",
            "-" if one.speedup is None else f"{one.speedup:.2f}x",
        ]
        for one in PUBLISHED
    ]
    return "\n## What the originals published\n\n" + _table(
        ["task", "framework", "model", "release", "fp32", "int8", "relative", "speed-up"], cells
    )


def _table(header: list[str], rows: list[list[str]]) -> str:
    return "\n".join(f"| {' | '.join(line)} |" for line in [header, ["---"] * len(header), *rows]) + "\n"
