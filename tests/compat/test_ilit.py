"""iLiT's document runs as it stands, with one import line changed; so do the other ways of calling its Tuner."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

import octune
from octune.compat import ilit
from octune.config import Config, load_config
from octune.errors import CriterionError, UnsupportedError, WorkspaceError
from tests import zoo
from tests.compat.seed import CHANGED, SEEDS, pytorch_script, snippet

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")


def uncompiled(conf: Any) -> Config:
    """What the YAML file says, but winners stay eager: compiling is the same for all models and takes half a minute each."""
    config = load_config(conf)
    return config.model_copy(update={"performance": config.performance.model_copy(update={"compile": "never"})})


def run_seed(names: dict[str, Any], folder: Path, monkeypatch: pytest.MonkeyPatch) -> octune.Result:
    """Runs the document's two fragments in a folder that holds its YAML file; they end with exit(0)."""
    shutil.copy(SEEDS / "ilit_conf.yaml", folder / "conf.yaml")
    monkeypatch.chdir(folder)
    exec(snippet("ilit_loader.txt"), names)
    with pytest.raises(SystemExit) as ended:
        exec(snippet("ilit_tune.txt"), names)
    assert ended.value.code == 0
    result = names["tuner"].result
    assert isinstance(result, octune.Result)
    return result


@pytest.mark.shared
@pytest.mark.parametrize("name", sorted(path.name for path in SEEDS.iterdir()))
def test_the_copies_are_the_documents_but_for_the_import_lines(shared: Path, name: str) -> None:
    text = (SEEDS / name).read_text()
    for new, old in CHANGED.items():
        text = text.replace(new, old)
    documents = [path.read_text() for path in (shared / "seeds").glob("*.md")]
    assert any(text in document for document in documents)


