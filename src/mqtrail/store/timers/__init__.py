"""What waits for its time: the 5.x timer store's files, as Apache's (docs/design/timers.md)."""

from .files import TimerFiles
from .layout import PRECISION_MS, Slot, TimerCheckpoint, Unit, UnitMagic, floor_ms

__all__ = ["PRECISION_MS", "Slot", "TimerCheckpoint", "TimerFiles", "Unit", "UnitMagic", "floor_ms"]
