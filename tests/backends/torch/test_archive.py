"""``.pt2`` files of strangers: each way in which ``torch.export.load`` would run code is tried."""

from __future__ import annotations

import json
import pickle
import zipfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from octune.backends.torch.archive import read_program
from octune.backends.torch.sources import open_model
from octune.errors import ModelError

Parts = dict[str, bytes]
MODEL = "models/model.json"


class Small(nn.Module):
    """A program with sizes that are free, a constant, and a dictionary as its output."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 4)
        self.register_buffer("shift", torch.ones(4), persistent=False)

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"logits": self.linear(x).reshape(x.shape[0], 2, 2) + self.shift.sum()}


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("program") / "model.pt2"
    free = {"x": {0: torch.export.Dim("rows", min=2)}}
    torch.export.save(torch.export.export(Small().eval(), (torch.ones(6, 8),), dynamic_shapes=free), path)
    return path


@pytest.fixture
def marker(tmp_path: Path) -> Path:
    return tmp_path / "marker"


class Hostile:
    """What creates the marker when it is unpickled."""

    def __init__(self, marker: Path) -> None:
        self._marker = marker

    def __reduce__(self) -> Any:
        return open, (str(self._marker), "w")


def changed(plain: Path, place: Path, change: Callable[[Parts], object]) -> Path:
    """The archive with other parts, and written as PyTorch does."""
    with zipfile.ZipFile(plain) as archive:
        parts = {name.split("/", 1)[1]: archive.read(name) for name in archive.namelist()}
    change(parts)
    path = place / "hostile.pt2"
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in parts.items():
            archive.writestr(f"hostile/{name}", content)
    return path


def edited(plain: Path, place: Path, edit: Callable[[dict[str, Any]], object]) -> Path:
    """The archive with another graph."""

    def change(parts: Parts) -> None:
        described = json.loads(parts[MODEL])
        edit(described)
        parts[MODEL] = json.dumps(described).encode()

    return changed(plain, place, change)


def test_what_an_exporter_writes_is_read_as_it_was(plain: Path) -> None:
    read, known = read_program(plain), torch.export.load(plain)
    assert str(read.graph) == str(known.graph)
    assert read.range_constraints == known.range_constraints
    x = torch.randn(10, 8)
    assert torch.equal(read.module()(x)["logits"], known.module()(x)["logits"])
    assert read._guards_code == known._guards_code


class TestPickles:
    def weights(self, marker: Path) -> Callable[[Parts], object]:
        def change(parts: Parts) -> None:
            config = json.loads(parts["data/weights/model_weights_config.json"])
            config["config"]["linear.weight"]["use_pickle"] = True
            parts["data/weights/model_weights_config.json"] = json.dumps(config).encode()
            told = config["config"]["linear.weight"]
            parts[f"data/weights/{told['path_name']}"] = pickle.dumps(Hostile(marker))

        return change

    def constants(self, marker: Path) -> Callable[[Parts], object]:
        def change(parts: Parts) -> None:
            told = {"path_name": "opaque_obj_0", "is_param": False, "use_pickle": True, "tensor_meta": None}
            parts["data/constants/model_constants_config.json"] = json.dumps({"config": {"c": told}}).encode()
            parts["data/constants/opaque_obj_0"] = pickle.dumps(Hostile(marker))

        return change

    def example(self, marker: Path) -> Callable[[Parts], object]:
        def change(parts: Parts) -> None:
            parts["data/sample_inputs/model.pt"] = pickle.dumps(Hostile(marker))

        return change

    def old_weights(self, marker: Path) -> Callable[[Parts], object]:
        def change(parts: Parts) -> None:
            parts["data/weights/model.pt"] = pickle.dumps(Hostile(marker))

        return change

    @pytest.mark.parametrize("where", ["weights", "constants", "example", "old_weights"])
    def test_are_not_opened(self, plain: Path, tmp_path: Path, marker: Path, where: str) -> None:
        path = changed(plain, tmp_path, getattr(self, where)(marker))
        with pytest.raises(ModelError):
            open_model(str(path))
        assert not marker.exists()
        with suppress(Exception):
            torch.export.load(path)
        assert marker.exists()  # so it would have run


def test_native_code_in_the_archive_is_not_loaded(plain: Path, tmp_path: Path) -> None:
    path = changed(plain, tmp_path, lambda parts: parts.update({"data/aotinductor/model/x.so": b"\x7fELF"}))
    with pytest.raises(ModelError, match="not a part of an exported program"):
        read_program(path)


CALL = "__import__('pathlib').Path('MARKER').touch()"
DEFAULTS = {"default_factory_module": "hostile", "default_factory_name": "x", "dict_context": []}


def node(described: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = described["graph_module"]["graph"]["nodes"][0]
    return found


def renamed(described: dict[str, Any], new: str) -> None:
    """The input of the program gets another name, everywhere."""
    text = json.dumps(described).replace('"x"', json.dumps(new))
    described.clear()
    described.update(json.loads(text))


EDITS: dict[str, Callable[[dict[str, Any], str], object]] = {
    "formula": lambda d, code: d["graph_module"]["graph"]["tensor_values"]["x"]["sizes"].__setitem__(
        0, {"as_expr": {"expr_str": code, "hint": {"as_int": 6}}}
    ),
    "guard": lambda d, code: d["guards_code"].append(code),
    "guard after a size": lambda d, code: d["guards_code"].append(f"L['x'].size()[0] == {code}"),
    "op": lambda d, code: node(d).update(target="torch.os.system"),
    "library": lambda d, code: node(d).update(target="torch.ops.load_library"),
    "file": lambda d, code: node(d).update(target="torch.ops.aten.from_file.default"),
    "getter": lambda d, code: node(d).update(target="_operator.attrgetter"),
    "name of an input": lambda d, code: renamed(d, f"x=({code})"),
    "name of a node": lambda d, code: node(d).update(name=f"y = {code} #"),
    "name of an argument": lambda d, code: node(d)["inputs"][0].update(name=f"k={code}, b"),
    "newline in text": lambda d, code: node(d)["inputs"][0].update(arg={"as_string": f"a\n{code}"}),
    "default dictionary": lambda d, code: d["graph_module"]["module_call_graph"][0]["signature"].update(
        out_spec=json.dumps(
            [1, {"type": "collections.defaultdict", "context": json.dumps(DEFAULTS), "children_spec": []}]
        )
    ),
    "enum": lambda d, code: d["graph_module"]["module_call_graph"][0]["signature"].update(
        out_spec=json.dumps(
            [
                1,
                {
                    "type": "builtins.dict",
                    "context": json.dumps([{"__enum__": True, "fqn": "hostile:X", "name": "y"}]),
                    "children_spec": [],
                },
            ]
        )
    ),
    "object": lambda d, code: node(d)["inputs"][0].update(
        arg={"as_custom_obj": {"name": "o", "class_fqn": "x"}}
    ),
}


@pytest.mark.parametrize("edit", EDITS)
def test_text_cannot_become_code(plain: Path, tmp_path: Path, marker: Path, edit: str) -> None:
    code = CALL.replace("MARKER", str(marker))
    path = edited(plain, tmp_path, lambda described: EDITS[edit](described, code))
    with pytest.raises(ModelError, match=r"could run code"):
        read_program(path)
    assert not marker.exists()


@pytest.mark.parametrize("edit", ["formula", "guard"])
def test_such_text_is_code_to_torch(plain: Path, tmp_path: Path, marker: Path, edit: str) -> None:
    """Or refusing it would protect from nothing."""
    code = CALL.replace("MARKER", str(marker))
    path = edited(plain, tmp_path, lambda described: EDITS[edit](described, code))
    with pytest.raises(Exception, match=r"."):
        torch.export.load(path).module()(torch.ones(6, 8))
    assert marker.exists()


def test_remarks_do_not_count(plain: Path, tmp_path: Path) -> None:
    def remarks(described: dict[str, Any]) -> None:
        node(described)["metadata"] = {
            "stack_trace": "File x\nimport os",
            "source_fn_stack": "a,torch.os.system",
        }

    path = edited(plain, tmp_path, remarks)
    first = next(one for one in read_program(path).graph.nodes if one.op == "call_function")
    assert "import os" not in str(first.meta)
    assert "source_fn_stack" not in first.meta


def test_a_part_twice_is_refused(plain: Path, tmp_path: Path) -> None:
    path = changed(plain, tmp_path, lambda parts: None)
    with zipfile.ZipFile(path, "a") as archive, pytest.warns(UserWarning, match="Duplicate"):
        archive.writestr(f"hostile/{MODEL}", "{}")
    with pytest.raises(ModelError, match="twice"):
        read_program(path)
