"""Writes the tables of keys in configuration.md, from the schema itself: no key is described by hand, so none
can be forgotten.

python docs/make_configuration.py             # write
python docs/make_configuration.py --check     # exit code 1 if the page is not up to date
"""

from __future__ import annotations

import sys
from pathlib import Path, PurePath
from typing import Any

sys.path.append(str(Path(__file__).parents[1] / "benchmarks"))

import pages
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from octune.config import (
    Calibration,
    Config,
    CriterionSection,
    DataSource,
    Engine,
    Evaluation,
    ModelSource,
    Performance,
    Quantization,
    Tuning,
    Workspace,
)
from octune.config.limits import TensorOptions
from octune.config.schema import InputSize

PAGE = Path(__file__).with_name("configuration.md")

SECTIONS: list[tuple[str, type[BaseModel]]] = [
    ("model", ModelSource),
    ("calibration", Calibration),
    ("evaluation", Evaluation),
    ("calibration.data, evaluation.data", DataSource),
    ("quantization", Quantization),
    (
        "quantization.weight, quantization.activation, "
        "quantization.ops.<op>.weight, quantization.ops.<op>.activation",
        TensorOptions,
    ),
    ("criterion", CriterionSection),
    ("tuning", Tuning),
    ("performance", Performance),
    ("performance.inputs", InputSize),
    ("workspace", Workspace),
    ("engine", Engine),
]


def tables() -> str:
    """All keys: those of the top level that are not sections, then section by section."""
    inside = {name for name, _ in SECTIONS}
    top = {name: field for name, field in Config.model_fields.items() if name not in inside}
    parts = [_table(top)]
    for name, section in SECTIONS:
        heading = ", ".join(f"`{part}`" for part in name.split(", "))
        parts.append(f"### {heading}\n\n{_first_sentence(section)}\n\n{_table(section.model_fields)}")
    return "\n\n".join(parts)


def _first_sentence(section: type[BaseModel]) -> str:
    return (section.__doc__ or "").strip().replace("\n    ", "\n")


def _table(fields: dict[str, FieldInfo]) -> str:
    rows = [
        f"| `{name}` | {_default(field)} | {_escape(field.description or '')} |"
        for name, field in fields.items()
    ]
    return "\n".join(["| key | default | meaning |", "|---|---|---|", *rows])


def _default(field: FieldInfo) -> str:
    value = field.get_default(call_default_factory=True)
    if value is None or isinstance(value, BaseModel) or value in ((), {}):
        return "-"
    return f"`{_plain(value)}`"


def _plain(value: Any) -> str:
    if isinstance(value, tuple):
        return ", ".join(_plain(item) for item in value)
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return f"{value:g}"
    return str(value) if not isinstance(value, PurePath) else value.as_posix()


def _escape(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;")


def page(text: str) -> str:
    """The page with fresh tables between its two markers."""
    return pages.between(text, "keys", [tables()])


if __name__ == "__main__":
    sys.exit(pages.updated(PAGE, page))
