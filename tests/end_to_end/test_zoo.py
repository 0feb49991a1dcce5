"""The table of results: rows are run and kept, and the page says what is in them and nothing else."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from octune.config import Config
from tests import zoo

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def bench() -> Any:
    """benchmarks/zoo.py, whose neighbours are modules beside it."""
    sys.path.insert(0, str(ROOT / "benchmarks"))
    try:
        import zoo as module
    finally:
        sys.path.remove(str(ROOT / "benchmarks"))
    return module


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory, bench: Any) -> Any:
    pytest.importorskip("transformers")
    folder = tmp_path_factory.mktemp("zoo")
    glue, squad = zoo.glue(folder / "data/glue", "sst-2"), zoo.squad(folder / "data/squad")
    zoo.classifier(folder / "models/tiny-sst2", "sst-2", glue)
    zoo.reader(folder / "models/tiny-squad", squad)
    return bench.Place(folder / "models", folder / "data", questions=48)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["pytorch-sst2", "pytorch-squad", "tensorflow-sst2", "tensorflow-squad", "onnx-sst2"]
)
def test_a_row_is_run_and_kept(
    name: str, bench: Any, place: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip({"pytorch": "torch"}.get(name.split("-")[0], name.split("-")[0]))
    original = bench.octune.tune

    def uncompiled(*args: Any, config: Any = None, **options: Any) -> Any:
        return original(*args, config={**(config or {}), "performance": {"compile": "never"}}, **options)

    monkeypatch.setattr(bench.octune, "tune", uncompiled)
    [row] = [row for row in bench.ROWS if row.name == name]
    bench.run_here(row, place, tmp_path)
    kept = json.loads((tmp_path / f"{name}.json").read_text())
    assert kept["met"]
    assert kept["n"] == (zoo.DEV if "squad" not in name else kept["n"])
    assert kept["fp32"] > 0.9
    bench.write_page(tmp_path, tmp_path / "page.md")
    assert f"| {kept['task']}" in (tmp_path / "page.md").read_text()


def test_rows_that_cannot_run_say_why(bench: Any, place: Any) -> None:
    for row, reason in (
        ("pytorch-mrpc", "no folder in .* ends in mrpc"),
        ("pytorch-imagenet", ".*imagenet does not exist"),
    ):
        [found] = [one for one in bench.ROWS if one.name == row]
        with pytest.raises(bench.Missing, match=reason):
            found.job(place, found.task)


def test_the_page_says_what_the_rows_say(bench: Any, tmp_path: Path) -> None:
    where = {
        "date": "today",
        "cpu": "a CPU",
        "cores": 2,
        "features": ["avx2"],
        "python": "3.11",
        "versions": {"octune": "0.1"},
    }
    row = {
        "name": "pytorch-sst2", "task": "SST-2", "framework": "pytorch", "model": "tiny", "fp32": 0.8,
        "int8": 0.796, "n": 1000, "low": -0.002, "high": 0.01, "lost": 9, "gained": 5, "met": True,
        "share": 0.95, "trials": 2, "seconds": 61.4, "speedup": 2.5,
        "stages": {"baseline": 10.0, "trial": 15.0, "finalists": 30.0},
        "form": "compiled", "questions": None, "neighbours": 0.0, "where": where,
    }  # fmt: skip
    (tmp_path / "a.json").write_text(json.dumps(row))
    (tmp_path / "b.json").write_text(
        json.dumps(
            {
                **row,
                "name": "x",
                "framework": "tensorflow",
                "met": False,
                "low": None,
                "lost": None,
                "neighbours": 1.0,
            }
        )
    )
    bench.write_page(tmp_path, tmp_path / "page.md")
    text = (tmp_path / "page.md").read_text()
    numbers = (
        "1,000 | 80.00 | 79.60 | -0.50% | -1.25% to +0.25% | -9 +5 | 95% | 2 | 61 | 2.5 | 30 | 2.50x "
        "(compiled)"
    )
    assert f"| SST-2 | PyTorch | tiny | {numbers} | BERT-base: 91.97 / 92.32, -0.38%, 2.26x |" in text
    assert "79.60 (criterion not met)" in text
    assert "other processes kept the machine busy during x" in text
    assert "| CoLA | PyTorch | BERT-base | Neural Compressor 2.6 | 53.39 | 52.86 | -0.99% | 2.23x |" in text


@pytest.mark.parametrize(("rows", "page"), [("zoo_rows", "results.md"), ("zoo_rows_avx2", "results-avx2.md")])
def test_the_pages_in_the_documents_are_made_of_the_rows(
    bench: Any, tmp_path: Path, rows: str, page: str
) -> None:
    bench.write_page(ROOT / "benchmarks" / rows, tmp_path / page)
    assert (ROOT / "docs" / page).read_text() == (tmp_path / page).read_text(), (
        f"run: python benchmarks/zoo.py --page --rows benchmarks/{rows} --output docs/{page}"
    )


def test_defaults_are_octunes_own(bench: Any, place: Any) -> None:
    """The table shows what a user gets who says nothing: only the part of SQuAD may be set."""
    assert bench.settings(place, "sst2") == {}
    assert Config.build(**bench.settings(place, "squad")).evaluation.samples == 48
