"""NodeDefs for the int8 ops that stock TensorFlow carries, made from plain values.

    node("y", "MatMul", ["x", "w"], T=tf.float32)
    constant("w", array)
    quantized_matmul("y", ("q", "w", "b"), ("low", "high", "w_low", "w_high"), activation="Relu")

The contracts of these ops are not documented: inputs of ``_QuantizedMatMul`` and
``_FusedQuantizedConv2D`` are two untyped lists, and what goes where depends on ``fused_ops``. This
module is the one place that knows.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from tensorflow.core.framework.attr_value_pb2 import AttrValue
from tensorflow.core.framework.node_def_pb2 import NodeDef
from tensorflow.core.framework.tensor_pb2 import TensorProto
from tensorflow.python.framework import dtypes, tensor_util
from tensorflow.python.framework.tensor_shape import TensorShape

from octune.backends.tensorflow.graph.graph import Array, as_input

__all__ = ["SUMMAND", "array_of", "constant", "node", "quantize", "quantized_conv", "quantized_matmul"]

FLOAT, QINT8, QUINT8 = dtypes.float32, dtypes.qint8, dtypes.quint8
SUMMAND = 3  # which input of an int8 convolution is added to it


def node(name: str, op: str, inputs: Iterable[str], **attributes: Any) -> NodeDef:
    """A NodeDef; attributes are Python values, dtypes or lists of them."""
    made = NodeDef(name=name, op=op)
    made.input.extend(as_input(tensor) for tensor in inputs)
    for key, value in attributes.items():
        made.attr[key].CopyFrom(_attribute(value))
    return made


def _attribute(value: Any) -> AttrValue:
    if isinstance(value, bool):
        return AttrValue(b=value)
    if isinstance(value, int):
        return AttrValue(i=value)
    if isinstance(value, float):
        return AttrValue(f=value)
    if isinstance(value, str):
        return AttrValue(s=value.encode())
    if isinstance(value, dtypes.DType):
        return AttrValue(type=value.as_datatype_enum)
    if isinstance(value, TensorProto):
        return AttrValue(tensor=value)
    if isinstance(value, TensorShape):
        return AttrValue(shape=value.as_proto())
    made = AttrValue()
    made.list.SetInParent()
    for item in value:
        if isinstance(item, dtypes.DType):
            made.list.type.append(item.as_datatype_enum)
        elif isinstance(item, int):
            made.list.i.append(item)
        else:
            made.list.s.append(str(item).encode())
    return made


def constant(name: str, value: Array | float | Sequence[int], dtype: dtypes.DType | None = None) -> NodeDef:
    """A Const. ``dtype`` reads the bytes as another type of the same size (int8 as qint8)."""
    array = np.asarray(value)
    if array.dtype == np.float64:
        array = array.astype(np.float32)
    elif array.dtype == np.int64 and not isinstance(value, np.ndarray):
        array = array.astype(np.int32)
    dtype = dtype or dtypes.as_dtype(array.dtype)
    proto = TensorProto(dtype=dtype.as_datatype_enum)
    proto.tensor_shape.SetInParent()
    for size in array.shape:
        proto.tensor_shape.dim.add(size=size)
    proto.tensor_content = np.ascontiguousarray(array).tobytes()
    return node(name, "Const", (), dtype=dtype, value=proto)


def array_of(const: NodeDef) -> Array:
    """The value of a Const."""
    return np.asarray(tensor_util.MakeNdarray(const.attr["value"].tensor))


def quantize(name: str, x: str, low: str, high: str, *, signed: bool = False) -> NodeDef:
    """float -> uint8 with a zero point, or int8 around zero. Outputs: values, low, high."""
    how = (QINT8, "SCALED", "HALF_TO_EVEN") if signed else (QUINT8, "MIN_FIRST", "HALF_AWAY_FROM_ZERO")
    # By default a range below 0.01 is silently widened to 0.01; without any such limit an input of zeros
    # becomes NaN.
    least = {"ensure_minimum_range": 1e-12, "narrow_range": False, "axis": -1}
    return node(name, "QuantizeV2", (x, low, high), T=how[0], mode=how[1], round_mode=how[2], **least)


def quantized_matmul(
    name: str,
    values: tuple[str, str, str],
    scales: tuple[str, str, str, str],
    *,
    activation: str | None = None,
    alpha: float = 0.2,
    addend: str | None = None,
    output: tuple[str, str] | None = None,
) -> NodeDef:
    """``values``: x (uint8), weight (int8, [K, N]), bias. ``scales``: ends of the ranges of x and of every
    column of the weight.

    Outputs float, or uint8 with its range if ``output`` names one.
    """
    if addend is not None and (activation is not None or output is not None):
        raise ValueError("an addend can be combined neither with an activation nor with an int8 output")
    fused = (
        ["BiasAdd"]
        + ([activation] if activation else [])
        + (["Add"] if addend else [])
        + ["Requantize" if output else "Dequantize"]
    )
    floats = [FLOAT] * (2 if addend else 1)
    out = QUINT8 if output else FLOAT
    return node(
        name,
        "_QuantizedMatMul",
        [*values, *([addend] if addend else []), *scales, *(output or ())],
        Tdevice_inputs=[QUINT8, QINT8, *floats],
        Thost_inputs=[FLOAT] * (6 if output else 4),
        Tdevice_outputs=[out],
        Thost_outputs=[FLOAT, FLOAT] if output else [],
        T1=QUINT8, T2=QINT8, Tbias=FLOAT, U=FLOAT, Tout=out,
        transpose_a=False, transpose_b=False, is_weight_const=True, is_bias_const=True,
        input_quant_mode="MIN_FIRST", output_quant_mode="MIN_FIRST",
        fused_ops=fused, leakyrelu_alpha=float(alpha),
    )  # fmt: skip


def quantized_conv(
    name: str,
    op: str,
    values: tuple[str, str, str],
    scales: tuple[str, str, str, str],
    output: tuple[str, str],
    *,
    signed: tuple[bool, bool],
    relu: bool,
    summand: tuple[str, str, str, bool] | None = None,
    geometry: dict[str, Any],
) -> NodeDef:
    """``values``: x, weight (int8), bias; ``signed``: whether x and the output are int8 around zero (else
    uint8 from zero on).

    ``summand``: a quantized tensor, the ends of its range, and whether it is signed. ``geometry``: strides,
    padding, ...
    """
    kinds = [QINT8 if flag else QUINT8 for flag in signed]
    floats = [FLOAT] * (8 if summand else 6)
    third = (QINT8 if summand[3] else QUINT8) if summand else kinds[1]
    return node(
        name,
        op,
        [*values, *(summand[:1] if summand else ()), *scales, *(summand[1:3] if summand else ()), *output],
        Tdevice_inputs=[],
        Thost_inputs=[kinds[0], QINT8, FLOAT, *([third] if summand else []), *floats],
        Tdevice_outputs=[],
        Thost_outputs=[kinds[1], FLOAT, FLOAT],
        Tinput=kinds[0], Tfilter=QINT8, Tbias=FLOAT, Tsummand=third, out_type=kinds[1],
        fused_ops=["BiasAdd", *(["Sum"] if summand else []), *(["Relu"] if relu else []), "Requantize"],
        is_filter_const=True, is_bias_const=True, data_format="NHWC", **geometry,
    )  # fmt: skip
