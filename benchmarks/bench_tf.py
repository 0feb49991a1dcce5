"""TensorFlow contenders: fp32 and bf16 of TensorFlow itself, Neural Compressor's int8, LiteRT's int8, and
Octune's.

The model is the frozen graph of ``examples/tensorflow/bert_squad``, with seeded random weights. Everything
that TensorFlow runs gets a session with the same settings, in a process of its own.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from bench_octune import calibrated
from bench_speed import Built, Contender
from bench_subject import POSITIONS, VOCABULARY, Inputs, Subject, text
from safetensors.numpy import save_file

from octune.backends.tensorflow.backend import TensorFlowBackend
from octune.backends.tensorflow.graph.worker import Worker
from octune.backends.terms import Settings

sys.path.append(str(Path(__file__).resolve().parents[1] / "examples" / "tensorflow" / "bert_squad"))
from model import classifier_graph

__all__ = ["COLUMNS", "CONTENDERS", "prepare"]

tf1 = tf.compat.v1
BASELINE, BF16, OCTUNE = "TensorFlow fp32", "TensorFlow bf16", "octune int8"
STREAMS, OWN_THREADS = "octune int8, streams", "octune int8, streams with own threads"
NEURAL_COMPRESSOR, LITERT = "neural-compressor int8", "LiteRT dynamic int8"
INPUTS, OUTPUT = ("input_ids", "input_mask", "segment_ids"), "logits"
# Every second layer of BERT-large: with all layers, the contenders together would need some 40 GB.
SIZES = {"bert-base": ("BERT-base", 12, 768), "bert-large": ("BERT-large's size", 12, 1024)}
HEAD = 64
SEED = 0


@dataclass
class Preparation:
    """One subject, and what several contenders share."""

    subject: Subject
    threads: int
    found: Any = None  # what Octune calibrated, for its second form
    seconds: float = 0.0

    @property
    def calibration(self) -> list[Inputs]:
        return self.subject.calibration

    @property
    def graph_def(self) -> Any:
        return self.subject.model.as_graph_def()  # not kept: BERT-large's is 1.3 GB


def prepare(name: str, quick: bool, threads: int) -> Preparation:
    """The graph with random weights, and TensorFlow's one pool of threads made as large as all may use."""
    tf.config.threading.set_intra_op_parallelism_threads(threads)
    tf.config.threading.set_inter_op_parallelism_threads(threads)
    title, layers, hidden = SIZES[name]
    layers = 2 if quick else layers
    with tempfile.TemporaryDirectory() as folder:
        _write_checkpoint(Path(folder), layers, hidden)
        graph = classifier_graph(folder)
    return Preparation(text(name, f"{title}, {layers} layers", graph, INPUTS, np.int32), threads)


def _write_checkpoint(folder: Path, layers: int, hidden: int) -> None:
    """A BERT classifier in Hugging Face's layout, drawn as that library draws one. GELU by tanh, as BERT had
    it: LiteRT has no erf.
    """
    config = {
        "hidden_act": "gelu_new",
        "num_hidden_layers": layers,
        "hidden_size": hidden,
        "num_attention_heads": hidden // HEAD,
    }
    (folder / "config.json").write_text(json.dumps(config))
    random = np.random.default_rng(SEED)
    weights: dict[str, Any] = {}

    def linear(name: str, inputs: int, outputs: int) -> None:
        weights[f"{name}.weight"] = 0.02 * random.standard_normal((outputs, inputs), dtype=np.float32)
        weights[f"{name}.bias"] = np.zeros(outputs, np.float32)

    def norm(name: str) -> None:
        weights[f"{name}.LayerNorm.weight"], weights[f"{name}.LayerNorm.bias"] = (
            np.ones(hidden, np.float32),
            np.zeros(hidden, np.float32),
        )

    for kind, rows in (("word", VOCABULARY), ("position", POSITIONS), ("token_type", 2)):
        weights[f"bert.embeddings.{kind}_embeddings.weight"] = 0.02 * random.standard_normal(
            (rows, hidden), dtype=np.float32
        )
    norm("bert.embeddings")
    for number in range(layers):
        layer = f"bert.encoder.layer.{number}"
        for part in ("query", "key", "value"):
            linear(f"{layer}.attention.self.{part}", hidden, hidden)
        linear(f"{layer}.attention.output.dense", hidden, hidden)
        linear(f"{layer}.intermediate.dense", hidden, 4 * hidden)
        linear(f"{layer}.output.dense", 4 * hidden, hidden)
        norm(f"{layer}.attention.output")
        norm(f"{layer}.output")
    linear("bert.pooler.dense", hidden, hidden)
    linear("classifier", hidden, 2)
    save_file(weights, folder / "model.safetensors")


