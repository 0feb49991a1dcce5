"""A saved model: one self-contained folder, which is refused if anything in it was changed.

    result.save("model-int8")
    model = octune.load("model-int8")

``octune.json`` is the manifest: plan, scores, machine, versions, and the sha256 of every other file. There is
no pickle in it.
"""

from __future__ import annotations

import hashlib
import json
import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any

from octune import huggingface
from octune.backends.select import backend_named
from octune.errors import ArtifactError
from octune.folders import complete_or_absent, sha256, sums
from octune.int8 import ANYWHERE, NEEDS_EXACT
from octune.machine import probe_machine
from octune.plain_json import loads
from octune.trust import made_here, remember

if TYPE_CHECKING:
    from octune.backends.base import Backend
    from octune.result import Result, Saving

__all__ = ["MANIFEST", "load", "manifest", "needs_limits", "save", "sealed", "write_manifest"]

log = logging.getLogger("octune")
MANIFEST = "octune.json"
FORMAT = 1


def save(result: Result, folder: Path, *, overwrite: bool = False) -> Path:
    """Write the folder in one step: it appears complete, or not at all."""
    with complete_or_absent(folder, MANIFEST, overwrite=overwrite) as staging:
        saving = result.saving
        if saving is None:
            raise ArtifactError("This result has no model to save; save it in the process that tuned it.")
        details = saving.write(result.model, staging)
        notes = details.get("notes", ())  # what the user must know to load it
        if saving.huggingface is not None:  # without its tokenizer a model is of no use
            huggingface.copy_companions(saving.huggingface, staging / huggingface.FOLDER)
        data = _manifest(result, saving, details, staging)
        write_manifest(staging, data)
    remember(data["digest"])
    for note in notes:
        log.warning("%s", note)
    return folder


def _manifest(result: Result, saving: Saving, details: dict[str, Any], staging: Path) -> dict[str, Any]:
    from octune import __version__

    quantized = any(scheme.dtype == "int8" for scheme in result.plan.values())
    data = {
        "format": FORMAT,
        "octune": __version__,
        "framework": details.pop("framework", saving.framework),
        "backend": details,
        "plan": result.plan.to_json(),
        "plan_digest": result.plan.digest,
        "met": result.met,
        "criterion": result.criterion.to_json(),
        "baseline": result.baseline.summary(),
        "best": result.best.summary(),
        "batch": result.batch,
        "verdict": None if result.best.verdict is None else str(result.best.verdict),
        "stopped_because": result.stopped_because,
        "environment": dict(result.environment),
        # int8 weights that use all 8 bits overflow the sums of some CPUs
        "safe_on": saving.safe_on if quantized else ANYWHERE,
        "files": sums(staging),
    }
    return sealed(data)


def sealed(data: dict[str, Any]) -> dict[str, Any]:
    """A manifest with its digest, which must be made anew after every change."""
    return data | {"digest": _digest(data)}


def write_manifest(folder: Path, data: dict[str, Any]) -> None:
    """Write what :func:`manifest` reads."""
    (folder / MANIFEST).write_text(json.dumps(data, indent=1, sort_keys=True) + "\n")


def _digest(data: dict[str, Any]) -> str:
    """The manifest's own checksum, over everything in it except itself."""
    rest = {key: value for key, value in data.items() if key != "digest"}
    return hashlib.sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()


def manifest(folder: str | Path) -> dict[str, Any]:
    """The manifest of a saved model, after checking that every file is what was written."""
    folder = Path(folder)
    path = folder / MANIFEST
    _check_plain(folder)
    try:
        data: dict[str, Any] = loads(path.read_text())
        files, version = dict(data["files"]), data["format"]
    except (FileNotFoundError, NotADirectoryError) as error:
        raise ArtifactError(_no_manifest(folder)) from error
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ArtifactError(f"{path} is damaged ({error}). Save the model again.") from error
    if version != FORMAT:
        raise ArtifactError(
            f"{folder} has format {version}, this Octune reads {FORMAT}. Load it with the Octune that wrote "
            f"it ({data.get('octune')})."
        )
    if data.get("digest") != _digest(data):
        raise ArtifactError(
            f"{path} is not the manifest that was saved (its digest differs): it was edited or damaged. Save "
            "the model again."
        )
    home = folder.resolve()
    for name, digest in files.items():
        try:
            if not (folder / name).resolve().is_relative_to(home):
                raise ArtifactError(
                    f"{path} names a file outside the folder ({name!r}): it was tampered with, or is a link. "
                    "Copy the files themselves."
                )
            found = sha256(folder / name)
        except OSError as error:
            raise ArtifactError(
                f"{folder / name} is missing or cannot be read ({error}). Copy the whole folder again."
            ) from error
        if found != digest:
            raise ArtifactError(
                f"{folder / name} is not the file that was saved (its sha256 differs): it is truncated or "
                "was tampered with."
            )
    return data


