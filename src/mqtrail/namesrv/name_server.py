"""The name server: brokers register with it, clients query it for routes. Pure, like the broker.

It keeps everything in memory and saves only the key-value configuration (kvConfig.json). Name servers do not exchange
data: brokers register with each of them.

Other requests wait while one is served. So requests that read or change a large table are generators that run as jobs
(wire/jobs). Which concern serves a request is in its row (requests).
"""

from collections.abc import Callable
from functools import partial

from mqtrail.store import ConfigFileStore, MemoryDisk
from mqtrail.wire import (
    Accounts,
    Job,
    Jobs,
    MQError,
    Peer,
    PeerId,
    RemotingCommand,
    RequestCode,
    RequestCodeNotSupported,
    Send,
    SystemError_,
    WorkParts,
    answer_error,
    answer_failure,
    no_accounts,
)

from .access import NameServerAccess
from .config import NameServerConfig
from .key_values import KeyValues
from .requests import REQUESTS, NameServerConcerns
from .route_tables import RouteTable


class NameServer:
    """One name server. files: store of its key-value configuration. accounts: look-up of keys, if acl is set."""

    def __init__(
        self,
        config: NameServerConfig,
        files: ConfigFileStore | None = None,
        *,
        now_ms: int = 0,
        accounts: Accounts = no_accounts,
    ) -> None:
        self.config = config
        self._access = NameServerAccess(config, accounts)
        self.routes = RouteTable(config)
        self._files = ConfigFileStore(MemoryDisk()) if files is None else files
        self._jobs = Jobs(self._files, {RequestCode.REGISTER_BROKER})
        self.stalls: dict[str, list[int]] = {}  # work that held the loop -> times, ms, ms of CPU; by the shell
        self.parts = WorkParts()
        self._next_scan_ms = now_ms + config.scan_ms
        self._concerns = NameServerConcerns(config, self.routes, KeyValues(self._files), self._jobs, now_ms)
        self._handlers = {code: row.handler(self._concerns) for code, row in REQUESTS.items()}

    # Commands, connections and the clock, as in the broker.

    @property
    def refused(self) -> int:
        """Return how many requests access control refused since the start."""
        return self._access.refused

    def connected(self, peer: Peer) -> None:
        """Note a new connection. The name server needs nothing before its first request."""

    def handle(self, peer: Peer, command: RemotingCommand, now_ms: int) -> list[Send]:
        """Serve one command; return the Sends."""
        if command.is_response:
            return []
        self._files.dependency = 0
        return self._files.after_tables(self._serve(peer, command, partial(self._act, peer, command, now_ms)))

    def _act(self, peer: Peer, command: RemotingCommand, now_ms: int) -> list[Send]:
        row = REQUESTS.get(command.code)
        if row is None:
            raise RequestCodeNotSupported(f" request type {command.code} not supported")
        self._access.check(peer.address.ip, command, row.level)
        size_max = row.body_size_max
        if size_max is not None and len(command.body) > size_max:
            raise SystemError_(
                f"found a body of {len(command.body)} bytes of request {command.code}, expected at most {size_max}"
            )
        return self._handlers[command.code](peer, command, now_ms)

    def _serve(self, peer: Peer, command: RemotingCommand, act: Callable[[], list[Send]]) -> list[Send]:
        """Call act; turn an error into an error reply."""
        try:
            sends = act()
        except MQError as error:
            sends = answer_error(peer, command, error)
        return [] if command.is_oneway else sends

    def disconnected(self, peer: PeerId) -> list[Send]:
        """Remove the brokers that registered over the closed connection."""
        self.parts.run("jobs", partial(self._jobs.disconnected, peer))
        self.parts.run("registrations", partial(self._concerns.registrations.disconnected, peer))
        self.parts.run("routes", partial(self.routes.disconnect, peer))
        return []

    def next_tick_ms(self) -> int:
        """Return the time of the next `tick`."""
        return 0 if self.routes.has_work or self._jobs.next_due_ms() is not None else self._next_scan_ms

    def tick(self, now_ms: int) -> list[Send]:
        """Continue jobs, and remove brokers whose heartbeat has expired."""
        self._files.dependency = 0
        sends: list[Send] = []
        if (job := self._jobs.take()) is not None:
            sends = self._continue(job)
        self.parts.run("routes", self.routes.work)
        if now_ms >= self._next_scan_ms:
            self._next_scan_ms = now_ms + self.config.scan_ms
            self.parts.run("expiry", partial(self.routes.expire, now_ms))
        return self._files.after_tables(sends)

    def _continue(self, job: Job) -> list[Send]:
        """Run a slice of a job. An unexpected exception is answered."""
        peer, request = job.peer, job.request

        def failed(error: Exception) -> list[Send]:
            return [] if request.is_oneway else answer_failure(peer, request, error)

        step = partial(self._jobs.step, job)
        return self.parts.run(f"request {request.code}", partial(self._serve, peer, request, step), failed) or []
