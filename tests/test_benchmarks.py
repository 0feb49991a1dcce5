"""What benchmarks write: sections of a page between markers, and tables that say who is missing and why."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from octune.cost import Load
from tests.scripts import load_script

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture
def report(monkeypatch: pytest.MonkeyPatch) -> Any:
    """benchmarks/bench_report.py, whose neighbours are modules beside it."""
    monkeypatch.setattr(sys, "path", [str(ROOT / "benchmarks"), *sys.path])
    import bench_report  # it is not part of the package

    return bench_report


@pytest.fixture
def machine(report: Any) -> Any:
    """benchmarks/bench_machine.py."""
    import bench_machine

    return bench_machine


@pytest.fixture
def run(report: Any) -> Any:
    where = {
        "date": "today",
        "cpu": "a CPU",
        "cores": 2,
        "threads": 2,
        "features": ["vnni"],
        "generation": "VNNI",
        "python": "3",
        "versions": {},
        "load": 0.1,
    }
    model = report.ModelRun("m", "A model", "fp32", ["fp32", "peer", "broken", "ours"])
    model.median_ms = {"b1": {"fp32": 40.0, "ours": 10.0}}
    model.error, model.build_seconds = {"ours": 0.0123}, {"ours": 2.0}
    model.absent, model.failed = {"peer": "not installed: pip install peer"}, {"broken": "ValueError: no"}
    return report.Run(report.Family("a_speed", "A: speed", "Read it.", ()), where, False, [model])


def test_a_table_says_who_is_missing_and_why(run: Any) -> None:
    model = run.models[0]
    assert model.rows()[0] == ["b1", "1.00x (40.0 ms)", "not installed", "failed", "4.00x (10.0 ms)"]
    assert model.rows()[1] == ["output error", "-", "-", "-", "0.0123"]
    assert model.remarks_on(verbose=False) == [
        "peer: not installed: pip install peer",
        "broken failed: ValueError: no",
    ]


def test_scores_come_with_their_change_from_fp32(run: Any) -> None:
    model = run.models[0]
    model.scores = {"accuracy": {"fp32": 0.9, "ours": 0.895}}
    assert model.rows()[1] == ["accuracy", "90.00", "not installed", "failed", "89.50 (-0.50)"]


def test_every_family_writes_its_own_section_and_leaves_the_rest_alone(
    report: Any, run: Any, tmp_path: Path
) -> None:
    page = tmp_path / "docs" / "page.md"
    other = replace(run, family=replace(run.family, name="b_speed", title="B: speed"))
    report.write_markdown(page, run)
    page.write_text(f"{page.read_text()}\nby hand\n")
    report.write_markdown(page, other)
    before = page.read_text()
    run.models[0].median_ms["b1"]["ours"] = 20.0
    report.write_markdown(page, run)
    assert page.read_text() == before.replace("4.00x (10.0 ms)", "2.00x (20.0 ms)", 1) != before
    assert "by hand" in before
    assert before.count("## B: speed") == 1


def test_the_page_says_what_others_took_and_warns_of_that_alone(
    report: Any, run: Any, tmp_path: Path
) -> None:
    loud = replace(run.models[0], name="l", title="Loud", neighbours={"b1": 0.7})
    calm = replace(run.models[0], title="Calm", neighbours={"b1": 0.0})
    both = replace(run, models=[loud, calm])
    assert report.warnings(both) == ["l b1: other processes kept 0.7 cores busy while it was timed"]
    assert report.warnings(replace(both, where={**run.where, "load": 1.2}))[0] == (
        "the machine was busy before the start: other processes kept 1.2 cores busy"
    )
    report.write_markdown(tmp_path / "page.md", both)
    _, of_loud, of_calm = (tmp_path / "page.md").read_text().split("### ")
    assert "at most 0.70 while models were timed" in of_loud
    assert "warning" in of_loud
    assert "at most 0.00 while models were timed" in of_calm
    assert "warning" not in of_calm


def test_the_work_of_a_benchmark_itself_is_not_load(machine: Any) -> None:
    """Nor is the work of the processes that it starts: a load average would count both."""
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as child:
        try:
            with Load() as all_others:  # the child is one of them
                described = machine.describe(1, ())
        finally:
            child.kill()
    assert described["load"] < all_others.cores


def test_a_run_survives_json(report: Any, run: Any) -> None:
    assert report.Run.from_json(run.to_json()) == run


def test_models_that_were_not_run_keep_their_table(report: Any, run: Any, tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    report.write_markdown(page, run)
    later = replace(
        run, models=[replace(run.models[0], title="Another", median_ms={"b1": {"fp32": 9.0, "ours": 3.0}})]
    )
    report.write_markdown(page, later)
    text = page.read_text()
    assert (
        text.index("### A model, on VNNI")
        < text.index("4.00x (10.0 ms)")
        < text.index("### Another, on VNNI")
        < text.index("3.00x (3.0 ms)")
    )
    assert text.count("today") == 2
    report.write_markdown(page, later)
    assert page.read_text() == text
    report.write_markdown(page, replace(run, where={**run.where, "generation": "AMX"}))
    assert page.read_text().startswith(text[: text.index("<!-- a_speed: end -->")].rstrip())
    assert page.read_text().count("### A model, on ") == 2


def test_the_simulation_of_a_cluster_is_bound_by_its_workers_and_by_its_driver() -> None:
    module = load_script("benchmarks/cluster.py")
    free, costly = module.Constants(0.0, 5.0), module.Constants(0.01, 5.0)
    alone = module.evaluation(60.0, 600, 1, free)
    assert alone == pytest.approx(60.0)
    for workers in (2, 4, 8):
        assert 0.999 < module.evaluation(60.0, 600, workers, free) * workers / alone < 1.1
    # However many workers there are, the driver hands out one shard after the other.
    assert module.evaluation(60.0, 600, 500, costly) > 2.0
    row = {"n": 4800, "stages": {"baseline": 60.0, "harm": 7.0}}
    harm = 7 * (module.REPEATED + (1 - module.REPEATED) / 4)  # workers share it, but for what each repeats
    assert module.tuned(row, 4, free) == pytest.approx(5 + harm + 60 / 4, rel=0.05)
    hours, group = module.night(row, 50, free)
    assert (hours, group) == (pytest.approx(20 * 67 / 3600), 1)


def test_the_page_on_clusters_has_what_the_simulation_says(capsys: pytest.CaptureFixture[str]) -> None:
    """With the constants that it names, and the rows of the zoo as they are now."""
    page = (ROOT / "docs" / "cluster.md").read_text()
    named = re.search(r"cluster\.py --known (\S+) (\S+)`", page)
    assert named
    shard, start = map(float, named.groups())
    module = load_script("benchmarks/cluster.py")
    module.plan_night(module.Constants(shard / 1000, start))
    said = re.findall(
        r": (\d+) s alone, (\d+) s with .* all in (\S+) h, (.*) for each", capsys.readouterr().out
    )
    table = re.findall(r"^\| .* \| (\d+) s \| (\d+) s \| (\S+) h, one (node) for each model \|$", page, re.M)
    assert len(table) == 4
    assert {(*row[:3], "1 node") for row in table} <= set(said)
