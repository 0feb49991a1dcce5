"""A plan is data: which op runs in which scheme.

    plan = Plan({"encoder.layer.0.query": Scheme.int8(), "classifier": Scheme.fp32()})
    plan["classifier"].dtype            # 'fp32'
    plan.with_(classifier=Scheme.bf16())
    Plan.from_json(plan.to_json()) == plan

model + plan + ranges = quantized model, and nothing else. Equal plans have equal digests in every process, so
a trial's result can be found again by the plan it belongs to.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, fields, replace
from functools import cached_property
from typing import Any, Literal, get_args

from octune.errors import PlanError

__all__ = ["Op", "Plan", "Scheme"]

Dtype = Literal["fp32", "bf16", "int8"]
Mode = Literal["static", "dynamic", "token", "weight"]
Granularity = Literal["per_channel", "per_tensor"]
RangeMethod = Literal["minmax", "percentile", "mse", "kl"]

_CHOICES: dict[str, tuple[Any, ...]] = {
    "dtype": get_args(Dtype),
    "mode": (*get_args(Mode), None),
    "granularity": (*get_args(Granularity), None),
    "range_method": (*get_args(RangeMethod), None),
}


@dataclass(frozen=True, slots=True)
class Scheme:
    """How one op computes. Activations are uint8 with a zero point, weights int8 around zero.

    ``mode`` says where the activation's range comes from: ``static`` from calibration by ``range_method``,
    ``dynamic`` from each input at run time, ``token`` from each of its rows, ``weight`` when only the weights
    are int8 (embeddings).
    ``repairs`` are named corrections applied to this op before it is quantized.
    """

    dtype: Dtype
    mode: Mode | None = None
    granularity: Granularity | None = None
    range_method: RangeMethod | None = None
    repairs: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name, allowed in _CHOICES.items():
            value = getattr(self, name)
            if value not in allowed:
                wanted = ", ".join(str(choice) for choice in allowed if choice is not None)
                raise PlanError(f"The {name!r} of a scheme must be one of {wanted}. Got {value!r} instead.")
        object.__setattr__(self, "repairs", tuple(self.repairs))
        details = (self.mode, self.granularity, self.range_method)
        if self.dtype == "int8":
            if self.mode is None or self.granularity is None:
                raise PlanError(f"An int8 scheme needs a mode and a granularity. Got {details} instead.")
            if (self.mode == "static") != (self.range_method is not None):
                raise PlanError(
                    f"A range method belongs to static int8 schemes, and only to them. Got {details} instead."
                )
        elif any(detail is not None for detail in details) or self.repairs:
            raise PlanError(
                f"A {self.dtype} scheme has no mode, granularity, range method or repairs. Got {details}, "
                f"{self.repairs} instead."
            )

    @classmethod
    def fp32(cls) -> Scheme:
        """Left as it was."""
        return cls("fp32")

    @classmethod
    def bf16(cls) -> Scheme:
        """Weights and computation in bfloat16; float in, float out."""
        return cls("bf16")

    @classmethod
    def int8(
        cls,
        mode: Mode = "static",
        *,
        granularity: Granularity = "per_channel",
        range_method: RangeMethod = "minmax",
        repairs: Iterable[str] = (),
    ) -> Scheme:
        """int8 weights; activations as ``mode`` says."""
        return cls("int8", mode, granularity, range_method if mode == "static" else None, tuple(repairs))

    @property
    def is_float(self) -> bool:
        """True for fp32 and bf16."""
        return self.dtype != "int8"

    @property
    def is_dynamic(self) -> bool:
        """True where ranges are taken at run time."""
        return self.mode in ("dynamic", "token")

    def to_json(self) -> dict[str, Any]:
        """Plain data without the fields that are not set."""
        return {
            key: list(value) if isinstance(value, tuple) else value
            for key, value in asdict(self).items()
            if value not in (None, ())
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Scheme:
        """The inverse of :meth:`to_json`; refuses unknown fields."""
        known = [item.name for item in fields(cls)]
        if not isinstance(data, Mapping) or "dtype" not in data or not set(data) <= set(known):
            raise PlanError(
                f"A scheme is a mapping with a dtype, and has the fields {', '.join(known)}. Got "
                f"{data!r:.200} instead."
            )
        return cls(**{**data, "repairs": tuple(data.get("repairs", ()))})

    def __str__(self) -> str:
        words = [
            self.dtype,
            self.mode,
            self.granularity,
            self.range_method,
            *(f"+{repair}" for repair in self.repairs),
        ]
        return " ".join(word for word in words if word)


@dataclass(frozen=True, slots=True)
class Op:
    """One operation of a model that could be quantized.

    ``schemes`` are the ones the backend can run it in, fp32 always among them. An op that cannot be quantized
    has fp32 alone, and ``note`` says why. ``signature`` says what it computes, apart from its weights: ops
    with equal signatures cost the same on equal inputs.
    """

    name: str
    kind: str
    schemes: tuple[Scheme, ...] = (Scheme.fp32(),)
    parameters: int = 0
    signature: str = ""
    note: str = ""

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return asdict(self) | {"schemes": [scheme.to_json() for scheme in self.schemes]}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Op:
        """The inverse of :meth:`to_json`. Workspaces of earlier versions may know more of an op."""
        known = {item.name: data[item.name] for item in fields(cls) if item.name in data}
        return cls(**{**known, "schemes": tuple(Scheme.from_json(scheme) for scheme in data["schemes"])})

    def in_fp32(self, note: str) -> Op:
        """The same op, which can only be fp32; ``note`` says why."""
        return replace(self, schemes=(Scheme.fp32(),), note=note)

    def can(self, dtype: Dtype) -> bool:
        """Whether any scheme of this op has that dtype."""
        return any(scheme.dtype == dtype for scheme in self.schemes)


class Plan(Mapping[str, Scheme]):
    """An immutable, hashable mapping from op name to :class:`Scheme`. Order does not matter."""

    def __init__(self, schemes: Mapping[str, Scheme] | Iterable[tuple[str, Scheme]] = ()) -> None:
        try:
            given = dict(schemes)
        except (TypeError, ValueError) as error:
            raise PlanError(
                "A plan maps op names to Schemes, such as {'fc': octune.Scheme.fp32()}. Got "
                f"{schemes!r:.80} instead."
            ) from error
        for name, scheme in given.items():
            if not isinstance(name, str) or not isinstance(scheme, Scheme):
                raise PlanError(f"A plan maps op names to Schemes. Got {name!r}: {scheme!r} instead.")
        self._schemes: dict[str, Scheme] = {name: given[name] for name in sorted(given)}

    def __getitem__(self, name: str) -> Scheme:
        return self._schemes[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._schemes)

    def __len__(self) -> int:
        return len(self._schemes)

    @cached_property
    def digest(self) -> str:
        """A sha256 of the plan's canonical JSON: the same in every process."""
        canonical = json.dumps(self.to_json(), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(canonical.encode()).hexdigest()

    def __hash__(self) -> int:
        return int(self.digest[:15], 16)

    def __eq__(self, other: object) -> bool:
        return self._schemes == other._schemes if isinstance(other, Plan) else NotImplemented

    def with_(self, changes: Mapping[str, Scheme] | None = None, **named: Scheme) -> Plan:
        """A plan with some ops changed or added; this one stays as it is."""
        return Plan({**self._schemes, **(changes or {}), **named})

    def names(self, dtype: Dtype) -> list[str]:
        """The ops that run in that dtype."""
        return [name for name, scheme in self._schemes.items() if scheme.dtype == dtype]

    def counts(self) -> dict[str, int]:
        """How many ops run in each dtype."""
        return dict(Counter(scheme.dtype for scheme in self._schemes.values()))

    def to_json(self) -> dict[str, Any]:
        """Plain data: op name -> scheme."""
        return {name: scheme.to_json() for name, scheme in self._schemes.items()}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Plan:
        """The inverse of :meth:`to_json`."""
        if not isinstance(data, Mapping):
            raise PlanError(
                f"A plan is a mapping from op names to schemes. Got a {type(data).__name__} instead."
            )
        return cls({name: Scheme.from_json(scheme) for name, scheme in data.items()})

    def check(self, ops: Iterable[Op]) -> None:
        """Raise :class:`PlanError` if this plan names an op that does not exist or a scheme that the op
        cannot run.
        """
        known = {op.name: op for op in ops}
        for name, scheme in self._schemes.items():
            if name not in known:
                raise PlanError(
                    f"The plan names an op {name!r}, which the model does not have. It has: {_some(known)}."
                )
            wanted = {(s.dtype, s.mode, s.granularity) for s in known[name].schemes}
            if (scheme.dtype, scheme.mode, scheme.granularity) not in wanted:
                able = ", ".join(str(s) for s in known[name].schemes)
                raise PlanError(
                    f"The plan asks for {scheme} at {name!r}, which can run in: {able}. "
                    f"{known[name].note}".rstrip()
                )

    def __repr__(self) -> str:
        parts = ", ".join(f"{count} {dtype}" for dtype, count in sorted(self.counts().items()))
        return f"Plan({parts or 'empty'}; {self.digest[:8]})"


def _some(names: Iterable[str], limit: int = 6) -> str:
    listed = list(names)
    return ", ".join(listed[:limit]) + (f", ... ({len(listed)} in all)" if len(listed) > limit else "")
