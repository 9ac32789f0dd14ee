"""Trajectories as spans: what is a span and what an event, names, ids, errors."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from mqtrail.answers.lakeview import LakeView, read_trajectories
from mqtrail.answers.model import Trajectory
from mqtrail.answers.otel import Span, SpanKind, SpanNames, spans_of
from tests.answers.lakes import id_of


@pytest.fixture(scope="module")
def trajectories(lake_path: Path) -> dict[str, Trajectory]:
    """By message id."""
    view = LakeView(lake_path)
    view.define_views()
    return {found.msg_id: found for found in read_trajectories(view.connection, "true")}


def spans_by_kind(trajectory: Trajectory, names: SpanNames = SpanNames.NEW) -> dict[SpanKind, list[Span]]:
    found: dict[SpanKind, list[Span]] = {kind: [] for kind in SpanKind}
    for span in spans_of(trajectory, names):
        found[span.kind].append(span)
    return found


def test_a_message_is_one_trace(trajectories: dict[str, Trajectory]) -> None:
    """Root, sends and deliveries. Every delivery is below the root and linked to the send."""
    trajectory = trajectories[id_of("consumed after retry")]
    found = spans_by_kind(trajectory)
    [root] = found[SpanKind.INTERNAL]
    [send] = found[SpanKind.PRODUCER]
    deliveries = found[SpanKind.CONSUMER]
    assert [span.name for span in (root, send, *deliveries)][:3] == ["message orders", "send orders", "process orders"]
    assert len(deliveries) == trajectory.groups[0].delivery_count
    assert {span.trace_id for span in (root, send, *deliveries)} == {root.trace_id}
    assert root.parent_id == b""
    assert {span.parent_id for span in (send, *deliveries)} == {root.span_id}
    assert {span.links for span in deliveries} == {((send.trace_id, send.span_id),)}
    assert len({span.span_id for span in (root, send, *deliveries)}) == 2 + len(deliveries)
    assert (len(root.trace_id), len(root.span_id)) == (16, 8)
    assert root.start_ms == min(span.start_ms for span in (send, *deliveries))
    assert root.end_ms >= max(span.end_ms for span in (send, *deliveries))
    assert [event.name for event in root.events][:1] == ["stored"]
    assert root.attributes["mqtrail.group.CG.codes"] == trajectory.groups[0].codes
    assert [span.error is not None for span in deliveries] == [True] * (len(deliveries) - 1) + [False]


def test_root_is_linked_to_the_applications_span(trajectories: dict[str, Trajectory]) -> None:
    """A message that carries a context refers to it; its own ids stay."""
    plain = trajectories[id_of("consumed after retry")]
    traced = replace(plain, traceparent="00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01")
    [before, *_], [root, *_] = spans_of(plain, SpanNames.NEW), spans_of(traced, SpanNames.NEW)
    assert before.links == ()
    assert [(link.trace_id.hex(), link.span_id.hex()) for link in root.links] == [
        ("4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7")
    ]
    assert (root.trace_id, root.span_id) == (before.trace_id, before.span_id)


def test_ids_depend_on_the_message_alone(trajectories: dict[str, Trajectory]) -> None:
    """An equal message, judged later and with other verdicts, has the same ids; one of another cluster has others."""
    trajectory = trajectories[id_of("consumed after retry")]
    later = replace(trajectory, as_of_ms=trajectory.as_of_ms + 1, knowledge="INCOMPLETE", send_codes=())
    ids = [(span.trace_id, span.span_id) for span in spans_of(trajectory, SpanNames.NEW)]
    assert [(span.trace_id, span.span_id) for span in spans_of(later, SpanNames.OLD)] == ids
    elsewhere = spans_of(replace(trajectory, cluster="other"), SpanNames.NEW)
    assert not {span.span_id for span in elsewhere} & {span_id for _, span_id in ids}


NEW = {
    "messaging.operation.name": "process",
    "messaging.operation.type": "process",
    "messaging.consumer.group.name": "CG",
}
OLD = {"messaging.operation": "process", "messaging.rocketmq.client_group": "CG"}


@pytest.mark.parametrize(
    ("names", "here", "absent"),
    [(SpanNames.NEW, NEW, OLD), (SpanNames.OLD, OLD, NEW), (SpanNames.BOTH, NEW | OLD, {})],
)
def test_attribute_names(
    trajectories: dict[str, Trajectory], names: SpanNames, here: dict[str, str], absent: dict[str, str]
) -> None:
    """The present names, those of 1.21, or both. Sends are `publish` in 1.21. Empty values have no attribute."""
    found = spans_by_kind(trajectories[id_of("consumed after retry")], names)
    attributes = found[SpanKind.CONSUMER][0].attributes
    assert here.items() <= attributes.items()
    assert not absent.keys() & attributes.keys()
    assert attributes["messaging.system"] == "rocketmq"
    assert attributes["messaging.message.id"] == id_of("consumed after retry")
    send = found[SpanKind.PRODUCER][0].attributes
    assert send.get("messaging.operation") == (None if names is SpanNames.NEW else "publish")
    assert send.get("messaging.operation.type") == (None if names is SpanNames.OLD else "send")
    for span in spans_of(replace(trajectories[id_of("send ok")], tags="", keys=()), names):
        assert not [value for value in span.attributes.values() if value in ("", ())]


@pytest.mark.parametrize("name", ["send failed", "dead, attempts exhausted", "send ok", "waiting"])
def test_only_errors_are_errors(trajectories: dict[str, Trajectory], name: str) -> None:
    """The root's status names the codes of the severity error."""
    root = spans_of(trajectories[id_of(name)], SpanNames.NEW)[0]
    expected = {"send failed": "SEND_FAILED", "dead, attempts exhausted": "DEAD_LETTERED"}
    assert root.error == expected.get(name)


def test_no_time_no_span(trajectories: dict[str, Trajectory]) -> None:
    """A message whose events have no time has no spans; a send without a time is left out."""
    trajectory = trajectories[id_of("send ok")]
    assert spans_of(replace(trajectory, events=()), SpanNames.NEW) == []
    untimed = tuple(replace(event, at_ms=0) if event.kind == "SEND" else event for event in trajectory.events)
    assert not spans_by_kind(replace(trajectory, events=untimed))[SpanKind.PRODUCER]


def test_an_open_delivery_and_a_clock_that_went_back(trajectories: dict[str, Trajectory]) -> None:
    """A span never ends before it begins."""
    trajectory = trajectories[id_of("send ok")]
    for duration in (None, -5):
        events = tuple(replace(event, duration_ms=duration) for event in trajectory.events)
        for span in spans_of(replace(trajectory, events=events), SpanNames.NEW)[1:]:
            assert span.end_ms == span.start_ms