# -- TensorFlow ----------------------------------------------------------------------------------------------


def _config(inter_op: int, intra_op: int, bf16: bool = False) -> Any:
    config = tf1.ConfigProto(inter_op_parallelism_threads=inter_op, intra_op_parallelism_threads=intra_op)
    if bf16:
        from tensorflow.core.protobuf.rewriter_config_pb2 import RewriterConfig

        config.graph_options.rewrite_options.auto_mixed_precision_onednn_bfloat16 = RewriterConfig.ON
    return config


def _session(graph: Any, preparation: Preparation, config: Any = None) -> Callable[[Inputs], Any]:
    """A session in a process of its own that has run once, so that its copies of the weights do not affect
    another contender.
    """
    worker = Worker(graph, config or _config(preparation.threads, preparation.threads))

    def run(inputs: Inputs) -> Any:
        return worker.run([f"{OUTPUT}:0"], {f"{name}:0": inputs[name] for name in INPUTS})[0]

    run(preparation.calibration[0])
    return run


def _fp32(preparation: Preparation) -> Built:
    return Built(_session(preparation.subject.model, preparation))


def _bf16(preparation: Preparation) -> Built:
    begun = time.perf_counter()
    run = _session(
        preparation.subject.model, preparation, _config(preparation.threads, preparation.threads, bf16=True)
    )
    return Built(run, time.perf_counter() - begun)


def _octune(preparation: Preparation) -> Built:
    begun = time.perf_counter()
    settings = Settings(INPUTS, (OUTPUT,), preparation.threads)
    found = preparation.found = calibrated(
        TensorFlowBackend(preparation.subject.model, settings), preparation.calibration
    )
    graph = found.backend.apply(found.plan, found.ranges)
    run = _session(graph, preparation)
    preparation.seconds = time.perf_counter() - begun
    return Built(run, preparation.seconds, [*found.remarks, _int8_ops(graph)])


def _octune_streams(preparation: Preparation) -> Built:
    """The same plan in the parts that are tried by default, in a session like all others."""
    found = preparation.found
    if found is None:
        raise RuntimeError(f"it is a form of {OCTUNE}, which could not be made")
    begun = time.perf_counter()
    finalist = next(iter(found.backend.finalists(found.plan, found.ranges, None)), None)
    if finalist is None:
        raise RuntimeError("nothing can be split")
    run = _session(finalist.model, preparation)
    return Built(run, preparation.seconds + time.perf_counter() - begun, [_int8_ops(finalist.model)])


def _octune_own_threads(preparation: Preparation) -> Built:
    """In as many parts as there are threads, in a session with one thread per op."""
    found, preparation.found = preparation.found, None  # it holds the weights
    if found is None:
        raise RuntimeError(f"it is a form of {OCTUNE}, which could not be made")
    begun, threads = time.perf_counter(), preparation.threads
    settings = Settings(INPUTS, (OUTPUT,), threads, extra={"streams": threads})
    backend = TensorFlowBackend(preparation.subject.model, settings)
    finalist = next(iter(backend.finalists(found.plan, found.ranges, None)), None)
    if finalist is None:
        raise RuntimeError("nothing can be split")
    graph = finalist.model
    del found, finalist, backend
    run = _session(graph, preparation, _config(threads, 1))
    return Built(run, preparation.seconds + time.perf_counter() - begun, [_int8_ops(graph)])


def _int8_ops(graph: Any) -> str:
    """What the graph computes in int8, and what stays around it."""
    kinds = Counter(op.type for op in graph.get_operations())
    named = {
        kind: count
        for kind, count in kinds.items()
        if "uantize" in kind or "MatMul" in kind or "LayerNorm" in kind
    }
    return "ops: " + ", ".join(f"{count} {kind}" for kind, count in sorted(named.items()))


