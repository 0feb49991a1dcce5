"""The kinds of value a configuration holds. Each turns what people write into one form, or says what it
wanted.

    share("1%")                -> 0.01
    names("ids, mask")         -> ("ids", "mask")
    counts("10, 50")           -> (10, 50)
    whole("soon", low=1)       raises: must be a whole number >= 1

The functions are used as pydantic validators through the annotated types at the end (``Seconds``, ``Share``,
``Names`` ...).
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from functools import partial
from os import PathLike, fspath
from pathlib import Path
from typing import Annotated, Any, get_args

from pydantic import BeforeValidator, WithJsonSchema
from pydantic_core import PydanticCustomError

from octune.criterion import BELOW_ONE
from octune.errors import alike
from octune.plan import Granularity, RangeMethod

REFERENCE = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")
PLAIN_OP_NAME = re.compile(r"[A-Za-z0-9_.\-/]*")
FRAMEWORKS = ("pytorch", "tensorflow", "onnx")
FRAMEWORK_ALIASES = {
    "torch": "pytorch",
    "pytorch_fx": "pytorch",
    "tf": "tensorflow",
    "onnxruntime": "onnx",
    "onnxrt": "onnx",
}


def expected(what: str, hint: str = "") -> PydanticCustomError:
    """An error that reads "<key> must be <what>. Got <value>. <hint>"."""
    return PydanticCustomError("expected", "must be {what}", {"what": what, "hint": hint})


def conflict(text: str, at: tuple[str, ...] = ()) -> PydanticCustomError:
    """An error about keys that contradict each other; ``at`` is the path of the wrong key in the section."""
    return PydanticCustomError("conflict", "{text}", {"text": text, "at": at})


def number(value: Any, *, low: float | None = None) -> float:
    """A finite number."""
    found = _number(value)
    if found is None or (low is not None and found < low):
        raise expected("a number" if low is None else f"a number >= {low:g}")
    return found


def above_zero(value: Any) -> float:
    """A finite number greater than 0."""
    found = _number(value)
    if found is None or found <= 0:
        raise expected("a number > 0")
    return found


def whole(value: Any, *, low: int, high: int | None = None) -> int:
    """A whole number; 8.0 and "8" count as 8."""
    found = _whole(value)
    if found is None or found < low or (high is not None and found > high):
        raise expected(f"a whole number >= {low}" if high is None else f"a whole number from {low} to {high}")
    return found


def switch(value: Any) -> bool:
    """True or false. A number is refused: ``resume: 3`` is a mistake, not a yes."""
    if isinstance(value, bool):
        return value
    words = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}
    if isinstance(value, str) and value.lower() in words:
        return words[value.lower()]
    raise expected("true or false")


def store(value: Any) -> bool | str:
    """True or false, or where something is kept."""
    try:
        return switch(value)
    except PydanticCustomError:
        if isinstance(value, str) and value.strip():
            return value
    raise expected("a URI, true or false")


def text(value: Any) -> str:
    """Text that is not blank."""
    if isinstance(value, str) and value.strip():
        return value
    raise expected("text")


def file_path(value: Any) -> Path:
    """A path, as text or as a ``Path``."""
    if isinstance(value, PathLike):
        value = fspath(value)
    if isinstance(value, str) and value.strip():
        return Path(value)
    raise expected("a path")


def reference(value: Any) -> str:
    """The place of a function in importable code."""
    if isinstance(value, str) and REFERENCE.fullmatch(value):
        return value
    raise expected("a function's place in the form 'package.module:function'")


def share(value: Any) -> float:
    """A number that may be written as a percentage."""
    percent = isinstance(value, str) and value.strip().endswith("%")
    found = _number(value.strip()[:-1] if percent else value)
    if found is None:
        raise expected("a number or a percentage such as 0.01 or '1%'")
    return found / 100 if percent else found


def loss(value: Any) -> float:
    """A relative loss. 1 or more would accept any model, so it must be a percentage without its sign."""
    found = share(value)
    if found >= 1:
        hint = "" if isinstance(value, str) and "%" in value else f"Did you mean {found:g}%?"
        raise expected(BELOW_ONE, hint)
    return found


def confidence(value: Any) -> float:
    """A level of confidence: at 0.5 the score itself is the bound, and 1 is impossible."""
    found = share(value)
    if not 0.5 <= found < 1:
        raise expected(
            "a number from 0.5 to below 1, such as 0.95",
            f"Did you mean {found:g}%?" if 1 < found < 100 else "",
        )
    return found


def names(value: Any) -> tuple[str, ...]:
    """Names of tensors: a list, or text with commas. A whole number is a name too: ONNX tensors are often
    called 1.
    """
    if isinstance(value, str):
        return tuple(part.strip() for part in value.split(",") if part.strip())
    items = _items(value)
    if items is None:
        raise expected("a name, or a list of names")
    found = tuple(
        str(item) if isinstance(item, int) and not isinstance(item, bool) else item for item in items
    )
    if not all(isinstance(item, str) and item.strip() for item in found):
        raise expected("a list of names; put a name that looks like a number in quotes")
    return found


def counts(value: Any) -> tuple[int, ...]:
    """One or more positive whole numbers, each an option of the search."""
    found = [_whole(item) for item in _listed(value)]
    if not found or any(item is None or item < 1 for item in found):
        raise expected("a whole number >= 1, or a list of them")
    return tuple(item for item in found if item is not None)


def size(value: Any) -> tuple[int, int]:
    """Height and width of images; one number is both."""
    found = [_whole(item) for item in _listed(value)]
    if len(found) not in (1, 2) or any(item is None or item < 1 for item in found):
        raise expected("a whole number >= 1, or two of them: [height, width]")
    height, width = (found[0], found[-1])
    return height or 0, width or 0


def one_of(
    value: Any, *, choices: tuple[str, ...], aliases: Mapping[str, str] | None = None, why: str = ""
) -> str:
    """One of a few words; case does not matter."""
    word = value.lower() if isinstance(value, str) else value
    if isinstance(word, str):
        word = (aliases or {}).get(word, word)
    if word not in choices:
        raise expected(f"{_either(choices)}{why}", _nearest(word, choices) if len(choices) > 1 else "")
    return str(word)


def several_of(value: Any, *, choices: tuple[str, ...]) -> tuple[str, ...]:
    """One or more of a few words, as a word, a list, or text with commas; duplicates are dropped."""
    found = [item.lower() if isinstance(item, str) else item for item in _listed(value)]
    wrong = next((item for item in found if item not in choices), None)
    if not found or wrong is not None:
        raise expected(f"{_either(choices)}, or a list of these", _nearest(wrong, choices))
    return tuple(dict.fromkeys(found))


def framework(value: Any) -> str:
    """The framework that a model comes from, under any of its names."""
    word = value.lower() if isinstance(value, str) else value
    if isinstance(word, str):
        # LPOT names kinds of ONNX quantization (onnxrt_qlinearops ...); names in _ep are execution providers
        # of other devices.
        word = "onnx" if re.fullmatch(r"onnxrt_\w+(?<!_ep)", word) else FRAMEWORK_ALIASES.get(word, word)
    if word not in FRAMEWORKS:
        raise expected(_either(FRAMEWORKS), _nearest(word, FRAMEWORKS))
    return str(word)


def plain(value: Any) -> Any:
    """Data that JSON and YAML can hold: text, numbers, switches, null, and lists and mappings of these."""
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if (
        value is None
        or isinstance(value, str | bool | int)
        or (isinstance(value, float) and math.isfinite(value))
    ):
        return value
    raise expected("plain data (text, numbers, true/false, null, lists and mappings)")


def options(value: Any) -> dict[str, Any]:
    """A mapping of plain data."""
    if not isinstance(value, Mapping):
        raise expected("a mapping of options")
    found: dict[str, Any] = plain(value)
    return found


def split_metric(value: Any) -> tuple[Any, dict[str, Any]]:
    """The metric's name and its options, from a name or from a mapping with one entry.

    split_metric({"topk": 5}) -> ("topk", {"k": 5});  split_metric({"GLUE": {"task": "mrpc"}}) -> ("GLUE",
    {"task": "mrpc"})
    """
    if not isinstance(value, Mapping):
        return value, {}
    if len(value) != 1:
        raise expected("one metric: a name, or a mapping with one entry such as {topk: 1}")
    ((name, given),) = value.items()
    if given is None:
        return name, {}
    if str(name).lower() == "topk" and not isinstance(given, Mapping):
        return name, {"k": whole(given, low=1)}
    return name, options(given)


def is_pattern(op: str) -> bool:
    """Whether a key of ``ops`` is a regular expression: it has a character that never occurs in plain op
    names.
    """
    return PLAIN_OP_NAME.fullmatch(op) is None


def empty_is_default(value: Any) -> Any:
    """An empty section means the same as a section that is left out."""
    return {} if value is None else value


def _number(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        found = float(value)
    except (ValueError, OverflowError):
        return None
    return found if math.isfinite(found) else None


def _whole(value: Any) -> int | None:
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    found = _number(value)
    return int(found) if found is not None and found.is_integer() else None


def _items(value: Any) -> list[Any] | None:
    return list(value) if isinstance(value, list | tuple) else None


def _listed(value: Any) -> list[Any]:
    if isinstance(value, str):
        return [part.strip() for part in value.split(",") if part.strip()]
    items = _items(value)
    return [value] if items is None else items


def _either(choices: tuple[str, ...]) -> str:
    quoted = [f"'{choice}'" for choice in choices]
    return quoted[0] if len(quoted) == 1 else f"{', '.join(quoted[:-1])} or {quoted[-1]}"


def _nearest(value: Any, choices: tuple[str, ...]) -> str:
    found = alike(value, choices) if isinstance(value, str) else []
    return f"Did you mean '{found[0]}'?" if found else ""


def _as(
    function: Callable[..., Any], schema: dict[str, Any], **settings: Any
) -> tuple[BeforeValidator, WithJsonSchema]:
    return BeforeValidator(partial(function, **settings) if settings else function), WithJsonSchema(schema)


def _words(choices: tuple[str, ...]) -> dict[str, Any]:
    one = {"enum": list(choices)}
    return {"anyOf": [one, {"type": "array", "items": one, "minItems": 1}]}


_PERCENT = {"type": "string", "pattern": r"^\s*[-+]?[0-9.]+\s*%\s*$"}
_DTYPES, _GRANULARITIES, _SCHEMES = (
    ("int8", "uint8", "bf16", "fp32"),
    get_args(Granularity),
    ("sym", "asym"),
)
_FORMS = ("native", "litert", "openvino")
_ALGORITHMS = get_args(RangeMethod)

Seconds = Annotated[float, *_as(number, {"type": "number", "minimum": 0}, low=0)]
Number = Annotated[float, *_as(share, {"anyOf": [{"type": "number"}, _PERCENT]})]
Loss = Annotated[float, *_as(loss, {"anyOf": [{"type": "number", "exclusiveMaximum": 1}, _PERCENT]})]
Confidence = Annotated[
    float, *_as(confidence, {"anyOf": [{"type": "number", "minimum": 0.5, "exclusiveMaximum": 1}, _PERCENT]})
]
AboveZero = Annotated[float, *_as(above_zero, {"type": "number", "exclusiveMinimum": 0})]
Positive = Annotated[int, *_as(whole, {"type": "integer", "minimum": 1}, low=1)]
Natural = Annotated[int, *_as(whole, {"type": "integer", "minimum": 0}, low=0)]
# NumPy's and scikit-learn's seeds end at 32 bits.
Seed = Annotated[
    int, *_as(whole, {"type": "integer", "minimum": 0, "maximum": 2**32 - 1}, low=0, high=2**32 - 1)
]
Switch = Annotated[bool, *_as(switch, {"type": "boolean"})]
Store = Annotated[bool | str, *_as(store, {"type": ["boolean", "string"]})]
Text = Annotated[str, *_as(text, {"type": "string", "minLength": 1})]
FilePath = Annotated[Path, *_as(file_path, {"type": "string", "minLength": 1})]
Reference = Annotated[str, *_as(reference, {"type": "string", "pattern": f"^{REFERENCE.pattern}$"})]
Names = Annotated[
    tuple[str, ...],
    *_as(names, {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": ["string", "integer"]}}]}),
]
Counts = Annotated[
    tuple[int, ...],
    *_as(
        counts,
        {
            "anyOf": [
                {"type": "integer", "minimum": 1},
                {"type": "array", "items": {"type": "integer", "minimum": 1}, "minItems": 1},
                {"type": "string"},
            ]
        },
    ),
]
Size = Annotated[
    tuple[int, int],
    *_as(
        size,
        {
            "anyOf": [
                {"type": "integer", "minimum": 1},
                {"type": "array", "items": {"type": "integer", "minimum": 1}, "minItems": 2, "maxItems": 2},
            ]
        },
    ),
]
Options = Annotated[dict[str, Any], *_as(options, {"type": "object"})]
Framework = Annotated[str, *_as(framework, {"type": "string", "examples": list(FRAMEWORKS)})]
Dtypes = Annotated[tuple[str, ...], *_as(several_of, _words(_DTYPES), choices=_DTYPES)]
Granularities = Annotated[tuple[str, ...], *_as(several_of, _words(_GRANULARITIES), choices=_GRANULARITIES)]
Schemes = Annotated[tuple[str, ...], *_as(several_of, _words(_SCHEMES), choices=_SCHEMES)]
Forms = Annotated[tuple[str, ...], *_as(several_of, _words(_FORMS), choices=_FORMS)]
Algorithms = Annotated[tuple[str, ...], *_as(several_of, _words(_ALGORITHMS), choices=_ALGORITHMS)]
EmptyIsDefault = BeforeValidator(empty_is_default)
