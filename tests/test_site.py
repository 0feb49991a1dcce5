"""The documentation site: it is built with broken links as errors, and every page is on it."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.scripts import ROOT

# Not --quiet: warnings that are not printed are not counted, and then they are no errors.
BUILD = [sys.executable, "-m", "mkdocs", "build", "--strict"]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run([*BUILD, "--site-dir", str(folder)], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return folder


def test_every_page_is_there(site: Path) -> None:
    pages = {path.relative_to(ROOT / "docs").with_suffix("") for path in (ROOT / "docs").rglob("*.md")}
    assert pages <= {path.relative_to(site).with_suffix("") for path in site.rglob("*.html")}
    assert not list(site.rglob("*.py"))


def test_no_markdown_is_left_unrendered(site: Path) -> None:
    for path in site.rglob("*.html"):
        article = path.read_text().partition("<article")[2].partition("</article>")[0]
        prose = re.sub(r"<(pre|code)\b.*?</\1>", "", article, flags=re.DOTALL)
        assert "```" not in prose, path.name
        assert not re.search(r"^\|.*\|$", prose, re.MULTILINE), path.name
        assert not re.search(r"\]\([\w./#-]+\)", prose), path.name


def test_nothing_is_loaded_from_other_hosts(site: Path) -> None:
    for path in site.rglob("*.html"):
        loaded = re.findall(r'<(?:script|link|img)[^>]*(?:src|href)="(https?://[^"]*)"', path.read_text())
        assert not loaded, path.name


def test_a_broken_link_is_an_error(tmp_path: Path) -> None:
    """Into the site, out of it, and to a heading: the build says so and fails."""
    docs = tmp_path / "docs"
    docs.mkdir()
    (docs / "site_links.py").write_text((ROOT / "docs/site_links.py").read_text())
    (docs / "index.md").write_text("# A\n\n[a](none.md) [b](../src/none.py) [c](#none) [d](../mkdocs.yml)\n")
    settings = (ROOT / "mkdocs.yml").read_text().partition("nav:\n  - ")[0]
    (tmp_path / "mkdocs.yml").write_text(settings)
    done = subprocess.run(BUILD, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode != 0
    said = [line for line in done.stderr.splitlines() if line.startswith("WARNING")]
    assert len([line for line in said if "none" in line]) == 3, done.stderr
