"""Which change a page's address names."""

from __future__ import annotations

import pytest
from starlette.datastructures import QueryParams

from mqtrail.answers.changes import InvalidChange, SetOffset
from mqtrail.console.change import _of_offsets


def asked(offset: str) -> QueryParams:
    """The address of a correction."""
    return QueryParams(action="set-offset", group="G", topic="orders", queue="broker-a/0", offset=offset)


def test_an_offset_is_a_number() -> None:
    """One that is too long is refused, not cut: another offset would be set."""
    expected = SetOffset(group="G", topic="orders", broker="broker-a", queue_id=0, offset=42)
    assert _of_offsets(asked(" 42 ")) == expected
    for wrong in ("", "-1", "4" * 40, "²", "٣"):
        with pytest.raises(InvalidChange, match="expected a number"):
            _of_offsets(asked(wrong))