# -- others --------------------------------------------------------------------------------------------------


def _neural_compressor(preparation: Preparation) -> Built:
    """Its static quantization of a frozen graph with default settings, in a process and a folder of its own:
    it leaves files behind.

    It keeps all activations in memory, so a large model may need more than the machine has: it then gets
    fewer rows.
    """
    batches, caveat = preparation.calibration, ""
    with tempfile.TemporaryDirectory() as folder:
        source, data, made = (Path(folder) / name for name in ("fp32.pb", "calibration.npz", "int8.pb"))
        source.write_bytes(preparation.graph_def.SerializeToString())
        while not made.exists():
            np.savez(data, **{name: np.concatenate([batch[name] for batch in batches]) for name in INPUTS})
            begun = time.perf_counter()
            try:
                _in_process(
                    "bench_neural_compressor.py", folder, made, source, data, made, str(preparation.threads)
                )
            except MemoryError:
                if len(batches) == 1:
                    raise
                batches = batches[: len(batches) // 2]
                caveat = (
                    f"calibrated on {len(batches)} batches of {len(preparation.calibration)}: with more "
                    "its process ran out of memory"
                )
        seconds = time.perf_counter() - begun
        graph_def = tf1.GraphDef.FromString(made.read_bytes())
    graph = tf.Graph()
    with graph.as_default():
        tf.import_graph_def(graph_def, name="")
    return Built(_session(graph, preparation), seconds, [_int8_ops(graph)], caveat)


def _litert(preparation: Preparation) -> Built:
    """One converted model for every shape, which suits it better than free sizes."""
    from ai_edge_litert.interpreter import Interpreter

    begun = time.perf_counter()
    interpreters: dict[tuple[int, ...], Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        source, made = Path(folder) / "fp32.pb", Path(folder) / "int8.tflite"
        source.write_bytes(preparation.graph_def.SerializeToString())
        for shape in {*preparation.subject.shapes.values(), preparation.subject.batch}:
            made.unlink(missing_ok=True)
            _in_process(
                "bench_litert.py", folder, made, source, made, OUTPUT, ",".join(map(str, shape)), *INPUTS
            )
            interpreters[shape] = Interpreter(
                model_content=made.read_bytes(), num_threads=preparation.threads
            )
            interpreters[shape].allocate_tensors()

    def run(inputs: Inputs) -> Any:
        interpreter = interpreters[inputs[INPUTS[0]].shape]
        for port in interpreter.get_input_details():
            interpreter.set_tensor(port["index"], inputs[port["name"]])
        interpreter.invoke()
        return interpreter.get_tensor(interpreter.get_output_details()[0]["index"])

    run(preparation.calibration[0])
    return Built(run, time.perf_counter() - begun)


def _in_process(script: str, folder: str, made: Path, *words: str | Path) -> None:
    """Runs a script that makes a file, in a process and a folder of its own."""
    command = [sys.executable, str(Path(__file__).with_name(script)), *map(str, words)]
    done = subprocess.run(
        command, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, check=False
    )
    if done.returncode == -signal.SIGKILL:
        raise MemoryError("its process was killed, as happens when memory runs out")
    if not made.exists():
        raise RuntimeError(
            f"it made nothing and ended with {done.returncode}: "
            f"{(done.stderr.strip().splitlines() or [''])[-1]}"
        )


# Contenders that need the most memory come first, while few others hold a copy of the weights.
CONTENDERS = (
    Contender(
        NEURAL_COMPRESSOR,
        _neural_compressor,
        needs=("neural_compressor", "pkg_resources"),
        install="pip install neural-compressor-tf 'setuptools<81'",
    ),
    Contender(LITERT, _litert, needs=("ai_edge_litert",), install="pip install ai-edge-litert"),
    Contender(BF16, _bf16),
    Contender(BASELINE, _fp32, exact=True),
    Contender(OCTUNE, _octune),
    Contender(STREAMS, _octune_streams),
    Contender(OWN_THREADS, _octune_own_threads),
)
COLUMNS = (BASELINE, BF16, NEURAL_COMPRESSOR, LITERT, OCTUNE, STREAMS, OWN_THREADS)
