"""The compiled form of a saved model, made on this machine: ``octune compile model-int8``.

Native code is for one CPU and one version of its compiler, and that of others is not run. So what a folder
holds as a graph is compiled again. Nothing is scored: the plan and the weights stay as they are, and the
outputs must be those of the graph.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np

from octune.artifact import MANIFEST, manifest, needs_limits, sealed, write_manifest
from octune.backends.opened import Source
from octune.backends.select import backend_named
from octune.backends.terms import Outputs
from octune.benchmark.inputs import MadeInputs
from octune.errors import ArtifactError
from octune.folders import complete_or_absent, sums
from octune.signing import SIGNATURE
from octune.trust import made_here, remember

__all__ = ["compile_saved"]

ROWS = 2  # an example of one row would be taken for the only size
# The squared difference over the variance of the outputs. Native code rounds in other places, and comes to
# about a thousandth of this; wrong code comes to about 1.
TOLERANCE = 0.01


def compile_saved(folder: str | Path, *, trust: bool = False) -> float:
    """Compile the model in a folder that Octune saved, and put the compiled form there: the folder is
    replaced in one step. Returns how far its outputs are from those of the graph, as a share of their
    variance.
    """
    folder = Path(folder)
    data = manifest(folder)
    if needs_limits(data):
        raise ArtifactError(
            f"{folder} was tuned for CPUs that add 8-bit products exactly. Compile it on one."
        )
    backend = backend_named(data["framework"])
    own = made_here(data["digest"])
    with complete_or_absent(folder, MANIFEST, overwrite=True) as staging:
        # an earlier signature is not one of what is compiled now
        shutil.copytree(folder, staging, dirs_exist_ok=True, ignore=shutil.ignore_patterns(SIGNATURE))
        told = {key: value for key, value in data["backend"].items() if key != "compiled"}
        model = backend.load(staging, told, trusted=trust or own)
        source = Source(f"Octune folder ({data['framework']})", str(folder), staging, told)
        with closing(backend.opened(model, source)) as opened:
            made = backend.recompile(staging, data["backend"], model, lambda: MadeInputs(opened)(ROWS, None))
        distance = _distance(made.before, made.after)
        if not distance <= TOLERANCE:
            raise ArtifactError(
                f"The compiled form of {folder} computes something other than its graph ({distance:.1%} of "
                "the variance of its outputs), so the folder was left as it is."
            )
        data = _with(data, made.metadata, staging)
        write_manifest(staging, data)
    remember(made.digest)
    if own:
        remember(data["digest"])
    return distance


def _with(data: dict[str, Any], backend: Mapping[str, Any], staging: Path) -> dict[str, Any]:
    files = {name: digest for name, digest in sums(staging).items() if name != MANIFEST}
    return sealed({**data, "backend": backend, "files": files})


def _distance(wanted: Outputs, got: Outputs) -> float:
    if set(wanted) != set(got):
        return float("inf")
    worst = 0.0
    for name, array in wanted.items():
        before, after = np.asarray(array, np.float64), np.asarray(got[name], np.float64)
        if before.shape != after.shape:
            return float("inf")
        worst = max(worst, float(np.mean((before - after) ** 2)) / max(float(np.var(before)), 1e-12))
    return worst
