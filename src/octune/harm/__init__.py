"""Label-free harm: of every op in every scheme, of whole plans, and of ops that are harmful only together."""

from octune.harm.groups import Group, interacting
from octune.harm.plan_probe import WORST, PlanProbe
from octune.harm.probe import output_change, output_spread, probe

__all__ = ["Group", "PlanProbe", "WORST", "interacting", "output_change", "output_spread", "probe"]
