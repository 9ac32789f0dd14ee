"""Files with keys or passwords: only their owner and group should have access."""

import stat
from pathlib import Path

OTHERS = stat.S_IROTH | stat.S_IWOTH


def mode_open_to_others(path: Path) -> str | None:
    """Return the mode, such as "644", of a file that every user can read or write; None if others have no access."""
    try:
        mode = path.stat().st_mode
    except OSError:
        return None
    return f"{stat.S_IMODE(mode):o}" if mode & OTHERS else None
