"""Says what is wrong with a configuration: file, line, the user's own key, what was expected, the nearest
valid key.

    conf.yaml, line 12: tuning.acuracy_criterion is not a known key. Did you mean 'accuracy_criterion'? Known
    keys here: ...
    conf.yaml, line 9: tuning.timeout must be a number >= 0. Got 'soon'.

All problems of a file are reported at once. ``config_error("conf.yaml", problems)`` makes the exception.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError

from octune.errors import ConfigError, alike

Where = tuple[str | int, ...]
"""The path of a value in the user's document: keys, and positions in lists."""


@dataclass(frozen=True)
class Keys:
    """The keys that are allowed below a key. ``any_name`` describes what is allowed below names that the user
    chooses (op names).
    """

    known: Mapping[str, Keys]
    any_name: Keys | None = None

    def below(self, where: Where) -> Keys | None:
        """What is allowed at a path; None where the schema does not look inside."""
        here: Keys | None = self
        for key in where:
            if here is None:
                return None
            here = here.known.get(str(key), here.any_name)
        return here

    def paths(self, start: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
        """Every known path."""
        for key, below in self.known.items():
            yield (*start, key)
            yield from below.paths((*start, key))


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong, and where; the text names the key already."""

    text: str
    where: Where = ()
    line: int | None = None


def keys_of(model: type[BaseModel]) -> Keys:
    """The keys that a pydantic model knows, and those of the models inside it."""
    return Keys({name: _keys_in(field.annotation) for name, field in model.model_fields.items()})


def show(where: Where) -> str:
    """A path as people write it: ``tuning.accuracy_criterion.relative``,
    ``quantization.op_wise['bert/MatMul']``.
    """
    shown = ""
    for place, key in enumerate(where):
        if isinstance(key, int):
            # A list of mappings is only another way to write one mapping, so its positions mean nothing.
            shown += "" if place + 1 < len(where) and isinstance(where[place + 1], str) else f"[{key}]"
        elif re.fullmatch(r"[\w-]+", key):
            shown += f".{key}" if shown else key
        else:
            shown += f"[{key!r}]"
    return shown


def got(value: Any) -> str:
    """A value as it is repeated to the user, shortened if it is long."""
    if value is None:
        return "nothing"
    shown = repr(value)
    return shown if len(shown) <= 80 else f"{shown[:77]}..."


def unknown_key(where: Where, keys: Keys, note: str = "") -> str:
    """The message about a key that is not known at its place; ``keys`` describes the whole document, and
    ``note`` says where else the key is known.
    """
    key = str(where[-1])
    here = keys.below(where[:-1])
    known = list(here.known) if here else []
    elsewhere = [path for path in keys.paths() if path[-1] == key]
    meant = (
        show(elsewhere[0]) if len(elsewhere) == 1 else None if note else next(iter(alike(key, known)), None)
    )
    hint = f" Did you mean '{meant}'?" if meant else f" {note}".rstrip()
    return f"{show(where)} is not a known key.{hint} Known keys here: {', '.join(known)}."


def explain(
    error: ValidationError,
    keys: Keys,
    origin: Callable[[Where], Where] | None = None,
    note: Callable[[Where], str] | None = None,
) -> list[Problem]:
    """Pydantic's findings in the user's terms; ``origin`` maps a key of the schema to the key that the user
    wrote.
    """
    problems = []
    for item in error.errors(include_url=False):
        context = item.get("ctx", {})
        loc: Where = (*item["loc"], *context.get("at", ()))
        where = origin(loc) if origin else loc
        path, value = show(where), got(item["input"])
        match item["type"]:
            case "extra_forbidden":
                told = unknown_key(loc, keys, note(where) if note else "")
                message = told.replace(show(loc), path, 1)
            case "expected":
                message = f"{path} must be {context['what']}. Got {value}. {context['hint']}".rstrip()
            case "conflict":
                message = f"{path} {context['text']}".strip()
            case "model_type" | "model_attributes_type" | "dict_type":
                message = f"{path} must be a mapping of keys to values. Got {value}."
            case _:
                message = f"{path}: {item['msg']}. Got {value}."
        problems.append(Problem(message, where))
    return problems


def config_error(source: str, problems: Iterable[Problem]) -> ConfigError:
    """One exception that reports all problems, in the order of the file."""
    told = sorted(dict.fromkeys(problems), key=lambda problem: problem.line or 0)
    lines = [
        f"{source}, line {problem.line}: {problem.text}" if problem.line else f"{source}: {problem.text}"
        for problem in told
    ]
    if len(lines) == 1:
        return ConfigError(lines[0])
    return ConfigError("\n  ".join([f"{source} has {len(lines)} problems:", *lines]))


def _keys_in(annotation: Any) -> Keys:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return keys_of(annotation)
    inner = [_keys_in(argument) for argument in get_args(annotation) if argument is not type(None)]
    if get_origin(annotation) is dict:
        return Keys({}, any_name=inner[1]) if inner and inner[1].known else Keys({})
    if get_origin(annotation) is Union or type(annotation).__name__ == "UnionType":
        return next((keys for keys in inner if keys.known or keys.any_name), Keys({}))
    return inner[0] if inner and hasattr(annotation, "__metadata__") else Keys({})
