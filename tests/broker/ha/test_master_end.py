"""The end of the master's log in the answer of a master that lies."""

import json

import pytest

from mqtrail.broker import master_end
from mqtrail.wire import BodyError


def answer(value: object) -> bytes:
    return json.dumps({"table": {"commitLogMaxOffset": value}}).encode()


def test_the_end_is_read() -> None:
    assert (master_end(answer("41")), master_end(answer("9" * 18))) == (41, 10**18 - 1)


@pytest.mark.parametrize(
    "value", ["²", "١", "9" * 5_000, "-1", "", " 5", "1e3", "NaN", "\x00", None, [], {}, 1.5, True]
)
def test_what_is_no_end_is_refused(value: object) -> None:
    """Digits of other scripts, or thousands of them, were a traceback in the slave's log every ten seconds."""
    with pytest.raises(BodyError):
        master_end(answer(value))
