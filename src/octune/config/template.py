"""A configuration for people to go on writing: what they have said, and in comments what else can be said.

    text = commented(Config.build(model={"path": "digits.onnx"}, ...))

Every commented line is legal where it stands once its ``#`` is removed.
"""

from __future__ import annotations

from octune.config.schema import Config
from octune.config.yaml_lines import dump

__all__ = ["commented"]

HEAD = """\
# What octune tune reads. All keys: octune config --schema, and docs/configuration.md.
# octune config FILE shows the effective configuration, octune analyze FILE what int8 does to every op.
"""
# section -> what is said above it, and what may be added below it
ABOUT: dict[str, tuple[str, str]] = {
    "model": (
        "A Hugging Face folder, an .onnx, .pb, .keras or .pt2 file, a SavedModel folder, or "
        "package.module:factory.",
        "target: onnx                 # export it, and tune it for ONNX Runtime and OpenVINO",
    ),
    "calibration": (
        "Shows what the activations look like; labels are not used.",
        "samples: 128                 # how many rows are looked at",
    ),
    "evaluation": (
        "What the model is scored on: other data than it is calibrated on.",
        "batch_size: 32",
    ),
    "criterion": (
        "How much of the fp32 score may be lost. absolute: 0.5 allows half a point instead.",
        "certify: holdout             # keeps 30 % of the evaluation data for the final word",
    ),
    "performance": (
        "How it will run.",
        "compile: never               # auto compiles the winner if that is faster (PyTorch; needs g++)",
    ),
    "tuning": (
        "When to stop, and what to look for.",
        "timeout: 0                   # seconds; 0 ends when a plan meets the criterion",
    ),
}
# section -> what it says where nothing else was said: the defaults that people want to see
DEFAULTS = {
    "criterion": "relative: 1%",
    "performance": "portable: true               # safe on every x86-64 CPU with AVX2, not only on this one",
    "tuning": "objective: performance       # or modelsize",
}


def commented(config: Config) -> str:
    """The YAML of a configuration, with comments on each section."""
    said = config.model_dump(mode="json", exclude_defaults=True)
    parts = [HEAD]
    for section, (above, more) in ABOUT.items():
        body = dump({section: said[section]}) if section in said else f"{section}:\n  {DEFAULTS[section]}\n"
        parts.append(f"# {above}\n{body}  # {more}\n")
    return "\n".join(parts)
