"""Consumer offsets: how far each group has consumed each queue, and resets that consumers have not received yet.

Changes are saved every offsets_save_ms, in Apache's format: {"topic@group": {queue_id: offset}}. The loop copies the
changed entries; the thread that saves tables encodes each of them once. If the broker itself moved an offset because of
a record that it appended, as POP does, the offset is saved after that record is durable. Otherwise a power failure
could lose the record and keep the offset, and the messages of the record would be skipped.

Source: ConsumerOffsetManager, apache/rocketmq broker/offset/.
"""

from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from itertools import islice

from mqtrail.store import ConfigFileStore
from mqtrail.wire import ConsumerOffsetTable, DataVersion, SystemBusy, dumps, dumps_fastjson, sorted_in_slices

from ..encoded import EncodedEntries, Handover
from ..files import OFFSETS_FILE, load_table, next_version
from ..jobs import NAMES_A_SLICE

GroupTopic = tuple[str, str]  # group, topic
_Key = tuple[GroupTopic, int]  # and queue id
WAITING_MAX = 16  # saved sets of earlier offsets that wait for a flush of the log
OFFSETS_MAX = 2_000_000  # further offsets are refused to clients; the broker itself still commits
PULLED_MAX = 500_000  # groups and topics whose last pull is stored
COPIES_A_SLICE = 5_000  # changed entries copied for a save


