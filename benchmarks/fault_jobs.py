"""Small real jobs that are hurt: scikit-learn's digits and a perceptron, for each framework, as a YAML file
beside its model and its data.

    project(folder, "onnx")                                 # writes conf.yaml and what it names
    start(folder, "tune", "conf.yaml", "--workspace", "ws")     # the command in a process of its own
    scored(folder)                                          # every scoring of a candidate, by its answers

The winner is chosen by its score, so that no timing has a say in it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import warnings
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import yaml

import octune

__all__ = ["FRAMEWORKS", "journal", "project", "rewrite", "scored", "settings", "start"]

FRAMEWORKS = ("pytorch", "tensorflow", "onnx")
MODELS = {"pytorch": "fault_model:build", "tensorflow": "model.pb", "onnx": "model.onnx"}
ENVIRONMENT = {"OCTUNE_COST_CACHE": "off", "OMP_NUM_THREADS": "1"}
SIZES = (64, 96, 64, 10)

MODULE = '''
import hashlib, os, time
import numpy as np


def build():
    import torch
    from torch import nn

    weights = np.load("weights.npz")
    layers = []
    for number in range(len(weights.files) // 2):
        layer = nn.Linear(*weights[f"w{number}"].shape)
        layer.weight.data = torch.from_numpy(weights[f"w{number}"].T.copy())
        layer.bias.data = torch.from_numpy(weights[f"b{number}"])
        layers += [layer, nn.ReLU()]
    return nn.Sequential(*layers[:-1]).eval()


def right(predictions, labels):
    """Which answers are right; every call is noted by what was answered."""
    predictions = np.asarray(predictions)
    digest = hashlib.sha256(predictions.tobytes()).hexdigest()[:16]
    with open("calls.txt", "a") as file:
        file.write(f"{os.getpid()} {len(labels)} {digest}\\n")
    time.sleep(float(os.environ.get("SLOW", "0")))
    return (predictions.argmax(1) == np.asarray(labels)).astype(float)


def likely(predictions, labels):
    """How likely the right answers are: no two plans score the same."""
    right(predictions, labels)
    powers = np.exp(predictions - predictions.max(1, keepdims=True))
    return (powers / powers.sum(1, keepdims=True))[np.arange(len(labels)), np.asarray(labels)].astype(float)
'''


def settings(**sections: Any) -> dict[str, Any]:
    """The configuration of a job with a few trials; sections are merged into it."""
    made: dict[str, Any] = {
        "calibration": {"data": {"arrays": "digits.npz", "part": "calibration"}, "samples": 64},
        # all rows are one batch, so each scoring is one call of the metric
        "evaluation": {
            "data": {"arrays": "digits.npz", "part": "evaluation"},
            "metric": "fault_model:likely",
            "batch_size": 2000,
        },
        "quantization": {"activation": {"algorithm": "minmax"}},
        "criterion": {"absolute": -2.0},  # cannot be met: all is tried, and the closest is handed back
        "performance": {"compile": "never", "iterations": 1, "warmup": 0, "threads": 1, "batch_size": 32},
        "tuning": {"strategy": "exhaustive", "max_trials": 5, "objective": "modelsize"},
    }
    for name, section in sections.items():
        made[name] = {**made.get(name, {}), **section} if isinstance(section, dict) else section
    return made


def project(folder: Path, framework: str, sizes: tuple[int, ...] = SIZES, **sections: Any) -> Path:
    """Write the model, its data and ``conf.yaml``; returns the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    weights, x, y = _trained(sizes)
    np.savez(folder / "weights.npz", **weights)
    np.savez(folder / "digits.npz", x=x, label=y)
    (folder / "fault_model.py").write_text(MODULE)
    rewrite(folder, framework)
    made = settings(**{"model": {"path": MODELS[framework]}, **sections})
    (folder / "conf.yaml").write_text(yaml.safe_dump(made))
    return folder


