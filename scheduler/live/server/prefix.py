# SPDX-License-Identifier: Apache-2.0
"""The prefix below which a cluster has its keys in etcd: the key `about` names the cluster and the layout."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from drom.scheduler.live.server import schema
from drom.scheduler.live.server.etcd import StoreError, absent, put

if TYPE_CHECKING:
    from drom.scheduler.live.server.etcd import Etcd


def claim(etcd: Etcd, prefix: str, cluster: str, seconds: float, *, has_homes: bool = False) -> None:
    """Claim an unused prefix for a cluster, within `seconds` for each message.

    Raises StoreError for a prefix that something else uses.
    """
    ours = {"application": "drom", "schema": schema.SCHEMA, "cluster": cluster, "homes": has_homes}
    key = f"{prefix}/about"
    if not etcd.first(f"{prefix}/", seconds):
        etcd.transact([absent(key)], [put(key, json.dumps(ours).encode())], key, seconds)
    record = etcd.first(key, seconds)
    try:
        there = json.loads(record.value) if record else {}
    except ValueError:
        there = {}
    if not isinstance(there, dict) or there.get("application") != "drom":
        raise StoreError(f"there are keys below {prefix} that are not of drom: give another /PREFIX")
    if there.get("cluster") != cluster:
        whose = f"the prefix {prefix} belongs to the cluster {str(there.get('cluster'))[:80]!r}"
        raise StoreError(f"{whose}, not {cluster!r}: give another /PREFIX, or the same --name")
    if there.get("schema") != schema.SCHEMA:
        raise StoreError(f"it was written by a drom with schema {there.get('schema')}: use that version")
    if bool(there.get("homes")) != has_homes:
        differs = (
            "no home partitions: omit --home-partition"
            if has_homes
            else "home partitions: choose one with --home-partition"
        )
        raise StoreError(f"the cluster at the prefix {prefix} has {differs}, or give another /PREFIX")
