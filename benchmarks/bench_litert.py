"""A frozen graph as a LiteRT model with int8 weights (dynamic range), for one shape of its inputs, in a
process of its own.

    python bench_litert.py fp32.pb int8.tflite logits 1,128 input_ids input_mask segment_ids

It is a command because converting takes many times the memory of the model, and does not free it.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import tensorflow as tf


def main(source: str, target: str, output: str, shape: str, *inputs: str) -> None:
    graph_def = tf.compat.v1.GraphDef.FromString(Path(source).read_bytes())
    sizes = [int(size) for size in shape.split(",")]

    def call(*tensors: Any) -> Any:
        fed = {f"{name}:0": tensor for name, tensor in zip(inputs, tensors, strict=True)}
        return tf.graph_util.import_graph_def(graph_def, input_map=fed, return_elements=[f"{output}:0"])[0]

    function = tf.function(
        call, input_signature=[tf.TensorSpec(sizes, tf.int32, name=name) for name in inputs]
    )
    converter = tf.lite.TFLiteConverter.from_concrete_functions([function.get_concrete_function()])
    converter.optimizations = [tf.lite.Optimize.DEFAULT]
    Path(target).write_bytes(converter.convert())


if __name__ == "__main__":
    main(*sys.argv[1:])
