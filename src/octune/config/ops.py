"""Finds the ops that the keys of ``quantization.ops`` refer to.

    match_ops({"classifier": keep}, ["encoder.0", "classifier"])          {"classifier": keep}
    match_ops({"encoder\\.[01]": keep}, ["encoder.0", "classifier"])       {"encoder.0": keep}

A key that matches no op is an error that lists the nearest names; it is never ignored.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from octune.config.fields import is_pattern
from octune.config.limits import OpOptions, TensorOptions
from octune.errors import ConfigError, nearest


def match_ops(patterns: Mapping[str, OpOptions], names: Iterable[str]) -> dict[str, OpOptions]:
    """The options of each op that a key names.

    A key that is an op's name means that op alone. Where several keys match one op, a later regular
    expression refines an earlier one key by key, and the op's own name overrides both.
    """
    listed = list(names)
    found: dict[str, OpOptions] = {}
    missed: list[str] = []
    exact = {key: options for key, options in patterns.items() if key in listed}
    for key, options in patterns.items():
        if key in exact:
            continue
        hits = [name for name in listed if re.fullmatch(key, name)] if is_pattern(key) else []
        if not hits:
            missed.append(key)
        for name in hits:
            found[name] = _refine(found.get(name), options)
    for name, options in exact.items():
        found[name] = _refine(found.get(name), options)
    if missed:
        raise ConfigError("\n".join(_nothing_matches(key, listed) for key in missed))
    return {name: found[name] for name in listed if name in found}


def _refine(earlier: OpOptions | None, later: OpOptions) -> OpOptions:
    if earlier is None:
        return later
    return OpOptions(
        weight=_over(earlier.weight, later.weight), activation=_over(earlier.activation, later.activation)
    )


def _over(earlier: TensorOptions, later: TensorOptions) -> TensorOptions:
    given = {name: value for name, value in later if value is not None}
    return earlier.model_copy(update=given)


def _nothing_matches(key: str, names: list[str]) -> str:
    kind = "as a regular expression it matches no whole op name" if is_pattern(key) else "no op has this name"
    near = nearest(key, names)
    listed = f"Nearest names: {', '.join(near)}." if near else "The model has no ops that can be quantized."
    return f"quantization.ops: {key!r}: {kind}. {listed}"
