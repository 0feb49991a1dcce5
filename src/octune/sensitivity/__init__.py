"""Label-free harm of every op in every scheme."""

from octune.sensitivity.probe import output_change, probe

__all__ = ["output_change", "probe"]
