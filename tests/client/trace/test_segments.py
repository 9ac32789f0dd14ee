"""Segments: every context is in exactly one trace message, and no message exceeds the broker's limit."""

from hypothesis import given
from hypothesis import strategies as st

from mqtrail.client.core.config import TraceConfig
from mqtrail.client.trace.segments import HEAD_SIZE, Segment, TraceSegments, utf8_size

CONFIG = TraceConfig(batch_count_max=7, body_size_max=HEAD_SIZE + 300, keys_size_max=80)

Context = tuple[str, str, str, str]  # topic, text, message id, keys

contexts: st.SearchStrategy[list[Context]] = st.lists(
    st.tuples(
        st.sampled_from(["orders", "payments"]),
        st.text(alphabet="aé\x01\x02", min_size=1, max_size=120),
        st.text(alphabet="iü", min_size=1, max_size=20),
        st.text(alphabet="kü ", max_size=60),
    ),
    max_size=60,
)


def fill(segments: TraceSegments, given_contexts: list[Context]) -> list[Segment]:
    closed = []
    for topic, text, msg_id, keys in given_contexts:
        closed += segments.add(topic, text, "", [msg_id, keys], 1, 0)
    return closed


@given(contexts)
def test_nothing_is_lost_doubled_or_reordered(given_contexts: list[Context]) -> None:
    """The messages of each topic hold the contexts in order, and the counts agree at any time."""
    segments = TraceSegments(CONFIG)
    closed = fill(segments, given_contexts)
    assert sum(one.count for one in closed) + segments.count == len(given_contexts)
    closed += segments.close_all()
    assert (segments.count, segments.size, bool(segments)) == (0, 0, False)
    for topic in ("orders", "payments"):
        sent = "".join(one.text for one in closed if one.topic == topic)
        assert sent == "".join(context[1] for context in given_contexts if context[0] == topic)


@given(contexts)
def test_every_message_fits(given_contexts: list[Context]) -> None:
    """Body and KEYS stay within their limits in UTF-8 bytes; a single context above them travels alone."""
    segments = TraceSegments(CONFIG)
    for one in fill(segments, given_contexts) + segments.close_all():
        assert utf8_size(one.text) <= CONFIG.body_size_max - HEAD_SIZE or one.count == 1
        assert utf8_size(one.keys(CONFIG.keys_size_max)) <= CONFIG.keys_size_max
        assert 1 <= one.count <= CONFIG.batch_count_max


@given(contexts)
def test_keys_are_those_of_the_contexts(given_contexts: list[Context]) -> None:
    """A message has the id and each key of its contexts once; only a context with too many keys omits some."""
    segments = TraceSegments(CONFIG)
    closed = fill(segments, given_contexts) + segments.close_all()
    for topic in ("orders", "payments"):
        of_topic = [context for context in given_contexts if context[0] == topic]
        for one in (one for one in closed if one.topic == topic):
            contexts_in, of_topic = of_topic[: one.count], of_topic[one.count :]
            asked = dict.fromkeys(
                [context[2] for context in contexts_in] + [key for context in contexts_in for key in context[3].split()]
            )
            found = one.keys(CONFIG.keys_size_max).split()
            assert len(set(found)) == len(found)
            assert set(found) <= set(asked)
            assert len(found) == len(asked) or one.count == 1


def test_due_segments_are_those_that_waited() -> None:
    """Time closes only segments whose first context is old enough."""
    segments = TraceSegments(CONFIG)
    segments.add("orders", "a", "1", [], 1, 100)
    segments.add("payments", "b", "2", [], 1, 200)
    segments.add("orders", "c", "3", [], 1, 300)
    assert [one.topic for one in segments.due(150)] == ["orders"]
    assert [one.topic for one in segments.due(250)] == ["payments"]
    assert not segments


def test_pieces_of_many_contexts_stay_together() -> None:
    """A piece of several contexts counts as one, its ids first, each key once."""
    segments = TraceSegments(CONFIG)
    assert segments.add("orders", "abc", "1 2 3", ["k", "k l"], 3, 0) == []
    assert segments.add("orders", "def", "4 5 6", ["l m"], 3, 0) == []
    (closed,) = segments.add("orders", "g", "7", [""], 1, 0)
    found = (closed.topic, closed.text, closed.keys(CONFIG.keys_size_max), closed.count)
    assert found == ("orders", "abcdefg", "1 2 3 4 5 6 7 k l m", 7)
