"""Scripts that tune with LPOT's Quantization: its document as it stands with its import lines changed, and
code of our own.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import octune
from octune.compat.lpot import (
    Quantization,
    SquadF1,
    SquadV1PostTransform,
    iterator_sess_run,
    parse_label_file,
    write_graph,
)
from octune.compat.lpot.features import words_of
from octune.errors import CriterionError, DataError, EvaluationError, ModelError, UnsupportedError
from tests import zoo
from tests.compat.documents import LPOT, block, lpot_names
from tests.compat.subjects import Reader, most_int8
from tests.examples.load import load_example

tf = pytest.importorskip("tensorflow")
pytest.importorskip("torch")
pytest.importorskip("transformers")
LENGTH = 48


def read_graph(file: str) -> Any:
    definition = tf.compat.v1.GraphDef()
    definition.ParseFromString(Path(file).read_bytes())
    graph = tf.Graph()
    with graph.as_default():
        tf.import_graph_def(definition, name="")
    return graph


@pytest.fixture(scope="module")
def made_up(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("zoo")
    data = zoo.squad(folder / "squad")
    return {"model": zoo.reader(folder / "model", data), "data": data}


# -- the document --------------------------------------------------------------------------------------------


def run_document(
    documents: Path, names: dict[str, Any], folder: Path, monkeypatch: pytest.MonkeyPatch, allowed: float
) -> octune.Result:
    """Runs the document's two fragments in a folder that holds its YAML file, with another loss allowed: 1 %
    is nothing on few questions.

    What was written runs in the document's own eval_func, and scores what the run said.
    """
    yaml, changes = re.subn(
        r"(?<=relative:)\s*0\.01\b", f" {allowed}", block(documents / LPOT, "accuracy_criterion")
    )
    assert changes == 1
    (folder / "bert.yaml").write_text(yaml)
    monkeypatch.chdir(folder)
    exec(block(documents / LPOT, "def eval_func"), names)
    exec(block(documents / LPOT, "write_graph("), names)
    result = names["quantizer"].result
    assert isinstance(result, octune.Result)
    assert result.met, str(result)
    assert result.best.score is not None
    assert str(result.plan["MatMul"]).startswith("fp32")  # op_wise: the op of that name, not all of them
    assert result.best.score.value == pytest.approx(
        names["eval_func"](read_graph(names["FLAGS"].output_model)), abs=1e-3
    )
    return result


@pytest.mark.slow
@pytest.mark.shared
@pytest.mark.filterwarnings("ignore:Mean of empty slice", "ignore:invalid value encountered")
def test_the_document_runs_on_made_up_data(
    documents: Path, made_up: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader = Reader.of(made_up["model"], made_up["data"], tmp_path, LENGTH)
    run_document(
        documents,
        lpot_names(reader, tmp_path / "out" / "bert.pb", batch_size=16),
        tmp_path,
        monkeypatch,
        allowed=0.01,
    )


@pytest.mark.shared
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Mean of empty slice", "ignore:invalid value encountered")
def test_the_document_runs_on_a_real_model(
    documents: Path, shared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = zoo.first_questions(shared / "data/squad", tmp_path / "squad", 60)
    reader = Reader.of(shared / "models/minilm-l6-squad", data, tmp_path, 192)
    names = lpot_names(reader, tmp_path / "out" / "bert.pb", batch_size=8)
    result = run_document(documents, names, tmp_path, monkeypatch, allowed=0.05)
    assert most_int8(result) > 20, str(result)


# -- a graph that reads its own file -------------------------------------------------------------------------

READER = """
model:
  name: reader
  framework: tensorflow
  inputs: [input_file, batch_size]
  outputs: [IteratorGetNext:3, unstack:0, unstack:1]
quantization:
  calibration: {sampling_size: 32}
  model_wise:
    weight: {granularity: per_channel}
  op_wise:
    bert/encoder/layer_0/.*:
      weight: {dtype: fp32}
      activation: {dtype: fp32}
tuning:
  accuracy_criterion: {relative: 0.02}
  exit_policy: {timeout: 0, max_trials: 12}
  random_seed: 5
