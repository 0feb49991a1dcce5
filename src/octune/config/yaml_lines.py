"""Reads YAML into plain data and remembers which line every value is on; writes plain data back.

    document = read("tuning:\\n  timeout: 60\\n")
    document.data                          {"tuning": {"timeout": 60}}
    document.line(("tuning", "timeout"))   2

Only plain data can come out: no tag ever makes an object. Differences from PyYAML's own loader: a duplicate
key in a mapping is an error, keys are always text (an op may be called 0), 1e-3 is a number, and 1:30 and
2021-01-01 are text.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import yaml

from octune.config.messages import Problem, Where, show

# With aliases, a few lines can mean billions of values; no real configuration comes near this.
MOST_VALUES = 100_000
TAG = "tag:yaml.org,2002:"
TRUE, FALSE = ("true", "yes", "on"), ("false", "no", "off")


@dataclass(frozen=True)
class Document:
    """Plain data with the lines it came from, and what was wrong with the text."""

    data: Any
    lines: Mapping[Where, int] = field(default_factory=dict)
    problems: tuple[Problem, ...] = ()

    def line(self, where: Where) -> int | None:
        """The line of a value, or of the closest thing around it that has one."""
        for length in range(len(where), 0, -1):
            if where[:length] in self.lines:
                return self.lines[where[:length]]
        return self.lines.get(())


class NotYamlError(Exception):
    """The text is not YAML; carries the one problem."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem.text)
        self.problem = problem


class _Loader(yaml.SafeLoader):
    """Composes nodes only; values are made by ``_Reader``."""


