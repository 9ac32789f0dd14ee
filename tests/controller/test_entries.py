"""What other controllers send as entries and snapshots is read without an error of the reader itself."""

from collections.abc import Callable

import pytest

from mqtrail.controller.entries import check_entry, snapshot_slices
from mqtrail.wire import RemotingError


def check_snapshot(data: bytes) -> None:
    list(snapshot_slices(data))


@pytest.mark.parametrize("check", [check_entry, check_snapshot])
@pytest.mark.parametrize(
    "data",
    [
        *(b"", b"x", b"[]", b"\xff", b'{"a":' * 100_000, b'{"do":"elect","a":' + b"[" * 100_000),
        b'{"do":"later","groups":{},"a":' + b"[" * 900 + b"]" * 900 + b"}",
    ],
    ids=range(7),
)
def test_junk_is_refused(check: Callable[[bytes], None], data: bytes) -> None:
    """Also JSON that nests deeper than a parser goes."""
    with pytest.raises(RemotingError, match="bytes that are no"):
        check(data)
