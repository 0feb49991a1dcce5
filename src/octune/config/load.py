"""Reads a configuration, in Octune's own dialect or in those of iLiT and LPOT.

    config = load_config("conf.yaml")
    config = parse_config("criterion:\\n  relative: 1%\\n")
    config = parse_config({"tuning": {"timeout": 60}})

The file is only read. Everything that is wrong with it comes in one ``ConfigError``, with lines.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from octune.config.dialects import KEYS, detect_dialect, foreign_key, to_native
from octune.config.messages import Problem, config_error, explain, got
from octune.config.schema import Config
from octune.config.yaml_lines import Document, NotYamlError, read
from octune.errors import ConfigError, alike

# Enough to recognise a model file that was named by mistake, without reading gigabytes.
FIRST_BYTES = 8192


def load_config(path: str | PathLike[str]) -> Config:
    """The configuration in a YAML file: ``load_config("conf.yaml")``."""
    return parse_config(_text(Path(path)), source=str(path))


def parse_config(content: str | Mapping[str, Any], source: str | None = None) -> Config:
    """The configuration in YAML text or in a mapping; ``source`` is its name in messages."""
    if isinstance(content, str):
        source = source or "<string>"
        try:
            document = read(content)
        except NotYamlError as error:
            raise config_error(source, [error.problem]) from None
    elif isinstance(content, Mapping):
        source = source or "<mapping>"
        document = Document(content)
    else:
        raise ConfigError(
            f"parse_config takes YAML text or a mapping. Got {got(content)}. To read a file, use "
            "load_config(path)."
        )
    if document.data is None:
        raise ConfigError(
            f"{source} is empty. Write at least one section, such as criterion with relative: 1%, or {{}} "
            "for all defaults."
        )
    if not isinstance(document.data, Mapping):
        hint = " To read a file, use load_config(path)." if source == "<string>" else ""
        text = (
            "a configuration must be a mapping of sections such as model, criterion and tuning. Got "
            f"{got(document.data)}.{hint}"
        )
        raise config_error(source, [Problem(text, line=document.line(()))])
    return _build(document, source)


def as_config(config: Config | str | Path | dict[str, Any] | None) -> Config:
    """A configuration in memory, whichever way it was given."""
    if config is None:
        return Config()
    if isinstance(config, Config):
        return config
    return load_config(config) if isinstance(config, str | Path) else parse_config(config, source="config")


def _build(document: Document, source: str) -> Config:
    dialect = detect_dialect(document.data)
    done = None if dialect == "native" else to_native(dialect, document.data)
    problems = [*document.problems, *(done.problems if done else [])]
    config = None
    try:
        config = Config.model_validate(done.native if done else document.data)
    except ValidationError as error:
        problems += explain(
            error, KEYS["native"], done.origin if done else None, foreign_key(dialect, document.data)
        )
    if config is None or problems:
        lined = [
            problem if problem.line else replace(problem, line=document.line(problem.where))
            for problem in problems
        ]
        raise config_error(source, lined)
    return config


def _text(path: Path) -> str:
    try:
        with path.open("rb") as stream:
            first = stream.read(FIRST_BYTES)
            if b"\0" in first:
                raise ConfigError(
                    f"{path} is a binary file, not YAML text. Name the configuration file, such as conf.yaml."
                )
            content = first + stream.read()
    except FileNotFoundError:
        raise ConfigError(f"{path} does not exist.{_similar(path)} Name an existing YAML file.") from None
    except IsADirectoryError:
        raise ConfigError(
            f"{path} is a folder. Name a YAML file in it.{_similar(path / 'conf.yaml')}"
        ) from None
    except OSError as error:
        raise ConfigError(
            f"{path} cannot be read: {error.strerror or error}. Name a YAML file that you may read."
        ) from None
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise ConfigError(f"{path}, line {line}: this is not UTF-8 text. Save the file as UTF-8.") from None


def _similar(path: Path) -> str:
    try:
        found = alike(
            path.name, [other.name for other in path.parent.iterdir() if other.suffix in (".yaml", ".yml")]
        )
    except OSError:
        return ""
    return f" Did you mean '{path.parent / found[0]}'?" if found else ""
