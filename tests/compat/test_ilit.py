"""Scripts that tune with iLiT's Tuner: its document as it stands with one import line changed, and code of
our own.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import octune
from octune.compat import ilit
from octune.config import Config, load_config
from octune.errors import CriterionError, UnsupportedError, WorkspaceError
from tests import zoo
from tests.compat.documents import ILIT, block, ilit_names
from tests.compat.subjects import Bert, most_int8

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
TASKS = ["sst-2", "mrpc", "sts-b", "squad"]


@pytest.fixture(scope="module")
def berts(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Bert]:
    """A small BERT for each task, trained on made-up data the first time it is asked for."""

    @functools.cache
    def trained(task: str) -> Bert:
        folder = tmp_path_factory.mktemp(task)
        data = zoo.squad(folder / "squad") if task == "squad" else zoo.glue(folder / "glue", task)
        model = (
            zoo.reader(folder / "model", data)
            if task == "squad"
            else zoo.classifier(folder / "model", task, data)
        )
        return Bert.of(task, model, data, rows=64, length=48)

    return trained


@pytest.fixture
def eager(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the YAML file says, but winners stay eager: compiling is the same for all models and takes half a
    minute each.
    """

    def read(conf: Any) -> Config:
        config = load_config(conf)
        return config.model_copy(
            update={"performance": config.performance.model_copy(update={"compile": "never"})}
        )

    monkeypatch.setattr(ilit, "read_config", read)


# -- the document --------------------------------------------------------------------------------------------


def run_document(documents: Path, bert: Bert, folder: Path, monkeypatch: pytest.MonkeyPatch) -> octune.Result:
    """Runs the document's two fragments in a folder that holds its YAML file; they end with exit(0)."""
    (folder / "conf.yaml").write_text(block(documents / ILIT, "accuracy_criterion"))
    monkeypatch.chdir(folder)
    names = ilit_names(bert)
    exec(block(documents / ILIT, "class Bert_DataLoader"), names)
    with pytest.raises(SystemExit) as ended:
        exec(block(documents / ILIT, "ilit.Tuner("), names)
    assert ended.value.code == 0
    result = names["tuner"].result
    assert isinstance(result, octune.Result)
    return result