"""


@pytest.mark.slow
def test_a_reader_is_tuned_and_written(
    made_up: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("reader.yaml").write_text(READER)
    reader = Reader.of(made_up["model"], made_up["data"], tmp_path, LENGTH)
    to_answers = SquadV1PostTransform(reader.questions, reader.windows, 10, 20, True)

    def f1(graph: Any) -> float:
        wanted = {"unique_ids": "IteratorGetNext:3", "start_logits": "unstack:0", "end_logits": "unstack:1"}
        tensors = {name: graph.get_tensor_by_name(tensor) for name, tensor in wanted.items()}
        with tf.compat.v1.Session(graph=graph) as session:
            logits = iterator_sess_run(
                session, graph.get_operation_by_name("MakeIterator"), reader.feed(32), tensors
            )
        metric = SquadF1()
        metric.update(*to_answers((logits, parse_label_file(reader.label_file))))
        return metric.result()

    quantizer = Quantization("./reader.yaml")
    loader = quantizer.dataloader([((reader.file, 8), None)], collate_fn=lambda samples: samples[0])
    made = quantizer(reader.graph, q_dataloader=loader, eval_func=f1)
    write_graph(made.as_graph_def(), "written/reader.pb")
    result = quantizer.result
    assert result is not None
    assert result.met, str(result)
    assert result.baseline.score is not None
    assert result.baseline.score.value == pytest.approx(f1(reader.graph))
    assert result.best.score is not None
    assert result.best.score.value == pytest.approx(f1(read_graph("written/reader.pb")), abs=1e-3)
    tried = [(name, scheme) for trial in result.trials for name, scheme in trial.plan.items()]
    first = [scheme for name, scheme in tried if name.startswith("bert/encoder/layer_0/")]
    assert first
    assert all(scheme.dtype == "fp32" for scheme in first)
    assert any(not scheme.is_float for _, scheme in tried)


# -- a classifier: data loaders and a metric of the YAML file ------------------------------------------------

CLASSIFIER = """
model:
  name: bert
  framework: tensorflow
  inputs: input_ids, input_mask, segment_ids
  outputs: logits
evaluation:
  accuracy:
    metric:
      topk: 1
tuning:
  accuracy_criterion:
    relative: 0.01
"""


class Rows:
    """Samples of a GLUE task as the graph takes them, with labels that may count from another number."""

    def __init__(self, model: Path, data: Path, rows: int, length: int, shift: int = 0) -> None:
        from octune.tasks import load_task

        task = load_task("sst-2", data, tokenizer=str(model), max_length=length)
        self.samples: list[Any] = []
        for inputs, labels in task.evaluation:
            arrays = [np.pad(inputs[name], ((0, 0), (0, length - inputs[name].shape[1]))) for name in inputs]
            by_name = dict(zip(inputs, arrays, strict=True))
            order = ("input_ids", "attention_mask", "token_type_ids")
            self.samples += [
                (tuple(by_name[name][row] for name in order), labels[row] + shift)
                for row in range(len(labels))
            ]
        self.samples = self.samples[:rows]

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> Any:
        return self.samples[index]


def tune_classifier(model: Path, rows: Rows, quantizer: Quantization) -> octune.Result:
    graph = load_example("tensorflow/bert_squad/model.py").classifier_graph(model)
    made = quantizer(
        graph, q_dataloader=quantizer.dataloader(rows, 8), eval_dataloader=quantizer.dataloader(rows, 16)
    )
    assert isinstance(made, tf.Graph)
    assert made.as_graph_def().node
    assert quantizer.result is not None
    return quantizer.result


@pytest.fixture(scope="module")
def classifier(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("classifier")
    data = zoo.glue(folder / "glue", "sst-2")
    return zoo.classifier(folder / "model", "sst-2", data), data


@pytest.fixture
def conf(tmp_path: Path) -> Path:
    (tmp_path / "conf.yaml").write_text(CLASSIFIER)
    return tmp_path / "conf.yaml"


@pytest.mark.slow
def test_loaders_and_the_metric_of_the_file(classifier: tuple[Path, Path], conf: Path) -> None:
    result = tune_classifier(classifier[0], Rows(*classifier, rows=64, length=24), Quantization(str(conf)))
    assert result.met, str(result)
    assert result.baseline.score is not None
    assert result.baseline.score.value > 0.9


@pytest.mark.shared
@pytest.mark.slow
def test_a_real_classifier(shared: Path, conf: Path) -> None:
    model = shared / "models/minilm-l6-sst2"
    result = tune_classifier(model, Rows(model, shared / "data/glue", 128, 64), Quantization(conf))
    assert result.met, str(result)
    assert most_int8(result) > 20, str(result)


class Hits:
    """A metric of LPOT's kind."""

    def __init__(self, times: float = 1.0) -> None:
        self.times, self.right = times, []

    def update(self, preds: Any, labels: Any) -> None:
        self.right += (np.argmax(preds, axis=1) == labels).tolist()

    def reset(self) -> None:
        self.right = []

    def result(self) -> float:
        return self.times * float(np.mean(self.right))


