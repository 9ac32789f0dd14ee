"""From elsewhere into a topic: messages in the order of their source, resumed where it ended.

`Lanes` sends them, in order within each queue; a `Feed` is a run that does so until it is stopped. `FolderFiles` keeps
its files. `binlog`, `migrate` and `mirror` are feeds.
"""

from .files import FolderFiles
from .groups import check_group, queues_of
from .lanes import IN_FLIGHT_COUNT, Lanes, Sends
from .run import Feed
from .words import KEY_LENGTH_MAX, SAFE, short_word

__all__ = [
    "IN_FLIGHT_COUNT",
    "KEY_LENGTH_MAX",
    "SAFE",
    "Feed",
    "FolderFiles",
    "Lanes",
    "Sends",
    "check_group",
    "queues_of",
    "short_word",
]
