"""What things cost on this machine: the machine itself, models timed in turns."""

from octune.cost.latency import Latency, interleaved
from octune.cost.machine import Machine, probe_machine

__all__ = ["Latency", "Machine", "interleaved", "probe_machine"]
