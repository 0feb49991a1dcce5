"""A plan of one model for the ops of another that computes the same: a model converted to ONNX.

twin, missing = same_plan(plan, converted.ops(), name_of)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from octune.plan import Op, Plan, Scheme

__all__ = ["same_plan"]


def same_plan(
    plan: Plan, ops: Iterable[Op], name_of: Callable[[str], str], *, calibrated: bool = True
) -> tuple[Plan, list[str]]:
    """The plan for other ops, each with the scheme of the op that ``name_of`` says it stands for; and which
    int8 ops of the plan found no place.
    """
    schemes: dict[str, Scheme] = {}
    placed: set[str] = set()
    for op in ops:
        wanted = plan.get(name_of(op.name), Scheme.fp32())
        offered = [one for one in op.schemes if calibrated or one.mode != "static"]
        schemes[op.name] = _nearest(wanted, offered)
        if not schemes[op.name].is_float:
            placed.add(name_of(op.name))
    return Plan(schemes), [name for name in plan.names("int8") if name not in placed]


def _nearest(wanted: Scheme, offered: Iterable[Scheme]) -> Scheme:
    """The scheme itself, or the one that shares most with it: first the mode, then how ranges are chosen,
    then repairs and granularity. fp32 if none has its mode.
    """
    mode = "dynamic" if wanted.is_dynamic else wanted.mode  # few runtimes have ranges for each row
    alike = [one for one in offered if (one.dtype, one.mode) in (("int8", wanted.mode), ("int8", mode))]
    if wanted.is_float or not alike:
        return Scheme.fp32()
    return max(
        alike,
        key=lambda one: (
            one == wanted,
            one.range_method == wanted.range_method,
            one.repairs == wanted.repairs,
            one.granularity == wanted.granularity,
        ),
    )
