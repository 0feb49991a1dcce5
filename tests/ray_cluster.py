"""A real Ray cluster of several nodes on this machine, for tests. It keeps to the loopback device: see
conftest.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

HOME = {"node_ip_address": "127.0.0.1", "object_store_memory": 128 * 2**20}


@contextmanager
def nodes(*args: dict[str, Any]) -> Iterator[Any]:
    """A cluster with these nodes, and a head without CPUs; more nodes can join it, and leave it."""
    from ray.cluster_utils import Cluster

    made = Cluster(initialize_head=True, head_node_args={**HOME, "num_cpus": 0, "include_dashboard": False})
    try:
        for node in args:
            made.add_node(**HOME, **node)
        yield made
    finally:
        made.shutdown()


@contextmanager
def cluster(*args: dict[str, Any]) -> Iterator[str]:
    """The address of a cluster with these nodes."""
    with nodes(*args) as made:
        yield made.address
