"""Timer messages: the files of the 5.x timer store, in Apache's formats (docs/design/timers.md)."""

from .files import TimerFiles
from .layout import PRECISION_MS, Slot, TimerCheckpoint, Unit, UnitMagic, floor_ms

__all__ = ["PRECISION_MS", "Slot", "TimerCheckpoint", "TimerFiles", "Unit", "UnitMagic", "floor_ms"]
