"""Writes lock.txt: the versions that `make demo` and `make test` install, for every Python that is tested.

    make lock

In a fresh environment of each Python, pip resolves everything that pyproject.toml names, as on a new machine.
Nothing is installed, so the environment that is in use stays as it is.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LOCK = ROOT / "requirements" / "lock.txt"
PYTHONS = ("3.11", "3.12", "3.13")
HEADER = """\
# The versions that `make demo` and `make test` install, on Linux and x86-64. Written by `make lock`: change
# pyproject.toml, not this file. pip takes from it what a package asks for, and nothing else.
"""

Versions = dict[str, str]
"""Version by the name of the package, as it is written everywhere: lower case, with hyphens."""


def main() -> int:
    missing = [version for version in PYTHONS if not runs(version)]
    if missing:
        print(f"needs Python {' and '.join(missing)} on the path: one lock is for all of them")
        return 1
    lock = merged({version: resolved(version) for version in PYTHONS})
    LOCK.write_text(HEADER + "".join(f"{line}\n" for line in lock), encoding="utf-8")
    print(f"{LOCK.relative_to(ROOT)}: {len(lock)} lines")
    return 0


def runs(version: str) -> bool:
    """A version manager may have a stand-in on the path for a Python that is not in use."""
    python = shutil.which(f"python{version}")
    return python is not None and not subprocess.run([python, "-c", ""], capture_output=True).returncode


def resolved(version: str) -> Versions:
    """What pip would install into a fresh environment of that Python."""
    print(f"Python {version}: asking pip", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([f"python{version}", "-m", "venv", folder], check=True)
        report = Path(folder) / "report.json"
        wanted = [torch(), f"{ROOT}[all,dev]"]
        options = ["--quiet", "--disable-pip-version-check", "--dry-run", "--report", str(report)]
        subprocess.run([f"{folder}/bin/python", "-m", "pip", "install", *options, *wanted], check=True)
        return found(json.loads(report.read_text(encoding="utf-8")))


def torch() -> str:
    """torch as pyproject.toml pins it."""
    with (ROOT / "pyproject.toml").open("rb") as file:
        extras = tomllib.load(file)["project"]["optional-dependencies"]
    return str(next(line for line in extras["torch"] if line.startswith("torch==")))


def found(report: dict[str, list[dict[str, dict[str, str]]]]) -> Versions:
    """The versions in pip's report, without what a build adds to its own ("+cpu"): PyPI has it without."""
    packages = [package["metadata"] for package in report["install"]]
    versions = {canonical(package["name"]): package["version"].partition("+")[0] for package in packages}
    return {name: version for name, version in versions.items() if name != "octune"}


def canonical(name: str) -> str:
    return name.lower().replace("_", "-").replace(".", "-")


def merged(versions: dict[str, Versions]) -> list[str]:
    """One line for each package and version. Where Pythons disagree, a line says which it is for."""
    lines = []
    for name in sorted({name for found in versions.values() for name in found}):
        users: dict[str, list[str]] = {}
        for python, found in versions.items():
            if name in found:
                users.setdefault(found[name], []).append(python)
        for version, pythons in users.items():
            marker = " or ".join(f'python_version == "{python}"' for python in pythons)
            lines.append(f"{name}=={version}" + ("" if len(users) == 1 else f" ; {marker}"))
    return lines


if __name__ == "__main__":
    sys.exit(main())
