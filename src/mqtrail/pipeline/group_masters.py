"""Who is master of each group of brokers, by the routes: what a sample shows, and the events between two samples.

So a change of the master of Apache's brokers is in `broker_events` too, as exact as the interval of the samples.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from mqtrail import trail
from mqtrail.client import SyncAdmin
from mqtrail.lake import Lake, fetch, relation_of
from mqtrail.trail import SampledEvent
from mqtrail.wire import MQError

Row = dict[str, Any]

MASTERS: Final = "masters"
"""Name of the rows of a sample: broker_name, address ('': it has only slaves), epoch (None: not known)."""


class MasterEpochs:
    """Asks a master for its epoch when it is new: the routes do not have it."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[str, int | None]] = {}

    def rows(
        self, admin: SyncAdmin, masters: Mapping[str, str], without: Iterable[str], silent: Collection[str] = ()
    ) -> list[Row]:
        """Return the rows MASTERS. masters: broker name -> address. without: names of brokers without a master.

        silent: names of masters that did not answer; they are not asked.
        """
        found = []
        for name, address in masters.items():
            if self._known.get(name, ("", None))[0] != address and name not in silent:
                self._known[name] = address, _epoch(admin, address)
            known_address, epoch = self._known.get(name, ("", None))
            found.append(
                {"broker_name": name, "address": address, "epoch": epoch if known_address == address else None}
            )
        return found + [{"broker_name": name, "address": "", "epoch": None} for name in without]


def _epoch(admin: SyncAdmin, address: str) -> int | None:
    """Return the epoch in which a master writes; None: outside of controller mode, or it does not answer."""
    try:
        return admin.master_epoch(address)
    except MQError:
        return None


@dataclass(frozen=True, slots=True)
class _Master:
    """The master of a group in the last sample; address '': it had none. before: address, epoch and last sample of the
    one before that."""

    address: str
    epoch: int | None
    before: tuple[str, int | None, int] | None = None


class MasterChanges:
    """Compares the masters of a sample with those of the sample before."""

    def __init__(self) -> None:
        self._known: dict[str, _Master] = {}

    def events(self, rows: Iterable[Row], sampled_ms: int, last_ms: int | None) -> list[Row]:
        """Return rows of trail.BROKER_EVENTS, without the cluster. rows: MASTERS of the sample. last_ms: the sample
        before; None: this is the first one."""
        now = {row["broker_name"]: (row["address"], row["epoch"]) for row in rows}
        for name in self._known.keys() - now.keys():
            now[name] = "", None  # no route has a broker of the group
        made = []
        for name, (address, epoch) in sorted(now.items()):
            known = self._known.get(name)
            if known is not None and known.address == address:
                continue
            before = None
            if known is not None:
                before = (known.address, known.epoch, last_ms or sampled_ms) if known.address else known.before
            if not address and before is None:
                continue  # it never had one
            event = SampledEvent.MASTER_GONE if not address else SampledEvent.MASTER_CHANGED
            if address and (before is None or before[0] == address):
                event = SampledEvent.MASTER_SEEN
            self._known[name] = _Master(address, epoch, before)
            stamp = {"event_ms": sampled_ms, "trace_store_ms": sampled_ms}
            made.append(trail.sampled_event(event, name, address, epoch, before) | stamp)
        return made

    def load(self, lake: Lake, cluster: str, connection: Any) -> None:
        """Read the latest event of each group in a lake."""
        rows = fetch(
            connection,
            f"""SELECT * FROM ({relation_of(lake[trail.BROKER_EVENTS.name])}) AS e
            WHERE cluster = ? AND source = '{trail.FROM_SAMPLE}'
            QUALIFY row_number() OVER (PARTITION BY event_broker_name ORDER BY event_ms DESC) = 1""",
            [cluster],
        )
        for row in rows:
            before = None
            if row["before_until_ms"] is not None:
                before = row["before_address"], row["before_epoch"], row["before_until_ms"]
            self._known[row["event_broker_name"]] = _Master(row["address"], row["epoch"], before)
