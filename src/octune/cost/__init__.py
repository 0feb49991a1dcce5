"""What things cost on this machine: models timed in turns, what others take of it meanwhile, bytes."""

from octune.cost.latency import Latency, Speedup, interleaved
from octune.cost.load import Load
from octune.cost.size import weight_bytes

__all__ = ["Latency", "Load", "Speedup", "interleaved", "weight_bytes"]
