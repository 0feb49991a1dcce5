"""Translates a document of another dialect into the schema, row by row of a table, and remembers where each
value came from.

    rows = [
        *move("tuning.exit_policy.{timeout,max_trials}", "tuning.{}"),
        refuse("pruning", "Octune does not prune."),
    ]
    done = translate(Dialect("LPOT", rows), {"tuning": {"exit_policy": {"timeout": 60}}})
    done.native                                   {"tuning": {"timeout": 60}}
    done.origin(("tuning", "timeout"))            ("tuning", "exit_policy", "timeout")

A row says what becomes of one old key. A key without a row is an error, so nothing is ever dropped silently.
Wherever the old document needs a mapping, a list of mappings means the same (iLiT's ``- relative: 0.01``).
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from pydantic_core import PydanticCustomError

from octune.config.messages import Keys, Problem, Where, got, show, unknown_key


class Translation:
    """What a document says in the schema's terms so far, and what was wrong with it."""

    def __init__(self, keys: Keys, note: Callable[[Where], str] = lambda where: "") -> None:
        self.native: dict[str, Any] = {}
        self.problems: list[Problem] = []
        self.kept: dict[str, tuple[Any, Where]] = {}
        self.visited: set[str] = set()
        self.keys = keys
        self.note = note
        self._origins: dict[Where, Where] = {}

    def put(self, new: Where, value: Any, where: Where) -> None:
        """Sets a key of the schema to a value that the user wrote at ``where``."""
        section = self.native
        for key in new[:-1]:
            section = section.setdefault(str(key), {})
        section[str(new[-1])] = value
        self._origins[new] = where

    def default(self, new: Where, value: Any) -> None:
        """Sets a key of the schema that the user left out to the dialect's own default."""
        section = self.native
        for key in new[:-1]:
            section = section.setdefault(str(key), {})
        section.setdefault(str(new[-1]), value)

    def problem(self, where: Where, text: str) -> None:
        """Notes that the value at ``where`` cannot be used; ``text`` follows the name of the key."""
        self.problems.append(Problem(f"{show(where)} {text}", where))

    def unknown(self, where: Where, keys: Keys | None = None) -> None:
        """Notes that the key at ``where`` is not known."""
        self.problems.append(Problem(unknown_key(where, keys or self.keys, self.note(where)), where))

    def entries(self, value: Any, where: Where) -> Iterator[tuple[str, Any, Where]]:
        """Key, value and place of each entry of a mapping, of a list of mappings, or of nothing."""
        if value is None:
            return
        if isinstance(value, Mapping):
            parts: list[tuple[Mapping[Any, Any], Where]] = [(value, where)]
        elif isinstance(value, list | tuple) and all(isinstance(item, Mapping) for item in value):
            parts = [(item, (*where, place)) for place, item in enumerate(value)]
        else:
            self.problem(where, f"must be a mapping of keys to values. Got {got(value)}.")
            return
        seen: set[str] = set()
        for part, start in parts:
            for key, item in part.items():
                at = (*start, str(key))
                if str(key) in seen:
                    self.problem(at, "is given twice. Keep one.")
                    continue
                seen.add(str(key))
                yield str(key), item, at

    def origin(self, new: Where) -> Where:
        """The user's own path for a path of the schema."""
        for length in range(len(new), 0, -1):
            if new[:length] in self._origins:
                return self._origins[new[:length]] + new[length:]
        for known, where in self._origins.items():
            if known[: len(new)] == new:
                # The schema complains about a whole section: name the user's section, that of the first key
                # that went there.
                return where[: len(where) - (len(known) - len(new))]
        return new


Act = Callable[[Translation, Any, Where], None]


@dataclass(frozen=True)
class Row:
    """What becomes of one old key."""

    old: str
    act: Act


@dataclass(frozen=True)
class Dialect:
    """A way of writing a configuration: its table, and what remains to be done once all keys have been
    read.
    """

    name: str
    rows: Iterable[Row]
    finish: Callable[[Translation], None] = lambda done: None


def move(old: str, new: str, convert: Callable[[Any], Any] | None = None) -> list[Row]:
    """Rows for a key that means the same as a key of the schema. ``{a,b}`` in the old path fills a ``{}`` in
    the new one.
    """
    groups = [group.split(",") for group in re.findall(r"\{([^}]*)\}", old)]
    form = re.sub(r"\{[^}]*\}", "{}", old)
    return [
        Row(form.format(*words), _mover(tuple(new.format(*words).split(".")), convert))
        for words in itertools.product(*groups)
    ]


def keep(old: str) -> Row:
    """A key that can only be understood together with others; ``finish`` finds it in ``kept``."""

    def act(done: Translation, value: Any, where: Where) -> None:
        done.kept[old] = (value, where)

    return Row(old, act)


def refuse(old: str, why: str, *, unless: Any = None) -> Row:
    """A key that cannot be honoured, except where it asks for nothing, or for ``unless``, which is done
    anyway.
    """

    def act(done: Translation, value: Any, where: Where) -> None:
        if value not in (None, {}, [], unless):
            done.problem(where, f"cannot be honoured: {why} Got {got(value)}.")

    return Row(old, act)


def translate(
    dialect: Dialect, data: Mapping[str, Any], note: Callable[[Where], str] = lambda where: ""
) -> Translation:
    """The document in the schema's terms, with all problems found on the way; ``note`` says more
    about unknown keys.
    """
    tree = _tree(dialect.rows)
    done = Translation(_keys(tree), note)
    _walk(done, tree, data, (), "")
    dialect.finish(done)
    return done


def keys_of_rows(rows: Iterable[Row]) -> Keys:
    """The keys that a table knows."""
    return _keys(_tree(rows))


@dataclass
class _Branch:
    row: Row | None = None
    below: dict[str, _Branch] = field(default_factory=dict)


def _mover(new: Where, convert: Callable[[Any], Any] | None) -> Act:
    def act(done: Translation, value: Any, where: Where) -> None:
        try:
            done.put(new, convert(value) if convert else value, where)
        except PydanticCustomError as error:
            done.problem(where, f"{error.message()}. Got {got(value)}.")

    return act


def _tree(rows: Iterable[Row]) -> _Branch:
    root = _Branch()
    for row in rows:
        branch = root
        for key in row.old.split("."):
            branch = branch.below.setdefault(key, _Branch())
        branch.row = row
    return root


def _keys(branch: _Branch) -> Keys:
    return Keys({key: _keys(below) for key, below in branch.below.items()})


def _walk(done: Translation, branch: _Branch, value: Any, where: Where, old: str) -> None:
    done.visited.add(old)
    # A key with a row of its own and keys below it can be abbreviated (strategy: basic) or written in full
    # (strategy: {name: basic}).
    short = branch.row is not None and (not branch.below or isinstance(value, str | int | float))
    if branch.row is not None and short:
        branch.row.act(done, value, where)
        return
    for key, item, at in done.entries(value, where):
        if key in branch.below:
            _walk(done, branch.below[key], item, at, f"{old}.{key}".lstrip("."))
        else:
            done.unknown(at)
