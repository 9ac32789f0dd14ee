"""The lane's loop: cut a piece into frames, serve those it knows, append once, answer.

Sends of a piece gather until the piece ends, or until a frame must see them stored (a pull, a request for `handle`).
Their replies are made from the tickets of that one append. If the append is refused, each of these requests goes to
`handle` instead, which answers each. Half messages, and the commits of those that the lane still keeps (halves), take
their places in the same append.

The loop is one long function because a call costs as much as a tenth of a send. Shapes of bytes: wire.frame. Held to
`handle` by tests/broker/test_lane.py and test_lane_transactions.py.
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
from .halves import HALF_QUEUE_ID, LaneHalves
from .headers import HALF_FLAG, JSON_HEADERS, PREFIX_SIZE, Kind
from .layouts import Layouts
from .pulls import LanePulls, pull_ext
from .replies import send_template
from .routes import Record, Route, Routes, SharedProperties, whole_number
from .signed import SIGNED_HEADERS, Signatures

REPLIES_SIZE_MAX: Final = 1024 * 1024  # bytes of pull replies made in one call: then the socket gets them first
RECORDS_MAX: Final = 4_096  # records gathered from batches before they are appended
TIMES_KEPT_MAX: Final = 256

COMMIT_OUTCOME: Final = "8"  # what an end says: MessageSysFlag.TRANSACTION_COMMIT
_JSON_MAX: Final = HEADER_SIZE_MAX  # of a frame's second word: the type above the header's size
_BINARY: Final = 1 << 24
_BINARY_MAX: Final = _BINARY + HEADER_SIZE_MAX

# A request whose records wait for the append: route, unique id, opaque, count of a batch's records or one of the
# marks below, whether it waits for the flush, where its frame starts and ends; of a half message the queue it is meant
# for and its producer group. Of a commit, which is not answered, the opaque is its half message's queue offset.
Waiting = tuple[Route, bytes, int, int, bool, int, int, tuple[Route, str] | None]
_ONE: Final = 0  # spelt out in the loops
_HALF: Final = -1
_COMMIT: Final = -2
_STORED_KINDS: Final = {_ONE: None, _HALF: StoredKind.HALF, _COMMIT: StoredKind.COMMIT}

_new_served = tuple.__new__  # a NamedTuple's own constructor takes three times as long


class Served(NamedTuple):
    """What one call did.

    position: where it stopped. replies: bytes for this peer, to be written no sooner than the log is flushed to
    after_offset. sends: what `handle` decided, for this and other peers. handled: when the broker
    wants to tick may have changed. stored: the lane appended something.
    """

    position: int
    replies: bytes
    after_offset: int
    sends: list[Send]
    handled: bool
    stored: bool


class Lane:
    """Serves pieces for one broker. handle: the general road, `broker.handle` unless the shell wraps it."""

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
        self._halves = LaneHalves(broker)
        self._layouts = Layouts()
        self._pulls = LanePulls(broker)
        self._one = send_template(config, _host_hex(config.address) + b"%016X")
        self._batch = send_template(config, b"%b")
        self._batch_id = _host_hex(config.address) + b"%016X"
        self._takes_body = config.takes_body
        self._look_at_settings()
        self._signatures = Signatures(broker.access) if broker.access.on else None
        self._json_headers = JSON_HEADERS if self._signatures is None else SIGNED_HEADERS
        self._reads_binary = self._signatures is None and not config.reply_in_kind
        self._sync = config.sync_flush
        self._times: dict[str | bytes | int, int] = {}
        self._topics = broker.topics
        # Of the peer of the last call, and of the call under way.
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
        """Serve the whole frames of buffer[start:end]. RemotingError: the first one makes no sense.

        Stops before a frame that is not whole, or that makes no sense and is not the first, or when many replies are
        to be written first, or others are to have their turn. turn_is_over: asked after what may take long.
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
        halves, half_properties = self._halves, self._half_properties.read
        times, takes_body, is_open = self._times, self._takes_body, now_ms >= self._open_ms
        if peer is not self._peer:
            self._peer, self._born_host = peer, peer.address.packed()
        born_host = self._born_host
        if self._topics.version != self._topics_version:
            self._look_at_topics()
        if self._broker.settings_version != self._settings_version:
            self._look_at_settings()
            is_open = now_ms >= self._open_ms
        position, pulled_size = start, 0
        route: Route | None
        while end - position >= FRAME_HEAD_SIZE:
            size, mark = unpack_head(buffer, position)
            stop = position + 4 + size
            if stop > end:
                break
            body_start = position + FRAME_HEAD_SIZE + (mark & 0xFFFFFF)
            # Which request is it? Kind 0: the general road knows.
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
            # A send takes its place in the append; nothing is answered yet.
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
                    if self._takes_halves:
                        records.append(
                            (HALF_TOPIC, HALF_QUEUE_ID, buffer[body_start:stop],
                             b"%b%b%b%b" % (sent, suffix, unique_id, route.real), tags_code, born_ms,
                             born_host, 0, route.sys_flag, 0, 0)
                        )  # fmt: skip
                        half = (route, group)
                        waiting.append((halves.route(), unique_id, opaque, _HALF, waits, position, stop, half))
                        position = stop
                        continue
            elif kind == 5:
                taken_half = halves.take(half_place, half_offset, group, len(waiting))
                if taken_half is not None:
                    committed, queue_offset, route = taken_half
                    if outcome == COMMIT_OUTCOME:
                        records.append(committed)
                        waiting.append((route, b"", queue_offset, _COMMIT, False, position, stop, None))
                    else:
                        if waiting:  # ends are noted in the order they came in
                            self._commit(records, waiting, peer, buffer, now_ms)
                            records, waiting = [], []
                        halves.note_rollback(queue_offset, route.topic, now_ms)
                        self._ended = True
                    position = stop
                    continue
            elif kind == 2:
                route = find_route(topic, queue_id) if is_open else None
                born_ms = learn_time(born)
                if route is not None and born_ms >= 0 and takes_body(stop - body_start):
                    taken = take_batch(properties, route, sent, born_ms, born_host, buffer, body_start, stop, records)
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
            # Everything else.
            if waiting:
                self._commit(records, waiting, peer, buffer, now_ms)
                records, waiting = [], []
            if position > start and not _makes_sense(buffer, position, end):
                break
            self._general(peer, buffer, position, stop, now_ms)
            self._look_at_topics()
            if self._broker.settings_version != self._settings_version:
                self._look_at_settings()
                is_open = now_ms >= self._open_ms
            position = stop
            if turn_is_over():
                break
        if waiting:
            self._commit(records, waiting, peer, buffer, now_ms)
        moved = self._handled or (trace is not None and trace.next_due_ms() != due_ms)
        if self._ended and halves.moved_timer():
            moved = True
        if self._broker.held.is_waking:
            moved = True
        replies = b"".join(out) if out else b""
        return _new_served(Served, (position, replies, self._after_offset, self._sends, moved, self._stored))

    def _commit(self, records: list[Record], waiting: list[Waiting], peer: Peer, buffer: bytes, now_ms: int) -> None:
        """Append what has gathered and answer it. When the append is refused, `handle` takes each request.

        The store may keep records: they are not to be changed any more.
        """
        broker = self._broker
        try:
            tickets = broker.store.append(cast(list[PendingRecord], records), now_ms)
        except Exception:
            # Nothing was stored. One at a time the good ones are, and each of the others gets its own answer.
            for *_, start, end, _ in waiting:
                self._general(peer, buffer, start, end, now_ms)
            return
        self._stored = True
        out, pack_head, one, sync = self._out, FRAME_HEAD.pack, self._one, self._sync
        add = out.append
        writer, trace, halves = broker.writer, broker.trace, self._halves
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
                header = self._batch % (ids, route.queue_id, queue_offset, unique_id, opaque)
            else:
                self._ended = True
                if half is None:
                    halves.note_commit(opaque, route.topic, records[first][5], now_ms)
                    header = b""
                else:
                    real, group = half
                    halves.keep(physical_offset, records[first], queue_offset, group, real)
                    header = one % (physical_offset, real.queue_id, queue_offset, unique_id, opaque)
            if header:
                header_size = len(header)
                add(pack_head(4 + header_size, header_size))
                add(header)
            if sync and waits and end_offset > self._after_offset:
                self._after_offset = end_offset
            if are_held and (route.key in broker.held or route.topic in writer.watched):
                arrived = [(record[4], record[3]) for record in records[first:index]]
                writer.arrived(route.topic, route.queue_id, tickets[index - 1].queue_offset + 1, arrived)
            if trace is not None:
                kind = StoredKind.BATCH if count > 0 else _STORED_KINDS[count]
                for place in range(first, index):
                    trace.stored(cast(PendingRecord, records[place]), tickets[place], kind, now_ms)
        if are_held or (trace is not None and trace.is_due(now_ms)):
            self._sends += broker.settle(now_ms)

    def _general(self, peer: Peer, buffer: bytes, start: int, end: int, now_ms: int) -> None:
        """Hand one frame to `handle`. RemotingError: it makes no sense."""
        frame_end(buffer, start, end)  # looks at its lengths
        self._sends += self._handle(peer, decode_command(cut_frame(buffer, start, end)), now_ms)
        self._handled = True

    def _look_at_topics(self) -> None:
        """Forget routes when any topic has changed since they were found."""
        version = self._topics.version
        if version != self._topics_version:
            self._topics_version = version
            self._routes.clear()
            self._halves.clear()

    def _look_at_settings(self) -> None:
        """Take over what may change while the broker runs (request 25)."""
        config = self._broker.config
        self._settings_version = self._broker.settings_version
        self._open_ms = config.start_accept_ms
        self._takes_halves = not config.reject_transactions

    def _learn_time(self, text: str | bytes | int) -> int:
        """Return a born timestamp, remembering it: requests of one millisecond share it. -1: no whole number."""
        time_ms = whole_number(text)
        if time_ms >= 0:
            if len(self._times) >= TIMES_KEPT_MAX:
                self._times.clear()
            self._times[text] = time_ms
        return time_ms


def _makes_sense(buffer: bytes, start: int, end: int) -> bool:
    """Tell whether a frame can be handed on; one that cannot ends the connection, after what came before it."""
    try:
        stop = frame_end(buffer, start, end)
        return bool(stop) and decode_command(cut_frame(buffer, start, stop)) is not None
    except RemotingError:
        return False


def _host_hex(address: Host) -> bytes:
    """Return the part of an offset message id that is the broker's."""
    return address.packed().hex().upper().encode()


assert tuple(Kind) == (1, 2, 3, 4, 5)  # the loop's comparisons: send, batch, pull, half message, end
