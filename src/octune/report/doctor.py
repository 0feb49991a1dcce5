"""What ``octune doctor`` finds: the CPU, the frameworks, and which number formats are fast here, measured."""

from __future__ import annotations

import importlib.metadata
import platform
from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from octune.backends.select import installed
from octune.cost.noise import clearly_faster
from octune.errors import plural
from octune.machine import probe_machine
from octune.native import NativeCache
from octune.report.text import megabytes

__all__ = ["examine", "show"]

PACKAGES = {
    "torch": "torch", "transformers": "torch", "tensorflow-cpu": "tensorflow", "onnx": "onnx",
    "onnxruntime": "onnx", "openvino": "onnx", "ray": "ray", "jinja2": "report",
}  # fmt: skip


def examine() -> dict[str, Any]:
    """Everything that was found, as plain data."""
    machine = probe_machine()
    findings: dict[str, Any] = {
        "python": platform.python_version(),
        "machine": machine.to_json(),
        "packages": {package: _version(package) for package in PACKAGES},
        "compiled": _kept(),
        "advice": [],
        "speed": {},
    }
    advice = findings["advice"]
    if machine.refused:
        return findings | {"advice": [machine.refused]}
    if not machine.exact_int8:
        advice.append(
            "this CPU has no int8 dot product (VNNI, AMX): int8 gains less, and weights are kept small so "
            "that no sum overflows"
        )
    if machine.compiler is None:
        advice.append(
            "g++ is not installed: winners stay eager int8; install a C++ compiler to have them compiled"
        )
    for backend in installed():
        found = backend.self_test()
        findings["speed"][backend.name] = dict(found.speed)
        advice.extend(f"{backend.name}: {line}" for line in (*found.advice, *_slow(found.speed)))
    if not findings["speed"]:
        advice.append(
            "no framework is installed: pip install 'octune[torch]', 'octune[tensorflow]' or 'octune[onnx]'"
        )
    return findings


def _kept() -> dict[str, Any]:
    """Where compiled code is kept, and how much of it."""
    kept = NativeCache.here()
    count, size = kept.entries()
    return {
        "folder": None if kept.folder is None else str(kept.folder),
        "entries": count,
        "bytes": size,
        "most": kept.most,
    }


def _slow(speed: Mapping[str, float]) -> list[str]:
    return [
        f"{name} is not clearly faster than fp32 here"
        for name, ratio in speed.items()
        if name.startswith("int8") and not clearly_faster(1.0, ratio)
    ]


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def show(findings: dict[str, Any], console: Console) -> None:
    """The findings on a terminal."""
    machine = findings["machine"]
    console.print(
        f"[bold]machine[/bold]   {machine['cpu']}, {machine['cores']} cores, {machine['architecture']}, "
        f"Python {findings['python']}"
    )
    console.print(f"[bold]features[/bold]  {', '.join(machine['features']) or 'none that matters here'}")
    console.print(f"[bold]compiler[/bold]  {machine['compiler'] or 'none'}")
    kept = findings["compiled"]
    console.print(
        "[bold]compiled[/bold]  "
        + (
            "nothing is kept (OCTUNE_COMPILE_CACHE)"
            if kept["folder"] is None
            else f"{plural(kept['entries'], 'model')} kept in {escape(kept['folder'])}, "
            f"{megabytes(kept['bytes'])} of {kept['most'] / 1e9:g} GB at most; delete the folder to empty it"
        )
    )
    table = Table(box=None, header_style="bold", pad_edge=False)
    table.add_column("package")
    table.add_column("version")
    table.add_column("if missing")
    for package, version in findings["packages"].items():
        table.add_row(
            package, version or "-", "" if version else escape(f"pip install 'octune[{PACKAGES[package]}]'")
        )
    console.print(table)
    for framework, measured in findings["speed"].items():
        console.print(f"\n[bold]{framework}[/bold]   a 768 x 3072 linear on 128 rows, against fp32")
        speed = Table(box=None, header_style="bold", pad_edge=False)
        speed.add_column("path")
        speed.add_column("speed", justify="right")
        for name, ratio in measured.items():
            speed.add_row(name, f"{ratio:.2f}x")
        console.print(speed)
    for line in findings["advice"]:
        console.print(f"[yellow]note[/yellow] {escape(line)}")
