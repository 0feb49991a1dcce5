"""Which schemes a run may use: what the ops can do, narrowed to what the user asked for.

    ops = legal_ops(backend.ops(), config.quantization, ranges)

A request that cannot be honoured is an error that says so; an op that cannot be quantized keeps fp32 and a
note.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, cast

from octune.calibration import Ranges
from octune.config import match_ops
from octune.errors import UnsupportedError
from octune.plan import Op, RangeMethod, Scheme
from octune.repair import repairs_of

if TYPE_CHECKING:
    from octune.config.limits import OpOptions, Quantization, TensorOptions

__all__ = ["legal_ops"]

# Tried by default: they cost only a look at a histogram, and the least harmful is taken for every op.
DEFAULT_METHODS: tuple[RangeMethod, ...] = ("minmax", "mse", "percentile")


def legal_ops(ops: Sequence[Op], options: Quantization, ranges: Ranges | None) -> tuple[Op, ...]:
    """The ops with the schemes they may use in this run. ``ranges`` is None when there was no calibration
    data.
    """
    by_name = match_ops(options.ops, [op.name for op in ops])
    return tuple(_narrow(op, options, by_name.get(op.name), ranges) for op in ops)


def _narrow(op: Op, options: Quantization, own: OpOptions | None, ranges: Ranges | None) -> Op:
    pinned = _pinned(own)
    if len(op.schemes) == 1:
        return _honoured(op, pinned)
    if ranges is not None:
        if op.name not in ranges:
            return _honoured(op.in_fp32(op.note or "never ran in calibration"), pinned)
        if not ranges[op.name].finite:
            return _honoured(op.in_fp32(op.note or "its input was infinite or NaN in calibration"), pinned)
    weight = _merge(options.weight, own.weight if own else None)
    activation = _merge(options.activation, own.activation if own else None)
    schemes = list(_expand(op.schemes, activation, ranges))
    if options.approach == "static":
        schemes = [s for s in schemes if not s.is_dynamic]
    elif options.approach == "dynamic":
        schemes = [s for s in schemes if s.mode != "static"]
    _refuse_impossible(op, weight, activation)
    granularities = weight.granularity or (
        ("per_channel",) if any(s.granularity == "per_channel" for s in schemes) else ("per_tensor",)
    )
    schemes = [s for s in schemes if s.granularity is None or s.granularity in granularities]
    schemes = [s for s in schemes if _dtype_allowed(s, weight.dtype, activation.dtype, pinned is not None)]
    if not schemes:
        able = "; ".join(str(s) for s in op.schemes)
        raise UnsupportedError(
            f"No scheme of {op.name!r} ({op.kind}) fits what quantization asks for: "
            f"weight {_said(weight)}, activation {_said(activation)}, approach {options.approach}. It can "
            f"run as: {able}."
        )
    if all(s.is_float for s in schemes):
        return replace(
            op,
            schemes=tuple(schemes),
            note=op.note
            or ("kept by the configuration" if own else "no int8 scheme without calibration data"),
        )
    return replace(op, schemes=tuple(schemes))


def _expand(schemes: Iterable[Scheme], activation: TensorOptions, ranges: Ranges | None) -> Iterable[Scheme]:
    methods = activation.algorithm or DEFAULT_METHODS
    for scheme in schemes:
        if scheme.mode != "static":
            yield scheme
        elif ranges is None:
            continue
        elif any(repair.has_own_range for repair in repairs_of(scheme)):
            # It is found from the extremes.
            if "minmax" in methods:
                yield scheme
        elif scheme.repairs:
            # Weights and biases are repaired alike in every range: one method, the one that is best by itself
            # as often as not, is enough.
            yield replace(scheme, range_method="mse" if "mse" in methods else cast(RangeMethod, methods[0]))
        else:
            yield from (replace(scheme, range_method=cast(RangeMethod, method)) for method in methods)


def _refuse_impossible(op: Op, weight: TensorOptions, activation: TensorOptions) -> None:
    def refuse(what: str, got: object, can: str) -> None:
        raise UnsupportedError(
            f"quantization.{what} is {got} at {op.name!r}, which this backend cannot honour: {can}."
        )

    if weight.dtype and set(weight.dtype) == {"uint8"}:
        refuse("weight.dtype", list(weight.dtype), "weights are signed (int8)")
    if weight.scheme and "sym" not in weight.scheme:
        refuse("weight.scheme", list(weight.scheme), "weights are int8 around zero (sym)")
    if activation.scheme and "asym" not in activation.scheme:
        refuse(
            "activation.scheme",
            list(activation.scheme),
            "activations are uint8 with a zero point (asym); signed kernels are many times slower",
        )
    if activation.granularity and "per_tensor" not in activation.granularity:
        refuse(
            "activation.granularity",
            list(activation.granularity),
            "activations have one range per tensor (per_tensor)",
        )
    if weight.algorithm and "minmax" not in weight.algorithm:
        refuse(
            "weight.algorithm", list(weight.algorithm), "weights are scaled to their largest value (minmax)"
        )


def _dtype_allowed(
    scheme: Scheme, weight: tuple[str, ...] | None, activation: tuple[str, ...] | None, pinned: bool
) -> bool:
    # fp32 stays a way out of int8, unless this op was pinned by hand: what is said of all ops is what to try.
    if scheme.dtype == "fp32" and not pinned:
        return True
    # The backend chooses the sign of 8-bit activations, so int8 and uint8 both ask for an 8-bit op.
    return all(wanted is None or scheme.dtype in _float_or_int8(wanted) for wanted in (weight, activation))


def _float_or_int8(dtypes: Iterable[str]) -> set[str]:
    return {"int8" if dtype == "uint8" else dtype for dtype in dtypes}


def _pinned(own: OpOptions | None) -> set[str] | None:
    """The dtypes that the configuration names for this very op, or None if it names none."""
    named = (
        [options.dtype for options in (own.weight, own.activation) if options.dtype is not None]
        if own
        else []
    )
    return set.intersection(*(_float_or_int8(dtypes) for dtypes in named)) if named else None


def _honoured(op: Op, pinned: set[str] | None) -> Op:
    """An op that can only be fp32, or an error if the configuration asks for something else at this very
    op.
    """
    if pinned is not None and "fp32" not in pinned:
        wanted = " or ".join(sorted(pinned)) or "two dtypes at once"
        raise UnsupportedError(
            f"quantization.ops asks for {wanted} at {op.name!r}, which stays fp32: "
            f"{op.note or 'it has no other scheme'}."
        )
    return op


def _merge(general: TensorOptions, own: TensorOptions | None) -> TensorOptions:
    if own is None:
        return general
    given = {key: value for key, value in own if value is not None}
    return general.model_copy(update=given)


def _said(options: TensorOptions) -> str:
    given = {key: list(value) for key, value in options if value is not None}
    return str(given) if given else "anything"
