"""The report as a reader meets it, in a real browser."""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

import octune
from octune.report.html import write_report
from octune.report.html.watch import Watch
from tests.report.synthetic import workspace

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
PLOTS = ("front", "kinds", "heat", "histograms", "prediction", "timeline")
ROOT = Path(__file__).parents[2]

SLOW_RUN = """
import sys, time
import octune
from tests.digits import config, digits
data = digits()
def score(model):
    time.sleep(1.5)
    return data.hits(model).numpy()
options = config(strategy="random", max_trials=3, timeout=60)
octune.tune(data.model(), calibration=data.batches(), evaluate=score, progress=False,
            config={**options, "workspace": {"path": sys.argv[1]}})
"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    found = next(filter(None, map(shutil.which, NAMES)), None)
    if found is None:
        pytest.skip(f"no browser: none of {', '.join(NAMES)} is installed")
    with playwright.sync_playwright() as play:
        started = play.chromium.launch(executable_path=found, args=["--no-sandbox"])
        yield started
        started.close()


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report of a model with 400 ops."""
    folder = tmp_path_factory.mktemp("large")
    return write_report(workspace(folder / "run"), folder / "report.html")


Opened = Callable[..., Any]


@pytest.fixture
def opened(browser: Any) -> Iterator[Opened]:
    """Opens a file or an address, and fails if the console has anything to complain about."""
    contexts, complaints = [], []

    def go(where: Path | str, width: int = 1100, scheme: str = "light") -> Any:
        context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda message: complaints.append(message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("request", lambda request: complaints.append(request.url) if _far(request.url) else None)
        page.goto(where if isinstance(where, str) else where.as_uri())
        return page

    yield go
    for context in contexts:
        context.close()
    assert complaints == []


def _far(url: str) -> bool:
    return not url.startswith(("file:", "data:", "http://127.0.0.1:"))


def test_every_picture_is_there_and_says_what_one_points_at(large: Path, opened: Opened) -> None:
    page = opened(large)
    for name in PLOTS:
        shown = page.locator(f"#{name} svg:visible")
        assert shown.count() >= 1, name
        assert shown.first.bounding_box()["width"] > 250, name
    tip = page.locator("#tip")
    assert not tip.is_visible()
    for mark, words in (
        ("#front .wide .point >> nth=-1", "trial 40"),
        ("#heat .wide rect[data-tip] >> nth=3", "model.encoder.layer"),
        ("#kinds .wide rect[data-tip] >> nth=0", "linear"),
        ("#timeline .wide rect[data-tip] >> nth=0", "baseline"),
        ("#prediction .wide .point >> nth=0", "harm"),
        ("#optable tbody tr >> nth=2", "int8 dynamic"),
    ):
        page.locator(mark).scroll_into_view_if_needed()
        page.wait_for_timeout(200)  # scrolling hides what is shown
        page.locator(mark).hover(force=True)
        tip.wait_for(state="visible", timeout=5000)
        assert words in tip.inner_text()
        box = tip.bounding_box()
        assert 0 <= box["x"] <= box["x"] + box["width"] <= 1100
    page.mouse.move(2, 2)
    tip.wait_for(state="hidden", timeout=5000)


def test_tables_sort_by_value_and_filter_by_name(large: Path, opened: Opened) -> None:
    page = opened(large)
    rows = page.locator("#optable tbody tr")
    assert rows.count() == 400

    def column(place: int) -> list[str]:
        cells = page.locator(f"#optable tbody tr > :nth-child({place})")
        found: list[str] = cells.evaluate_all("all => all.map(one => one.dataset.v ?? one.textContent)")
        return found

    head = page.locator("#optable thead th")
    harms = [float(value) for value in column(4)]
    assert harms == sorted(harms, reverse=True), "the most harmful first"
    begun = time.monotonic()
    head.nth(3).click()
    assert [float(value) for value in column(4)] == harms, "numbers begin with the largest"
    head.nth(3).click()
    assert time.monotonic() - begun < 30
    assert [float(value) for value in column(4)] == harms[::-1]
    assert head.nth(3).get_attribute("aria-sort") == "ascending"
    head.nth(0).press("Enter")
    assert column(1) == sorted(column(1), key=str.lower)
    head.nth(8).click()
    clipped = column(9)
    known = [float(value) for value in clipped if value]
    assert known == sorted(known, reverse=True)
    assert all(value == "" for value in clipped[len(known) :]), "unknown ones last"
    page.locator("#filter").fill("layer.7.self")
    assert page.locator("#optable tbody tr:visible").count() == 3


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_both_themes_are_legible(scheme: str, large: Path, opened: Opened) -> None:
    page = opened(large, scheme=scheme)
    script = """name => {
      const colour = getComputedStyle(document.querySelector(name.split(' ')[0]))[name.split(' ')[1]];
      return colour.match(/[0-9.]+/g).slice(0, 3).map(Number);
    }"""

    def light(name: str) -> float:
        parts = [value / 255 for value in page.evaluate(script, name)]
        linear = [v / 12.92 if v <= 0.04045 else ((v + 0.055) / 1.055) ** 2.4 for v in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    back = light("section backgroundColor")
    assert (back < 0.05) == (scheme == "dark")
    for name, least in (
        ("h1 color", 7.0),
        (".note color", 4.5),
        (".tick fill", 4.5),
        (".mark.pass fill", 3.0),
        (".mark.fail stroke", 3.0),
    ):
        pair = sorted((light(name), back))
        assert (pair[1] + 0.05) / (pair[0] + 0.05) >= least, name


def test_a_phone_shows_all_of_it(large: Path, opened: Opened) -> None:
    page = opened(large, width=390)
    assert page.evaluate("document.documentElement.scrollWidth") == 390
    assert page.locator("#front .narrow svg").is_visible()
    assert not page.locator("#front .wide svg").is_visible()
    smallest = page.locator("#front .narrow svg text").first.evaluate(
        "text => parseFloat(getComputedStyle(text).fontSize) * text.ownerSVGElement.getScreenCTM().a"
    )
    assert smallest >= 12, "text is as large as on a desk"
    table = page.locator("#comparison table").bounding_box()
    assert table["x"] + table["width"] <= 390
    page.evaluate("document.querySelector('#comparison td .strong').textContent = 'a_long_name_'.repeat(9)")
    assert page.locator("#comparison table").bounding_box()["width"] == table["width"]


def test_paper_holds_every_row(large: Path, opened: Opened) -> None:
    page = opened(large)
    page.emulate_media(media="print")
    box = page.locator("#optable").bounding_box()
    around = page.locator(".tall").bounding_box()
    assert around["height"] >= box["height"]


def test_400_ops_are_quick(large: Path, opened: Opened) -> None:
    assert large.stat().st_size < 2_000_000
    page = opened(large)
    timing = page.evaluate("performance.getEntriesByType('navigation')[0].domComplete")
    assert timing < 30_000


def test_a_small_run_and_one_without_anything_yet(
    finished: octune.Result, opened: Opened, tmp_path: Path
) -> None:
    page = opened(finished.report(tmp_path / "small.html"))
    assert page.locator("#front svg:visible").count() >= 1
    assert finished.workspace is not None
    first = (finished.workspace / "journal.jsonl").read_bytes().splitlines(keepends=True)[:2]
    (tmp_path / "journal.jsonl").write_bytes(b"".join(first))
    page = opened(write_report(tmp_path, tmp_path / "empty.html"), width=390)
    assert "under way" in page.inner_text("h1")
    assert page.evaluate("document.documentElement.scrollWidth") == 390


def test_a_watched_run_changes_by_itself(opened: Opened, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    with Watch(folder, 0) as watch:
        page = opened(watch.url, width=390)
        page.evaluate("window.kept = 'the page was not loaded again'")
        assert "Waiting for a run" in page.inner_text("h1")
        run = subprocess.Popen([sys.executable, "-c", SLOW_RUN, str(folder)], cwd=ROOT)
        try:
            page.wait_for_function(
                "document.querySelectorAll('#trials tbody tr').length >= 2", timeout=90_000
            )
            assert page.inner_text(".badge") == "running"
            page.locator("#trials thead th").nth(0).click()
            page.evaluate("scrollTo(0, 300)")
            page.wait_for_function(
                "document.querySelectorAll('#trials tbody tr').length >= 3", timeout=60_000
            )
            assert page.evaluate("scrollY") == 300
            assert page.locator("#trials thead th").nth(0).get_attribute("aria-sort") == "ascending"
            page.wait_for_function(
                "document.querySelector('.badge').textContent.startsWith('criterion')", timeout=60_000
            )
            watch.until_it_ends()
            assert run.wait(30) == 0
        finally:
            run.kill()
        assert page.evaluate("window.kept") == "the page was not loaded again"
        assert page.locator("#trials tbody tr").count() == 4
