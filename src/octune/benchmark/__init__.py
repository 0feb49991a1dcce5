"""Times finished models against each other: ``octune bench``, and ``octune.bench`` in Python.

run.py (the flow) -> instance.py (a model's process, from outside) -> worker.py (the same from inside) ->
inputs.py; pinning.py says which cores, outcome.py what was found.
"""

from octune.benchmark.outcome import Bench, Row
from octune.benchmark.run import bench

__all__ = ["Bench", "Row", "bench"]