class OneLess:
    """A step of LPOT's kind."""

    def __call__(self, sample: Any) -> Any:
        predictions, labels = sample
        return predictions, [label - 1 for label in labels]


@pytest.mark.slow
def test_a_metric_and_a_step_of_the_users_own(classifier: tuple[Path, Path], conf: Path) -> None:
    quantizer = Quantization(conf)
    quantizer.metric("hits", Hits, times=100.0)
    quantizer.postprocess("one_less", OneLess)
    result = tune_classifier(classifier[0], Rows(*classifier, rows=64, length=24, shift=1), quantizer)
    assert result.baseline.score is not None
    assert result.baseline.score.value > 90
    with pytest.raises(octune.OctuneError, match=r"has no update and no result"):
        quantizer.metric("no metric", OneLess)


@pytest.mark.slow
def test_a_step_that_the_file_names(classifier: tuple[Path, Path], tmp_path: Path) -> None:
    file = tmp_path / "conf.yaml"
    steps = "    postprocess:\n      transform:\n        LabelShift: 1\n"
    file.write_text(CLASSIFIER.replace("tuning:\n", f"{steps}tuning:\n"))
    result = tune_classifier(
        classifier[0], Rows(*classifier, rows=64, length=24, shift=1), Quantization(file)
    )
    assert result.baseline.score is not None
    assert result.baseline.score.value > 0.9


@pytest.mark.slow
def test_performance_only_skips_scoring_and_says_so(classifier: tuple[Path, Path], tmp_path: Path) -> None:
    file = tmp_path / "conf.yaml"
    file.write_text(CLASSIFIER + "  exit_policy:\n    performance_only: true\n")
    graph = load_example("tensorflow/bert_squad/model.py").classifier_graph(classifier[0])
    quantizer = Quantization(file)
    loader = quantizer.dataloader(Rows(*classifier, rows=16, length=24), 8)
    with pytest.warns(UserWarning, match=r"nothing is known of its accuracy"):
        assert isinstance(quantizer(graph, q_dataloader=loader), tf.Graph)
    with pytest.raises(CriterionError, match=r"performance_only"):
        Quantization(file, strict=True)(graph, q_dataloader=loader)


# -- SQuAD ---------------------------------------------------------------------------------------------------


def results_of(windows: Any, names: Any) -> list[Any]:
    """Logits that say the answer that is in the file, for every window that holds it."""
    rows = []
    for number, window in enumerate(windows):
        question = names[window.question]
        begin = question.context.index(question.answers[0])
        hit = (window.offsets[:, 0] == begin) & (window.offsets[:, 0] >= 0)
        start = np.where(hit, 9.0, 0.0)
        rows.append(
            load_example("tensorflow/bert_squad/records.py").RawResult(1_000_000_000 + number, start, start)
        )
    return rows


