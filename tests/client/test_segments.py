"""Segments: every context is in exactly one trace message, and no message is larger than a broker takes."""

from hypothesis import given
from hypothesis import strategies as st

from mqtrail.client.config import TraceConfig
from mqtrail.client.trace.segments import HEAD_SIZE, Segment, Segments, utf8_size

CONFIG = TraceConfig(batch_count_max=7, body_size_max=HEAD_SIZE + 300, keys_size_max=80)

contexts = st.lists(
    st.tuples(
        st.sampled_from(["orders", "payments"]),
        st.text(alphabet="aé\x01\x02", min_size=1, max_size=120),
        st.lists(st.text(alphabet="kü", min_size=1, max_size=30), max_size=5),
    ),
    max_size=60,
)


def fill(segments: Segments, given_contexts: list[tuple[str, str, list[str]]]) -> list[Segment]:
    closed = []
    for topic, text, keys in given_contexts:
        one = segments.add(topic, text, utf8_size(text), keys, 0)
        if one is not None:
            closed.append(one)
    return closed


@given(contexts)
def test_nothing_is_lost_doubled_or_reordered(given_contexts: list[tuple[str, str, list[str]]]) -> None:
    """Topic by topic, the closed segments hold the contexts in their order, and the counts agree at any time."""
    segments = Segments(CONFIG)
    closed = fill(segments, given_contexts)
    assert sum(segment.count for segment in closed) + segments.count == len(given_contexts)
    closed += segments.close_all()
    assert (segments.count, segments.size, bool(segments)) == (0, 0, False)
    for topic in ("orders", "payments"):
        sent = [text for segment in closed if segment.topic == topic for text in segment.texts]
        assert sent == [text for name, text, _ in given_contexts if name == topic]


@given(contexts)
def test_every_message_fits(given_contexts: list[tuple[str, str, list[str]]]) -> None:
    """Body and KEYS stay within their bounds in UTF-8 bytes, save a context that alone is larger: it travels alone."""
    segments = Segments(CONFIG)
    for segment in fill(segments, given_contexts) + segments.close_all():
        size = sum(utf8_size(text) for text in segment.texts)
        assert size == segment.size
        assert size <= CONFIG.body_size_max - HEAD_SIZE or segment.count == 1
        assert utf8_size(" ".join(segment.keys)) <= CONFIG.keys_size_max
        assert segment.count <= CONFIG.batch_count_max


@given(contexts)
def test_keys_are_those_of_the_contexts(given_contexts: list[tuple[str, str, list[str]]]) -> None:
    """A message carries each key of its contexts once; only a context with too many of them goes without some."""
    segments = Segments(CONFIG)
    for segment in fill(segments, given_contexts) + segments.close_all():
        asked: dict[str, None] = {}
        for topic, text, keys in given_contexts:
            if topic == segment.topic and text in segment.texts:
                asked.update(dict.fromkeys(keys))
        assert set(segment.keys) <= set(asked)


def test_due_segments_are_those_that_waited() -> None:
    """Only segments whose first context is old enough are closed by time."""
    segments = Segments(CONFIG)
    segments.add("orders", "a", 1, [], 100)
    segments.add("payments", "b", 1, [], 200)
    segments.add("orders", "c", 1, [], 300)
    assert [segment.topic for segment in segments.due(150)] == ["orders"]
    assert [segment.topic for segment in segments.due(250)] == ["payments"]
    assert not segments
