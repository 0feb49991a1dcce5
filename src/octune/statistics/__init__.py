"""Pure statistics: how far a mean of paired losses could be off, and whether a candidate can still pass."""