class OffsetTable:
    """(group, topic) -> queue id -> consumer offset: the next one to consume."""

    def __init__(self, files: ConfigFileStore, now_ms: int) -> None:
        self._files = files
        table = load_table(files, OFFSETS_FILE, ConsumerOffsetTable) or ConsumerOffsetTable()
        self._version = table.data_version or DataVersion(now_ms)
        self._loaded_ms = 0 if table.data_version is None else table.data_version.timestamp
        self._offsets: dict[GroupTopic, dict[int, int]] = {}
        for key, queues in table.offset_table.items():
            topic, at, group = key.partition("@")
            if at:
                self._offsets[group, topic] = {queue: offset for queue, offset in queues.items() if offset >= 0}
                if impossible := {queue: offset for queue, offset in queues.items() if offset < 0}:
                    files.report.append(
                        f"{OFFSETS_FILE}: found {impossible} of {key}, expected offsets of 0 or more: left out"
                    )
            else:
                files.report.append(f"{OFFSETS_FILE}: found {key!r}, expected topic@group: left out")
        self._pulled: dict[GroupTopic, dict[int, int]] = {}
        self._resets: dict[GroupTopic, dict[int, int]] = {}
        # The keys of these three by group and by topic, to find them without a scan of all.
        self._topics_of: dict[str, set[str]] = {}
        self._groups_of: dict[str, set[str]] = {}
        # Groups with entries of a deleted topic that are still in these tables. Such an entry counts as absent: it is
        # removed when it is used, the others in slices (`forget_some`).
        self._leaving: dict[str, set[str]] = {}
        for entry in self._offsets:
            self._note_entry(entry)
        self._count = sum(map(len, self._offsets.values()))
        self._adopted: dict[str, dict[int, int]] = {}  # on a slave: the master's offsets, as received last
        self._changed: set[GroupTopic] = set()  # entries that changed since the last copy
        self._copies: dict[GroupTopic, dict[int, int] | None] = {}  # some of those changed before, for the next save
        self._saved = Handover[GroupTopic, dict[int, int]]()
        self._encoded = EncodedEntries(dict(_member(entry, queues) for entry, queues in self._offsets.items()))
        self._kept: dict[
            _Key, int | None
        ] = {}  # offsets to save instead of those that depend on records not yet durable
        self._moved: set[_Key] = set()  # offsets moved since the last save that depend on such records
        self._waiting: deque[tuple[int, dict[_Key, int]]] = (
            deque()
        )  # earlier offsets, and the end of the log that they wait for

    def cut(self, max_offset: Callable[[str, int], int], *, is_slave: bool = False) -> bool:
        """Reset offsets beyond the end of their queue (max_offset), and report it; return whether there were any.

        is_slave: do not report it. Its master's offsets are often ahead of its log.

        A power failure may lose messages that were consumed before they were durable. New messages take their places
        and would be skipped. Call it, and save the result, before any request: after another crash the difference is
        lost.
        """
        count, example = 0, ""
        for (group, topic), queues in self._offsets.items():
            for queue_id, consumer_offset in queues.items():
                if consumer_offset > (end := max_offset(topic, queue_id)):
                    queues[queue_id] = end
                    self._changed.add((group, topic))
                    count += 1
                    example = example or f"{consumer_offset} of {topic}@{group} queue {queue_id}, whose end is {end}"
        if count and not is_slave:
            self._files.report.append(
                f"{OFFSETS_FILE}: found {count} offsets beyond the end of their queues, such as {example}: "
                "set to the end"
            )
        return count > 0

    def get(self, group: str, topic: str, queue_id: int) -> int | None:
        """Return the committed offset; None: nothing was committed."""
        if self._leaving:
            self._leave(group, topic)
        queues = self._offsets.get((group, topic))
        return None if queues is None else queues.get(queue_id)

    def queues(self, group: str, topic: str) -> dict[int, int]:
        """Return a copy of the group's offsets in the topic, by queue id."""
        if self._leaving:
            self._leave(group, topic)
        return dict(self._offsets.get((group, topic), {}))

    def check_room(self, group: str, topic: str, queue_id: int) -> None:
        """Return if a client may commit an offset. SystemBusy: it is a further one, and there are too many."""
        if not self.has_room(group, topic, queue_id):
            raise SystemBusy(
                f"found {self._count} offsets of groups, expected at most {OFFSETS_MAX}: delete groups or topics"
            )

    def has_room(self, group: str, topic: str, queue_id: int) -> bool:
        """Return whether a client may commit an offset."""
        if self._leaving:
            self._leave(group, topic)
        return self._count < OFFSETS_MAX or queue_id in self._offsets.get((group, topic), ())

    def commit(self, group: str, topic: str, queue_id: int, consumer_offset: int) -> None:
        """Set an offset, also to a lower value: the client decides."""
        if self._leaving:
            self._leave(group, topic)
        entry = (group, topic)
        queues = self._offsets.get(entry)
        if queues is None:
            queues = self._begin(self._offsets, entry)
        if queue_id not in queues:
            self._count += 1
        queues[queue_id] = consumer_offset
        if self._kept:
            self._kept.pop((entry, queue_id), None)
            self._moved.discard((entry, queue_id))
        self._changed.add(entry)

    def adopt(self, table: ConsumerOffsetTable) -> None:
        """On a slave: take the offsets of the master. One that a client has committed here since then stays until the
        master's changes too."""
        adopted, self._adopted = self._adopted, table.offset_table
        for key, queues in table.offset_table.items():
            topic, at, group = key.partition("@")
            if not at:
                continue
            known, before = self._offsets.get((group, topic), {}), adopted.get(key, {})
            for queue_id, consumer_offset in queues.items():
                own = known.get(queue_id, -1)
                if own == consumer_offset or (own > consumer_offset == before.get(queue_id)):
                    continue
                if consumer_offset >= 0 and self.has_room(group, topic, queue_id):
                    self.commit(group, topic, queue_id, consumer_offset)

    def take_back(self, table: ConsumerOffsetTable, max_offset: Callable[[str, int], int]) -> int:
        """On a master that starts: take the offsets of a slave that are ahead of its own; return how many.

        Consumers went on at the slave while the master was gone. max_offset: the end of a queue; a slave that has more
        than the master hands back no offset behind it.
        """
        count = 0
        if table.data_version is not None and table.data_version.timestamp < self._loaded_ms:
            return count  # nothing was committed there since
        for key, queues in table.offset_table.items():
            topic, at, group = key.partition("@")
            known = self._offsets.get((group, topic), {})
            for queue_id, consumer_offset in queues.items() if at else ():
                if known.get(queue_id, -1) < consumer_offset <= max_offset(topic, queue_id):
                    self.commit(group, topic, queue_id, consumer_offset)
                    count += 1
        return count

    def move(self, group: str, topic: str, queue_id: int, consumer_offset: int) -> None:
        """Set an offset that depends on the last append; it is saved when that is durable."""
        if self._leaving:
            self._leave(group, topic)
        entry = (group, topic)
        queues = self._offsets.get(entry)
        if queues is None:
            queues = self._begin(self._offsets, entry)
        key = entry, queue_id
        self._kept.setdefault(key, queues.get(queue_id))
        self._moved.add(key)
        if queue_id not in queues:
            self._count += 1
        queues[queue_id] = consumer_offset

    def note_pull(self, group: str, topic: str, queue_id: int, queue_offset: int) -> None:
        """Store how far a group has pulled, for administrators; not saved."""
        if self._leaving:
            self._leave(group, topic)
        queues = self._pulled.get((group, topic))
        if queues is None:
            if len(self._pulled) >= PULLED_MAX:
                return
            queues = self._begin(self._pulled, (group, topic))
        queues[queue_id] = queue_offset

    def _begin(self, table: dict[GroupTopic, dict[int, int]], entry: GroupTopic) -> dict[int, int]:
        queues = table[entry] = {}
        self._note_entry(entry)
        return queues

    def _note_entry(self, entry: GroupTopic) -> None:
        group, topic = entry
        self._topics_of.setdefault(group, set()).add(topic)
        self._groups_of.setdefault(topic, set()).add(group)

    def pulled(self, group: str, topic: str, queue_id: int) -> int | None:
        if self._leaving:
            self._leave(group, topic)
        queues = self._pulled.get((group, topic))
        return None if queues is None else queues.get(queue_id)

    def pulled_positions(self) -> Iterator[tuple[str, str, int, int]]:
        """Return (group, topic, queue id, queue offset) of each queue that was pulled since the start."""
        for (group, topic), queues in list(self._pulled.items()):
            if self._is_leaving(group, topic):
                continue
            for queue_id, queue_offset in list(queues.items()):
                yield group, topic, queue_id, queue_offset

    def topics_of(self, group: str) -> Generator[None, None, list[str]]:
        """Return the topics in which the group has offsets, sorted, in slices."""
        gone = {topic for topic, groups in self._leaving.items() if group in groups}
        known = self._topics_of.get(group, ())
        return sorted_in_slices(topic for topic in known if (group, topic) in self._offsets and topic not in gone)

    def groups_of(self, topic: str) -> Generator[None, None, list[str]]:
        """Return the groups with offsets in the topic, without the common offsets of broadcasting groups, sorted, in
        slices."""
        known = self._groups_of.get(topic, ())
        return sorted_in_slices(group for group in known if "@" not in group and (group, topic) in self._offsets)

    def __iter__(self) -> Iterator[GroupTopic]:
        if not self._leaving:
            return iter(self._offsets)
        return (entry for entry in self._offsets if not self._is_leaving(*entry))

    # Resets by an administrator: the next pull of the queue receives the new offset; commits until then are ignored.

    def reset(self, group: str, topic: str, queue_id: int, queue_offset: int) -> None:
        self.commit(group, topic, queue_id, queue_offset)
        self._resets.setdefault((group, topic), {})[queue_id] = queue_offset

    def is_reset(self, group: str, topic: str, queue_id: int) -> bool:
        if not self._resets:
            return False
        if self._leaving:
            self._leave(group, topic)
        return queue_id in self._resets.get((group, topic), ())

    def take_reset(self, group: str, topic: str, queue_id: int) -> int | None:
        """Remove and return the pending reset for this pull; None: there is none."""
        if not self._resets:
            return None
        if self._leaving:
            self._leave(group, topic)
        queues = self._resets.get((group, topic))
        if queues is None:
            return None
        found = queues.pop(queue_id, None)
        if not queues:
            del self._resets[group, topic]
        return found

    def forget_topic(self, topic: str) -> None:
        """Remove the offsets of all groups in the topic: visible at once, freed from memory in slices."""
        if groups := self._groups_of.pop(topic, None):
            self._leaving.setdefault(topic, set()).update(groups)

    @property
    def is_forgetting(self) -> bool:
        """Whether `forget_some` has work."""
        return bool(self._leaving)

    def forget_some(self) -> None:
        """Remove some of the entries of deleted topics from memory."""
        for topic, groups in self._leaving.items():
            self._forget({(group, topic) for group in islice(groups, NAMES_A_SLICE)})
            return

    def _is_leaving(self, group: str, topic: str) -> bool:
        return group in self._leaving.get(topic, ())

    def _leave(self, group: str, topic: str) -> None:
        """Remove an entry of a deleted topic before it is used."""
        if self._is_leaving(group, topic):
            self._forget({(group, topic)})

    def forget_group(self, group: str) -> Generator[None, None, None]:
        """Remove the group's offsets, in slices."""
        topics = iter(list(self._topics_of.get(group, ())))
        while some := {(group, topic) for topic in islice(topics, NAMES_A_SLICE)}:
            self._forget(some)
            if len(some) == NAMES_A_SLICE:
                yield

    def _forget(self, keys: set[GroupTopic]) -> None:
        for key in keys:
            self._count -= len(self._offsets.get(key, ()))
            for table in (self._offsets, self._pulled, self._resets):
                table.pop(key, None)
            for index, name, member in (
                (self._topics_of, *key),
                (self._groups_of, key[1], key[0]),
                (self._leaving, key[1], key[0]),
            ):
                members = index.get(name, set())
                members.discard(member)
                if not members:
                    index.pop(name, None)
            self._changed.add(key)
        for kept in [kept for kept in self._kept if kept[0] in keys]:
            del self._kept[kept]
            self._moved.discard(kept)

    @property
    def version(self) -> DataVersion:
        """Version of the last saved table."""
        return self._version

    def entries(self, keys: Iterable[GroupTopic]) -> Iterator[tuple[str, dict[int, int]]]:
        """Yield entries as in `table`, while the table may change: each with its value at that moment."""
        for group, topic in keys:
            queues = self._offsets.get((group, topic))
            if queues is not None and not self._is_leaving(group, topic):
                yield f"{topic}@{group}", {queue_id: queues[queue_id] for queue_id in sorted(queues)}

    def table(self) -> ConsumerOffsetTable:
        """Return all offsets as one body, as request 43 answers."""
        offsets = {
            f"{topic}@{group}": dict(sorted(self._offsets[group, topic].items())) for group, topic in sorted(self)
        }
        return ConsumerOffsetTable(offsets, self._version)

    def copy_some(self) -> bool:
        """Copy some of the changed entries for the next save; return whether `save` has only few left to copy.

        Entries with an offset that is not to be saved yet are left to `save`.
        """
        if len(self._changed) <= COPIES_A_SLICE:
            return True
        kept = {entry for entry, _ in self._kept}
        some = list(islice((entry for entry in self._changed if entry not in kept), COPIES_A_SLICE))
        for entry in some:
            queues = self._offsets.get(entry)
            self._copies[entry] = None if queues is None else queues.copy()
        self._changed.difference_update(some)
        return len(some) < COPIES_A_SLICE

    def save(self, now_ms: int, end_offset: int, flushed_offset: int, undo: Callable[[], None] | None = None) -> None:
        """Save the changes since the last save that depend on durable records only.

        end_offset, flushed_offset: of the log. undo: called if the save fails; the current answer waits for the save.
        """
        self._note_moved(end_offset)
        while self._waiting and self._waiting[0][0] <= flushed_offset:
            for key, consumer_offset in self._waiting.popleft()[1].items():
                if key in self._kept:
                    self._kept[key] = consumer_offset
                    self._changed.add(key[0])
        if not self._waiting:
            self._kept.clear()
        if self._changed or self._copies:
            self._version = next_version(self._version, now_ms)
            self._note_entries()
            if undo is None:
                self._files.note(OFFSETS_FILE, self._document)
            else:
                self._files.change(OFFSETS_FILE, self._document, undo)
            self._changed.clear()

    def _note_entries(self) -> None:
        """Copy the changed entries, without changes that depend on records not yet durable."""
        self._saved.note_all(self._copies)
        self._copies = {}
        noted = {entry: queues.copy() for entry in self._changed if (queues := self._offsets.get(entry)) is not None}
        for (entry, queue_id), consumer_offset in self._kept.items():
            if entry not in self._changed:
                continue
            if consumer_offset is None:
                noted[entry].pop(queue_id, None)
            else:
                noted[entry][queue_id] = consumer_offset
        for entry in self._changed:
            self._saved.note(entry, noted.get(entry))

    def _document(self) -> Callable[[], bytes]:
        self._saved.take()
        version = self._version

        def content() -> bytes:
            self._saved.apply(self._encode)
            encoded_version = dumps_fastjson(version.members())
            return b"".join([b'{"dataVersion":', encoded_version, b',"offsetTable":', *self._encoded.snapshot(), b"}"])

        return content

    def _encode(self, entry: GroupTopic, queues: dict[int, int] | None) -> None:
        name, encoded = _member(entry, queues or {})
        self._encoded.put(name, None if queues is None else encoded)

    def _note_moved(self, end_offset: int) -> None:
        if not self._moved:
            return
        moved = {key: self._offsets[key[0]][key[1]] for key in self._moved}
        self._moved.clear()
        if len(self._waiting) >= WAITING_MAX:
            moved = self._waiting.pop()[1] | moved
        self._waiting.append((end_offset, moved))


def _member(entry: GroupTopic, queues: dict[int, int]) -> tuple[str, bytes]:
    """Return an entry's name in the file, and the entry as a member of its JSON."""
    name = f"{entry[1]}@{entry[0]}"
    pairs = ",".join([f"{queue_id}:{queues[queue_id]}" for queue_id in sorted(queues)])
    return name, b"%b:{%b}" % (dumps(name), pairs.encode())