@pytest.mark.slow
@pytest.mark.shared
@pytest.mark.parametrize("task", TASKS)
def test_the_document_runs_on_made_up_data(
    documents: Path,
    berts: Callable[[str], Bert],
    task: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> None:
    if task != "sst-2":  # once is enough to see that what the document asks for is compiled
        request.getfixturevalue("eager")
    result = run_document(documents, berts(task), tmp_path, monkeypatch)
    assert result.met, str(result)
    assert result.trials


@pytest.mark.shared
@pytest.mark.slow
@pytest.mark.usefixtures("eager")
@pytest.mark.parametrize(
    ("task", "rows", "length"),
    [("sst-2", 128, 64), ("mrpc", 96, 128), ("sts-b", 128, 64), ("squad", 80, 192)],
)
def test_the_document_runs_on_a_real_model(
    documents: Path,
    shared: Path,
    task: str,
    rows: int,
    length: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = shared / "models" / f"minilm-l6-{task.replace('-', '')}"
    data = (
        zoo.first_questions(shared / "data/squad", tmp_path / "squad", 60)
        if task == "squad"
        else shared / "data/glue"
    )
    result = run_document(documents, Bert.of(task, model, data, rows, length), tmp_path, monkeypatch)
    assert result.met, str(result)
    assert most_int8(result) > 20, str(result)


# -- code of our own -----------------------------------------------------------------------------------------

YAML = """
framework: {{name: pytorch}}
device: cpu
calibration: [{{iterations: 2}}]
tuning:
  metric: [{{topk: 1}}]
  accuracy_criterion: {{relative: {relative}}}
  timeout: 0
  random_seed: 11
"""


class Named(torch.utils.data.DataLoader):  # type: ignore[misc,name-defined]
    """Inputs by name, the label among them. As in much code for iLiT it is a DataLoader by name only: its
    base is never set up.
    """

    def __init__(self, rows: Any) -> None:
        self.rows = rows

    def __iter__(self) -> Iterator[Any]:
        for ids, mask, segments, label in torch.utils.data.DataLoader(self.rows, batch_size=16):
            yield (
                {"labels": label, "input_ids": ids, "token_type_ids": segments, "attention_mask": mask},
                label,
            )


@pytest.mark.slow
@pytest.mark.usefixtures("eager")
@pytest.mark.parametrize("task", TASKS)
def test_a_script_that_scores_by_itself(
    berts: Callable[[str], Bert], task: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("tune.yaml").write_text(YAML.format(relative=0.02))
    bert = berts(task)
    before = {name: value.clone() for name, value in bert.model.state_dict().items()}
    scores: list[float] = []

    def eval_func(model: Any) -> float:
        scores.append(bert.score(model))
        return scores[-1]

    tuner = ilit.Tuner("./tune.yaml")
    made = tuner.tune(bert.model, Named(bert.rows), eval_func=eval_func)
    assert tuner.result is not None
    assert tuner.result.met, str(tuner.result)
    assert made is tuner.result.model
    assert tuner.result.baseline.score is not None
    assert tuner.result.baseline.score.value == scores[0] == bert.score(bert.model)
    assert any(not scheme.is_float for trial in tuner.result.trials for scheme in trial.plan.values())
    assert len(scores) > 1  # int8 was scored too
    assert all(torch.equal(value, before[name]) for name, value in bert.model.state_dict().items())


@pytest.fixture
def bert(berts: Callable[[str], Bert]) -> Bert:
    return berts("sst-2")


def config(relative: float = 0.01, **sections: Any) -> Config:
    from octune.config import parse_config

    parsed = parse_config(YAML.format(relative=relative))
    return parsed.model_copy(
        update={"performance": parsed.performance.model_copy(update={"compile": "never"}), **sections}
    )


@pytest.mark.slow
@pytest.mark.usefixtures("eager")
def test_a_loader_and_the_metric_of_the_yaml_file_score_the_model(bert: Bert, tmp_path: Path) -> None:
    (tmp_path / "conf.yaml").write_text(YAML.format(relative=0.01))
    tuner = ilit.Tuner(tmp_path / "conf.yaml")
    made = tuner.tune(bert.model, Named(bert.rows), eval_dataloader=Named(bert.rows))
    assert tuner.result is not None
    assert tuner.result.met
    assert made is tuner.result.model
    assert tuner.result.baseline.score is not None
    assert tuner.result.baseline.score.n == 64
    inputs, _ = next(iter(Named(bert.rows)))
    with torch.inference_mode():
        assert made(**inputs).logits.shape == (16, 2)


@pytest.mark.slow
def test_what_the_original_returned_as_none_comes_back_with_a_warning(bert: Bert) -> None:
    """A gain of 90 % is demanded, which nothing can give."""
    tuner = ilit.Tuner(config(relative=-0.9, tuning=config().tuning.model_copy(update={"max_trials": 2})))
    with pytest.warns(
        UserWarning, match=r"No quantized model met the criterion .* The closest one is handed back"
    ):
        made = tuner.tune(bert.model, Named(bert.rows), eval_dataloader=Named(bert.rows))
    assert isinstance(made, torch.nn.Module)
    strict = ilit.Tuner(tuner.config, strict=True)
    with pytest.raises(CriterionError, match=r"No quantized model met the criterion"):
        strict.tune(bert.model, Named(bert.rows), eval_dataloader=Named(bert.rows))
    assert strict.result is not None  # what was learned is not lost


@pytest.mark.slow
def test_a_run_is_resumed_from_its_folder_or_its_journal(bert: Bert, tmp_path: Path) -> None:
    calls: list[int] = []

    def eval_func(model: Any) -> float:
        calls.append(1)
        return bert.score(model)

    workspace = config().workspace.model_copy(update={"path": tmp_path / "snapshot"})
    first = ilit.Tuner(config(workspace=workspace))
    first.tune(bert.model, Named(bert.rows), eval_func=eval_func)
    scored = len(calls)
    assert scored >= 2
    for resume_file in (tmp_path / "snapshot", str(tmp_path / "snapshot" / "journal.jsonl")):
        again = ilit.Tuner(config())
        again.tune(bert.model, Named(bert.rows), None, None, eval_func, resume_file)
        assert first.result is not None
        assert again.result is not None
        assert again.result.plan == first.result.plan
        assert len(calls) == scored  # nothing was scored again


def test_what_cannot_be_done_is_refused(bert: Bert, tmp_path: Path) -> None:
    tuner = ilit.Tuner(config())
    with pytest.raises(UnsupportedError, match=r"q_func trains a model"):
        tuner.tune(bert.model, Named(bert.rows), q_func=lambda model: None, eval_func=lambda model: 1.0)
    with pytest.raises(WorkspaceError, match=r"does not exist\. Expected the folder of an Octune run"):
        tuner.tune(
            bert.model, Named(bert.rows), eval_func=lambda model: 1.0, resume_file=tmp_path / "missing"
        )
    (tmp_path / "history.snapshot").write_bytes(b"")
    with pytest.raises(WorkspaceError, match=r"a history of iLiT or LPOT cannot be read"):
        tuner.tune(
            bert.model,
            Named(bert.rows),
            eval_func=lambda model: 1.0,
            resume_file=tmp_path / "history.snapshot",
        )
