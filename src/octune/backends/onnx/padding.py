"""Zeros that a Pad puts around an image become the padding of the convolution after it, so that no float op
interrupts the flow of int8.
"""

from __future__ import annotations

from onnx import NodeProto, helper

from octune.backends.onnx.graph import View, attribute

__all__ = ["fold_pads"]


def fold_pads(view: View) -> int:
    """Fold in place where only convolutions read what was padded; return how many were folded."""
    folded: set[int] = set()
    for index, node in enumerate(view.nodes):
        pads = _zeros(view, node) if node.op_type == "Pad" and node.output[0] not in view.outputs else None
        readers = [view.nodes[reader] for reader in view.readers(node.output[0])]
        if pads is None or not readers or not all(_takes(reader, node.output[0], pads) for reader in readers):
            continue
        for conv in readers:
            conv.input[0] = node.input[0]
            added = [a + b for a, b in zip(attribute(conv, "pads", [0] * len(pads)), pads, strict=True)]
            kept = [item for item in conv.attribute if item.name not in ("pads", "auto_pad")]
            del conv.attribute[:]
            conv.attribute.extend([*kept, helper.make_attribute("pads", added)])
        folded.add(index)
    if folded:
        view.keep(lambda index: index not in folded)
    return len(folded)


def _zeros(view: View, node: NodeProto) -> list[int] | None:
    """How many zeros a Pad puts before and after every axis of the image; None if it does something else."""
    if attribute(node, "mode", b"constant") != b"constant" or len(node.input) < 2:
        return None
    value = view.constant(node.input[2]) if len(node.input) > 2 and node.input[2] else None
    if len(node.input) > 2 and node.input[2] and (value is None or value.any()):
        return None
    counts = view.constant(node.input[1])
    if counts is None or (len(node.input) > 3 and node.input[3]):
        return None
    before, after = counts.reshape(2, -1).tolist()
    if len(before) < 3 or any((*before[:2], *after[:2])) or min((*before, *after)) < 0:
        return None
    return [int(count) for count in (*before[2:], *after[2:])]


def _takes(node: NodeProto, padded: str, pads: list[int]) -> bool:
    """Whether a node is a convolution that reads what was padded, and whose own padding is known."""
    if node.op_type != "Conv" or list(node.input).count(padded) != 1 or node.input[0] != padded:
        return False
    return attribute(node, "auto_pad", b"NOTSET") in (b"NOTSET", b"VALID", b"") and len(
        attribute(node, "pads", pads)
    ) == len(pads)
