"""`cluster ha`, `transfer` and `elect`: groups of brokers that copy one log."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from .clusters import BrokerName
from .config import load
from .exits import Exit
from .local_processes import listening_processes
from .operate import Cluster, Yes, admin_of, confirm_change, report_answer, table
from .options import ConfigFile, Json, Namesrv
from .output import progress, say, show_json

if TYPE_CHECKING:
    from mqtrail.client import LedgerReport, ReplicaInfo
    from mqtrail.wire import GroupReplicas

NextMaster = Annotated[
    int | None, typer.Option("--to", metavar="ID", help="Id of the next master. [default: the lowest in sync]")
]
ElectedMaster = Annotated[
    int | None, typer.Option("--to", metavar="ID", help="Id of the master to elect. [default: the controllers choose]")
]
HEADINGS = ("broker", "id", "role", "address", "log end", "lag", "lag s", "epoch", "in sync", "process")


def cluster_ha(cluster: Cluster = None, namesrv: Namesrv = None, config: ConfigFile = None, json: Json = False) -> int:
    """Show the replication of each broker, and who leads each group: its in-sync replicas, or its members."""
    with admin_of(load(config), namesrv) as admin, progress("querying the brokers", enabled=not json):
        found = admin.replicas(cluster)
    processes = listening_processes(one.address for one in found.replicas)
    rows = [_row(one, processes.get(one.address)) for one in found.replicas]
    groups = [_group(name, one) for name, one in sorted(found.groups.found.items())]
    failures = {one.address: str(one.error) for one in found.replicas if one.error is not None}
    failures |= {f"the controllers of {name}": str(error) for name, error in found.groups.failures.items()}
    ledgers = [_ledger(name, one) for name, one in found.ledgers.items()]
    for name, ledger in found.ledgers.items():
        failures |= {
            f"member {one.member} of {name} at {one.address}": str(one.error)
            for one in ledger.members
            if one.error is not None
        }
    if not json:
        table(HEADINGS, [[_word(value) for value in row.values()] for row in rows])
        for group in groups:
            say(_sentence(group))
        for ledger_row in ledgers:
            say(_ledger_sentence(ledger_row))
    code = report_answer({"brokers": rows, "groups": [*groups, *ledgers]}, failures, json)
    return code if code != Exit.OK or rows else Exit.FAILED


def _row(one: ReplicaInfo, process_id: int | None) -> dict[str, Any]:
    return {
        "broker": one.name,
        "id": one.broker_id,
        "role": None if one.is_master is None else "master" if one.is_master else "slave",
        "address": one.address,
        "end_offset": one.end_offset,
        "lag_bytes": one.lag_bytes,
        "lag_seconds": None if one.lag_ms is None else one.lag_ms / 1000,
        "epoch": one.epoch,
        "in_sync": one.in_sync,
        "process_id": process_id,
    }


def _word(value: object) -> object:
    return {True: "yes", False: "no"}[value] if isinstance(value, bool) else value


def _group(name: str, known: GroupReplicas) -> dict[str, Any]:
    election = known.last_election
    return {
        "broker": name,
        "mode": "controller",
        "master": known.master_broker_id,
        "epoch": known.master_epoch,
        "in_sync": [one.broker_id for one in known.in_sync_replicas],
        "in_sync_number": known.sync_state_set_epoch,
        "last_election": None
        if election is None
        else {
            "timestamp_ms": election.timestamp,
            "reason": election.reason,
            "master_before": election.master_before,
        },
    }


def _sentence(group: dict[str, Any]) -> str:
    """Return a group in words; what is unknown is named as unknown."""
    from mqtrail.answers import ELECTION_REASONS

    from .draw import day_clock

    master = "no master" if group["master"] is None else f"{group['master']} is master"
    words = f"{group['broker']}: {master}, epoch {group['epoch']}; in sync: {', '.join(map(str, group['in_sync']))}"
    election = group["last_election"]
    if election is None:
        return f"{words}; last election: unknown"
    before = "" if election["master_before"] is None else f", before it {election['master_before']}"
    reason = ELECTION_REASONS.get(election["reason"], election["reason"])
    return f"{words}; last election: {day_clock(election['timestamp_ms'])}{before}, because {reason}"


def _ledger(name: str, known: LedgerReport) -> dict[str, Any]:
    leads = [one.broker_id for one in known.members if one.member == known.leader]
    return {
        "broker": name,
        "mode": "dledger",
        "master": leads[0] if leads else None,
        "leader": known.leader,
        "term": known.term,
        "members": [
            {
                "member": one.member,
                "id": one.broker_id,
                "address": one.address,
                "end_position": one.end_position,
                "committed_position": one.committed_position,
            }
            for one in known.members
        ],
    }


def _ledger_sentence(row: dict[str, Any]) -> str:
    """Return a DLedger group in words: log ends and committed positions in bytes."""
    leads = "no member leads" if row["leader"] is None else f"{row['leader']} leads"
    term = "unknown" if row["term"] is None else row["term"]
    members = [
        f"{one['member']} (id {one['id']}) "
        + ("unknown" if one["end_position"] is None else f"{one['committed_position']}/{one['end_position']}")
        for one in row["members"]
    ]
    return f"{row['broker']}: {leads}, term {term}; members, with what is committed of their logs: {', '.join(members)}"


def cluster_transfer(
    broker: BrokerName,
    to: NextMaster = None,
    yes: Yes = False,
    namesrv: Namesrv = None,
    config: ConfigFile = None,
    json: Json = False,
) -> int:
    """Transfer the master role to another in-sync replica (controller mode), and wait until the old one is in sync."""
    confirm_change(f"make another broker the master of {broker!r}: sends wait a moment", yes)
    with admin_of(load(config), namesrv) as admin, progress("waiting for the replicas", enabled=not json):
        before = admin.replica_group(broker)
        after = admin.set_master(broker, to)
    return _show_change(broker, before, after, json)


def cluster_elect(
    broker: BrokerName,
    to: ElectedMaster = None,
    yes: Yes = False,
    namesrv: Namesrv = None,
    config: ConfigFile = None,
    json: Json = False,
) -> int:
    """Ask the controllers to elect a master now, for example for a group without one."""
    confirm_change(f"have a master of {broker!r} elected: sends wait a moment", yes)
    with admin_of(load(config), namesrv) as admin, progress("waiting for the controllers", enabled=not json):
        before = admin.replica_group(broker)
        after = admin.elect_master(broker, to)
    return _show_change(broker, before, after, json)


def _show_change(broker: str, before: GroupReplicas, after: GroupReplicas, json: bool) -> int:
    """Print who was master and who is."""
    if json:
        show_json(
            {
                "broker": broker,
                "master": after.master_broker_id,
                "address": after.master_address,
                "epoch": after.master_epoch,
                "master_before": before.master_broker_id,
                "in_sync": [one.broker_id for one in after.in_sync_replicas],
            }
        )
        return Exit.OK
    was = "there was none" if before.master_broker_id is None else f"it was {_named(before)}"
    same = before.master_broker_id == after.master_broker_id
    since = f" since epoch {after.master_epoch}" if after.master_epoch else ""  # a DLedger group has none
    say(f"{broker}: {_named(after)} is master{since}; {'it stays' if same else was}")
    return Exit.OK


def _named(group: GroupReplicas) -> str:
    return f"{group.master_broker_id} ({group.master_address})"
