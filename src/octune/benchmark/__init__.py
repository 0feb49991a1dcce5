"""Times finished models against each other: ``octune bench``, and ``octune.bench`` in Python.

run.py (the flow) -> instance.py (a model's process, from outside) -> worker.py (the same from inside) ->
inputs.py; outcome.py says what was found, and octune.pinning on which cores.
"""

from octune.benchmark.outcome import Bench, Row
from octune.benchmark.run import bench

__all__ = ["Bench", "Row", "bench"]
