"""Programs of ``torch.export`` (``.pt2``) read as data: nothing that is in the file can run.

    program = read_program(Path("model.pt2"))

``torch.export.load`` is not made for files of strangers: it unpickles, it loads compiled code that lies in
the same archive, it evaluates formulas of sizes, and the text in the graph becomes Python source. Here every
part is checked before PyTorch's own reader gets it: only tensors in plain bytes, only names that are names,
only ops that compute, only arithmetic. What an exporter writes for a plain model passes; the rest is refused.
"""

from __future__ import annotations

import ast
import io
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from octune.archives import check_archive
from octune.errors import ModelError

__all__ = ["read_program"]

MODEL = "model"  # what torch.export.save calls the only program in an archive
PARTS = re.compile(
    r"(\.data/)?(version|serialization_id|byteorder|archive_format|archive_version|\.format_version)"
    r"|\.storage_alignment|\.data/\.?\w+|extra/[\w./-]+"
    rf"|models/{MODEL}\.json|data/sample_inputs/{MODEL}\.pt"
    rf"|data/weights/(weight_\d+|{MODEL}_weights_config\.json)"
    rf"|data/constants/(tensor_\d+|{MODEL}_constants_config\.json)"
)
NAME = re.compile(r"[\w.]*")  # what becomes a name in Python source, and can be nothing else there
TEXT = re.compile(r"[^\x00-\x1f\x7f-\x9f\u2028\u2029]*")  # quoted there
OPS = re.compile(
    r"torch\.ops\.(aten|prims|onednn|mkldnn|mkldnn_prepacked|quantized|quantized_decomposed|torchao|octune)\.\w+\.\w+"
    r"|torch\.ops\.higher_order\.(cond|wrap_with_set_grad_enabled|wrap_with_autocast|while_loop)"
    r"|torch\.sym_(int|float|ite|max|min|not|sqrt)|torch\._sym_sqrt|math\.trunc"
    r"|_operator\.(eq|ne|le|ge|lt|gt|neg|pos|mul|add|sub|floordiv|mod|pow|truediv|and_|or_|lshift|rshift|getitem)"
)
# They read and write files, or memory that is not theirs.
HARMFUL = re.compile(r"torch\.ops\.\w+\.(save|from_file|_unsafe_index\w*|_unsafe_masked\w*)\..*")
FUNCTIONS = {
    "Symbol", "Integer", "Float", "Rational", "Add", "Mul", "Pow", "Mod", "Max", "Min", "Abs", "And", "Or",
    "Not", "Equality", "Unequality", "Eq", "Ne", "Lt", "Le", "Gt", "Ge", "StrictLessThan", "LessThan",
    "StrictGreaterThan", "GreaterThan", "floor", "ceiling", "FloorDiv", "ModularIndexing", "Where",
    "PythonMod", "CleanDiv", "CeilToInt", "FloorToInt", "CeilDiv", "LShift", "RShift", "PowByNatural",
    "FloatPow", "FloatTrueDiv", "IntTrueDiv", "TruncToFloat", "TruncToInt", "RoundToInt", "RoundDecimal",
    "ToFloat", "Identity", "max", "min",
}  # fmt: skip
ARITHMETIC = (
    ast.Expression, ast.BinOp, ast.UnaryOp, ast.Compare, ast.BoolOp, ast.operator, ast.unaryop, ast.cmpop,
    ast.boolop, ast.expr_context, ast.keyword,
)  # fmt: skip
SYMBOL = re.compile(r"-?[su]?\d+|zuf\d+|True|False|true|false|oo|int_oo")
SIZE = re.compile(r"\bL(\[('\w+'|\d+)\])+\.(size|stride)\(\)\[\d+\]")
CODED = ("as_custom_obj", "custom_obj", "as_opaque", "opaque_obj")


def read_program(path: Path) -> torch.export.ExportedProgram:
    """The program in a file; ModelError says what in it is not plain data."""
    # They take as long to import as the rest of this backend, and few commands read a program.
    from torch._export.serde import schema, serialize
    from torch.export.pt2_archive import _package as package
    from torch.export.pt2_archive.constants import ARCHIVE_VERSION_VALUE

    check_archive(path, ModelError)
    reader = torch._C.PyTorchFileReader(str(path))
    names = list(reader.get_all_records())
    strange = [name for name in names if not PARTS.fullmatch(name)]
    if strange:
        raise ModelError(f"{path} holds {strange[0]!r}, which is not a part of an exported program: {_WHY}")
    if reader.get_record("archive_version") != ARCHIVE_VERSION_VALUE.encode():
        raise ModelError(f"{path} is of another version of torch.export.save. Export it again.")
    config = f"data/weights/{MODEL}_weights_config.json", f"data/constants/{MODEL}_constants_config.json"
    for name in config:
        _check_tensors(json.loads(reader.get_record(name)), f"{path}, {name}")
    described = json.loads(reader.get_record(f"models/{MODEL}.json"))
    _check(_without_remarks(described), str(path))
    sample = torch.load(io.BytesIO(reader.get_record(f"data/sample_inputs/{MODEL}.pt")), weights_only=True)
    with package.PT2ArchiveReader(str(path)) as archive:
        return serialize.ExportedProgramDeserializer().deserialize(
            serialize._bytes_to_dataclass(schema.ExportedProgram, json.dumps(described).encode()),
            package._load_state_dict(archive, MODEL),
            package._load_constants(archive, MODEL),
            sample,
        )


