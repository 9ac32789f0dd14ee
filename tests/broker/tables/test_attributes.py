"""Attributes of topics and groups, and the refusal of invalid changes."""

import pytest

from mqtrail.broker.tables.attributes import GROUP_ATTRIBUTES, TOPIC_ATTRIBUTES, alter, parse_changes
from mqtrail.broker.tables.limits import PULL_ATTRIBUTE
from mqtrail.wire import InvalidParameter, SystemError_


def test_changes() -> None:
    """A change sets or removes attributes and keeps the others; a name without a sign is set."""
    known = {"message.type": "NORMAL", "reserve.time": "5"}
    assert alter(known, parse_changes("+message.type=FIFO, -reserve.time"), TOPIC_ATTRIBUTES) == {
        "message.type": "FIFO"
    }
    assert alter({}, {"queue.type": "SimpleCQ"}, TOPIC_ATTRIBUTES) == {"queue.type": "SimpleCQ"}
    assert alter({}, {f"+{PULL_ATTRIBUTE}": "9"}, GROUP_ATTRIBUTES) == {PULL_ATTRIBUTE: "9"}
    assert alter(known, {}, TOPIC_ATTRIBUTES) == known


@pytest.mark.parametrize("text", ["message.type=FIFO", "+message.type", "-message.type=FIFO", "+=x", "+", "-"])
def test_shapes_refused(text: str) -> None:
    """An item that is not +name=value or -name is refused."""
    with pytest.raises(InvalidParameter, match="expected \\+name=value or -name"):
        parse_changes(text)


@pytest.mark.parametrize(
    ("text", "error", "words"),
    [
        ("+message.type=NONSENSE", SystemError_, "value is not in set"),
        ("+message.kind=FIFO", SystemError_, "unsupported key: message.kind"),
        ("-message.kind", SystemError_, "unsupported key"),
        ("+queue.type=BatchCQ", InvalidParameter, "expected SimpleCQ"),
        ("+cleanup.policy=COMPACTION", InvalidParameter, "expected DELETE"),
        ("+cleanup.policy=NEVER", SystemError_, "value is not in set"),
    ],
)
def test_values_refused(text: str, error: type[Exception], words: str) -> None:
    """Unknown names and invalid values are refused with 1 like in 5.3.3, unsupported kinds with 29."""
    with pytest.raises(error, match=words):
        alter({}, parse_changes(text), TOPIC_ATTRIBUTES)
