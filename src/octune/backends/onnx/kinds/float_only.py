"""Ops with weights for which no CPU runtime has an int8 kernel: they are listed, with that as the reason."""

from __future__ import annotations

from onnx import NodeProto

from octune.backends.onnx.graph import Array, View
from octune.backends.onnx.kinds.base import Found, Kind
from octune.errors import PlanError
from octune.plan import Scheme

__all__ = ["EINSUM"]


class FloatOnly(Kind):
    """An op that stays in float, because of ``why``."""

    def __init__(self, node_type: str, why: str) -> None:
        self.name, self.node_type, self._why = node_type.lower(), node_type, why

    def schemes(self) -> tuple[Scheme, ...]:
        return (Scheme.fp32(),)

    def find(self, view: View, index: int, node: NodeProto) -> Found | None:
        weights = (view.constant(name) for name in node.input if name)
        weighted = any(weight is not None and weight.ndim > 1 for weight in weights)
        return self.left_in_float(index, node, self._why) if weighted else None

    def error(self, at: object, scheme: Scheme, *, few: bool) -> Array:
        raise PlanError(f"{self.node_type} has no int8 form.")

    def insert(self, insertion: object, found: Found, scheme: Scheme) -> None:
        raise PlanError(f"{self.node_type} has no int8 form.")


EINSUM = FloatOnly("Einsum", "no runtime has an int8 kernel for an Einsum; export it as a MatMul")
