"""What every layout has in common: the saved model it is made from, and how its folder is written."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from octune import huggingface
from octune.artifact import manifest
from octune.backends.select import backend_named
from octune.backends.terms import Servable
from octune.errors import ConfigError, UnsupportedError
from octune.folders import check_replaceable, complete_or_absent, sums
from octune.trust import made_here

if TYPE_CHECKING:
    from octune.request import Request
    from octune.result import Result

__all__ = ["Layout", "Saved"]

RECORD = "octune-export.json"


@dataclass(frozen=True)
class Saved:
    """A saved model, checked: its manifest, its files, and the name that a server is to know it by.

    ``run`` is the result that it came from, where that is at hand, for a report.
    """

    folder: Path
    name: str
    manifest: dict[str, Any]
    huggingface: Path | None
    servable: Servable
    twin_of: Mapping[str, Any] | None = None
    run: Result | None = None

    @classmethod
    def read(
        cls,
        folder: Path,
        name: str | None = None,
        companions: Path | None = None,
        twin_of: Mapping[str, Any] | None = None,
        run: Result | None = None,
        *,
        trust: bool = False,
    ) -> Saved:
        """Read and check a folder that ``result.save`` wrote. ``twin_of`` is the manifest of the model whose
        twin it is. What the folder names is run only if it was made here, or with ``trust``.
        """
        data = manifest(folder)
        name = name or folder.resolve().name
        if not re.fullmatch(r"[\w.-]+", name) or name.startswith("."):
            raise ConfigError(
                f"The name of a served model has letters, digits, '_', '-' and '.'. Got {name!r} instead."
            )
        if companions is not None and not huggingface.companions(companions):
            raise ConfigError(
                f"{companions} is not a Hugging Face folder: it has neither a configuration nor a tokenizer."
            )
        own = folder / huggingface.FOLDER
        companions = companions or (own if own.is_dir() else None)
        servable = backend_named(data["framework"]).servable(
            folder, data["backend"], trusted=trust or made_here(data["digest"])
        )
        return cls(folder, name, data, companions, servable, twin_of, run)

    def write(self, form: str, folder: Path, stem: str | None = None) -> None:
        """Write the model in one of its formats, its files renamed if a stem is given."""
        folder.mkdir(parents=True)
        self.servable.formats[form](folder)
        for path in list(folder.iterdir()) if stem is not None else []:
            path.rename(path.with_name(f"{stem}{path.suffix}"))

    @property
    def threads(self) -> int:
        """How many threads it was timed with."""
        environment = self.manifest["environment"]
        return int(environment.get("threads") or environment["machine"]["cores"])


@dataclass(frozen=True)
class Layout:
    """How a server wants a model: which formats it reads, the best one first, and what writes its folder.

    A server with a folder for each model (``per_model``) gets the model's name below the output folder, where
    other models may be. Where the server reads none of the formats that a model was saved in,
    ``twin(saved, request, place)`` makes one that it does read, in an empty folder, from the fp32 model and
    the data of a request. ``refuse(saved, output)`` says why a model cannot be served like this, if it
    cannot; ``write(saved, form, folder)`` writes into an empty folder; ``finish(saved, output)`` comes after
    that, for what is written outside of it.
    """

    name: str
    title: str
    formats: Sequence[str]
    write: Callable[[Saved, str, Path], None]
    per_model: bool = True
    refuse: Callable[[Saved, Path], str | None] | None = None
    twin: Callable[[Saved, Request, Path], Saved] | None = None
    finish: Callable[[Saved, Path], None] | None = None

    def reads(self, saved: Saved) -> bool:
        """Whether the server reads any of the formats that the model was saved in."""
        return any(form in self.formats for form in saved.servable.formats)

    def check(self, saved: Saved, output: Path, *, overwrite: bool) -> None:
        """Refuse what cannot be written, before work is spent on it."""
        check_replaceable(self._target(saved, output), RECORD, overwrite=overwrite)
        if self.refuse is not None and (why := self.refuse(saved, output)):
            raise UnsupportedError(why)

    def export(self, saved: Saved, output: Path, *, overwrite: bool = False) -> Path:
        """Write the model in this layout: complete, or not at all."""
        # what was scored, if the server reads it; else what it does read
        form = next(form for form in saved.servable.formats if form in self.formats)
        target = self._target(saved, output)
        with complete_or_absent(target, RECORD, overwrite=overwrite) as staging:
            self.write(saved, form, staging)
            record = {
                "layout": self.name,
                "format": form,
                "plan_digest": saved.manifest["plan_digest"],
                "score": saved.manifest["best"]["score"],
                "octune": saved.manifest["octune"],
                "files": sums(staging),
            }
            (staging / RECORD).write_text(json.dumps(record, indent=1, sort_keys=True) + "\n")
        if self.finish is not None:
            self.finish(saved, output)
        return target

    def _target(self, saved: Saved, output: Path) -> Path:
        return output / saved.name if self.per_model else output
