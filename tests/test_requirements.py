"""The lock file of the README's two commands: it covers what pyproject.toml asks for, with versions only."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.scripts import ROOT, load_script

LOCK = ROOT / "requirements" / "lock.txt"
with (ROOT / "pyproject.toml").open("rb") as file:
    PROJECT: dict[str, Any] = tomllib.load(file)["project"]


def locked(python: str) -> dict[str, str]:
    """The version of every package, for one Python. All lines are ``name==version``, some with a marker."""
    lines = [Requirement(line) for line in LOCK.read_text().splitlines() if not line.startswith("#")]
    here = {"python_version": python}
    used = [line for line in lines if line.marker is None or line.marker.evaluate(here)]
    versions = {line.name: next(iter(line.specifier)) for line in used}
    assert len(versions) == len(used), "two versions of one package for the same Python"
    assert {one.operator for one in versions.values()} == {"=="}
    return {name: one.version for name, one in versions.items()}


def asked_for() -> list[Requirement]:
    extras = PROJECT["optional-dependencies"].values()
    lines = [
        Requirement(line)
        for line in [*PROJECT["dependencies"], *(line for extra in extras for line in extra)]
    ]
    return [line for line in lines if line.name != "octune"]


@pytest.mark.parametrize("python", load_script("requirements/make_lock.py").PYTHONS)
def test_every_dependency_is_locked_within_its_bounds(python: str) -> None:
    versions = locked(python)
    for line in asked_for():
        version = versions.get(canonicalize_name(line.name))
        assert version is not None, f"{line.name} is not in {LOCK.name}: make lock"
        assert line.specifier.contains(version), f"{line} does not allow {version}: make lock"


def test_the_lock_is_for_the_pythons_that_the_package_names() -> None:
    named = [one.rpartition(" ")[2] for one in PROJECT["classifiers"] if "Python :: 3." in one]
    assert list(load_script("requirements/make_lock.py").PYTHONS) == named


def test_nothing_but_versions_is_locked() -> None:
    """No host, path or build of one machine: any index may serve them, torch's plain or CPU build fits."""
    for line in LOCK.read_text().splitlines():
        assert line.startswith("#") or re.fullmatch(
            r'[a-z0-9-]+==[0-9a-z.]+( ; python_version [ "=.0-9a-z_]+)?', line
        )
    assert Requirement(f"torch=={locked('3.11')['torch']}").specifier.contains("2.13.0+cpu")


def test_both_commands_of_the_readme_install_what_is_locked() -> None:
    makefile = (ROOT / "Makefile").read_text()
    assert "--constraint $(LOCK)" in makefile
    installs = [line for line in makefile.splitlines() if "pip install" in line and line.startswith("\t")]
    assert not installs, "through $(INSTALL), which has the lock"


def test_pythons_that_disagree_get_a_line_each() -> None:
    versions = {
        "3.11": {"a": "1", "b": "2"},
        "3.12": {"a": "1", "b": "3"},
        "3.13": {"a": "1", "b": "3", "c": "4"},
    }
    assert load_script("requirements/make_lock.py").merged(versions) == [
        "a==1",
        'b==2 ; python_version == "3.11"',
        'b==3 ; python_version == "3.12" or python_version == "3.13"',
        "c==4",
    ]


def test_versions_come_from_pips_report() -> None:
    names = {"Py_YAML.x": "6.0", "torch": "2.13.0+cpu", "octune": "0.1.0"}
    report = {
        "install": [{"metadata": {"name": name, "version": version}} for name, version in names.items()]
    }
    assert load_script("requirements/make_lock.py").found(report) == {"py-yaml-x": "6.0", "torch": "2.13.0"}


def test_a_vulnerability_fails_the_audit(capsys: pytest.CaptureFixture[str]) -> None:
    bad = {"id": "PYSEC-2", "aliases": ["CVE-7"], "fix_versions": ["1.1"], "description": ""}
    known = [{"name": "a", "version": "1.0", "vulns": [bad]}, {"name": "b", "version": "2", "vulns": []}]
    assert load_script("requirements/audit.py").told(known, "") == 1
    assert "VULNERABLE a 1.0: PYSEC-2, CVE-7; fixed in 1.1" in capsys.readouterr().out


def test_packages_that_nobody_knows_do_not_count_as_clean(capsys: pytest.CaptureFixture[str]) -> None:
    told = load_script("requirements/audit.py").told
    unknown = {"name": "a", "skip_reason": "not found"}
    assert told([unknown], "") == 0
    assert "NOT AUDITED" in capsys.readouterr().out
    assert told([unknown, {"name": "b", "version": "2", "vulns": []}], "") == 0
    assert "1 packages of lock.txt have no known vulnerability; 1 could not" in capsys.readouterr().out


def test_without_a_network_the_audit_says_so() -> None:
    nowhere = {**os.environ, "HTTPS_PROXY": "http://127.0.0.1:9", "https_proxy": "http://127.0.0.1:9"}
    audit = [sys.executable, str(ROOT / "requirements" / "audit.py")]
    done = subprocess.run(audit, env=nowhere, capture_output=True, text=True, timeout=200)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("NOT AUDITED: no advisory could be looked up")
