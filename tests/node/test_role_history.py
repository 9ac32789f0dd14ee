"""What a broker writes of its roles: who was master before, and until when it was known."""

from mqtrail.node.role_history import RoleHistory
from mqtrail.wire import BrokerEvent
from tests.broker.helpers import NOW_MS, Bench


class Clock:
    def __init__(self) -> None:
        self.now_ms = NOW_MS

    def __call__(self) -> int:
        return self.now_ms


def events_of(bench: Bench) -> list[BrokerEvent]:
    assert bench.broker.events is not None
    return list(bench.broker.events.waiting)


def slave() -> Bench:
    return Bench(broker_role="SLAVE", broker_id=2)


def master() -> Bench:
    return Bench(broker_role="SYNC_MASTER")


def test_the_new_master_writes_who_was_master_before() -> None:
    """The one that was killed cannot. Its time ends with the last bytes that came from it, or the last answer."""
    clock = Clock()
    history = RoleHistory(clock)
    first = slave()
    history.begin(first.broker, broker_id="2", epoch=None)
    assert [one.event for one in events_of(first)] == ["STARTED", "BECAME_SLAVE"]
    history.saw("1", "10.0.0.1:10911", 4)
    first.broker.replicas.following.read_ms = NOW_MS + 700
    clock.now_ms = NOW_MS + 5_000
    history.leave(first.broker)
    second = master()
    history.begin(second.broker, broker_id="2", epoch=5, reason="connection_closed")
    last = events_of(second)[-1]
    assert (last.event, last.broker_id, last.epoch, last.reason) == ("BECAME_MASTER", "2", 5, "connection_closed")
    assert (last.before_id, last.before_address, last.before_epoch) == ("1", "10.0.0.1:10911", 4)
    assert (last.time_stamp, last.before_until_ms) == (NOW_MS + 5_000, NOW_MS + 700)


def test_what_a_role_did_not_write_goes_to_the_next_one() -> None:
    """Events of a slave whose master died before it took them."""
    history = RoleHistory(Clock())
    first, second = slave(), master()
    history.begin(first.broker, broker_id="2", epoch=None)
    history.leave(first.broker)
    history.begin(second.broker, broker_id="2", epoch=1)
    assert [one.event for one in events_of(second)] == ["STARTED", "BECAME_SLAVE", "BECAME_MASTER"]


def test_the_same_role_again_is_no_event() -> None:
    """A slave is started anew to remove the end of its log: that is the event."""
    history = RoleHistory(Clock())
    first, second = slave(), slave()
    history.begin(first.broker, broker_id="2", epoch=None)
    assert first.broker.events is not None
    first.broker.events.delivered(first.broker.events.waiting)
    history.leave(first.broker)
    history.note(BrokerEvent(event="TRUNCATED", from_offset=10, to_offset=30, detail="a.log"))
    history.begin(second.broker, broker_id="2", epoch=None)
    assert [(one.event, one.from_offset, one.to_offset) for one in events_of(second)] == [("TRUNCATED", 10, 30)]


def test_a_deposed_master_and_its_successor() -> None:
    """It was master until it left; the first master of a group had none before it."""
    clock = Clock()
    history = RoleHistory(clock)
    first, second, third = master(), slave(), master()
    history.begin(first.broker, broker_id="1", epoch=1, reason="first")
    assert events_of(first)[-1].before_id is None
    clock.now_ms += 60_000
    history.leave(first.broker)
    history.begin(second.broker, broker_id="1", epoch=None)
    assert [(one.event, one.reason) for one in events_of(second)][-1] == ("BECAME_SLAVE", "deposed")
    history.leave(second.broker)
    history.begin(third.broker, broker_id="1", epoch=3)
    last = events_of(third)[-1]
    assert (last.before_id, last.before_epoch, last.before_until_ms) == ("1", 1, NOW_MS + 60_000)


def test_only_a_master_writes_that_it_stops() -> None:
    """A slave has nobody to send it to: its connections are closed by then."""
    for bench, written in ((master(), ["STOPPED"]), (slave(), [])):
        RoleHistory(Clock()).stopping(bench.broker)
        assert [one.event for one in events_of(bench)] == written
