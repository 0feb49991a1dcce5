"""The section that limits what the search may choose from, for all ops and for single ones."""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import Field, field_validator

from octune.config import fields as kinds
from octune.config.fields import EmptyIsDefault, conflict
from octune.config.section import Section, word

__all__ = ["OpOptions", "Quantization", "TensorOptions"]

APPROACHES = {"post_training_static_quant": "static", "post_training_dynamic_quant": "dynamic"}


class TensorOptions(Section):
    """What the search may choose from for one kind of tensor. If left out, the backend chooses."""

    dtype: kinds.Dtypes | None = Field(None, description="int8, uint8, bf16 or fp32, or a list of these.")
    granularity: kinds.Granularities | None = Field(
        None, description="per_channel or per_tensor, or a list of these."
    )
    scheme: kinds.Schemes | None = Field(None, description="sym or asym, or a list of these.")
    algorithm: kinds.Algorithms | None = Field(
        None, description="How ranges are found: minmax, percentile, mse or kl, or a list of these."
    )


class OpOptions(Section):
    """What the search may choose from for one op."""

    weight: Annotated[TensorOptions, EmptyIsDefault] = Field(TensorOptions(), description="The op's weight.")
    activation: Annotated[TensorOptions, EmptyIsDefault] = Field(
        TensorOptions(), description="The op's input."
    )


class Quantization(Section):
    """Limits of the search for all ops, and for single ones."""

    approach: Annotated[
        Literal["auto", "static", "dynamic"], *word("auto", "static", "dynamic", **APPROACHES)
    ] = Field(
        "auto",
        description=(
            "static: ranges from calibration; dynamic: ranges at run time; auto: whichever serves "
            "each op best."
        ),
    )
    weight: Annotated[TensorOptions, EmptyIsDefault] = Field(
        TensorOptions(), description="Weights of all ops."
    )
    activation: Annotated[TensorOptions, EmptyIsDefault] = Field(
        TensorOptions(), description="Inputs of all ops."
    )
    ops: dict[str, OpOptions] = Field(
        {},
        description="Limits for single ops by name. A name with a character outside A-Z a-z 0-9 _ . - / "
        "is a regular expression "
        "that must match the whole name.",
    )

    @field_validator("ops")
    @classmethod
    def _patterns_compile(cls, ops: dict[str, OpOptions]) -> dict[str, OpOptions]:
        for key in filter(kinds.is_pattern, ops):
            try:
                re.compile(key)
            except re.error as error:
                raise conflict(f"is not a valid regular expression: {error}.", at=(key,)) from None
        return ops
