"""The broker's clock: the machine's clock without its jumps."""

import pytest
from structlog.testing import capture_logs

from mqtrail.node.clock import CHECK_MS, JUMP_MS, SETTLE_MS, SteadyClock

START_MS = 1_700_000_000_000
HOUR_MS = 3_600_000
NS = 1_000_000  # in a ms


class Machine:
    """A clock that the test sets, and the elapsed time."""

    def __init__(self) -> None:
        self.passed_ms = 5_000
        self.set_by_ms = 0
        self.pause_ms = 0  # before the machine's clock is read the next time
        self.jumps: list[int] = []
        self.clock = SteadyClock(
            "broker-a",
            wall=self._wall,
            elapsed=lambda: self.passed_ms * NS,
            on_jump=self.jumps.append,
        )

    def _wall(self) -> int:
        self.passed_ms += self.pause_ms
        self.pause_ms = 0
        return (self.true_ms + self.set_by_ms) * NS

    @property
    def true_ms(self) -> int:
        return START_MS + self.passed_ms


def test_a_clock_that_goes_forward_and_back_is_not_followed() -> None:
    """Time continues as before; both jumps are logged, once each."""
    machine = Machine()
    assert machine.clock() == machine.true_ms
    for by_ms in (HOUR_MS, -HOUR_MS):
        machine.set_by_ms = by_ms
        with capture_logs() as logs:
            for _ in range(5):
                machine.passed_ms += SETTLE_MS // 10
                assert machine.clock() == machine.true_ms
            machine.set_by_ms = 0
            machine.passed_ms += CHECK_MS
            assert machine.clock() == machine.true_ms
        assert [line["by_ms"] for line in logs if line["event"] == "clock.jumped"] == [by_ms, -by_ms]
    assert machine.jumps == [HOUR_MS, -HOUR_MS, -HOUR_MS, HOUR_MS]


def test_a_jump_that_lasts_is_followed() -> None:
    """The broker finally adopts the machine's time, in both directions."""
    machine = Machine()
    for by_ms in (HOUR_MS, 0):
        machine.set_by_ms = by_ms
        machine.passed_ms += CHECK_MS
        before_ms = machine.clock()
        machine.passed_ms += SETTLE_MS
        assert abs(machine.clock() - before_ms) > HOUR_MS - 2 * SETTLE_MS
        assert machine.clock() == machine.true_ms + by_ms
    assert machine.jumps == [HOUR_MS, -HOUR_MS]


def test_small_corrections_are_followed_at_the_next_check() -> None:
    """Small corrections, as by NTP, are not jumps."""
    machine = Machine()
    for by_ms in (1, JUMP_MS, JUMP_MS // 2, 0):
        machine.set_by_ms = by_ms
        machine.passed_ms += CHECK_MS
        assert machine.clock() == machine.true_ms + by_ms
    assert machine.jumps == []


@pytest.mark.parametrize("pause_ms", [JUMP_MS // 2, HOUR_MS])
def test_a_pause_between_reading_two_clocks_is_no_difference(pause_ms: int) -> None:
    """A thread may be interrupted there: neither a correction, which the next check would take back, nor a jump."""
    machine = Machine()
    machine.passed_ms += CHECK_MS
    machine.pause_ms = pause_ms
    before_ms = machine.true_ms
    assert machine.clock() == before_ms
    assert machine.clock() == machine.true_ms == before_ms + pause_ms
    machine.set_by_ms = 5
    machine.passed_ms += CHECK_MS
    assert machine.clock() == machine.true_ms + 5
    assert machine.jumps == []
