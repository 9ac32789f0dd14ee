"""The official client with a DLedger group of Apache's brokers and ours: the leader is killed while it sends and
consumes, and nothing that was acknowledged is lost."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from interop.apache import ApacheLedgerBroker, ApacheNameServer, free_port
from interop.driver import JavaClient
from interop.ours import OurServer
from interop.probe import request, wait_until

from mqtrail.wire import (
    LedgerCode,
    LedgerMetadata,
    LedgerMetadataReply,
    LedgerStatus,
    LedgerTransfer,
    LedgerTransferReply,
    decode_ledger_reply,
)

from .replicating import killed
from .test_dledger import GROUP, SEGMENT_SIZE, brokers_of, leader_of

pytestmark = [pytest.mark.interop, pytest.mark.timeout(500)]

TOPIC = "MixedTopic"
NAMES = ("n0", "n1", "n2")
BEFORE, AFTER = 150, 50  # acknowledged before and after the leader is killed
WAIT_S = 120.0


class MixedGroup:
    """Three brokers, each a process: those of `ours` are mqtrail's, the others Apache's 5.3.3."""

    def __init__(self, folder: Path, ours: tuple[str, ...]) -> None:
        self.namesrv = ApacheNameServer("5.3.3", folder / "namesrv").start()
        self.peers = {name: f"127.0.0.1:{free_port()}" for name in NAMES}
        settings: dict[str, Any] = {
            "ledger_mode": True,
            "ledger_peers": ";".join(f"{name}-{address}" for name, address in self.peers.items()),
            "ledger_group": GROUP,
            "message_size_max": 8 * 1024,
        }
        self.ours = {
            name: OurServer(
                folder / name,
                segment_size=SEGMENT_SIZE,
                broker={**settings, "ledger_self_id": name},
                join=self.namesrv.address,
            )
            for name in ours
        }
        properties = {"mappedFileSizeCommitLog": str(SEGMENT_SIZE)}
        self.apaches = {
            name: ApacheLedgerBroker(
                "5.3.3", folder / name, self.namesrv.address, name, self.peers, properties=properties
            )
            for name in NAMES
            if name not in ours
        }

    @property
    def members(self) -> dict[str, OurServer | ApacheLedgerBroker]:
        return {**self.ours, **self.apaches}

    def start(self) -> None:
        """Start all members, and wait until each is in the route and one leads."""
        for broker in self.apaches.values():
            broker.launch()
        for server in self.ours.values():
            server.start()
        wait_until(self.is_whole, "all members in the route", WAIT_S)

    def is_whole(self) -> bool:
        return len(brokers_of(self.namesrv.address)) == len(NAMES) and self.leader() != ""

    def leader(self) -> str:
        """The member that leads, as the route says."""
        address = leader_of(self.namesrv.address)
        addresses = {one.broker_address: name for name, one in self.ours.items()}
        addresses |= {one.address: name for name, one in self.apaches.items()}
        return addresses.get(address, "")

    def term(self) -> int:
        """The latest term that a member of ours knows."""
        found = []
        for name in self.ours:
            asked = LedgerMetadata(group=GROUP, remote_id=name)
            _, body = request(self.peers[name], LedgerCode.METADATA, body=asked.encode(), timeout_s=10)
            reply = decode_ledger_reply(LedgerCode.METADATA, body)
            assert isinstance(reply, LedgerMetadataReply)
            found.append(reply.term)
        return max(found)

    def let_lead(self, target: str) -> None:
        """Have a member lead."""

        def leads() -> bool:
            leader = self.leader()
            if leader in ("", target):
                return leader == target
            asked = LedgerTransfer(
                group=GROUP, remote_id=leader, transfer_id=leader, transferee_id=target, term=self.term()
            )
            _, body = request(self.peers[leader], LedgerCode.LEADERSHIP_TRANSFER, body=asked.encode(), timeout_s=10)
            reply = decode_ledger_reply(LedgerCode.LEADERSHIP_TRANSFER, body)
            assert isinstance(reply, LedgerTransferReply)
            return reply.code == LedgerStatus.SUCCESS and self.leader() == target

        wait_until(leads, f"{target} leads", WAIT_S)


@pytest.mark.parametrize(("ours", "dies"), [(("n2",), "n0"), (("n1", "n2"), "n2")], ids=["one-of-ours", "two-of-ours"])
def test_the_leader_is_killed_while_the_official_client_works(tmp_path: Path, ours: tuple[str, ...], dies: str) -> None:
    """Apache's leader with a member of ours, and ours with one of Apache's: the client goes on with the next one."""
    group = MixedGroup(tmp_path, ours)
    with (
        killed(*group.members.values(), group.namesrv),
        JavaClient("5.3.3", tmp_path / "java", group.namesrv.address) as java,
    ):
        group.start()
        group.let_lead(dies)
        java.producer("p", group="MixedProducer", timeoutMs=3_000, pollMs=500)
        acknowledged: set[str] = set()
        number = 0

        def send(wanted: int) -> None:
            """Send until so many more messages are acknowledged."""
            nonlocal number
            enough, deadline_s = len(acknowledged) + wanted, time.monotonic() + WAIT_S
            while len(acknowledged) < enough:
                assert time.monotonic() < deadline_s, f"{len(acknowledged)} of {enough} acknowledged"
                (result,) = java.send("p", [{"topic": TOPIC, "body": f"{number}"}])
                if result.get("status") == "SEND_OK":
                    acknowledged.add(f"{number}")
                number += 1

        send(1)
        java.consumer("c", group="MixedGroup", topics={TOPIC: "*"}, pollMs=500)
        send(BEFORE)
        group.members[dies].kill()
        send(AFTER)
        assert group.leader() not in ("", dies)

        def consumed(events: list[dict[str, object]]) -> bool:
            return acknowledged <= {str(event["body"]) for event in events if event["event"] == "ended"}

        java.wait(consumed, "every acknowledged message", WAIT_S)
