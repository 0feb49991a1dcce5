"""TensorFlow models as ``.tflite`` files that follow a plan.

    file, int8 = to_litert(frozen, plan)

LiteRT's converter knows neither the int8 ops of stock TensorFlow nor a plan: it quantizes everything or, with
a list of exceptions, everything with int8 outputs too, which a plan does not have. So the fp32 model is
converted as it is, and the weights of the plan's int8 ops are put into the file in int8, one scale for each
output. The kernels then quantize the input of such an op row by row at run time: every static op becomes
dynamic.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.core.framework.graph_pb2 import GraphDef
from tensorflow.lite.python import schema_py_generated as schema
from tensorflow.lite.tools import flatbuffer_utils

from octune.backends.tensorflow.graph.graph import FrozenGraph
from octune.backends.tensorflow.model.callables import flat_function
from octune.backends.tensorflow.model.handover import Handover
from octune.backends.tensorflow.model.lite import Lite, as_model
from octune.backends.tensorflow.model.storage import write_served
from octune.errors import UnsupportedError, summary
from octune.int8 import Limit, quantize_weight
from octune.plan import Plan
from octune.scratch import scratch

__all__ = ["in_litert", "to_litert"]

WEIGHT = 1  # which input of an op
# The axis of the outputs in the weight of each kind of op, and the first version of the op that takes int8
# weights with a scale for each of them.
KINDS = {"FULLY_CONNECTED": (0, 12), "CONV_2D": (0, 5), "DEPTHWISE_CONV_2D": (3, 6)}


def in_litert(frozen: FrozenGraph, handover: Handover, plan: Plan, threads: int) -> tuple[Any, str]:
    """The kind of model that came in around such a file, None if there is none; and what is to be said."""
    wanted = plan.names("int8")
    try:
        content, int8 = to_litert(frozen, plan)
        if wanted and not int8:
            return None, "LiteRT was not tried: none of the int8 ops is in the converted model"
        model = as_model(Lite(content, threads), handover)
    except UnsupportedError as error:
        return None, f"LiteRT was not tried: {error}"
    left = len(wanted) - len(int8)
    return model, f"{left} of {len(wanted)} int8 ops are float in the LiteRT form" if left else ""


def to_litert(frozen: FrozenGraph, plan: Plan) -> tuple[bytes, set[str]]:
    """The file, and which int8 ops of the plan are int8 in it; UnsupportedError if it cannot be converted."""
    with scratch() as place:
        try:
            graph_def = _without_erf(frozen.graph_def)
            write_served(flat_function(graph_def, frozen.inputs, frozen.outputs), place)
            converted = tf.lite.TFLiteConverter.from_saved_model(str(place)).convert()
        except Exception as error:  # its passes raise exceptions of any class
            raise UnsupportedError(
                f"LiteRT's converter cannot convert the model: {type(error).__name__}: {summary(error)}."
            ) from error
    file = flatbuffer_utils.convert_bytearray_to_object(bytearray(converted))
    wanted = set(plan.names("int8"))
    found = {name for graph in file.subgraphs for name in _quantize(file, graph, wanted)}
    return bytes(flatbuffer_utils.convert_object_to_bytearray(file)), found


def _without_erf(graph_def: GraphDef) -> GraphDef:
    """The same graph with the error function, which LiteRT lacks and every GELU has, in ops that it has."""
    with tf.Graph().as_default() as template:
        _erf(tf.compat.v1.placeholder(tf.float32, name="x"))
    made = GraphDef()
    made.CopyFrom(graph_def)
    del made.node[:]
    for node in graph_def.node:
        if node.op != "Erf":
            made.node.append(node)
            continue
        names = {one.name: f"{node.name}/{one.name}" for one in template.as_graph_def().node}
        names |= {"x": node.input[0], "y": node.name}
        for one in template.as_graph_def().node:
            if one.name != "x":
                copied = made.node.add()
                copied.CopyFrom(one)
                copied.name = names[one.name]
                copied.input[:] = [names[name] for name in one.input]
    return made


def _erf(x: Any) -> Any:
    """Abramowitz and Stegun, 7.1.26: off by at most 1.5e-7."""
    t = 1.0 / (1.0 + 0.3275911 * tf.abs(x))
    series = t * (0.254829592 + t * (-0.284496736 + t * (1.421413741 + t * (-1.453152027 + t * 1.061405429))))
    return tf.multiply(tf.sign(x), 1.0 - series * tf.exp(-x * x), name="y")


def _quantize(file: Any, graph: Any, wanted: set[str]) -> set[str]:
    """Put the weights of the wanted ops into the file in int8; returns which were found."""
    found: set[str] = set()
    for op in graph.operators:
        kind = flatbuffer_utils.opcode_to_name(file, op.opcodeIndex)
        if kind not in KINDS or file.buffers[graph.tensors[op.inputs[WEIGHT]].buffer].data is None:
            continue
        name = _name(graph, op, wanted)
        if name is None:
            continue
        axis, version = KINDS[kind]
        op.inputs[WEIGHT] = _int8_tensor(file, graph, op.inputs[WEIGHT], axis)
        if kind == "FULLY_CONNECTED":  # others do so in any case
            op.builtinOptions.asymmetricQuantizeInputs = True
        code = file.operatorCodes[op.opcodeIndex]
        code.version = max(code.version, version)
        found.add(name)
    return found


def _name(graph: Any, op: Any, wanted: set[str]) -> str | None:
    """The op of the plan: the converter names tensors after the ops that they come from, joined by ``;``."""
    tensors = [graph.tensors[index] for index in (op.inputs[WEIGHT], *op.outputs)]
    parts = [part for tensor in tensors for part in tensor.name.decode().split(";")]
    # what was saved as a function has the name of its call before it
    return next((name for part in parts for name in wanted if f"/{part}".endswith(f"/{name}")), None)


def _int8_tensor(file: Any, graph: Any, index: int, axis: int) -> int:
    """The number of a weight's int8 form: itself, if nothing else reads it."""
    tensor = graph.tensors[index]
    if tensor.type == schema.TensorType.INT8:  # another op that shares it came first
        return index
    data = np.frombuffer(file.buffers[tensor.buffer].data.tobytes(), np.float32).reshape(tensor.shape)
    int8 = quantize_weight(np.moveaxis(data, axis, 0), "per_channel", Limit.NONE)
    if sum(index in op.inputs for op in graph.operators) > 1:
        tensor = _copy(graph, tensor)
    buffer = schema.BufferT()
    buffer.data = np.frombuffer(np.ascontiguousarray(np.moveaxis(int8.values, 0, axis)).tobytes(), np.uint8)
    if _readers(file, tensor.buffer) > 1:
        file.buffers.append(buffer)
        tensor.buffer = len(file.buffers) - 1
    else:
        file.buffers[tensor.buffer] = buffer
    tensor.type = schema.TensorType.INT8
    tensor.quantization = schema.QuantizationParametersT()
    tensor.quantization.scale = int8.scales
    tensor.quantization.zeroPoint = np.zeros(len(int8.scales), np.int64)
    tensor.quantization.quantizedDimension = axis
    return next(number for number, one in enumerate(graph.tensors) if one is tensor)


def _copy(graph: Any, tensor: Any) -> Any:
    made = schema.TensorT()
    vars(made).update(vars(tensor))
    graph.tensors.append(made)
    return made


def _readers(file: Any, buffer: int) -> int:
    return sum(tensor.buffer == buffer for graph in file.subgraphs for tensor in graph.tensors)
