"""What a member does with a leader's PUSH. It accepts entries only behind a place that it has proved to match.

DLedger's APPEND does not name the entry before it: a leader compares once, then appends. A member that restarted
since, or a request that comes late, could leave a gap or cut off what was acknowledged. So this side keeps
`matched_index`: up to there its log is the leader's. COMPARE and TRUNCATE prove it, and so does an entry of the
leader's own term: only that leader made such entries, each behind the one before.

Source: DLedgerEntryPusher.EntryHandler, DLedgerMmapFileStore, openmessaging/dledger 0.3.1.2.
"""

from mqtrail.wire import LedgerEntry, LedgerPush, LedgerStatus, MQError, PushType

from ..rules import commits_by_count
from .storage import LedgerStorage

Status = LedgerStatus


class LedgerFollowing:
    """One leader's requests. problems, truncated: as of LedgerDecided; the member takes them."""

    def __init__(self, log: LedgerStorage) -> None:
        self._log = log
        self.matched_index = -1
        self.problems: list[str] = []
        self.truncated: list[str] = []

    def begin(self, term: int) -> None:
        """Follow the leader of a term: nothing is proved yet, but by entries of this term."""
        self.matched_index = self._log.end_index if self._log.end_term == term else -1

    def push(self, request: LedgerPush) -> Status | None:
        """Serve a request of the leader; return the status of the answer. Its entries may not be durable yet.

        None: the log is cut off first, in another thread; then the request is to be served again.
        """
        kind = request.type
        status: Status | None
        if kind is PushType.COMMIT:
            status = Status.SUCCESS
        elif not request.entries or (kind is not PushType.APPEND and len(request.entries) != 1):
            return Status.UNEXPECTED_ARGUMENT
        else:
            try:
                status = self._serve(request)
            except (MQError, OSError) as error:  # of the disk, or the entries do not continue this log
                self.problems.append(str(error))
                return Status.DISK_ERROR
        if status is Status.SUCCESS and kind is not PushType.COMPARE:
            self._commit_up_to(min(request.commit_index, self.matched_index), request.term)
        return status

    def _serve(self, request: LedgerPush) -> Status | None:
        entries = request.entries
        before = 0
        for entry in entries:
            if not before <= entry.term <= request.term:
                self.problems.append(
                    f"found entry {entry.index} of term {entry.term} from the leader of term {request.term}, expected "
                    f"a term from {before} to its own: it is not a member of this version"
                )
                return Status.UNEXPECTED_ARGUMENT
            before = entry.term
        match request.type:
            case PushType.APPEND:
                return self._append(entries)
            case PushType.COMPARE:
                return self._compare(entries[0])
            case _:
                return self._truncate(entries[0], request)

    def _append(self, entries: tuple[LedgerEntry, ...]) -> Status:
        log = self._log
        first = entries[0].index
        if first > log.end_index + 1 or self.matched_index < first - 1:
            return Status.INCONSISTENT_STATE  # the leader compares once more
        fresh: list[LedgerEntry] = []
        for entry in entries:
            if entry.index > log.end_index:
                fresh.append(entry)
            elif log.term_at(entry.index) != entry.term:
                return Status.INCONSISTENT_STATE
        log.append(fresh)
        self.matched_index = max(self.matched_index, entries[-1].index)
        return Status.SUCCESS

    def _compare(self, entry: LedgerEntry) -> Status:
        log = self._log
        local = log.entry(entry.index)
        if local is not None and local.is_same(entry):
            self.matched_index = max(self.matched_index, entry.index)
            return Status.SUCCESS
        if local is not None and (local.term == entry.term or entry.index <= log.committed_index):
            self.problems.append(
                f"found entry {entry.index} of term {local.term} at position {local.position} in this log, and one of "
                f"term {entry.term} at {entry.position} at the leader, expected the same one: it is committed here, or "
                "two leaders had one term. This member keeps its log and does not follow; look for a member that lost "
                "its disk, or of another cluster"
            )
        return Status.INCONSISTENT_STATE

    def _truncate(self, entry: LedgerEntry, request: LedgerPush) -> Status | None:
        """Make this log end with the leader's entry."""
        log = self._log
        index, committed = entry.index, log.committed_index
        local = log.entry(index)
        is_there = local is not None and local.is_same(entry)
        if is_there and self._keeps_tail(index, request):
            self.matched_index = max(self.matched_index, log.end_index)
            return Status.SUCCESS
        if index < committed or (index == committed and not is_there):
            self.problems.append(
                f"found a request to cut off the log behind entry {index} from {request.leader_id}, the leader of term "
                f"{request.term}, expected one of at least {committed}, which is committed here: the leader lacks "
                "acknowledged entries. This member keeps them and does not follow; look for a member that lost its disk"
            )
            return Status.INCONSISTENT_STATE
        if is_there:
            if not self._cut_behind(index):
                return None
        elif index == committed + 1 and log.begin_index <= committed <= log.end_index:
            if not self._cut_behind(committed):
                return None
            log.append([entry])
        else:
            self.problems.append(
                f"found a leader whose log begins at entry {index}, and this log to end at {log.end_index}, committed "
                f"up to {committed}: what is between is removed there; this log begins anew at entry {index}"
            )
            log.restart_at(entry)
        self.matched_index = index
        return Status.SUCCESS

    def _keeps_tail(self, index: int, request: LedgerPush) -> bool:
        """Whether what is behind an entry is the leader's own: a request that came late must not cut that off."""
        log = self._log
        return index == log.end_index or log.end_term == request.term

    def _cut_behind(self, index: int) -> bool:
        """Whether the log ends there now; else another thread will cut it off."""
        path = None if index == self._log.end_index else self._log.truncate(index)
        if path is not None:
            self.truncated.append(path)
        return not self._log.is_cutting

    def _commit_up_to(self, index: int, term: int) -> None:
        """Commit what the leader committed and is proved to be here.

        Apache's leader counts entries of earlier terms too, which a later leader could replace. They are committed here
        with the first one of its own term.
        """
        log = self._log
        if index > log.committed_index and commits_by_count(log.term_at(index), term):
            log.committed_index = index
