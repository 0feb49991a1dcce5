"""Run by test_consumers.py in an environment of other libraries, which never sees Octune: loads an exported
folder as its users do, and prints what it answers.

    python consumers.py optimum_onnx FOLDER < sentences.json
"""

from __future__ import annotations

import json
import sys
from typing import Any


def classify(model: Any, folder: str, sentences: list[str]) -> list[Any]:
    from transformers import AutoTokenizer

    encoded = AutoTokenizer.from_pretrained(folder)(sentences, padding=True, return_tensors="pt")
    answers: list[Any] = model(**encoded).logits.tolist()
    return answers


def optimum_onnx(folder: str, sentences: list[str]) -> list[Any]:
    from optimum.onnxruntime import ORTModelForSequenceClassification

    return classify(ORTModelForSequenceClassification.from_pretrained(folder), folder, sentences)


def optimum_openvino(folder: str, sentences: list[str]) -> list[Any]:
    from optimum.intel import OVModelForSequenceClassification

    settings = {"INFERENCE_PRECISION_HINT": "f32"}
    model = OVModelForSequenceClassification.from_pretrained(folder, subfolder="openvino", ov_config=settings)
    return classify(model, folder, sentences)


def sentence_transformers(folder: str, sentences: list[str]) -> list[Any]:
    from sentence_transformers import SentenceTransformer

    embeddings: list[Any] = SentenceTransformer(folder, backend="onnx").encode(sentences).tolist()
    return embeddings


if __name__ == "__main__":
    consumer, folder = sys.argv[1:]
    answers = globals()[consumer](folder, json.load(sys.stdin))
    assert "octune" not in sys.modules
    print(json.dumps(answers))
