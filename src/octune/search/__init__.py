"""One file a strategy, one small base: ask for a plan, tell what came of it."""

from octune.search.auto import Auto
from octune.search.base import Proposal, Strategy
from octune.search.basic import Basic
from octune.search.exhaustive import Exhaustive
from octune.search.mse import Mse
from octune.search.sampled import Bayesian, Random, Tpe
from octune.search.space import Space

__all__ = [
    "Auto",
    "Basic",
    "Bayesian",
    "Exhaustive",
    "Mse",
    "Proposal",
    "Random",
    "STRATEGIES",
    "Space",
    "Strategy",
    "Tpe",
]

STRATEGIES: dict[str, type[Strategy]] = {
    "auto": Auto,
    "basic": Basic,
    "bayesian": Bayesian,
    "exhaustive": Exhaustive,
    "mse": Mse,
    "random": Random,
    "tpe": Tpe,
}
