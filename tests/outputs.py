"""What any model that Octune hands over returns for named arrays, as one array; also as a script:

python -m tests.outputs given.npz out.npz folder...     # loads saved models, as a user's program would
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

import numpy as np

Arrays = Mapping[str, np.ndarray[Any, Any]]


def outputs(model: Any, given: Arrays) -> np.ndarray[Any, Any]:
    """The first output. A single array named ``x`` is given by position."""
    if hasattr(model, "state_dict"):
        return _torch(model, given)
    if hasattr(model, "get_inputs"):
        names = [one.name for one in model.get_inputs()]
        return np.asarray(model.run(None, dict(zip(names, given.values(), strict=True)))[0])
    import tensorflow as tf

    if isinstance(model, tf.Graph):
        with tf.compat.v1.Session(graph=model) as session:
            return np.asarray(session.run("logits:0", {"x:0": given["x"]}))
    served = getattr(model, "signatures", None)
    made = (
        model(tf.constant(given["x"])) if not served else served["serving_default"](tf.constant(given["x"]))
    )
    return np.asarray(made[min(made)] if isinstance(made, dict) else made)


def _torch(model: Any, given: Arrays) -> np.ndarray[Any, Any]:
    import torch

    inputs = {name: torch.from_numpy(array) for name, array in given.items()}
    with torch.no_grad():
        made = model(inputs["x"]) if set(inputs) == {"x"} else model(**inputs)
    found: torch.Tensor = made if isinstance(made, torch.Tensor) else made[0]
    return found.numpy()


if __name__ == "__main__":
    import octune

    given, out, *folders = sys.argv[1:]
    arrays = dict(np.load(given))
    np.savez(out, **{str(i): outputs(octune.load(folder), arrays) for i, folder in enumerate(folders)})
