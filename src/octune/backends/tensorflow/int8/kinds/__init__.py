"""Kinds of ops that can be quantized. A kind is one object; to add one, write it and list it here."""

from __future__ import annotations

from octune.backends.tensorflow.int8.kinds.base import Kind
from octune.backends.tensorflow.int8.kinds.built import Conv2DTranspose, Conv3D
from octune.backends.tensorflow.int8.kinds.conv import Conv2D, DepthwiseConv2D
from octune.backends.tensorflow.int8.kinds.matmul import MatMul

__all__ = ["KINDS", "Kind", "kind_of"]

KINDS: tuple[Kind, ...] = (MatMul(), Conv2D(), DepthwiseConv2D(), Conv2DTranspose(), Conv3D())


def kind_of(op: str) -> Kind | None:
    """The kind that a TensorFlow op is quantized as."""
    return next((kind for kind in KINDS if kind.tf_op == op), None)
