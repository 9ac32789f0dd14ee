"""Whether the name of a cluster means one cluster in a lake, and each cluster has one name there.

Many clusters have the name that RocketMQ gives by default, and brokers too. Two of them in one lake under one name
would be mixed; one of them under two names would be counted twice. So before anything of a cluster is recorded, it is
compared with what the lake has read: by the names and addresses of its brokers, or else by a few records.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from functools import partial
from typing import Final

import duckdb

from mqtrail.lake import Lake, LookUp, connect
from mqtrail.wire import MessageQueue, MQError, RecordError, decode_head

from .cluster import Cluster, Retrying
from .config import JobFailed
from .positions import APP, UNNAMED, Position, positions_from_json
from .rewinds import has_record

QUEUES_MAX: Final = 16  # queues whose last record is looked for in the lake
RETRY_TIMEOUT_MS: Final = 3_000  # a broker that does not answer is left out of the comparison

Connected = Callable[[], AbstractContextManager[Cluster]]


class ClusterNames:
    """Compares clusters with those that a lake has read. One call at a time."""

    def __init__(self, lake: Lake) -> None:
        self.lake = lake
        self._passed: dict[str, Mapping[str, str]] = {}  # name -> brokers of the cluster

    def check(
        self,
        name: str,
        brokers: Mapping[str, str],
        positions: Callable[[], Mapping[str, Position]],
        connected: Connected,
        *,
        is_registered: bool,
    ) -> None:
        """JobFailed: the lake has read another cluster of this name, or this cluster under another name.

        brokers: the address of each master. is_registered: the name is that of the name server, not the user's, who
        knows which cluster it is.
        """
        if not brokers or self._passed.get(name) == brokers:
            return
        self.lake.refresh()
        read = positions()
        own = read.get(name)
        if own is not None and own.offsets:
            if is_registered and not self._is_same(name, own, brokers, connected):
                raise JobFailed(
                    f"{self.lake.path}: found a cluster that is registered as {name!r} too, with brokers "
                    f"{_shown(brokers)}, expected the one that this lake has read under this name, with brokers "
                    f"{_shown(own.brokers or _names(own))}: pass --cluster with a name of its own if it is another "
                    f"cluster, `--cluster {name}` if it is the same one"
                )
        else:
            for other, position in read.items():
                if other != UNNAMED and self._compared(other, position, brokers, connected):
                    raise JobFailed(
                        f"{self.lake.path}: found a cluster {name!r} whose messages this lake has read as those of "
                        f"{other!r}, expected one name for each cluster: pass `--cluster {other}`"
                    )
        self._passed[name] = dict(brokers)

    def _is_same(self, name: str, known: Position, brokers: Mapping[str, str], connected: Connected) -> bool:
        """Whether brokers may be of the cluster that was read under a name."""
        common = set(_names(known)) & set(brokers)
        if any(known.brokers.get(broker) == brokers[broker] for broker in common):
            return True
        found = self._compared(name, known, brokers, connected)
        # Nothing to compare: brokers that moved may be empty, but no broker is left as it was.
        return bool(common) and not known.brokers if found is None else found

    def _compared(self, name: str, known: Position, brokers: Mapping[str, str], connected: Connected) -> bool | None:
        """Whether the lake has one of the last records of queues under a name; None: there are none to compare."""
        queues = sorted(queue for queue, reached in known.offsets.items() if reached and queue.broker_name in brokers)
        if not queues:
            return None
        duck = connect(threads=1)
        try:
            with connected() as connection:
                found = list(self._matches(duck, connection, name, known, queues))
        finally:
            duck.close()
        return any(found) if found else None

    def _matches(
        self,
        duck: duckdb.DuckDBPyConnection,
        connection: Cluster,
        name: str,
        known: Position,
        queues: list[MessageQueue],
    ) -> Iterator[bool]:
        """Yield for some queues whether the lake has the last record that it would have read of them."""
        retrying = Retrying(RETRY_TIMEOUT_MS)
        silent: set[str] = set()
        compared = 0
        for queue in queues:
            if queue.broker_name in silent or compared >= QUEUES_MAX:
                continue
            try:
                first, end = retrying(f"bounds of {queue}", partial(connection.bounds, queue))
                offset = min(end, known.offsets[queue]) - 1
                if offset < first:
                    continue
                pulled = retrying(f"pull of {queue} at {offset}", partial(connection.pull, queue, offset, 1))
                head = decode_head(pulled.records[0])
            except (IndexError, RecordError):
                continue
            except MQError:
                silent.add(queue.broker_name)
                continue
            if head.queue_offset == offset:
                compared += 1
                yield has_record(self.lake, duck, name, queue, offset, head.store_timestamp_ms)


def named(positions: dict[str, Position], lake: Lake) -> dict[str, Position]:
    """Give the position that an earlier version noted without a name the name of the lake's only cluster."""
    if UNNAMED not in positions:
        return positions
    lake.refresh()
    clusters = LookUp(lake).clusters()
    if len(clusters) != 1 or clusters[0] in positions:
        return positions
    return {clusters[0] if name == UNNAMED else name: one for name, one in positions.items()}


def positions_in(lake: Lake) -> dict[str, Position]:
    """Return the positions in the last batch of the ingest, for readers of a lake."""
    lake.batches.refresh()
    last = lake.batches.last(APP)
    return {} if last is None else named(positions_from_json(last.notes), lake)


def _names(known: Position) -> list[str]:
    return sorted({queue.broker_name for queue in known.offsets})


def _shown(brokers: Mapping[str, str] | list[str]) -> str:
    if isinstance(brokers, list):
        return ", ".join(brokers)
    return ", ".join(f"{name} at {address}" for name, address in sorted(brokers.items())) or "none"
