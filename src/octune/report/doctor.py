"""What ``octune doctor`` finds: the CPU, the frameworks, and which number formats are fast here, measured."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import platform
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from octune.machine import probe_machine

__all__ = ["examine", "show"]

PACKAGES = {
    "torch": "torch", "transformers": "torch", "tensorflow-cpu": "tensorflow", "onnx": "onnx", "onnxruntime": "onnx", "openvino": "onnx",
    "ray": "ray", "plotly": "report", "jinja2": "report",
}  # fmt: skip


def examine() -> dict[str, Any]:
    """All findings as plain data."""
    machine = probe_machine()
    findings: dict[str, Any] = {
        "python": platform.python_version(),
        "machine": machine.to_json(),
        "packages": {package: _version(package) for package in PACKAGES},
        "advice": [],
        "speed": {},
    }
    advice = findings["advice"]
    if machine.refused:
        return findings | {"advice": [machine.refused]}
    if not machine.exact_int8:
        advice.append("this CPU has no int8 dot product (VNNI, AMX): int8 gains less, and weights are kept small so that no sum overflows")
    if machine.compiler is None:
        advice.append("there is no g++: winners stay eager int8; install a C++ compiler to have them compiled")
    if importlib.util.find_spec("torch") is None:
        advice.append("PyTorch is not installed: pip install 'octune[torch]'")
    else:
        from octune.backends.torch.doctor import measure_paths

        findings["threads"], findings["speed"] = measure_paths()
        advice.extend(_slow(findings["speed"], "PyTorch"))
    if importlib.util.find_spec("tensorflow") is not None:
        from octune.backends.tensorflow import doctor

        findings["tensorflow"], why = doctor.measure_paths()
        advice.extend([f"TensorFlow: {why}"] if why else _slow(findings["tensorflow"], "TensorFlow"))
    if all(importlib.util.find_spec(name) is not None for name in ("onnx", "onnxruntime")):
        from octune.backends.onnx import doctor as onnx_doctor

        findings["onnx"] = onnx_doctor.measure_paths()
        advice.extend(_slow(findings["onnx"], "ONNX"))
    return findings


def _slow(speed: dict[str, float], framework: str) -> list[str]:
    slow = [name for name, ratio in speed.items() if name.startswith("int8") and ratio < 1.2]
    return [f"{name} is not faster than fp32 here in {framework}" for name in slow]


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def show(findings: dict[str, Any], console: Console) -> None:
    """The findings on a terminal."""
    machine = findings["machine"]
    console.print(
        f"[bold]machine[/bold]   {machine['cpu']}, {machine['cores']} cores, {machine['architecture']}, Python {findings['python']}"
    )
    console.print(f"[bold]features[/bold]  {', '.join(machine['features']) or 'none that matters here'}")
    console.print(f"[bold]compiler[/bold]  {machine['compiler'] or 'none'}")
    if "threads" in findings:
        console.print(f"[bold]threads[/bold]   {findings['threads']}")
    table = Table(box=None, header_style="bold", pad_edge=False)
    table.add_column("package")
    table.add_column("version")
    table.add_column("if missing")
    for package, version in findings["packages"].items():
        table.add_row(package, version or "-", "" if version else escape(f"pip install 'octune[{PACKAGES[package]}]'"))
    console.print(table)
    measurements = {"PyTorch": findings["speed"], "TensorFlow": findings.get("tensorflow"), "ONNX": findings.get("onnx")}
    for framework, measured in measurements.items():
        if not measured:
            continue
        console.print(f"\n[bold]{framework}[/bold]   a 768 x 3072 linear on 128 rows, against fp32")
        speed = Table(box=None, header_style="bold", pad_edge=False)
        speed.add_column("path")
        speed.add_column("speed", justify="right")
        for name, ratio in measured.items():
            speed.add_row(name, f"{ratio:.2f}x")
        console.print(speed)
    for line in findings["advice"]:
        console.print(f"[yellow]note[/yellow] {escape(line)}")
