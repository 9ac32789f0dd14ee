"""Long requests: which ones start, which wait, and which are refused before any work."""

import pytest

from mqtrail.wire import Host, Jobs, Peer, PeerId, RemotingCommand, SystemBusy, Work, answer, jobs

BOUNDED = 34  # a code whose work depends on its body alone


class Tables:
    """Tables without changes."""

    dependency = 0

    def depend_on(self, number: int) -> None:
        """Do nothing: no table changes here."""


class Bench:
    """Jobs, and what each of them has done."""

    def __init__(self) -> None:
        self.jobs = Jobs(Tables(), {BOUNDED})
        self.slices: list[str] = []

    def begin(self, name: str, peer: int, slices: int = 3, body: bytes = b"", code: int = 1) -> int:
        """Begin a job; return the number of immediate replies."""
        at = Peer(PeerId(peer), Host("10.0.0.1", peer))
        request = RemotingCommand(code, {}, body, name)
        return len(self.jobs.begin(at, request, self._work(name, at, request, slices)))

    def _work(self, name: str, peer: Peer, request: RemotingCommand, slices: int) -> Work:
        for number in range(slices):
            self.slices.append(name)
            if number < slices - 1:
                yield
        return answer(peer, request)

    def finish(self) -> list[int]:
        """Step until no job is left; return the peers of the replies, in order."""
        answered = []
        while (job := self.jobs.take()) is not None:
            answered += [int(send.peer) for send in self.jobs.step(job)]
        return answered


def test_a_short_one_is_answered_at_once() -> None:
    """The job counts against no limit."""
    bench = Bench()
    assert bench.begin("short", 1, slices=1) == 1
    assert (len(bench.jobs), bench.jobs.next_due_ms()) == (0, None)


def test_they_take_turns() -> None:
    """Each runs one slice, then each runs the next one."""
    bench = Bench()
    for peer in (1, 2):
        assert bench.begin(f"p{peer}", peer) == 0
    assert bench.finish() == [1, 2]
    assert bench.slices == ["p1", "p2"] * 3


def test_more_than_can_be_under_way_wait() -> None:
    """No work on a waiting job is done before its turn; each is answered."""
    bench = Bench()
    for peer in range(jobs.JOBS_MAX + 3):
        bench.begin(str(peer), peer)
    assert len(bench.slices) == jobs.JOBS_MAX
    assert bench.jobs.next_due_ms() == 0
    assert sorted(bench.finish()) == list(range(jobs.JOBS_MAX + 3))


def test_one_connection_leaves_room_for_others() -> None:
    """Some of its requests run; its others wait behind those of other connections."""
    bench = Bench()
    for number in range(jobs.JOBS_PEER_MAX + 2):
        bench.begin(f"a{number}", 1)
    assert len(bench.slices) == jobs.JOBS_PEER_MAX
    assert bench.begin("other", 2, slices=1) == 1
    assert bench.finish() == [1] * (jobs.JOBS_PEER_MAX + 2)


@pytest.mark.parametrize(
    ("bound", "value", "body"), [("QUEUED_MAX", 2, b""), ("QUEUED_PEER_MAX", 2, b""), ("QUEUED_SIZE_MAX", 7, b"abc")]
)
def test_what_is_refused_was_not_begun(monkeypatch: pytest.MonkeyPatch, bound: str, value: int, body: bytes) -> None:
    """SYSTEM_BUSY means that no work was done; queued jobs continue."""
    monkeypatch.setattr(jobs, bound, value)
    bench = Bench()
    for number in range(jobs.JOBS_PEER_MAX + 2):
        bench.begin(str(number), 1, body=body)
    with pytest.raises(SystemBusy, match="expected at most"):
        bench.begin("refused", 1, body=body)
    assert len(bench.finish()) == jobs.JOBS_PEER_MAX + 2
    assert "refused" not in bench.slices
    bench.begin("again", 1, body=body)
    assert bench.finish() == [1]


def test_a_closed_connection() -> None:
    """Running jobs continue, since they may have changed something; queued ones are dropped."""
    bench = Bench()
    for number in range(jobs.JOBS_PEER_MAX + 2):
        bench.begin(str(number), 1)
    bench.begin("other", 2)
    bench.jobs.disconnected(PeerId(1))
    assert sorted(bench.finish()) == [1] * jobs.JOBS_PEER_MAX + [2]
    assert "4" not in bench.slices


def test_what_is_bounded_does_not_wait_behind_tables() -> None:
    """A few requests that scan large tables for hours do not block heartbeats, locks and batches."""
    bench = Bench()
    for peer in range(2 * jobs.JOBS_MAX):
        bench.begin("scan", peer, slices=50)
    assert bench.begin("short", 1, slices=1, code=BOUNDED) == 1
    assert bench.begin("long", 1, slices=3, code=BOUNDED) == 0
    answered: list[int] = []
    for _ in range(4):
        job = bench.jobs.take()
        assert job is not None
        answered += [int(send.peer) for send in bench.jobs.step(job)]
    assert answered == [1]
    assert len(bench.finish()) == 2 * jobs.JOBS_MAX
