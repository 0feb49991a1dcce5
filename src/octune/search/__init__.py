"""One file a strategy, one small base: ask for a plan, tell what came of it."""

from octune.search.auto import Auto
from octune.search.base import Proposal, Strategy
from octune.search.basic import Basic
from octune.search.space import Space

__all__ = ["Auto", "Basic", "Proposal", "STRATEGIES", "Space", "Strategy"]

STRATEGIES: dict[str, type[Strategy]] = {"auto": Auto, "basic": Basic}