@pytest.mark.parametrize("task", ["sst-2", "mrpc", "sts-b", "squad"])
def test_the_seed_runs_on_made_up_data(task: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = zoo.squad(tmp_path / "squad") if task == "squad" else zoo.glue(tmp_path / "glue", task)
    model = zoo.reader(tmp_path / "model", data) if task == "squad" else zoo.classifier(tmp_path / "model", task, data)
    names = pytorch_script(task, model, data, rows=64, length=48)
    monkeypatch.setattr(ilit, "read_config", uncompiled)
    before = {name: value.clone() for name, value in names["model"].state_dict().items()}
    result = run_seed(names, tmp_path, monkeypatch)
    assert result.met, str(result)
    assert result.trials
    assert all(torch.equal(value, before[name]) for name, value in names["model"].state_dict().items())


@pytest.mark.shared
@pytest.mark.slow
@pytest.mark.parametrize(("task", "rows", "length"), [("sst-2", 128, 64), ("mrpc", 96, 128), ("sts-b", 128, 64), ("squad", 80, 192)])
def test_the_seed_runs_on_a_real_model(
    shared: Path, task: str, rows: int, length: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = shared / "models" / f"minilm-l6-{task.replace('-', '')}"
    data = zoo.first_questions(shared / "data/squad", tmp_path / "squad", 60) if task == "squad" else shared / "data/glue"
    names = pytorch_script(task, model, data, rows, length)
    if task != "sst-2":
        monkeypatch.setattr(ilit, "read_config", uncompiled)
    result = run_seed(names, tmp_path, monkeypatch)
    assert result.met, str(result)
    assert result.speedup is not None
    assert result.speedup > 1
    assert sum(not scheme.is_float for scheme in result.plan.values()) > 20


# -- the Tuner's other ways of being called ----------------------------------------------------------------------------

YAML = """
framework:
  - name: pytorch
device: cpu
tuning:
    metric:
      - topk: 1
    accuracy_criterion:
      - relative: {relative}
    timeout: 0
"""


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("zoo")
    data = zoo.glue(folder / "glue", "sst-2")
    names = pytorch_script("sst-2", zoo.classifier(folder / "model", "sst-2", data), data, rows=64, length=48)
    exec(snippet("ilit_loader.txt"), names)
    return names


def loader(script: dict[str, Any]) -> Any:
    dataset = script["load_and_cache_examples"](script["args"], None)
    return script["Bert_DataLoader"](script["DataLoader"](dataset, batch_size=16), "bert", "cpu")


def config(relative: float = 0.01, **sections: Any) -> Config:
    from octune.config import parse_config

    parsed = parse_config(YAML.format(relative=relative))
    return parsed.model_copy(update={"performance": parsed.performance.model_copy(update={"compile": "never"}), **sections})


def test_a_loader_and_the_metric_of_the_yaml_file_score_the_model(script: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "conf.yaml").write_text(YAML.format(relative=0.01))
    tuner = ilit.Tuner(tmp_path / "conf.yaml")
    tuner.config = uncompiled(tmp_path / "conf.yaml")
    made = tuner.tune(script["model"], loader(script), eval_dataloader=loader(script))
    assert tuner.result is not None
    assert tuner.result.met
    assert made is tuner.result.model
    assert tuner.result.baseline.score is not None
    assert tuner.result.baseline.score.n == 64
    inputs, _ = next(iter(loader(script)))
    with torch.inference_mode():
        assert made(**inputs).logits.shape == (16, 2)


def test_what_the_original_returned_as_none_comes_back_with_a_warning(script: dict[str, Any]) -> None:
    """A gain of 90 % is demanded, which nothing can give."""
    tuner = ilit.Tuner(config(relative=-0.9, tuning=config().tuning.model_copy(update={"max_trials": 2})))
    with pytest.warns(UserWarning, match=r"No quantized model met the criterion .* The closest one is handed back"):
        made = tuner.tune(script["model"], loader(script), eval_dataloader=loader(script))
    assert isinstance(made, torch.nn.Module)
    strict = ilit.Tuner(tuner.config, strict=True)
    with pytest.raises(CriterionError, match=r"No quantized model met the criterion"):
        strict.tune(script["model"], loader(script), eval_dataloader=loader(script))
    assert strict.result is not None  # what was learned is not lost


def test_a_run_is_resumed_from_its_folder_or_its_journal(script: dict[str, Any], tmp_path: Path) -> None:
    calls: list[int] = []

    def eval_func(model: Any) -> float:
        calls.append(1)
        return float(script["evaluate"](script["args"], model, None)[0]["acc"])

    workspace = config().workspace.model_copy(update={"path": tmp_path / "snapshot"})
    first = ilit.Tuner(config(workspace=workspace))
    first.tune(script["model"], loader(script), eval_func=eval_func)
    scored = len(calls)
    assert scored >= 2
    for resume_file in (tmp_path / "snapshot", str(tmp_path / "snapshot" / "journal.jsonl")):
        again = ilit.Tuner(config())
        again.tune(script["model"], loader(script), None, None, eval_func, resume_file)
        assert first.result is not None
        assert again.result is not None
        assert again.result.plan == first.result.plan
        assert len(calls) == scored  # nothing was scored again


def test_what_cannot_be_done_is_refused(script: dict[str, Any], tmp_path: Path) -> None:
    tuner = ilit.Tuner(config())
    with pytest.raises(UnsupportedError, match=r"q_func trains a model"):
        tuner.tune(script["model"], loader(script), q_func=lambda model: None, eval_func=lambda model: 1.0)
    with pytest.raises(WorkspaceError, match=r"does not exist\. Expected the folder of an Octune run"):
        tuner.tune(script["model"], loader(script), eval_func=lambda model: 1.0, resume_file=tmp_path / "missing")
    (tmp_path / "history.snapshot").write_bytes(b"")
    with pytest.raises(WorkspaceError, match=r"a history of iLiT or LPOT cannot be read"):
        tuner.tune(script["model"], loader(script), eval_func=lambda model: 1.0, resume_file=tmp_path / "history.snapshot")