def rewrite(folder: Path, framework: str) -> None:
    """Write the model again, of the weights beside it."""
    weights = dict(np.load(folder / "weights.npz"))
    if framework == "onnx":
        _onnx(folder / MODELS[framework], weights)
    elif framework == "tensorflow":
        _tensorflow(folder / MODELS[framework], weights)


def start(folder: Path, *words: str, **environment: str) -> subprocess.Popen[str]:
    """``octune`` with these words, in that folder; it leads a process group of its own."""
    source = str(Path(octune.__file__).parents[1])
    paths = os.pathsep.join(filter(None, [source, os.environ.get("PYTHONPATH")]))
    return subprocess.Popen(
        [sys.executable, "-m", "octune", *words],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": paths, "OCTUNE_COST_CACHE": "off", "OMP_NUM_THREADS": "1"}
        | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def journal(workspace: Path) -> list[dict[str, Any]]:
    """The whole records of a journal; none if there is no journal yet."""
    path = workspace / "journal.jsonl"
    lines = path.read_bytes().splitlines(keepends=True) if path.exists() else []
    return [json.loads(line) for line in lines if line.endswith(b"\n")]


def scored(folder: Path) -> list[tuple[str, str]]:
    """Every scoring of a candidate: the process, and a digest of what the model answered. fp32 is the first
    that is scored, and again whenever a process tries whether its job can work; and on a part of the data.
    """
    path = folder / "calls.txt"
    found = [line.split() for line in path.read_text().splitlines()] if path.exists() else []
    return [(pid, digest) for pid, count, digest in found if count == found[0][1] and digest != found[0][2]]


@cache
def _trained(sizes: tuple[int, ...]) -> tuple[dict[str, Any], Any, Any]:
    from sklearn.datasets import load_digits
    from sklearn.neural_network import MLPClassifier

    images, labels = load_digits(return_X_y=True)
    x = (images / 16).astype(np.float32)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it has not converged, and is good enough
        found = MLPClassifier(sizes[1:-1], max_iter=30, random_state=0).fit(x[:1200], labels[:1200])
    weights = {f"w{number}": matrix.astype(np.float32) for number, matrix in enumerate(found.coefs_)}
    weights |= {f"b{number}": vector.astype(np.float32) for number, vector in enumerate(found.intercepts_)}
    return weights, x, labels.astype(np.int64)


def _onnx(path: Path, weights: dict[str, Any]) -> None:
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    nodes, last, final = [], "x", len(weights) // 2 - 1
    for number in range(final + 1):
        end = "logits" if number == final else f"sum{number}"
        nodes.append(helper.make_node("MatMul", [last, f"w{number}"], [f"product{number}"], f"dense{number}"))
        nodes.append(helper.make_node("Add", [f"product{number}", f"b{number}"], [end], f"add{number}"))
        last = end
        if number < final:
            nodes.append(helper.make_node("Relu", [end], [f"relu{number}"], f"relu{number}"))
            last = f"relu{number}"
    graph = helper.make_graph(
        nodes,
        "digits",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", SIZES[0]])],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["n", SIZES[-1]])],
        [numpy_helper.from_array(array, name) for name, array in weights.items()],
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(made, str(path))


def _tensorflow(path: Path, weights: dict[str, Any]) -> None:
    import tensorflow as tf

    graph, final = tf.Graph(), len(weights) // 2 - 1
    with graph.as_default():
        value = tf.compat.v1.placeholder(tf.float32, [None, SIZES[0]], name="x")
        for number in range(final + 1):
            value = tf.matmul(value, tf.constant(weights[f"w{number}"]), name=f"dense{number}")
            value = tf.nn.bias_add(value, tf.constant(weights[f"b{number}"]), name=f"add{number}")
            if number < final:
                value = tf.nn.relu(value, name=f"relu{number}")
        tf.identity(value, name="logits")
    path.write_bytes(graph.as_graph_def().SerializeToString())
