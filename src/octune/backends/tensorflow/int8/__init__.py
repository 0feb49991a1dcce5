"""From ops and a plan to a graph with int8 kernels."""
