"""Planted bugs: a fuzzer that misses them would miss others too.

Each is a target with one part of a server replaced, and a text that the fuzzer must report.
"""

import json
import re
import ssl
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from mqtrail.binlog import statements
from mqtrail.broker import Broker
from mqtrail.broker.access.needs import KNOWN_USER
from mqtrail.broker.clients.heartbeats import ClientRequests
from mqtrail.broker.ha.epochs import Epochs
from mqtrail.broker.lane.signed import Signatures
from mqtrail.broker.messages.pull import PullMessages
from mqtrail.broker.operator.store import StoreAdmin
from mqtrail.broker.requests import PERMISSIONS
from mqtrail.broker.timing import timers
from mqtrail.client.core import read_body
from mqtrail.controller import Controller
from mqtrail.controller.access import ControllerAccess
from mqtrail.controller.broker_groups import read_snapshot
from mqtrail.namesrv.access import NameServerAccess
from mqtrail.net import TlsServerConfig, server_connection
from mqtrail.net.tls_session import TlsSession
from mqtrail.wire import (
    CompressionError,
    Level,
    Peer,
    Refusal,
    RemotingCommand,
    RequestCode,
    Send,
    check_account,
    record_messages,
    trace_text,
)

from .all_targets import DatabaseChanges, Replication
from .targets import (
    BrokerAclFiles,
    BrokerBehindNet,
    BrokerBehindTls,
    BrokerCore,
    BrokerUsers,
    BrokerUsersBehindNet,
    ControllerAcl,
    ControllerCore,
    LyingCluster,
    LyingServer,
    NameServerAcl,
    Target,
)

Patch = pytest.MonkeyPatch
ALLOW_CLIENT_RENEGOTIATION = 1 << 8  # SSL_OP_ALLOW_CLIENT_RENEGOTIATION of OpenSSL 3, which `ssl` does not name
ADMIN_READS = "mqtrail.client.admin.base.read_body"


@dataclass(frozen=True)
class Planted:
    """target: the one that finds the bug. plant: installs it. message: in the fuzzer's report.

    seed: of the first life that is tried. It is near the seed that finds the bug, to save the lives before it.
    """

    name: str
    target: type[Target]
    plant: Callable[[Patch], None]
    message: str
    seed: int = 0


def _before(patch: Patch, owner: Any, method: str, first: Callable[..., object]) -> None:
    """Call first with the arguments of a method, then the method."""
    whole = getattr(owner, method)

    def replacement(*args: Any, **kwargs: Any) -> Any:
        first(*args, **kwargs)
        return whole(*args, **kwargs)

    patch.setattr(owner, method, replacement)


def _count_of_a_header(patch: Patch) -> None:
    """321 reads as many entries as the request asks for, without a limit."""

    def walk(admin: StoreAdmin, peer: Peer, request: RemotingCommand, now_ms: int) -> None:
        text = request.ext.get("count", "0")
        for _ in range(int(text) if text.isdigit() else 0):
            pass

    _before(patch, StoreAdmin, "queue_entries", walk)


def _quadratic_heartbeat(patch: Patch) -> None:
    """34 compares all groups of a heartbeat with all others."""

    def compare(requests: ClientRequests, peer: Peer, request: RemotingCommand, now_ms: int) -> None:
        names = re.findall(rb"groupName", request.body)
        sum(one is other for one in names for other in names for _ in range(100))

    _before(patch, ClientRequests, "heartbeat", compare)


def _backtracking(patch: Patch) -> None:
    """Fields are matched by a pattern that tries all ways to cut them."""
    pattern = re.compile(r"(x+x+)+y")

    def match(broker: Broker, peer: Peer, request: RemotingCommand, now_ms: int) -> None:
        for text in request.ext.values():
            pattern.match(text)

    _before(patch, Broker, "handle", match)


def _kept_request(patch: Patch) -> None:
    """A refused request stays in a list."""
    kept: list[RemotingCommand] = []
    _before(patch, Broker, "_serve", lambda broker, peer, request, act: kept.append(request))


def _kept_by_a_cycle(patch: Patch) -> None:
    """A refusal is raised by a frame that keeps it: only a garbage collection frees the request."""
    whole = Broker._refuse

    def refuse(broker: Broker, peer: Peer, request: RemotingCommand, refusal: Refusal) -> list[Send]:
        try:
            raise refusal
        except Refusal as error:
            refusal = error
        return whole(broker, peer, request, refusal)

    patch.setattr(Broker, "_refuse", refuse)


