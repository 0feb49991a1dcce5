"""A real Ray cluster of several nodes on this machine, for tests. It keeps to the loopback device: see
conftest.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

HOME = {"node_ip_address": "127.0.0.1", "object_store_memory": 128 * 2**20}
TRIES = 4  # Ray gives a node 30 s to start, which a busy machine may need for itself


@contextmanager
def nodes(*args: dict[str, Any]) -> Iterator[Any]:
    """A cluster with these nodes, and a head without CPUs; more nodes can join it, and leave it."""
    made = _started(args)
    try:
        yield made
    finally:
        made.shutdown()


def _started(args: tuple[dict[str, Any], ...]) -> Any:
    """All of it or nothing: a node that came late would be one too many."""
    from ray.cluster_utils import Cluster

    for left in reversed(range(TRIES)):
        made = None
        try:
            made = Cluster(
                initialize_head=True, head_node_args={**HOME, "num_cpus": 0, "include_dashboard": False}
            )
            for node in args:
                made.add_node(**HOME, **node)
            return made
        except Exception as error:  # Ray has no name for it
            if made is not None:
                made.shutdown()
            if not left or "timed out during startup" not in str(error):
                raise
    raise AssertionError


@contextmanager
def cluster(*args: dict[str, Any]) -> Iterator[str]:
    """The address of a cluster with these nodes."""
    with nodes(*args) as made:
        yield made.address