class _Dumper(yaml.SafeDumper):
    """Quotes text that ``_Loader``, or any other reader of YAML 1.1, would take for something else."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _set_resolvers(target: Any, drop: tuple[str, ...] = ()) -> None:
    target.yaml_implicit_resolvers = {
        first: [pair for pair in pairs if pair[0].removeprefix(TAG) not in drop]
        for first, pairs in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }
    target.add_implicit_resolver(TAG + "int", re.compile(r"^[-+]?(?:0|[1-9][0-9_]*)$"), list("-+0123456789"))
    target.add_implicit_resolver(
        TAG + "float",
        re.compile(
            r"^[-+]?(?:(?:[0-9][0-9_]*\.[0-9_]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?|[0-9]+[eE][-+]?[0-9]+)$"
            r"|^[-+]?\.(?:inf|Inf|INF)$|^\.(?:nan|NaN|NAN)$"
        ),
        list("-+.0123456789"),
    )


_set_resolvers(_Loader, drop=("int", "float", "timestamp", "value"))
_set_resolvers(_Dumper)
# PyYAML loses rare line breaks (U+0085, U+2028) in other quotes. Lists go on one line, mappings do not, as
# people write them.
_Dumper.add_representer(
    str,
    lambda dumper, text: dumper.represent_scalar(
        TAG + "str", text, style=None if text.isprintable() else '"'
    ),
)
_Dumper.add_representer(
    list, lambda dumper, data: dumper.represent_sequence(TAG + "seq", data, flow_style=True)
)


def read(text: str) -> Document:
    """The data of a YAML text with its lines. Raises ``NotYamlError`` where the text cannot be parsed at
    all.
    """
    try:
        node = yaml.compose(text, Loader=_Loader)
        if node is None:
            return Document(None)
        reader = _Reader()
        data = reader.value(node, ())
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        hint = " Indent with spaces, not tabs." if "\\t" in (error.problem or "") else ""
        text_of = f"this is not valid YAML: {error.problem or error.context}.{hint}"
        raise NotYamlError(Problem(text_of, line=mark.line + 1 if mark else None)) from None
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise NotYamlError(
            Problem(
                f"this is not valid YAML: the character {chr(int(error.character))!r} is not allowed.",
                line=line,
            )
        ) from None
    except RecursionError:
        raise NotYamlError(Problem("this is nested too deeply to be a configuration.")) from None
    return Document(data, reader.lines, tuple(reader.problems))


def dump(data: Mapping[str, Any]) -> str:
    """YAML that ``read`` turns into the same data."""
    written: str = yaml.dump(
        dict(data), Dumper=_Dumper, sort_keys=False, allow_unicode=True, default_flow_style=False, width=120
    )
    return written


class _Reader:
    """Turns nodes into values, and notes the lines on the way."""

    def __init__(self) -> None:
        self.lines: dict[Where, int] = {}
        self.problems: list[Problem] = []
        self.open: set[int] = set()
        self.seen = 0

    def value(self, node: yaml.Node, where: Where) -> Any:
        line = node.start_mark.line + 1
        self.lines.setdefault(where, line)
        self.seen += 1
        if self.seen > MOST_VALUES:
            raise NotYamlError(
                Problem(
                    f"this holds more than {MOST_VALUES:,} values, too many for a configuration.", line=line
                )
            )
        if isinstance(node, yaml.ScalarNode):
            return self._scalar(node, where)
        if id(node) in self.open:
            raise NotYamlError(
                Problem(f"{show(where)} contains itself (an alias inside its own anchor).", line=line)
            )
        self.open.add(id(node))
        try:
            if isinstance(node, yaml.MappingNode):
                self._check_tag(node, where, "map")
                return self._mapping(node, where)
            self._check_tag(node, where, "seq")
            return [self.value(item, (*where, place)) for place, item in enumerate(node.value)]
        finally:
            self.open.discard(id(node))

    def _mapping(self, node: yaml.MappingNode, where: Where) -> dict[str, Any]:
        found: dict[str, Any] = {}
        merged: dict[str, Any] = {}
        for key_node, value_node in node.value:
            line = key_node.start_mark.line + 1
            if not isinstance(key_node, yaml.ScalarNode):
                self._problem(
                    where,
                    line,
                    f"{show(where)} has a key that is a list or a mapping; a key must be text.".lstrip(),
                )
                continue
            if key_node.tag == TAG + "merge":
                for source in value_node.value if isinstance(value_node, yaml.SequenceNode) else [value_node]:
                    extra = (
                        self.value(source, (*where, "<<")) if isinstance(source, yaml.MappingNode) else None
                    )
                    if extra is None:
                        self._problem(
                            where,
                            line,
                            f"{show(where)} merges (<<) something that is not a mapping.".lstrip(),
                        )
                    merged = {**(extra or {}), **merged}
                continue
            key = key_node.value
            below = (*where, key)
            if key in found:
                self._problem(
                    below,
                    line,
                    f"{show(below)} is given twice; the first is on line {self.lines[below]}. Keep one.",
                )
                continue
            self.lines[below] = line
            found[key] = self.value(value_node, below)
        return {**merged, **found}

    def _scalar(self, node: yaml.ScalarNode, where: Where) -> Any:
        kinds: dict[str, Callable[[str], Any]] = {
            "null": _null,
            "bool": _switch,
            "int": _int,
            "float": _float,
            "str": str,
        }
        make = kinds.get(node.tag.removeprefix(TAG))
        if make is None:
            self._tag_problem(node, where)
            return node.value
        try:
            return make(node.value)
        except ValueError:
            self._problem(
                where,
                node.start_mark.line + 1,
                f"{show(where)} has the tag {_short(node.tag)}, which {node.value!r} does not fit.".lstrip(),
            )
            return node.value

    def _check_tag(self, node: yaml.Node, where: Where, kind: str) -> None:
        if node.tag != TAG + kind:
            self._tag_problem(node, where)

    def _tag_problem(self, node: yaml.Node, where: Where) -> None:
        text = (
            f"{show(where)} has the tag {_short(node.tag)}, which is not allowed. Write plain text, "
            "numbers, lists or mappings."
        )
        self._problem(where, node.start_mark.line + 1, text.lstrip())

    def _problem(self, where: Where, line: int, text: str) -> None:
        self.problems.append(Problem(text, where, line))


def _null(text: str) -> None:
    if text.lower() not in ("", "~", "null"):
        raise ValueError(text)


def _switch(text: str) -> bool:
    if text.lower() not in TRUE + FALSE:
        raise ValueError(text)
    return text.lower() in TRUE


def _int(text: str) -> int:
    return int(text.replace("_", ""))


def _float(text: str) -> float:
    bare = text.replace("_", "").lower()
    return float(bare.replace(".inf", "inf").replace(".nan", "nan"))


def _short(tag: str) -> str:
    return tag.replace(TAG, "!!")
