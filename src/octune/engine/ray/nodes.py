"""The nodes of a Ray cluster, and how a worker is hired on one.

connect("auto")
for node in nodes():
    actor = hire(node, cpus=4)
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from octune.errors import ClusterError, MissingDependency, summary

__all__ = ["Node", "connect", "disconnect", "hire", "nodes"]


@dataclass(frozen=True, slots=True)
class Node:
    """A node that is alive; ``name`` is unique."""

    id: str
    name: str
    resources: Mapping[str, float]

    @property
    def cpus(self) -> int:
        return int(self.resources.get("CPU", 0))

    def slots(self, cpus: int | None) -> int:
        """How many workers of that many CPUs it has room for; one, if they take all."""
        return min(1, self.cpus) if cpus is None else self.cpus // cpus


def connect(address: str) -> bool:
    """Join a cluster, or start one on this machine for ``local``; whether that was done here, and must be
    undone.
    """
    if address.startswith("ray://"):
        raise ClusterError(
            f"engine.address is {address}, which is Ray's client, and a run has to be a part of the "
            "cluster. Start it on a node, or with: ray job submit -- octune tune ... --engine ray"
        )
    if address == "local":
        # Nobody else is to reach it: Ray keeps to the loopback device then, and sends no statistics.
        os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        import ray
    except ImportError as error:
        raise MissingDependency("ray", "ray", "engine: ray") from error
    if ray.is_initialized():
        return False
    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
    try:
        _knock(address)
        if address == "local":
            ray.init(address="local", include_dashboard=False, _node_ip_address="127.0.0.1", **quiet)
        else:
            ray.init(address=address, **quiet)
    except (OSError, RuntimeError, ValueError) as error:
        raise ClusterError(
            f"No Ray cluster answers at {address!r}: {summary(error)}. Start one with 'ray start "
            "--head', give its host:port as engine.address, or say local to start one here for this run."
        ) from error
    return True


def _knock(address: str) -> None:
    """Raise OSError if nobody listens there: Ray would try again for many minutes."""
    if address == "auto":
        with contextlib.suppress(ImportError):  # where Ray itself would look
            from ray._private.services import canonicalize_bootstrap_address

            address = canonicalize_bootstrap_address(address) or ""
    host, colon, port = address.rpartition(":")
    if colon and port.isdigit():
        socket.create_connection((host.strip("[]"), int(port)), timeout=10).close()


def disconnect() -> None:
    """Leave the cluster; one that was started here ends."""
    import ray

    ray.shutdown()


def nodes() -> list[Node]:
    """Those that are alive."""
    import ray

    known: list[dict[str, Any]] = ray.nodes()  # type: ignore[no-untyped-call]
    alive = [node for node in known if node["Alive"]]
    hosts = Counter(node["NodeManagerHostname"] for node in alive)
    return [
        Node(
            node["NodeID"],
            # several nodes of one machine have its name
            host if hosts[host := node["NodeManagerHostname"]] == 1 else f"{host}-{node['NodeID'][:6]}",
            node["Resources"],
        )
        for node in alive
    ]


def hire(
    node: Node, cpus: int | None, resources: Mapping[str, float] | None = None, threads: int | None = None
) -> Any:
    """A new worker on that node, with that many of its CPUs, or all. With ``resources`` of its own it is one
    that times: it keeps to its cores.
    """
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    from octune.engine.ray.worker import Worker

    taken = node.cpus if cpus is None else cpus
    hired = ray.remote(Worker).options(
        num_cpus=taken,
        resources=dict(resources or {}),
        max_restarts=0,
        scheduling_strategy=NodeAffinitySchedulingStrategy(node.id, soft=False),
    )
    return hired.remote(threads or taken or None, pinned=resources is not None)