def test_the_two_ways_to_make_the_transform_agree(made_up: dict[str, Any]) -> None:
    labels = made_up["data"] / "dev-v1.1.json"
    from_files = SquadV1PostTransform(
        str(labels), made_up["model"] / "vocab.txt", 20, LENGTH, 16, 30, True, 8
    )
    windows, questions = from_files._features, from_files._examples
    results = results_of(windows, questions)
    answers, label = from_files((results, parse_label_file(labels)))
    assert answers == {question.id: question.answers[0] for question in questions}
    arrays = [
        np.array([row.unique_id for row in results]),
        [row.start_logits for row in results],
        [row.end_logits for row in results],
    ]
    assert SquadV1PostTransform(questions, windows, 20, 30, True)((arrays, label)) == (answers, label)
    f1 = SquadF1()
    f1.update(answers, label)
    assert f1.result() == 100
    f1.reset()
    f1.update({}, label)
    assert f1.result() == 0  # a question without an answer counts, as in the official script
    f1.reset()
    f1.update(["the Denver Broncos", "Rome"], [["Denver Broncos"], "Paris"])
    assert f1.result() == pytest.approx(50)
    with pytest.raises(
        EvaluationError, match=r"results for 3 features, but \d+ features that .* doc_stride 8"
    ):
        from_files((results[:3], label))


def test_long_contexts_are_cut_every_so_many_tokens(tmp_path: Path, made_up: dict[str, Any]) -> None:
    """As google-research does: a window starts every doc_stride tokens, and an answer only where a window
    shows most around it.
    """
    from octune.compat.lpot.features import SteppedWindows
    from octune.tasks.squad_answers import Question, SpanRules

    question = Question("q", "where is he ?", " ".join("abcdefghijklmnopqrst"), ("c",))
    windows = SteppedWindows.of(
        [question], made_up["model"] / "vocab.txt", 15, 3, 4, SpanRules(), lower=True
    ).windows
    texts = [[question.context[a:b] for a, b in window.offsets if a >= 0] for window in windows]
    assert ["".join(text) for text in texts] == ["abcdefghi", "efghijklm", "ijklmnopq", "mnopqrst"]
    allowed = [
        "".join(question.context[a:b] for (a, b), ok in zip(w.offsets, w.starts, strict=True) if ok)
        for w in windows
    ]
    assert allowed == ["abcdefg", "hijk", "lmno", "pqrst"]
    # [CLS], three tokens of the question, [SEP], nine, [SEP]
    assert len(windows[0].tokens["input_ids"]) == 15


class Feature:
    """A feature as google-research's code makes it."""

    def __init__(
        self,
        unique_id: int,
        example_index: int,
        tokens: list[str],
        words: dict[int, int],
        best: dict[int, bool],
    ) -> None:
        self.unique_id, self.example_index, self.tokens = unique_id, example_index, tokens
        self.token_to_orig_map, self.token_is_max_context = words, best


class Example:
    def __init__(self, qas_id: str, doc_tokens: list[str]) -> None:
        self.qas_id, self.doc_tokens = qas_id, doc_tokens


def test_features_of_google_research_are_taken_as_they_are() -> None:
    example = Example("q1", ["He", "lived", "in", '"Málaga"', "then."])
    tokens = ["[CLS]", "where", "[SEP]", "he", "lived", "in", '"', "mala", "##ga", '"', "then", ".", "[SEP]"]
    words = {3: 0, 4: 1, 5: 2, 6: 3, 7: 3, 8: 3, 9: 3, 10: 4, 11: 4}
    first = Feature(7, 0, tokens, words, dict.fromkeys(words, True))
    second = Feature(8, 0, tokens, words, dict.fromkeys(words, False))
    start, end = np.zeros(20), np.zeros(20)
    start[7], end[8], start[19] = 5, 5, 9  # the highest logit is on padding, and does not count

    class Result:
        def __init__(self, unique_id: int, factor: float) -> None:
            self.unique_id, self.start_logits, self.end_logits = (
                unique_id,
                list(start * factor),
                list(end * factor),
            )

    transform = SquadV1PostTransform([example], [first, second], 20, 30, True)
    # The second window is surer, but shows less around the answer.
    answers, label = transform(([Result(7, 1), Result(8, 2)], {"q1": ["Malaga", "Málaga"]}))
    assert answers == {"q1": "Málaga"}
    f1 = SquadF1()
    f1.update(answers, label)
    assert f1.result() == 100


@pytest.mark.parametrize(
    ("text", "pieces", "found"),
    [
        ("(Denver,", "denver", "Denver"),
        ("$24–10.", "24–10", "24–10"),
        ("Málaga's", "malaga", "Málaga"),
        ("abc", "xyz", "abc"),
        ("a", "", "a"),
    ],
)
def test_words_are_cut_where_their_pieces_end(text: str, pieces: str, found: str) -> None:
    assert words_of(text, pieces) == found


