"""From what the user brings to one frozen graph, and back to the user's kind of model."""
