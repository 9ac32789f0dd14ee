"""From elsewhere into a topic: messages in the order of their source, resumed where it ended.

`Lanes` sends them, in order within each queue; a `Feed` is a run that does so until it is stopped. `binlog` and
`migrate` are feeds.
"""

from .lanes import IN_FLIGHT_COUNT, Lanes, Sends
from .run import Feed

__all__ = ["IN_FLIGHT_COUNT", "Feed", "Lanes", "Sends"]