_WHY = "it could run code when it is read"


def _check_tensors(config: Any, where: str) -> None:
    for name, told in config["config"].items():
        if told["use_pickle"] is not False or not re.fullmatch(r"(weight|tensor)_\d+", told["path_name"]):
            raise ModelError(f"{where} has {name!r} as a pickled object: {_WHY}. Export plain tensors only.")


def _without_remarks(value: Any) -> Any:
    """Drop what exporters note for people, here and in all that is inside: it has free text, and would be
    looked up as the names of functions.
    """
    if isinstance(value, dict):
        if "metadata" in value:
            value["metadata"] = {}
        for inner in value.values():
            _without_remarks(inner)
    elif isinstance(value, list):
        for inner in value:
            _without_remarks(inner)
    return value


def _check(described: Any, where: str) -> None:
    """ModelError on the first text that could become code."""
    for key, text in _texts(described, ""):
        if key in CODED:
            raise ModelError(
                f"{where} holds an object of a class of its own: {_WHY}. Export plain tensors only."
            )
        if not _harmless(key, text):
            raise ModelError(
                f"{where} has {text[:80]!r} as {key or 'a name'}, which no exporter writes for a plain "
                f"model: {_WHY}."
            )


def _texts(value: Any, key: str) -> Iterator[tuple[str, str]]:
    """All text in plain data, each with the key that says what it is; keys are names themselves."""
    if isinstance(value, str):
        yield key, value
    elif isinstance(value, dict):
        for name, inner in value.items():
            yield (name if name in CODED and inner else ""), name
            yield from _texts(inner, name)
    elif isinstance(value, list):
        for inner in value:
            yield from _texts(inner, key)


def _harmless(key: str, text: str) -> bool:
    if key in ("target", "as_operator"):
        return bool(OPS.fullmatch(text)) and not HARMFUL.fullmatch(text)
    if key == "expr_str":
        return _is_arithmetic(text)
    if key == "guards_code":
        return _is_arithmetic(SIZE.sub("1", text))
    if key in ("in_spec", "out_spec"):
        return _is_structure(json.loads(text)[1])
    if key in ("as_string", "as_strings"):
        return bool(TEXT.fullmatch(text))
    if key == "as_float" and text in ("Infinity", "-Infinity", "NaN"):
        return True
    if key == "torch_version":
        return bool(re.fullmatch(r"[\w.+]*", text))
    return bool(NAME.fullmatch(text))


def _is_arithmetic(formula: str) -> bool:
    """Whether a formula of sizes is nothing but numbers, symbols, operators and known functions of them."""
    if len(formula) > 10_000:
        return False
    try:
        return all(map(_is_term, ast.walk(ast.parse(formula, mode="eval"))))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False


def _is_term(node: ast.AST) -> bool:
    if isinstance(node, ast.Constant):
        return isinstance(node.value, bool | int | float) or bool(re.fullmatch(r"[\w.+-]*", str(node.value)))
    if isinstance(node, ast.Name):
        return node.id in FUNCTIONS or bool(SYMBOL.fullmatch(node.id))
    if isinstance(node, ast.Call):
        return isinstance(node.func, ast.Name) and node.func.id in FUNCTIONS
    return isinstance(node, ARITHMETIC)


def _is_structure(spec: Any) -> bool:
    """Whether the nesting of inputs or outputs needs no code: PyTorch imports what others name."""
    if not isinstance(spec, dict):
        return False
    kind, context = spec["type"], spec["context"]
    if kind == "collections.defaultdict" or not isinstance(kind, str | None):
        return False
    plain = context is None or (isinstance(context, str) and _is_plain(json.loads(context)))
    return plain and all(map(_is_structure, spec["children_spec"]))


def _is_plain(context: Any) -> bool:
    if isinstance(context, list):
        return all(map(_is_plain, context))
    return context is None or isinstance(context, int) or bool(re.fullmatch(r"[\w. -]*", str(context)))
