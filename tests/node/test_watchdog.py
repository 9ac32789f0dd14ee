"""The watchdog counts work that blocks the loop, by kind, and logs it at intervals."""

from structlog.testing import capture_logs

from mqtrail.node.watchdog import LOG_EVERY_S, STALL_S, Watchdog, work_of
from mqtrail.wire import RequestCode

from .helpers import send_command
from .test_waits import Listener, Waits


def test_long_work_is_counted_and_logged_at_intervals() -> None:
    """Short work is not counted; a stall soon after a log event is included in the next one."""
    now_s = [100.0]
    watchdog = Watchdog(clock=lambda: now_s[0], cpu_clock=lambda: 0.0)

    def work(name: str, took_s: float) -> None:
        began_s = now_s[0]
        now_s[0] += took_s
        watchdog.end(began_s, name)

    with capture_logs() as logs:
        work("11", STALL_S / 2)
        work("11", 0.25)
        work("tick", 0.5)
        work("11", 0.25)
        now_s[0] += LOG_EVERY_S
        work("320", 2.0)
    assert watchdog.counts == {"11": [2, 500, 0], "tick": [1, 500, 0], "320": [1, 2000, 0]}
    assert [(line["work"], line["took_ms"], line["stalls"]) for line in logs] == [("11", 250, 1), ("320", 2000, 3)]


def test_a_stall_tells_its_cpu_time() -> None:
    """It distinguishes computing from waiting. CPU time is read rarely."""
    now_s, cpu_s, readings = [100.0], [7.0], [0]

    def cpu_clock() -> float:
        readings[0] += 1
        return cpu_s[0]

    watchdog = Watchdog(clock=lambda: now_s[0], cpu_clock=cpu_clock)

    def work(name: str, took_s: float, used_s: float) -> None:
        began_s = watchdog.begin()
        now_s[0] += took_s
        cpu_s[0] += used_s
        watchdog.end(began_s, name)

    with capture_logs() as logs:
        work("computes", 0.25, 0.24)
        work("waits", 0.25, 0.001)
        for _ in range(1_000):
            work("short", 0.0001, 0.0001)
    assert watchdog.counts["computes"] == [1, 250, 240]
    number, took_ms, cpu_ms = watchdog.counts["waits"]
    assert (number, took_ms, cpu_ms < 10) == (1, 250, True)
    assert [(line["work"], line["cpu_ms"]) for line in logs] == [("computes", 240)]
    assert readings[0] < 30


def test_codes_that_are_none_share_a_label() -> None:
    """A peer cannot create labels."""
    assert work_of(RequestCode.PULL_MESSAGE) == "11"
    assert work_of(987_654) == "other"


async def test_a_long_piece_is_counted_by_its_first_request() -> None:
    """The lane serves it in one call."""
    waits = Waits()
    now_s = [0.0]
    waits.shell.watchdog.clock = lambda: now_s.append(now_s[-1] + 0.03) or now_s[-1]
    waits.serve(Listener(1), send_command("orders", b"x"))
    assert waits.shell.watchdog.counts
    assert waits.shell._broker.stalls is waits.shell.watchdog.counts
    waits.shell.stop()
