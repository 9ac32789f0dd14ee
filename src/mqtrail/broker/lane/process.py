"""The lane's loop: cuts a piece of the stream into frames, serves the supported ones, appends once, answers.

Sends are collected until the piece ends, or until a frame must see them stored (a pull, a request for `handle`). Their
replies are made from the tickets of that one append. If the append is refused, `handle` serves each of these requests.
Half messages, and commits of half messages that the lane keeps, are part of the same append.

The loop is one long function because function calls are a large part of the cost of a send. Byte layouts: wire.frame.
tests/broker/lane compares the lane with `handle`.
"""

from collections.abc import Callable
from typing import Final, NamedTuple, cast

import msgspec

from mqtrail.store import PendingRecord
from mqtrail.wire import (
    FRAME_HEAD,
    FRAME_HEAD_SIZE,
    HALF_TOPIC,
    HEADER_SIZE_MAX,
    Buffer,
    Host,
    Peer,
    RemotingCommand,
    RemotingError,
    Send,
    StoredKind,
    cut_frame,
    decode_command,
    frame_end,
)

from ..broker import Broker
from .batches import take_batch
from .caches import Record, Route, Routes, SharedProperties, whole_number
from .half_messages import HALF_QUEUE_ID, LaneHalfMessages
from .headers import HALF_FLAG, JSON_HEADERS, PREFIX_SIZE, Kind
from .layouts import Layouts
from .pulls import LanePulls, pull_ext
from .replies import send_template
from .signed import SIGNED_HEADERS, Signatures

REPLIES_SIZE_MAX: Final = 1024 * 1024  # bytes of pull replies after which a call returns, to write them
RECORDS_MAX: Final = 4_096  # records of batches after which they are appended
TIMES_KEPT_MAX: Final = 256

COMMIT_OUTCOME: Final = "8"  # commitOrRollback of an end: MessageSysFlag.TRANSACTION_COMMIT
_JSON_MAX: Final = HEADER_SIZE_MAX  # of the second word of a frame: type, then size of the header
_BINARY: Final = 1 << 24
_BINARY_MAX: Final = _BINARY + HEADER_SIZE_MAX

# A request whose records wait for the append: route, unique id, opaque, number of records of a batch or one of the
# marks below, whether it waits for the flush, start and end of its frame; for a half message its target queue and
# producer group. A commit gets no reply; its opaque holds the queue offset of its half message.
Waiting = tuple[Route, bytes, int, int, bool, int, int, tuple[Route, str] | None]
_ONE: Final = 0  # written as literals in the loops
_HALF: Final = -1
_COMMIT: Final = -2
_STORED_KINDS: Final = {_ONE: None, _HALF: StoredKind.HALF, _COMMIT: StoredKind.COMMIT}

_new_served = tuple.__new__  # three times as fast as the constructor of a NamedTuple


class Served(NamedTuple):
    """The result of one call.

    position: end of the last served frame. replies: bytes for this peer, to be written after the log is flushed to
    after_offset. sends: the decisions of `handle`, for this peer and others. handled: the time of the next tick may
    have changed. stored: the lane appended records.
    """

    position: int
    replies: bytes
    after_offset: int
    sends: list[Send]
    handled: bool
    stored: bool