def _unbounded_expansion(patch: Patch) -> None:
    """A body is decompressed completely, whatever its size."""

    def expand(body: bytes, sys_flag: int, size_max: int = 0) -> bytes:
        try:
            return zlib.decompress(body) if sys_flag & 0x701 in (0x001, 0x301) else body
        except zlib.error as error:
            raise CompressionError(str(error)) from error

    patch.setattr(record_messages, "decompress", expand)


def _quadratic_trace(patch: Patch) -> None:
    """For each record, the text of a trace message is split again from its start."""

    def search(text: str) -> None:
        for at in range(0, len(text), 2):
            text[at:].partition("\x02")

    _before(patch, trace_text, "terminated", search)


def _error_of_a_handler(patch: Patch) -> None:
    """A field that is not a number raises an exception that no handler catches."""

    def read(pull: PullMessages, peer: Peer, request: RemotingCommand, now_ms: int) -> None:
        int(request.ext.get("commitOffset", "0"))

    _before(patch, PullMessages, "handle", read)


def _error_of_a_tick(patch: Patch) -> None:
    """An error in a timer's work is raised in the loop."""

    def fail(book: timers.Timers, records: Any, now_ms: int) -> None:
        raise ValueError("planted")

    _before(patch, timers.Timers, "_write", fail)


def _unchecked(code: int) -> Callable[[Patch], None]:
    """A code requires no more than a known user."""
    return lambda patch: patch.setitem(PERMISSIONS, code, KNOWN_USER)


def _unchecked_lane(patch: Patch) -> None:
    """The fast lane accepts every signature."""
    patch.setattr(Signatures, "hold", lambda *args: True)


def _unchecked_name_server(patch: Patch) -> None:
    patch.setattr(NameServerAccess, "check", lambda *args: None)


def _unchecked_controller(patch: Patch) -> None:
    """A controller serves whoever is known, whatever the account may do."""

    def check(access: ControllerAccess, ip: str, command: RemotingCommand, needed: Level | None) -> None:
        if needed is not None and needed > Level.NONE:
            check_account(command, Level.ACCOUNT, access._accounts, "controller")

    patch.setattr(ControllerAccess, "check", check)


def _unchecked_consensus(patch: Patch) -> None:
    """A controller takes any entry from other controllers, and reads any snapshot."""
    patch.setattr("mqtrail.controller.controller.check_entry", lambda data: None)
    patch.setattr("mqtrail.controller.controller.snapshot_slices", read_snapshot)


def _slow_controller(patch: Patch) -> None:
    """A controller compares each byte of a request with all others."""

    def compare(core: Controller, peer: Peer, request: RemotingCommand, now_ms: int) -> None:
        sum(one == other for one in request.body[:4_000] for other in request.body[:4_000])

    _before(patch, Controller, "handle", compare)


def _quadratic_answer(patch: Patch) -> None:
    """An admin compares each byte of an answer with all others."""

    def read(reply: RemotingCommand, decode: Callable[[bytes], Any]) -> Any:
        sum(one == other for one in reply.body[:9_000] for other in reply.body[:9_000])
        return read_body(reply, decode)

    patch.setattr(ADMIN_READS, read)


def _unread_answer(patch: Patch) -> None:
    """An admin reads an answer's JSON without the checks of its kind."""
    patch.setattr(ADMIN_READS, lambda reply, decode: json.loads(reply.body)["x"])


def _decryption_without_turns(patch: Patch) -> None:
    """All that was read at once is decrypted in one turn."""
    patch.setattr(server_connection, "READ_SIZE", 1 << 30)


def _renegotiation(patch: Patch) -> None:
    """A client of TLS 1.2 may ask for new keys at any time."""
    whole = TlsServerConfig.context

    def context(config: TlsServerConfig) -> ssl.SSLContext | None:
        if (made := whole(config)) is not None:
            made.options &= ~ssl.OP_NO_RENEGOTIATION
            made.options |= ALLOW_CLIENT_RENEGOTIATION
        return made

    patch.setattr(TlsServerConfig, "context", context)


def _ignored_end(patch: Patch) -> None:
    """A connection stays open after the peer has closed its TLS session."""
    receive = TlsSession.receive

    def ignoring(session: TlsSession, data: bytes) -> bytes:
        text = receive(session, data)
        session.ended = False
        return text

    patch.setattr(TlsSession, "receive", ignoring)


def _lost_text(patch: Patch) -> None:
    """Of what is decrypted at once, the beginning alone is served."""
    receive = TlsSession.receive
    patch.setattr(TlsSession, "receive", lambda session, data: receive(session, data)[:10_000])


