# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from drom.scheduler.bench import large_cluster


def test_each_order_is_timed() -> None:
    """A scheduler with few nodes and jobs gives every figure, and each order is answered."""
    found = {row["name"]: row["median"] for row in large_cluster.measure(nodes=large_cluster.TIMES, waiting=1000)}

    orders = {name.removesuffix(", p99") for name in found if name.endswith(", p99")}
    assert len(orders) == 11
    assert all(found[f"{name}, p50"] > 0 for name in orders)
    assert found["the longest turn of the loop"] > 0