# -- graphs and data -----------------------------------------------------------------------------------------


def test_graphs_run_to_the_end_of_their_iterator_and_are_written(
    made_up: dict[str, Any], tmp_path: Path
) -> None:
    reader = Reader.of(made_up["model"], made_up["data"], tmp_path, LENGTH)
    write_graph(reader.graph.as_graph_def(), tmp_path / "deep" / "graph.pb")
    graph = read_graph(str(tmp_path / "deep/graph.pb"))
    feed = reader.feed(40)
    with tf.compat.v1.Session(graph=graph) as session:
        ids = iterator_sess_run(session, "MakeIterator", feed, "IteratorGetNext:3")
        pair = iterator_sess_run(
            session, "MakeIterator", feed, ["IteratorGetNext:3", "unstack:0"], iteration=2
        )
        named = iterator_sess_run(session, "MakeIterator", feed, {"start": "unstack:0"}, 1)
        with pytest.raises(DataError, match=r"returned no batch"):
            iterator_sess_run(session, "MakeIterator", feed, "unstack:0", iteration=0)
    assert ids.tolist() == [1_000_000_000 + number for number in range(zoo.DEV)]
    assert [array.shape for array in pair] == [(80,), (80, LENGTH)]
    assert named["start"].shape == (40, LENGTH)
    with pytest.raises(ModelError, match=r"needs a GraphDef"):
        write_graph("graph", tmp_path / "x.pb")


def test_data_loaders(conf: Path) -> None:
    quantizer = Quantization(conf)
    data = quantizer.dataset("dummy", shape=(5, 3), low=0, high=1, label=True)
    batches = list(quantizer.dataloader(data, batch_size=2))
    assert [inputs.shape for inputs, _ in batches] == [(2, 3), (2, 3), (1, 3)]
    assert all(inputs.min() >= 0 and inputs.max() <= 1 for inputs, _ in batches)
    assert len(list(quantizer.dataloader(data, batch_size=2, last_batch="discard"))) == 2
    assert len(list(quantizer.dataloader(data, batch_size=2, sampler=[4, 0, 1]))) == 2
    picked = list(quantizer.dataloader(list(range(9)), batch_sampler=[[1, 2, 3], [8]], collate_fn=sum))
    assert picked == [6, 8]
    assert [list(batch) for batch in quantizer.dataloader(iter([1, 2, 3]), batch_size=2)] == [[1, 2], [3]]
    several = quantizer.dataset("dummy", shape=[(2, 3), (2, 4)], dtype="int64")
    assert [array.shape for array in next(iter(quantizer.dataloader(several, 2)))] == [(2, 3), (2, 4)]
    with pytest.raises(UnsupportedError, match=r"num_workers"):
        quantizer.dataloader(data, num_workers=2)
    with pytest.raises(DataError, match=r"last_batch must be"):
        quantizer.dataloader(data, last_batch="drop")
    with pytest.raises(UnsupportedError, match=r"dummy, bert, GLUE and ImageFolder are"):
        quantizer.dataset("COCORecord", root="x")
    with pytest.raises(DataError, match=r"dummy cannot be made"):
        quantizer.dataset("dummy")


def test_data_sets_by_name(classifier: tuple[Path, Path]) -> None:
    import torch
    from torch.utils.data import TensorDataset

    quantizer = Quantization(
        {"model": {"name": "bert", "framework": "pytorch"}, "tuning": {"exit_policy": {"max_trials": 1}}}
    )
    rows = quantizer.dataset("GLUE", str(classifier[1]), str(classifier[0]), task="sst-2", max_seq_length=24)
    assert len(rows) == zoo.DEV
    inputs, labels = next(iter(quantizer.dataloader(rows, batch_size=4)))
    assert inputs["input_ids"].shape == (4, 24)
    assert labels.shape == (4,)
    columns = TensorDataset(*(torch.full((6, 2), number) for number in range(4)))
    inputs, labels = next(
        iter(quantizer.dataloader(quantizer.dataset("bert", columns, "mrpc", "roberta"), batch_size=3))
    )
    assert set(inputs) == {"input_ids", "attention_mask"}
    assert labels.tolist() == [[3, 3]] * 3