def _waits_for_ever(patch: Patch) -> None:
    """A waiting record may lead to the topic in which it waits."""
    patch.setattr("mqtrail.broker.properties.WAITING_TOPICS", frozenset())


UNCHECKED = (
    RequestCode.PULL_MESSAGE,
    RequestCode.QUERY_MESSAGE,
    RequestCode.VIEW_MESSAGE_BY_ID,
    RequestCode.UPDATE_CONSUMER_OFFSET,
    RequestCode.CONSUMER_SEND_MSG_BACK,
    RequestCode.END_TRANSACTION,
    RequestCode.POP_MESSAGE,
    RequestCode.UPDATE_AND_CREATE_TOPIC,
    RequestCode.DELETE_TOPIC_IN_BROKER,
    RequestCode.UPDATE_BROKER_CONFIG,
    RequestCode.GET_ALL_TOPIC_CONFIG,
    RequestCode.AUTH_CREATE_USER,
)


def _unclosed_quotes(patch: Patch) -> None:
    """A quote without its end is searched from each place in it."""
    patch.setattr(statements, "_PIECE", re.compile(r"(/\*.*?\*/)|('(?:[^'\\]|\\.|'')*')", re.DOTALL))


def _unchecked_epochs(patch: Patch) -> None:
    """The epochs of a master are taken as they are."""

    def begin(epochs: Epochs, epoch: Any) -> bool:
        assert epochs.last is None or epoch.number > epochs.last.number
        return True

    patch.setattr(Epochs, "begin", begin)


PLANTED = (
    Planted("a loop over a count", BrokerCore, _count_of_a_header, "it hangs"),
    Planted("a quadratic heartbeat", BrokerCore, _quadratic_heartbeat, "ms of CPU in Broker|it hangs", 5),
    Planted("a pattern that backtracks", BrokerCore, _backtracking, "it hangs"),
    Planted("a kept request", BrokerCore, _kept_request, "a refused request"),
    Planted("a cycle of an error", BrokerUsers, _kept_by_a_cycle, "a refused request"),
    Planted("an expansion without a bound", LyingServer, _unbounded_expansion, "bytes of memory|it hangs"),
    Planted("a quadratic trace", LyingServer, _quadratic_trace, "CPU"),
    Planted("an error of a handler", BrokerCore, _error_of_a_handler, "ValueError"),
    Planted("an error of a handler behind the net", BrokerBehindNet, _error_of_a_handler, "ValueError"),
    Planted("an error of a tick", BrokerCore, _error_of_a_tick, "ValueError: planted"),
    Planted("an error of a tick behind the net", BrokerBehindNet, _error_of_a_tick, "ValueError: planted"),
    Planted("a record that waits for ever", BrokerCore, _waits_for_ever, "work without end", 7),
    Planted("no check of consensus", ControllerCore, _unchecked_consensus, "ControllerCore: ", 9),
    Planted("a quadratic request at a controller", ControllerCore, _slow_controller, "ms of CPU in|it hangs"),
    Planted("a quadratic answer of an admin", LyingCluster, _quadratic_answer, "ms of CPU in|it hangs"),
    Planted("an answer that is not checked", LyingCluster, _unread_answer, "KeyError|JSONDecodeError|TypeError"),
    Planted("decryption without turns", BrokerBehindTls, _decryption_without_turns, "ms of CPU in|it hangs"),
    Planted("renegotiation", BrokerBehindTls, _renegotiation, "keys are negotiated again"),
    Planted("an ignored end of TLS", BrokerBehindTls, _ignored_end, "stays open after the end"),
    Planted("lost text of TLS records", BrokerBehindTls, _lost_text, "bytes were decrypted, and are not"),
    Planted("a search for the end of a quote", DatabaseChanges, _unclosed_quotes, "it hangs|ms of CPU|of memory"),
    Planted("epochs that are not checked", Replication, _unchecked_epochs, "AssertionError"),
    Planted("no check in the lane", BrokerUsersBehindNet, _unchecked_lane, "without permission"),
    Planted("no check at the name server", NameServerAcl, _unchecked_name_server, "without an account"),
    Planted("no check of levels at a controller", ControllerAcl, _unchecked_controller, "without the account of level"),
    Planted("no check of ACL files for a pull", BrokerAclFiles, _unchecked(11), "without permission"),
    *(Planted(f"no check of {code.name}", BrokerUsers, _unchecked(code), "without permission") for code in UNCHECKED),
)