class Lane:
    """Serves one broker. handle: serves all other requests; `broker.handle` unless the shell wraps it."""

    def __init__(
        self, broker: Broker, handle: Callable[[Peer, RemotingCommand, int], list[Send]] | None = None
    ) -> None:
        config = broker.config
        self._broker = broker
        self._handle = handle or broker.handle
        self._topics_version = -1
        self._routes = Routes(broker.send.admission, broker.store, broker.stats)
        self._properties = SharedProperties(broker.send.properties)
        self._half_properties = SharedProperties(broker.send.properties, half=True)
        self._half_messages = LaneHalfMessages(broker)
        self._layouts = Layouts()
        self._pulls = LanePulls(broker)
        self._one = send_template(config, _host_hex(config.address) + b"%016X")
        self._batch = send_template(config, b"%b")
        self._batch_id = _host_hex(config.address) + b"%016X"
        self._takes_body = config.takes_body
        self._refresh_settings()
        self._signatures = Signatures(broker.access) if broker.access.on else None
        self._json_headers = JSON_HEADERS if self._signatures is None else SIGNED_HEADERS
        self._reads_binary = self._signatures is None and not config.reply_in_kind
        self._times: dict[str | bytes | int, int] = {}
        self._topics = broker.topics
        self._replicas = broker.replicas
        # State of the last peer and of the current call.
        self._peer: Peer | None = None
        self._born_host = b""
        self._out: list[Buffer] = []
        self._after_offset = 0
        self._sends: list[Send] = []
        self._handled = self._stored = self._ended = False

    def process(
        self,
        peer: Peer,
        buffer: bytes,
        start: int,
        end: int,
        now_ms: int,
        turn_is_over: Callable[[], bool] = lambda: False,
    ) -> Served:
        """Serve the whole frames of buffer[start:end]. RemotingError: the first frame is invalid.

        It stops before an incomplete frame, before an invalid frame that is not the first, when many replies should be
        written, and at the end of this connection's turn. turn_is_over: called after requests that may take long.
        """
        trace = self._broker.trace
        due_ms = None if trace is None else trace.next_due_ms()
        out: list[Buffer] = []
        self._out, self._after_offset, self._sends = out, 0, []
        self._handled = self._stored = self._ended = False
        records: list[Record] = []
        waiting: list[Waiting] = []
        unpack_head, json_headers, learn_time = FRAME_HEAD.unpack_from, self._json_headers, self._learn_time
        signatures = self._signatures
        find_route, topics, properties = self._routes.find, self._routes.topics, self._properties.read
        half_messages, half_properties = self._half_messages, self._half_properties.read
        times, takes_body = self._times, self._takes_body
        has_enough = self._replicas.in_sync is None or self._replicas.has_enough
        is_open = has_enough and now_ms >= self._open_ms
        if peer is not self._peer:
            self._peer, self._born_host = peer, peer.address.packed()
        born_host = self._born_host
        if self._topics.version != self._topics_version:
            self._refresh_topics()
        if self._broker.settings_version != self._settings_version:
            self._refresh_settings()
            is_open = has_enough and now_ms >= self._open_ms
        position, pulled_size = start, 0
        route: Route | None
        while end - position >= FRAME_HEAD_SIZE:
            size, mark = unpack_head(buffer, position)
            stop = position + 4 + size
            if stop > end:
                break
            body_start = position + FRAME_HEAD_SIZE + (mark & 0xFFFFFF)
            # Kind of the request; 0: for `handle`.
            kind: int = 0
            if mark <= _JSON_MAX:
                known = json_headers.get(buffer[position + FRAME_HEAD_SIZE : position + FRAME_HEAD_SIZE + PREFIX_SIZE])
                if known is not None:
                    known_kind, is_short, decode = known
                    try:
                        header = decode(buffer[position + FRAME_HEAD_SIZE : body_start])
                    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
                        pass
                    else:
                        kind, opaque, ext = known_kind, header.opaque, header.extFields
                        if signatures is not None and not signatures.hold(peer, kind, ext, buffer[body_start:stop]):
                            kind = 0
                        elif is_short:
                            topic, queue_id, born, sent = ext.b, ext.e, ext.g, ext.i.encode()
                            if ext.f == HALF_FLAG:
                                kind = 4
                        elif kind == 1:
                            topic, queue_id, born = ext.topic, ext.queue_id, ext.born_timestamp
                            sent = ext.properties.encode()
                        elif kind == 5:
                            half_offset, half_place = ext.tran_state_table_offset, ext.commit_log_offset
                            group, outcome = ext.producer_group, ext.commit_or_rollback
            elif _BINARY <= mark <= _BINARY_MAX and self._reads_binary:
                read = self._layouts.read(buffer[position + FRAME_HEAD_SIZE : body_start])
                if read is not None:
                    layout, pieces = read
                    kind, opaque = layout.kind, pieces[1]
                    if kind == 3:
                        ext = pull_ext(layout, pieces)
                    elif kind == 5:
                        places, fields = layout.places, layout.fields
                        half_offset, half_place = pieces[places[0]], pieces[places[1]]
                        group, outcome = fields["producerGroup"], fields["commitOrRollback"]
                    else:
                        places = layout.places
                        topic = layout.fields["b"]
                        queue_id, born, sent = pieces[places[0]], pieces[places[1]], pieces[places[2]]
            # A send joins the append; the reply comes later.
            if kind == 1 or kind == 4:
                try:
                    route = topics[topic][queue_id]
                except KeyError:
                    route = find_route(topic, queue_id)
                try:
                    born_ms = times[born]
                except KeyError:
                    born_ms = learn_time(born)
                shared = properties(sent) if kind == 1 else half_properties(sent)
                if (
                    route is not None
                    and shared is not None
                    and born_ms >= 0
                    and takes_body(stop - body_start)
                    and is_open
                ):
                    unique_id, (suffix, tags_code, waits, group) = shared
                    if kind == 1:
                        records.append(
                            (topic, route.queue_id, buffer[body_start:stop], sent + suffix, tags_code, born_ms,
                             born_host, 0, route.sys_flag, 0, 0)
                        )  # fmt: skip
                        waiting.append((route, unique_id, opaque, 0, waits, position, stop, None))
                        position = stop
                        continue
                    if self._takes_half_messages:
                        records.append(
                            (HALF_TOPIC, HALF_QUEUE_ID, buffer[body_start:stop],
                             b"%b%b%b%b" % (sent, suffix, unique_id, route.real), tags_code, born_ms,
                             born_host, 0, route.sys_flag, 0, 0)
                        )  # fmt: skip
                        half = (route, group)
                        waiting.append((half_messages.route(), unique_id, opaque, _HALF, waits, position, stop, half))
                        position = stop
                        continue
            elif kind == 5:
                taken_half = half_messages.take(half_place, half_offset, group, len(waiting))
                if taken_half is not None:
                    committed, queue_offset, route = taken_half
                    if outcome == COMMIT_OUTCOME:
                        records.append(committed)
                        waiting.append((route, b"", queue_offset, _COMMIT, False, position, stop, None))
                    else:
                        if waiting:  # ends are reported in the order of their arrival
                            self._commit(records, waiting, peer, buffer, now_ms)
                            records, waiting = [], []
                        half_messages.note_rollback(queue_offset, route.topic, now_ms)
                        self._ended = True
                    position = stop
                    continue
            elif kind == 2:
                route = find_route(topic, queue_id) if is_open else None
                born_ms = learn_time(born)
                if route is not None and born_ms >= 0 and takes_body(stop - body_start):
                    taken = take_batch(
                        self._properties, route, sent, born_ms, born_host, buffer, body_start, stop, records
                    )
                    if taken is not None:
                        unique_id, waits, count = taken
                        waiting.append((route, unique_id, opaque, count, waits, position, stop, None))
                        position = stop
                        if len(records) >= RECORDS_MAX:
                            break
                        continue
            elif kind == 3:
                if waiting:
                    self._commit(records, waiting, peer, buffer, now_ms)
                    records, waiting = [], []
                pulled = self._pulls.serve(peer, ext, opaque, out, now_ms) if body_start == stop else None
                if pulled is not None:
                    pulled_size += pulled[0]
                    self._after_offset = max(self._after_offset, pulled[1])
                    position = stop
                    if pulled_size > REPLIES_SIZE_MAX or turn_is_over():
                        break
                    continue
            # All other requests.
            if waiting:
                self._commit(records, waiting, peer, buffer, now_ms)
                records, waiting = [], []
            if position > start and not _makes_sense(buffer, position, end):
                break
            self._general(peer, buffer, position, stop, now_ms)
            self._refresh_topics()
            if self._broker.settings_version != self._settings_version:
                self._refresh_settings()
                is_open = has_enough and now_ms >= self._open_ms
            position = stop
            if turn_is_over():
                break
        if waiting:
            self._commit(records, waiting, peer, buffer, now_ms)
        moved = self._handled or (trace is not None and trace.next_due_ms() != due_ms)
        if self._ended and half_messages.moved_timer():
            moved = True
        replies = b"".join(out) if out else b""
        return _new_served(Served, (position, replies, self._after_offset, self._sends, moved, self._stored))

    def _commit(self, records: list[Record], waiting: list[Waiting], peer: Peer, buffer: bytes, now_ms: int) -> None:
        """Append the collected records and answer their requests. If the append is refused, `handle` serves each
        request.

        The store may keep the records, so they must not be changed afterwards.
        """
        broker = self._broker
        if broker.store.closes_queues and any(broker.store.why_closed(*one[0].key, now_ms) for one in waiting):
            for *_, start, end, _ in waiting:
                self._general(peer, buffer, start, end, now_ms)
            return
        try:
            tickets = broker.store.append(cast(list[PendingRecord], records), now_ms)
        except Exception:
            # Nothing was stored. `handle` stores the valid ones one by one and answers each of the others.
            for *_, start, end, _ in waiting:
                self._general(peer, buffer, start, end, now_ms)
            return
        self._stored = True
        out, pack_head, one, after_offset = self._out, FRAME_HEAD.pack, self._one, self._after_offset
        add = out.append
        writer, trace, half_messages = broker.writer, broker.trace, self._half_messages
        are_held = len(broker.held) > 0 or len(writer.watched) > 0
        index = 0
        for route, unique_id, opaque, count, waits, _, _, half in waiting:
            first = index
            physical_offset, size, queue_offset, end_offset = tickets[index]
            index += 1
            counter = route.counter
            if counter is not None:
                counter.count += 1
                counter.size += size
                counter.times += 1
            if not count:
                header = one % (physical_offset, route.queue_id, queue_offset, unique_id, opaque)
            elif count > 0:
                for _, size, _, end_offset in tickets[index : index + count - 1]:  # noqa: B007
                    if counter is not None:
                        counter.count += 1
                        counter.size += size
                        counter.times += 1
                index += count - 1
                pattern = self._batch_id
                ids = b",".join([pattern % ticket[0] for ticket in tickets[first:index]])
                batch_id = unique_id or broker.send.properties.new_id().encode()
                header = self._batch % (ids, route.queue_id, queue_offset, batch_id, opaque)
            else:
                self._ended = True
                if half is None:
                    half_messages.note_commit(opaque, route.topic, records[first][5], now_ms)
                    header = b""
                else:
                    real, group = half
                    half_messages.keep(physical_offset, records[first], queue_offset, group, real)
                    header = one % (physical_offset, real.queue_id, queue_offset, unique_id, opaque)
            if header:
                header_size = len(header)
                add(pack_head(4 + header_size, header_size))
                add(header)
            if waits:
                after_offset = end_offset  # above all before it: the log only grows
            if are_held and (route.key in broker.held or route.topic in writer.watched):
                arrived = [(record[4], record[3]) for record in records[first:index]]
                writer.arrived(route.topic, route.queue_id, tickets[index - 1].queue_offset + 1, arrived)
            if trace is not None:
                kind = StoredKind.BATCH if count > 0 else _STORED_KINDS[count]
                for place in range(first, index):
                    trace.stored(cast(PendingRecord, records[place]), tickets[place], kind, now_ms)
        self._after_offset = after_offset
        if are_held or (trace is not None and trace.is_due(now_ms)):
            self._sends += broker.settle(now_ms)
            if broker.held.is_waking:  # `tick` continues
                self._handled = True

    def _general(self, peer: Peer, buffer: bytes, start: int, end: int, now_ms: int) -> None:
        """Pass one frame to `handle`. RemotingError: the frame is invalid."""
        frame_end(buffer, start, end)  # checks its lengths
        self._sends += self._handle(peer, decode_command(cut_frame(buffer, start, end)), now_ms)
        self._handled = True

    def _refresh_topics(self) -> None:
        """Drop routes if a topic has changed since they were learned."""
        version = self._topics.version
        if version != self._topics_version:
            self._topics_version = version
            self._routes.clear()
            self._half_messages.clear()

    def _refresh_settings(self) -> None:
        """Read the settings that request 25 may change."""
        config = self._broker.config
        self._settings_version = self._broker.settings_version
        self._open_ms = config.start_accept_ms
        self._takes_half_messages = not config.reject_transactions

    def _learn_time(self, text: str | bytes | int) -> int:
        """Return a born timestamp from a cache, since requests of one millisecond share it. -1: not a whole number."""
        time_ms = whole_number(text)
        if time_ms >= 0:
            if len(self._times) >= TIMES_KEPT_MAX:
                self._times.clear()
            self._times[text] = time_ms
        return time_ms


def _makes_sense(buffer: bytes, start: int, end: int) -> bool:
    """Return whether a frame can be decoded; an invalid one closes the connection after the frames before it."""
    try:
        stop = frame_end(buffer, start, end)
        return bool(stop) and decode_command(cut_frame(buffer, start, stop)) is not None
    except RemotingError:
        return False


def _host_hex(address: Host) -> bytes:
    """Return the broker's part of an offset message id."""
    return address.packed().hex().upper().encode()


assert tuple(Kind) == (1, 2, 3, 4, 5)  # the loop's comparisons: send, batch, pull, half message, end
