"""Controllers of one group over a network in memory, and brokers that a test plays."""

import random
from typing import Any

from mqtrail.controller import Call, Controller, ControllerConfig
from mqtrail.store import MemoryDisk
from mqtrail.wire import (
    Accounts,
    Credentials,
    Host,
    Peer,
    PeerId,
    RemotingCommand,
    RequestCode,
    SyncStateSet,
    no_accounts,
    sign,
)

Code = RequestCode
BROKER = Credentials(access_key="brokers", secret_key="a secret of brokers")
CLUSTER, GROUP = "DefaultCluster", "broker-a"


class Trio:
    """count controllers. Calls to brokers are kept in `notified`."""

    def __init__(self, count: int = 3, *, accounts: Accounts = no_accounts, **settings: Any) -> None:
        """accounts: of operators and brokers. With `acl` the controllers sign as the broker's account does."""
        self.accounts = accounts
        self.sign_as: Credentials | None = BROKER if settings.get("acl") else None
        self.now_ms = 1_000_000
        peers = ";".join(f"n{number}-127.0.0.1:{27010 + number}" for number in range(count))
        self.configs = {
            f"n{number}": ControllerConfig(peers=peers, self_id=f"n{number}", **settings) for number in range(count)
        }
        self.disks = {name: MemoryDisk() for name in self.configs}
        self.controllers: dict[str, Controller] = {}
        self.notified: list[Call] = []
        self.replies: dict[int, RemotingCommand] = {}  # opaque -> reply
        self.peers: dict[str, int] = {}
        self._opaque = 0
        for name in self.configs:
            self.start(name)
        self.advance(5_000)

    def start(self, name: str) -> Controller:
        chance = random.Random(name).random
        self.controllers[name] = Controller(self.configs[name], self.disks[name], chance, self.now_ms, self.accounts)
        return self.controllers[name]

    @property
    def leader(self) -> str:
        (name,) = (name for name, one in self.controllers.items() if one.is_leader)
        return name

    def advance(self, ms: int) -> None:
        for _ in range(ms // 50):
            self.now_ms += 50
            for name in [*self.controllers]:
                self._note(self.controllers[name].tick(self.now_ms))
            self.settle()

    def settle(self) -> None:
        addresses = {config.addresses[name]: name for name, config in self.configs.items()}
        while calls := [call for one in self.controllers.values() for call in one.take_calls()]:
            for call in calls:
                if not call.of_raft:
                    self.notified.append(call)
                elif (target := addresses[call.address]) in self.controllers:
                    call.command.flag = 2
                    if self.sign_as is not None:
                        sign(call.command, self.sign_as)
                    self._note(self.controllers[target].handle(_peer(0), call.command, self.now_ms))

    def _note(self, sends: list[Any]) -> None:
        for send in sends:
            self.replies[send.command.opaque] = send.command

    def ask(
        self,
        code: int,
        ext: dict[str, str] | None = None,
        body: bytes = b"",
        *,
        at: str | None = None,
        peer: int = 1,
        as_: Credentials | None = None,
    ) -> RemotingCommand:
        """Send a request, to the leader by default; return its reply. as_: who signs it."""
        self._opaque += 1
        request = RemotingCommand(code, dict(ext or {}), body, opaque=self._opaque)
        if as_ is not None:
            sign(request, as_)
        name = self.leader if at is None else at
        self._note(self.controllers[name].handle(_peer(peer), request, self.now_ms))
        self.settle()
        if self._opaque not in self.replies:
            self.advance(50)
        return self.replies.pop(self._opaque)

    # What a broker asks.

    def beat(self, broker_id: int, *, epoch: int = 1, max_offset: int = 100, **fields: str) -> None:
        """Send a heartbeat to all controllers."""
        ext = {
            "clusterName": CLUSTER,
            "brokerName": GROUP,
            "brokerAddr": address_of(broker_id),
            "brokerId": str(broker_id),
            "epoch": str(epoch),
            "maxOffset": str(max_offset),
            **fields,
        }
        for name in self.controllers:
            assert self.ask(Code.BROKER_HEARTBEAT, ext, at=name, peer=broker_id).code == 0

    def join(self, broker_id: int) -> RemotingCommand:
        """Do what a broker does at its first start; return the reply to 1003."""
        names = {"clusterName": CLUSTER, "brokerName": GROUP}
        next_id = self.ask(Code.CONTROLLER_GET_NEXT_BROKER_ID, names)
        assert next_id.ext["nextBrokerId"] == str(broker_id)
        code = f"{address_of(broker_id)};17"
        applied = names | {"appliedBrokerId": str(broker_id), "registerCheckCode": code}
        assert self.ask(Code.CONTROLLER_APPLY_BROKER_ID, applied).code == 0
        self.beat(broker_id)
        return self.register(broker_id)

    def register(self, broker_id: int, address: str | None = None) -> RemotingCommand:
        ext = {"clusterName": CLUSTER, "brokerName": GROUP, "brokerId": str(broker_id)}
        return self.ask(Code.CONTROLLER_REGISTER_BROKER, ext | {"brokerAddress": address or address_of(broker_id)})

    def elect(self, broker_id: int = -1, *, designate: bool = False) -> RemotingCommand:
        ext = {"clusterName": CLUSTER, "brokerName": GROUP, "brokerId": str(broker_id)}
        return self.ask(Code.CONTROLLER_ELECT_MASTER, ext | {"designateElect": str(designate).lower()})

    def alter(self, master: int, ids: tuple[int, ...], *, epoch: int = 1, set_epoch: int = 1) -> RemotingCommand:
        ext = {"brokerName": GROUP, "masterBrokerId": str(master), "masterEpoch": str(epoch)}
        return self.ask(Code.CONTROLLER_ALTER_SYNC_STATE_SET, ext, SyncStateSet(ids, set_epoch).encode())

    def info(self) -> tuple[str | None, str | None, tuple[int, ...]]:
        """Return master id, epoch and SyncStateSet, as 1004 says."""
        reply = self.ask(Code.CONTROLLER_GET_REPLICA_INFO, {"brokerName": GROUP})
        body = SyncStateSet.decode(reply.body)
        return reply.ext.get("masterBrokerId"), reply.ext.get("masterEpoch"), body.sync_state_set

    def group_of_two(self) -> None:
        """Brokers 1 (master) and 2, in sync."""
        self.join(1)
        assert self.elect(1).code == 0
        self.join(2)
        assert self.alter(1, (1, 2)).code == 0
        self.notified.clear()


def address_of(broker_id: int) -> str:
    return f"127.0.0.1:{28000 + broker_id}"


def _peer(number: int) -> Peer:
    return Peer(PeerId(number), Host("127.0.0.1", 30_000 + number))
