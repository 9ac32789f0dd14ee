"""How much of a table a request looks at in one slice (wire/jobs)."""

from typing import Final

ENTRIES_A_SLICE: Final = 500  # of a table, written as JSON
TOPICS_A_SLICE: Final = 50  # looked at queue by queue
