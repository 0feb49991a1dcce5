"""Who runs trials, and the journal that remembers them."""

from octune.engine.journal import Journal
from octune.engine.local import Study
from octune.engine.stop import Stop

__all__ = ["Journal", "Stop", "Study"]
