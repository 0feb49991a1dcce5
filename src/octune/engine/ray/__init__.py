"""Scoring on a Ray cluster: ``engine: ray``. The search, the journal and the verdicts stay in the process
that tunes; only this package imports Ray.
"""

from octune.engine.ray.crew import Crew, Wanted
from octune.engine.ray.study import Luggage, RayStudy

__all__ = ["Crew", "Luggage", "RayStudy", "Wanted"]
