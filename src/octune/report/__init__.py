"""Results in a form that people read."""
