"""Label-free harm: of every op in every scheme, of whole plans, and of ops that are harmful only together."""

from octune.sensitivity.groups import Group, interacting
from octune.sensitivity.joint import WORST, Joint
from octune.sensitivity.probe import output_change, probe

__all__ = ["Group", "Joint", "WORST", "interacting", "output_change", "probe"]
