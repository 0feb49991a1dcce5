"""What things cost on this machine: the machine itself, models timed in turns, bytes."""

from octune.cost.latency import Latency, interleaved
from octune.cost.size import weight_bytes

__all__ = ["Latency", "interleaved", "weight_bytes"]
