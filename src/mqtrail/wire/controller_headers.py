"""Headers and bodies of requests between brokers, controllers and operators' tools, in controller mode.

None in a reply: there is no master. A controller that does not lead answers 2007.
Source: the classes of remoting/protocol/header/controller and remoting/protocol/body, apache/rocketmq 5.3.3.
"""

import msgspec

from .body import Body, Long
from .header import Header, Int32

__all__ = [
    "AlterSyncStateSetHeader",
    "AlterSyncStateSetReply",
    "ApplyBrokerIdHeader",
    "BrokerIdReply",
    "CleanBrokerDataHeader",
    "ControllerMetadataReply",
    "ElectMasterHeader",
    "ElectionState",
    "EpochCache",
    "EpochEntry",
    "GroupReplicas",
    "MasterReply",
    "RegisterAtControllerHeader",
    "ReplicaState",
    "RoleChangedHeader",
    "SyncStateData",
    "SyncStateSet",
]


class AlterSyncStateSetHeader(Header):
    """1001; the body is a SyncStateSet: the new set, and the number of the known one."""

    broker_name: str
    master_broker_id: int
    master_epoch: Int32
    invoke_time: int | None = None


class AlterSyncStateSetReply(Header):
    """Reply to 1001; the body is the new SyncStateSet."""

    new_sync_state_set_epoch: Int32 = 0


class ElectMasterHeader(Header):
    """1002. broker_id -1: any; designate_elect: an operator asks for this one."""

    cluster_name: str
    broker_name: str
    broker_id: int = -1
    designate_elect: bool = False
    invoke_time: int | None = None


class RegisterAtControllerHeader(Header):
    """1003."""

    cluster_name: str
    broker_name: str
    broker_id: int
    broker_address: str
    invoke_time: int | None = None


class MasterReply(Header):
    """Reply to 1002, 1003 and 1004; the body is a SyncStateSet, that of 1002 without its number."""

    master_broker_id: int | None = None
    master_address: str | None = None
    master_epoch: Int32 | None = None
    sync_state_set_epoch: Int32 | None = None


class ControllerMetadataReply(Header):
    """Reply to 1005. peers: "<id>:<address>;" for each controller."""

    group: str | None = None
    controller_leader_id: str | None = None
    controller_leader_address: str | None = None
    is_leader: bool = False
    peers: str | None = None


class RoleChangedHeader(Header):
    """1008, one-way, to a broker; the body is a SyncStateSet."""

    master_address: str | None = None
    master_epoch: Int32 | None = None
    sync_state_set_epoch: Int32 | None = None
    master_broker_id: int | None = None


class CleanBrokerDataHeader(Header):
    """1011. broker_controller_ids_to_clean: joined by ";"; None: all."""

    broker_name: str
    cluster_name: str | None = None
    broker_controller_ids_to_clean: str | None = None
    is_clean_living_broker: bool = False
    invoke_time: int | None = None


class BrokerIdReply(Header):
    """1012, and the replies to 1012 and 1013. next_broker_id: in the reply to 1012 alone."""

    cluster_name: str | None = None
    broker_name: str | None = None
    next_broker_id: int | None = None


class ApplyBrokerIdHeader(Header):
    """1013. register_check_code: distinguishes this broker from another that applies for the same id."""

    cluster_name: str
    broker_name: str
    applied_broker_id: int
    register_check_code: str


class SyncStateSet(Body, frozen=True):
    """The replicas that are in sync, by broker id, and the number of this set."""

    sync_state_set: tuple[Long, ...] = ()
    sync_state_set_epoch: Long = 0


class EpochEntry(Body, frozen=True):
    """An epoch of a log. end_offset: the last one ends at the largest long."""

    end_offset: Long = 0
    epoch: Long = 0
    start_offset: Long = 0


class EpochCache(Body, frozen=True):
    """Reply to 1007."""

    broker_id: Long = 0
    broker_name: str = ""
    cluster_name: str = ""
    epoch_list: tuple[EpochEntry, ...] = ()
    max_offset: Long = 0


class ReplicaState(Body, frozen=True):
    """One broker of a group. alive: the controller hears its heartbeats."""

    alive: bool = False
    broker_address: str = ""
    broker_id: Long = 0
    broker_name: str = ""


class ElectionState(Body, frozen=True):
    """When and why the present master became it. master_before None: there was none.

    Only mqtrail's controllers report it.
    """

    timestamp: Long = 0
    reason: str = ""
    master_before: Long | None = None


class GroupReplicas(Body, frozen=True):
    """What a controller knows of a group. master_broker_id None: it has no master."""

    in_sync_replicas: tuple[ReplicaState, ...] = ()
    last_election: ElectionState | None = None
    master_address: str = ""
    master_broker_id: Long | None = None
    master_epoch: Long = 0
    not_in_sync_replicas: tuple[ReplicaState, ...] = ()
    sync_state_set_epoch: Long = 0


class SyncStateData(Body, frozen=True):
    """Reply to 1006, by broker name."""

    replicas_info_table: dict[str, GroupReplicas] = msgspec.field(default_factory=dict)
