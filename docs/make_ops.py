"""Writes the table of ops.md: what Octune's kinds of ops say of themselves, next to what other tools cover.

python docs/make_ops.py             # write
python docs/make_ops.py --check     # exit code 1 if the page is not up to date

Octune's columns come from the code: a kind that is added, or a scheme, changes the page. A kind that no row
names gets a row of its own. The columns of the others are facts read from their sources, which the page
names.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parents[1] / "benchmarks"))

import pages

from octune.plan import Scheme

PAGE = Path(__file__).with_name("ops.md")
FRAMEWORKS = {"torch": "Octune, PyTorch", "tensorflow": "Octune, TensorFlow", "onnx": "Octune, ONNX"}
PEERS = (
    "torchao X86",
    "NNCF, PyTorch",
    "NNCF, OpenVINO",
    "ONNX Runtime",
    "NC 2.6, PyTorch",
    "NC 2.6, TensorFlow",
)
NONE = "-"


@dataclass(frozen=True)
class Row:
    """An op: which kinds of each framework compute it, what the peers do with it, and what else Octune does.

    ``peers`` are in the order of PEERS. ``also`` is for what is not a kind: ops that follow their neighbours.
    """

    title: str
    kinds: Mapping[str, Sequence[str]]
    peers: Sequence[str]
    also: Mapping[str, str] = field(default_factory=dict)
    why: str = ""


def nothing(title: str, *peers: str, why: str = "", **also: str) -> Row:
    """A row of what is not a kind."""
    return Row(title, {}, peers, also, why)


ROWS = [
    Row(
        "linear layers, matmuls with a stored weight",
        {"torch": ["linear"], "tensorflow": ["matmul"], "onnx": ["matmul", "gemm"]},
        ("S D", "S", "S", "S D", "S D", "S"),
        why="Ranges by row (T) are not offered in TensorFlow: its kernel takes one range, so that rows "
        "are scaled "
        "before it and back behind it, where bias and activation function are then computed apart. A "
        "linear op "
        "alone takes 1.25 to 1.3 times as long as with dynamic ranges. In ONNX Runtime, on MiniLM and "
        "SST-2, the "
        "sum of all harms is 0.005 instead of 0.031, 5 of 872 answers flip instead of 15, and the gain is "
        "2.0x "
        "instead of 2.4x.",
    ),
    Row(
        "GPT-2's transposed linear (`Conv1D`)",
        {"torch": ["transposed_linear"], "tensorflow": ["matmul"], "onnx": ["gemm"]},
        ("via export", "S", "S", "S D", NONE, NONE),
    ),
    Row(
        "2-D convolution",
        {"torch": ["conv2d"], "tensorflow": ["conv2d"], "onnx": ["conv"]},
        ("S", "S", "S", "S", "S", "S"),
    ),
    Row(
        "depthwise convolution",
        {"torch": ["conv2d"], "tensorflow": ["depthwise_conv2d"], "onnx": ["conv"]},
        ("S", "S", "S", "S", "S", "S"),
        why="ONNX Runtime's int8 kernel is slower than fp32 even with AVX512-VNNI (0.6x to 0.7x; 0.3x "
        "with 32 "
        "groups), TensorFlow's about even (0.8x to 1.1x); such an op is int8 only where it is faster when "
        "timed. In TensorFlow a convolution in up to four groups is as many int8 convolutions: two groups "
        "gain 2.6x, four 1.7x. 32 would lose (0.3x), so that more than four stay in fp32.",
    ),
    Row(
        "1-D convolution",
        {"torch": ["conv1d"], "tensorflow": ["conv2d"], "onnx": ["conv"]},
        ("S", "S", "S", "S", "S", NONE),
        why="TensorFlow computes it as a 2-D convolution of height 1.",
    ),
    Row(
        "3-D convolution",
        {"torch": ["conv3d"], "tensorflow": ["conv3d"], "onnx": ["conv"]},
        (NONE, "S", "S", "S", "S", "S"),
        why="TensorFlow has no int8 kernel for it. In int8 it is a 2-D convolution over slices that lie "
        "behind one another as channels, which gains about 3x.",
    ),
    Row(
        "transposed convolution",
        {
            "torch": ["conv_transpose1d", "conv_transpose2d", "conv_transpose3d"],
            "tensorflow": ["conv2d_transpose", "conv3d_transpose"],
            "onnx": ["conv_transpose"],
        },
        (NONE, "S", "S", "S", "S", "S"),
        why="In PyTorch and TensorFlow it is an ordinary convolution whose outputs are interleaved: 1.5x for "
        "4x4 with a stride of 2. TensorFlow's in three dimensions stay float.",
    ),
    Row(
        "products of two activations (attention)",
        {"torch": ["attention"], "tensorflow": ["attention"], "onnx": ["attention"]},
        ("off by default", "S", "S", "S", NONE, "S"),
        why="PyTorch and TensorFlow have no int8 kernel for batches of them. Head by head, on 128 tokens, "
        "TensorFlow's int8 kernel takes twice the time of fp32, and PyTorch's `_int_mm` the same. In a "
        "BERT of width 768 they are "
        "3 % of the multiply-adds at 128 tokens, 8 % at 384 (2 * tokens * 768 beside 12 * 768 * 768 for each "
        "token and layer).",
    ),
    Row(
        "embedding",
        {"torch": ["embedding"], "tensorflow": ["embedding"], "onnx": ["embedding"]},
        ("W", "W", "W", "W", "W", NONE),
        why="TensorFlow reads an int8 table and scales its rows in 1.5 to 1.9 times the time of a float one.",
    ),
    Row("EmbeddingBag", {"torch": ["embedding_bag"]}, ("source build", NONE, NONE, NONE, "W D", NONE)),
    Row(
        "LSTM", {"torch": ["lstm"], "onnx": ["lstm"]}, (NONE, NONE, "S", "D", "D", NONE),
        also={"tensorflow": "float, listed"},
        why="TensorFlow computes recurrent layers as matmuls in a loop, and its int8 kernel prepares its "
        "weights anew at every step there: an LSTM of 256 takes 20 times as long as in fp32, and 10 times "
        "with the inputs of all steps multiplied at once.",
    ),
    Row(
        "GRU", {"torch": ["gru"], "onnx": ["gru"]}, (NONE, NONE, "S", NONE, "D", NONE),
        also={"tensorflow": "float, listed"},
    ),
    Row(
        "plain recurrent layers", {"torch": ["rnn"], "onnx": ["rnn"]},
        (NONE, NONE, "S", NONE, NONE, NONE),
        also={"tensorflow": "float, listed"},
    ),
    Row(
        "single recurrent cells", {"torch": ["linear"], "onnx": ["matmul", "gemm"]},
        (NONE, NONE, "S", NONE, "D", NONE),
        also={"tensorflow": "float, listed"},
        why="In PyTorch the two products of a cell are linear layers of their own.",
    ),
    Row(
        "einsum with weights",
        {"torch": ["linear"], "tensorflow": ["matmul"], "onnx": ["einsum"]},
        [NONE] * len(PEERS),
    ),
    nothing(
        "residual sum",
        "fused", "S", "S", "S", "defaults", "fused",
        torch="F, compiled", tensorflow="F", onnx="F, between convolutions",
    ),
    nothing(
        "other products and sums, SiLU", "products S", "S", "S", "S", "defaults", NONE,
        onnx="SiLU and gates F",
        why="Between two convolutions, an int8 SiLU takes ONNX Runtime's gain from 1.2x to 1.35x on small "
        "images, and from 1.3x to 1.5x on large ones; a HardSwish changes nothing. TensorFlow has no "
        "kernel, and "
        "a table of 256 values takes longer than floats.",
    ),
    nothing(
        "max pooling",
        "F", "F", "F", "S", "defaults", "S",
        torch="F, compiled", tensorflow="F", onnx="F",
    ),
    nothing(
        "average pooling", "F", "S", "S", "S", "defaults", "S",
        tensorflow="F", onnx="F",
        why="ONNX Runtime's int8 kernel, which it takes by itself between int8 convolutions, takes their "
        "gain "
        "from 1.3x or 1.7x to 0.8x or 0.6x. In TensorFlow int8 takes the time of fp32, and four times "
        "less than "
        "going to float and back.",
    ),
    nothing(
        "concatenation", "F", "F", "F", "S", "defaults", "S",
        tensorflow="F", onnx="F",
        why="In TensorFlow int8 takes half of fp32's time or less, and going to float and back six times "
        "fp32's.",
    ),
    nothing(
        "resizing, splitting", NONE, "S or F", "S or F", "S", NONE, NONE,
        onnx="resizing F",
        why="ONNX Runtime resizes between int8 convolutions in int8 by itself.",
    ),
    nothing(
        "GELU",
        "fused", "float", "float", "float", NONE, NONE,
        torch="fused", tensorflow="fused", onnx="as the runtime does",
    ),
    nothing(
        "LayerNorm, softmax",
        "float", "float", "float (MVN S)", "possible", "LayerNorm S", NONE,
        torch="float", tensorflow="float", onnx="float",
    ),
]  # fmt: skip


def kinds() -> dict[str, dict[str, Sequence[Scheme]]]:
    """The schemes of every kind, by framework."""
    from octune.backends.onnx.kinds import KINDS as OF_ONNX
    from octune.backends.tensorflow.int8.float_only import LISTED
    from octune.backends.tensorflow.int8.kinds import KINDS as OF_TENSORFLOW
    from octune.backends.torch.kinds import KINDS as OF_TORCH

    listed: dict[str, Sequence[Any]] = {"torch": OF_TORCH, "tensorflow": OF_TENSORFLOW, "onnx": OF_ONNX}
    found = {framework: {kind.name: _schemes(kind) for kind in known} for framework, known in listed.items()}
    found["tensorflow"] |= dict.fromkeys(LISTED, (Scheme.fp32(),))
    return found


def _schemes(kind: Any) -> Sequence[Scheme]:
    """Those of a kind, which is a class or an object."""
    found: Sequence[Scheme] = kind.schemes()
    return found


def letters(schemes: Sequence[Scheme]) -> str:
    """``S D T bf16``: the modes of int8, and bf16."""
    modes = {"static": "S", "dynamic": "D", "token": "T", "weight": "W"}
    said = [letter for mode, letter in modes.items() if any(scheme.mode == mode for scheme in schemes)]
    said += ["bf16"] if any(scheme.dtype == "bf16" for scheme in schemes) else []
    return " ".join(said) or "float, listed"


def table(known: Mapping[str, Mapping[str, Sequence[Scheme]]]) -> str:
    """All rows, and one for each kind that none of them names."""
    named = {(framework, kind) for row in ROWS for framework, own in row.kinds.items() for kind in own}
    others = [(name, kind) for name, own in known.items() for kind in own if (name, kind) not in named]
    rows = [*ROWS, *(Row(f"`{kind}`", {name: [kind]}, [NONE] * len(PEERS)) for name, kind in others)]
    lines = [
        "| op | " + " | ".join([*FRAMEWORKS.values(), *PEERS]) + " |",
        "|---" * (1 + len(FRAMEWORKS) + len(PEERS)) + "|",
    ]
    for row in rows:
        own = [_cell(row, framework, known[framework]) for framework in FRAMEWORKS]
        lines.append("| " + " | ".join([row.title, *own, *row.peers]) + " |")
    why = [f"- **{row.title}**: {row.why}" for row in rows if row.why]
    return "\n".join(lines) + ("\n\n" + "\n".join(why) if why else "")


def _cell(row: Row, framework: str, known: Mapping[str, Sequence[Scheme]]) -> str:
    if framework in row.also:
        return row.also[framework]
    schemes = [scheme for kind in row.kinds.get(framework, ()) for scheme in known.get(kind, ())]
    return letters(schemes) if schemes else NONE


def page(text: str) -> str:
    """The page with a fresh table between its two markers."""
    return pages.between(text, "ops", [table(kinds())])


if __name__ == "__main__":
    sys.exit(pages.updated(PAGE, page))
