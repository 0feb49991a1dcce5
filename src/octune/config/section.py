"""What the sections of a configuration have in common."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, WithJsonSchema

from octune.config.fields import one_of

__all__ = ["Section", "word"]


def word(*choices: str, why: str = "", **aliases: str) -> tuple[BeforeValidator, WithJsonSchema]:
    def read(value: Any) -> str:
        return one_of(value, choices=choices, aliases=aliases, why=why)

    return BeforeValidator(read), WithJsonSchema({"enum": [*choices, *aliases]})


class Section(BaseModel):
    """Base of all sections: frozen, and a key that is not known is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid")
