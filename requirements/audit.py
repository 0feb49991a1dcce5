"""Asks whether a version in lock.txt is known to be vulnerable: `make audit`.

The exit code is 1 if a package is, with what to do about it. Where nobody can be asked, without a network or
behind an index that keeps no advisories, it says so and ends with 0: that is not a reason for a test to fail,
nor for calling it clean.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

LOCK = Path(__file__).with_name("lock.txt")
AUDIT = [sys.executable, "-m", "pip_audit", "--requirement", str(LOCK), "--no-deps", "--disable-pip"]
OPTIONS = ["--format", "json", "--progress-spinner", "off", "--timeout", "15"]
MINUTES = 5

Dependency = dict[str, Any]


def main() -> int:
    try:
        asked = subprocess.run([*AUDIT, *OPTIONS], capture_output=True, text=True, timeout=60 * MINUTES)
    except subprocess.TimeoutExpired:
        return told([], f"no answer within {MINUTES} minutes")
    lines = asked.stderr.strip().splitlines()
    return told(answers(asked.stdout), lines[-1] if lines else f"pip-audit ended with {asked.returncode}")


def answers(printed: str) -> list[Dependency]:
    """What pip-audit found out, by package: nothing if it could not ask."""
    try:
        return list(json.loads(printed)["dependencies"])
    except (json.JSONDecodeError, KeyError):
        return []


def told(dependencies: list[Dependency], trouble: str) -> int:
    """Prints what is known; the exit code."""
    known = [dependency for dependency in dependencies if "skip_reason" not in dependency]
    vulnerable = [dependency for dependency in known if dependency["vulns"]]
    for dependency in vulnerable:
        for vulnerability in dependency["vulns"]:
            fixed = ", ".join(vulnerability["fix_versions"]) or "no version yet"
            names = ", ".join([vulnerability["id"], *vulnerability.get("aliases", [])])
            print(f"VULNERABLE {dependency['name']} {dependency['version']}: {names}; fixed in {fixed}")
    if vulnerable:
        print("Raise the bounds in pyproject.toml where they forbid the fix, then `make lock`.")
        return 1
    if not known:
        why = dependencies[0]["skip_reason"] if dependencies else trouble
        print(f"NOT AUDITED: no advisory could be looked up for any package of {LOCK.name} ({why})")
        return 0
    unknown = len(dependencies) - len(known)
    unasked = f"; {unknown} could not be looked up" if unknown else ""
    print(f"{len(known)} packages of {LOCK.name} have no known vulnerability{unasked}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
