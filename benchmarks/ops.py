"""What int8 gains or loses, op kind by op kind: the figures behind the reasons in docs/ops.md.

    python benchmarks/ops.py                                  # all frameworks, some minutes
    python benchmarks/ops.py --framework onnx --kind silu     # cases with this in their name
    python benchmarks/ops.py --markdown docs/ops.md           # write them into the page

Every case is one op, or one between two convolutions, in fp32 and in other forms: int8 as Octune writes it,
int8 in ways that it does not use, bf16. The forms of a case take turns. Times are those that the fastest
tenth of the calls stay under, which other processes disturb least; a gain is fp32's divided by the form's. An
error is the distance from fp32's output, relative to it. Each framework has a process of its own.
"""

from __future__ import annotations

import argparse
import importlib
import json
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pages
from bench_machine import BUSY_NEIGHBOURS, describe, quiet
from bench_ops_case import Case

from octune.cost import Load, interleaved

FRAMEWORKS = {"onnx": ("onnxruntime",), "tensorflow": ("tensorflow_cpu",), "torch": ("torch",)}
BURST = 5  # calls in a turn
FAST = 0.1
SHORT = 2.6  # ms: calls that have a chance to run without a break on a busy machine


def main() -> int:
    options = _options()
    if options.json:
        print(json.dumps(_timed(options.framework[0], options)))
        return 0
    found = [_in_process(framework, options) for framework in options.framework]
    lines = [line for one in found for line in _table(one)]
    print("\n".join(lines))
    if options.markdown:
        pages.write(options.markdown, "measured", lines)
    return 0


def _timed(framework: str, options: argparse.Namespace) -> dict[str, Any]:
    """All cases of a framework, in this process."""
    quiet()
    cases: Iterable[Case] = importlib.import_module(f"bench_ops_{framework}").cases(options.threads)
    rows = []
    with Load(with_children=True) as others:
        for case in cases:
            if options.kind in case.kind:
                rows.append(_row(case, options.seconds))
                print(rows[-1], file=sys.stderr, flush=True)
    where = describe(options.threads, FRAMEWORKS[framework])
    return {"framework": framework, "where": where, "rows": rows, "others": round(others.cores, 2)}


def _row(case: Case, seconds: float) -> dict[str, Any]:
    forms = dict(case.forms())
    errors = case.errors(forms)
    times = interleaved(forms, seconds=seconds, calls_per_turn=BURST)
    ms = {name: latency.percentile(FAST) for name, latency in times.items()}
    return {"kind": case.kind, "title": case.title, "ms": ms, "errors": errors}


def _in_process(framework: str, options: argparse.Namespace) -> dict[str, Any]:
    words = [sys.executable, __file__, "--json", "--framework", framework, "--kind", options.kind]
    words += ["--threads", str(options.threads), "--seconds", str(options.seconds)]
    done = subprocess.run(words, stdout=subprocess.PIPE, text=True, check=True)
    made: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return made


def _table(found: dict[str, Any]) -> list[str]:
    where, versions = found["where"], found["where"]["versions"]
    names = ", ".join(f"{name} {versions[name]}" for name in FRAMEWORKS[found["framework"]])
    machine = f"{where['cpu']} ({', '.join(where['features'])}), {where['threads']} threads"
    lines = [
        f"{names}; {machine}; {where['date'][:10]}" + _warning(found),
        "",
        "| op | what was timed | fp32 | form | gain | error |",
        "|---|---|---:|---|---:|---:|",
    ]
    for row in found["rows"]:
        first, *forms = row["ms"]
        if found["others"] > BUSY_NEIGHBOURS and row["ms"][first] > SHORT:
            continue  # others have interrupted it
        for name in forms:
            gain, error = row["ms"][first] / row["ms"][name], row["errors"].get(name)
            lines.append(
                f"| {row['kind']} | {row['title']} | {row['ms'][first]:.3f} ms | {name} | {gain:.2f}x | "
                f"{'' if error is None else f'{error:.4f}'} |"
            )
    return [*lines, ""]


def _warning(found: dict[str, Any]) -> str:
    busy = found["others"]
    return f"; **other processes kept {busy:.1f} cores busy meanwhile**" if busy > BUSY_NEIGHBOURS else ""


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="What int8 gains or loses, op kind by op kind.")
    parser.add_argument("--framework", nargs="+", choices=FRAMEWORKS, default=[*FRAMEWORKS])
    parser.add_argument("--kind", default="", help="only cases with this in the name of their kind")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=1.5, help="how long each case is timed (1.5)")
    parser.add_argument("--markdown", type=Path, help="write the tables between the marks of this page")
    parser.add_argument("--json", action="store_true", help="one framework, in this process")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
