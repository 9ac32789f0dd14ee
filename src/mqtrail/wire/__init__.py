"""The wire formats: bytes <-> values, no I/O but `part_file`. Assumptions about peers:
docs/design/{frame,record,trace-text}.md.

Other rooms import from here. Each module lists its public names in `__all__`; all other names stay in this room.
"""

# ruff: noqa: F403, I001

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

# Used by every room: values, request and response codes, errors.
from .codes import *
from .effects import *
from .errors import *
from .ids import *
from .jobs import *
from .moments import *
from .places import *
from .topics import *
from .values import *
from .visible import *
from .work_parts import *

# The remoting protocol: a frame holds a command, a command holds a header and a body.
from .command import *
from .frame import *
from .signature import *
from .accounts import *

# Headers of commands.
from .admin_headers import *
from .controller_headers import *
from .headers import *
from .operator_headers import *
from .pop_headers import *

# Bodies of commands, JSON as fastjson writes it.
from .access import *
from .bodies import *
from .body import *
from .configs import *
from .consume_bodies import *
from .heartbeat import *
from .json_body import *
from .operator_bodies import *
from .pop_bodies import *
from .registration import *
from .route import *

# A message as it is stored: record, properties, batch, compressed body, and handles in properties.
from .batch import *
from .op_records import *
from .pop_info import *
from .pop_reply import *
from .properties import *
from .recall import *
from .resending import *
from .record import *

# Trace records.
from .trace_layouts import *
from .trace_records import *
from .trace_text import *

# Files and paths.
from .doors import *
from .part_files import *

# Settings: their declarations, .properties files and lists of addresses.
from .addresses import *
from .java_properties import *
from .settings import *

if TYPE_CHECKING:
    from .compression import *  # bodies as clients read and write them
    from .ledger_entry import *  # DLedger: entries of its log, and requests between members
    from .ledger_requests import *
    from .record_messages import *  # stored records as the messages of clients
    from .sql92 import *  # filters over message properties

_LATE: Final = (".sql92", ".ledger_entry", ".ledger_requests", ".compression", ".record_messages")
"""Imported at the first use of one of their names: a broker alone needs none of them, and saves their memory."""

if not TYPE_CHECKING:  # so that the type checker reports names that do not exist

    def __getattr__(name: str) -> Any:
        for module in _LATE:
            found = import_module(module, __name__)
            if name in found.__all__:
                return getattr(found, name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
