"""A zoo that fits into a test: small BERTs, trained in seconds on made-up GLUE and SQuAD files of the
official form.

    model = classifier(folder / "model", "sst-2")      # a Hugging Face folder with a tokenizer
    data = glue(folder / "glue", "sst-2")              # train.tsv, dev.tsv
    model, data = reader(folder / "model"), squad(folder / "squad")

What is to be learned is easy: a sentence is positive if it says so, and the answer is the place that the
context names.
"""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from octune.tasks import load_task
from tests.once import once

GOOD, BAD = ("good", "lovely", "fine"), ("bad", "awful", "dull")
PLACES = ("paris", "london", "berlin", "rome", "madrid", "vienna")
FILLER = (
    "the",
    "a",
    "film",
    "story",
    "was",
    "it",
    "of",
    "and",
    "in",
    "long",
    "where",
    "is",
    "man",
    "lived",
    "he",
    "said",
)
TRAIN, DEV = 192, 96
# The official header of each .tsv file; CoLA's has none. {text}, {other} and {label} are filled in.
TSV: dict[str, tuple[str, str]] = {
    "cola": ("", "gj04\t{label}\t\t{text}"),
    "sst-2": ("sentence\tlabel", "{text}\t{label}"),
    "mrpc": ("Quality\t#1 ID\t#2 ID\t#1 String\t#2 String", '{label}\t1\t2\t{text}\t"{other}'),
    "sts-b": (
        "index\tgenre\tfilename\tyear\told_index\tsource1\tsource2\tsentence1\tsentence2\tscore",
        "0\tmain\tx\t2012\t1\tnone\tnone\t{text}\t{other}\t{label}",
    ),
}
FOLDERS = {"cola": "CoLA", "sst-2": "SST-2", "mrpc": "MRPC", "sts-b": "STS-B"}


def tokenizer(folder: Path) -> None:
    """A BERT tokenizer of these words and of single characters, saved as vocab.txt and tokenizer.json."""
    from transformers import BertTokenizerFast

    folder.mkdir(parents=True, exist_ok=True)
    characters = "abcdefghijklmnopqrstuvwxyz0123456789.,?\"'"
    words = [
        "[PAD]",
        "[UNK]",
        "[CLS]",
        "[SEP]",
        "[MASK]",
        *characters,
        *(f"##{c}" for c in characters),
        *GOOD,
        *BAD,
        *PLACES,
        *FILLER,
    ]
    (folder / "vocab.txt").write_text("\n".join(words) + "\n")
    BertTokenizerFast.from_pretrained(str(folder)).save_pretrained(folder)


def sentence(chance: random.Random, extra: str) -> str:
    words = chance.choices(FILLER, k=chance.randint(4, 12))
    words.insert(chance.randrange(len(words)), extra)
    return " ".join(words)


def glue(folder: Path, task: str) -> Path:
    """The task's official files, made up, in ``folder``/CoLA or the like."""
    chance = random.Random(task)
    place = folder / FOLDERS[task]
    place.mkdir(parents=True, exist_ok=True)
    header, form = TSV[task]
    for name, rows in (("train", TRAIN), ("dev", DEV)):
        lines = [header] if header else []
        for _ in range(rows):
            label = chance.randrange(2)
            word = chance.choice(GOOD if label else BAD)
            shown = f"{label * 4 + chance.random():.3f}" if task == "sts-b" else label
            lines.append(form.format(text=sentence(chance, word), other=sentence(chance, word), label=shown))
        (place / f"{name}.tsv").write_text("\n".join(lines) + "\n")
    return folder


def squad(folder: Path) -> Path:
    """train-v1.1.json and dev-v1.1.json with questions whose answer is the only place in their context."""
    chance = random.Random("squad")
    folder.mkdir(parents=True, exist_ok=True)
    for name, count in (("train", TRAIN), ("dev", DEV)):
        paragraphs = []
        for number in range(count):
            place = chance.choice(PLACES).capitalize()
            context = sentence(chance, place) + "."
            answer = {"text": place, "answer_start": context.index(place)}
            entry = {"id": f"{name}-{number}", "question": "where is he?", "answers": [answer]}
            paragraphs.append({"context": context, "qas": [entry]})
        data = {"version": "1.1", "data": [{"title": "made up", "paragraphs": paragraphs}]}
        (folder / f"{name}-v1.1.json").write_text(json.dumps(data))
    return folder


def ner(folder: Path) -> Path:
    """train.txt and dev.txt in which places and lovely things are entities."""
    chance = random.Random("ner")
    folder.mkdir(parents=True, exist_ok=True)
    for name, count in (("train", TRAIN), ("dev", DEV)):
        lines = []
        for _ in range(count):
            for word in sentence(chance, chance.choice(PLACES)).split():
                lines.append(f"{word} {'B-LOC' if word in PLACES else 'O'}")
            lines.append("")
        (folder / f"{name}.txt").write_text("\n".join(lines) + "\n")
    return folder


def beir(folder: Path) -> Path:
    """A corpus in which one document after another names the word that a query asks for."""
    chance = random.Random("beir")
    (folder / "qrels").mkdir(parents=True, exist_ok=True)
    words = (*GOOD, *BAD, *PLACES)
    corpus = [{"_id": f"d{n}", "title": "", "text": sentence(chance, words[n % 12])} for n in range(72)]
    queries = [{"_id": f"q{n}", "text": word} for n, word in enumerate(words)]
    for name, rows in (("corpus", corpus), ("queries", queries)):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    judged = [f"q{n % 12}\td{n}\t1" for n in range(48)]
    (folder / "qrels" / "test.tsv").write_text("\n".join(["query-id\tcorpus-id\tscore", *judged]) + "\n")
    return folder


