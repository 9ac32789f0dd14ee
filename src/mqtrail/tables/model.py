"""Errors, names of columns, and limits of tables that follow a binlog topic."""

from __future__ import annotations

from typing import Final

from mqtrail.wire import MQError


class TableError(MQError):
    """The topic, the table or the source is not what is needed. A retry would not change it."""


class TableUnreadable(MQError):
    """A side of a comparison cannot be read completely."""


KEY, ORDER, OP, DELETED = "_mq_key", "_mq_order", "_mq_op", "_mq_deleted"
POSITION, GTID, TIME_MS, MSG_ID = "_mq_position", "_mq_gtid", "_mq_time_ms", "_mq_msg_id"
META: Final = (KEY, ORDER, OP, DELETED, POSITION, GTID, TIME_MS, MSG_ID)
"""Columns of a table beside those of its source: of the last change that each row has."""
OWN_PREFIX: Final = "_mq_"

BATCH_COUNT: Final = 100_000  # messages of a batch, and of a commit
HERE_COUNT: Final = 20_000  # messages of a batch that this process reads without Spark
FILES_MAX: Final = 40  # files of a table before they are made into larger ones
EXACT_DOUBLE: Final = 2**53  # whole numbers up to this are exact as a double