def _check_plain(folder: Path) -> None:
    """ArtifactError if anything in a folder is not a file or a folder of its own, whether the manifest names
    it or not: what is behind a link would be copied when the model is compiled or exported, and reading a
    pipe never ends.
    """
    home = folder.resolve()
    for path in folder.rglob("*"):
        if path.is_symlink() and not path.resolve().is_relative_to(home):
            raise ArtifactError(
                f"{path} names a file outside the folder: it is a link. Copy the files themselves."
            )
        if not (path.is_file() or path.is_dir()):
            raise ArtifactError(
                f"{path} is neither a file nor a folder (a pipe, a device or a link to nothing). Remove it."
            )


def _no_manifest(folder: Path) -> str:
    expected = "Expected the folder that result.save() or octune tune has written"
    if not folder.exists():
        return f"There is no folder {folder}. {expected}."
    if not folder.is_dir():
        return f"{folder} is a file. {expected}."
    near = folder / "model"  # where octune tune puts it in its workspace
    hint = f": {near}?" if (near / MANIFEST).exists() else "."
    return f"{folder} is not a saved model: it has no {MANIFEST}. {expected}{hint}"


def load(
    folder: str | Path, *, factory: Any = None, allow_saturation: bool = False, trust: bool = False
) -> Any:
    """A saved model, ready to run: needs neither the fp32 model nor the data.

    ``factory`` builds the architecture of a model whose class only your own code knows how to construct. Code
    that is in the folder or is named there (compiled code, a factory) runs only if you made the model on this
    machine, or ``trust`` it; else the same model is built from its int8 graph, which may be slower. A
    model that was tuned with ``performance.portable: false`` for CPUs with an int8 dot product, loaded on one
    without, would add wrongly: a PyTorch model gets smaller weights, which is said in the log; a graph file
    is refused, unless you ``allow_saturation``.
    """
    folder = Path(folder)
    data = manifest(folder)
    backend = backend_named(data["framework"])
    trusted = trust or made_here(data["digest"])
    try:
        if allow_saturation or not needs_limits(data):
            return backend.load(folder, data["backend"], factory, trusted=trusted)
        return _limited_again(backend, folder, data, factory, trusted=trusted)
    except (KeyError, TypeError, ValueError) as error:
        raise ArtifactError(
            f"{folder / MANIFEST} does not describe a model that can be built ({type(error).__name__}: "
            f"{error})."
        ) from error


def needs_limits(data: dict[str, Any]) -> bool:
    """Whether the weights of a saved model would overflow the sums of this CPU."""
    return not probe_machine().exact_int8 and data.get("safe_on", NEEDS_EXACT) != ANYWHERE


def _limited_again(
    backend: type[Backend], folder: Path, data: dict[str, Any], factory: Any, *, trusted: bool
) -> Any:
    why = (
        f"{folder} was tuned for {NEEDS_EXACT}; on this one ({probe_machine().cpu}) sums of its 8-bit "
        "products would overflow"
    )
    if not backend.limits_again:
        raise ArtifactError(
            f"{why}, and the weights of a graph file are not changed when it is loaded. Tune it again with "
            "performance.portable: true, "
            "run it on such a CPU, or accept wrong sums with octune.load(folder, allow_saturation=True)."
        )
    model = backend.load(folder, data["backend"], factory, limit_again=True, trusted=trusted)
    log.warning("%s: its weights were made smaller, and its score may differ slightly", why)
    return model