def first_questions(source: Path, folder: Path, count: int) -> Path:
    """The first questions of a SQuAD folder, so that a test need not tokenize all of it."""
    folder.mkdir(parents=True, exist_ok=True)
    for stem in ("train", "dev"):
        data = json.loads(next(iter(sorted(source.glob(f"{stem}*v1.1*.json")))).read_text())
        paragraphs = [paragraph for article in data["data"] for paragraph in article["paragraphs"]]
        kept, left = [], count
        for paragraph in paragraphs:
            kept.append({**paragraph, "qas": paragraph["qas"][:left]})
            left -= len(kept[-1]["qas"])
            if not left:
                break
        (folder / f"{stem}-v1.1.json").write_text(
            json.dumps({"version": "1.1", "data": [{"title": "part", "paragraphs": kept}]})
        )
    return folder


def _config(**options: Any) -> Any:
    from transformers import BertConfig

    sizes = {
        "hidden_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "intermediate_size": 192,
        "vocab_size": 160,
    }
    return BertConfig(**sizes, max_position_embeddings=512, **options)


def _trained(model: Any, steps: Any) -> Any:
    import torch

    model.train()
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    for inputs in steps:
        optimizer.zero_grad()
        model(**inputs).loss.backward()
        optimizer.step()
    return model.eval()


def _tensors(inputs: Any) -> dict[str, Any]:
    import torch

    return {name: torch.as_tensor(array).long() for name, array in inputs.items()}


def classifier(folder: Path, task: str, data: Path) -> Path:
    """A Hugging Face folder of a BERT that was trained on the made-up task."""
    return _made_once(folder, f"classifier {task}", lambda place: _train_classifier(place, task, data))


def reader(folder: Path, data: Path, **options: Any) -> Path:
    """A Hugging Face folder of a BERT that was trained to find the place."""
    return _made_once(folder, f"reader {options}", lambda place: _train_reader(place, data, **options))


def tagger(folder: Path, data: Path) -> Path:
    """A Hugging Face folder of a BERT that was trained to tag the places."""
    return _made_once(folder, "tagger", lambda place: _train_tagger(place, data))


def encoder(folder: Path) -> Path:
    """A Hugging Face folder of a BERT without a head, which nobody has trained."""
    return _made_once(folder, "encoder", _make_encoder)


def _made_once(folder: Path, key: str, make: Callable[[Path], None]) -> Path:
    """Equal models are trained once: data and training are the same every time."""
    shutil.copytree(once(f"zoo {key}", make), folder, dirs_exist_ok=True)
    return folder


def _train_classifier(folder: Path, task: str, data: Path) -> None:
    import torch
    from transformers import BertForSequenceClassification

    torch.manual_seed(0)
    tokenizer(folder)
    regression = task == "sts-b"
    model = BertForSequenceClassification(_config(num_labels=1 if regression else 2, hidden_dropout_prob=0.0))
    batches = load_task(task, data, tokenizer=folder, calibration_batch_size=16).calibration

    def steps() -> Any:
        for inputs, label in [batch for _ in range(3) for batch in batches]:
            labels = torch.as_tensor(label)
            yield _tensors(inputs) | {"labels": labels.float() if regression else labels.long()}

    _trained(model, steps()).save_pretrained(folder)


def _train_reader(folder: Path, data: Path, **options: Any) -> None:
    import torch
    from transformers import AutoTokenizer, BertForQuestionAnswering

    torch.manual_seed(0)
    tokenizer(folder)
    model = BertForQuestionAnswering(_config(hidden_dropout_prob=0.0, **options))
    places = AutoTokenizer.from_pretrained(str(folder)).convert_tokens_to_ids(list(PLACES))
    batches = load_task("squad", data, tokenizer=folder, max_length=48, calibration_batch_size=16).calibration

    def steps() -> Any:
        for inputs, _ in [batch for _ in range(4) for batch in batches]:
            tensors = _tensors(inputs)
            answer = torch.isin(tensors["input_ids"], torch.tensor(places)).int().argmax(dim=1)
            yield tensors | {"start_positions": answer, "end_positions": answer}

    _trained(model, steps()).save_pretrained(folder)


def _train_tagger(folder: Path, data: Path) -> None:
    import torch
    from transformers import BertForTokenClassification

    torch.manual_seed(0)
    tokenizer(folder)
    names = {0: "O", 1: "I-LOC", 2: "B-LOC"}
    numbers = {name: number for number, name in names.items()}
    model = BertForTokenClassification(_config(hidden_dropout_prob=0.0, id2label=names, label2id=numbers))
    batches = load_task(
        "ner", data, tokenizer=folder, label2id=numbers, calibration_batch_size=16
    ).calibration

    def steps() -> Any:
        for inputs, tags in [batch for _ in range(3) for batch in batches]:
            labels = torch.full(inputs["input_ids"].shape, -100)
            for row, tagged in enumerate(tags):
                for place, tag in enumerate(tagged):
                    labels[row, place] = numbers.get(tag, -100)
            yield _tensors(inputs) | {"labels": labels}

    _trained(model, steps()).save_pretrained(folder)


def _make_encoder(folder: Path) -> None:
    import torch
    from transformers import BertModel

    torch.manual_seed(0)
    tokenizer(folder)
    BertModel(_config()).eval().save_pretrained(folder)
