"""Labelled histories about what is not there: attempts in place, readers of dead letters, sends without a record,
clients of broadcasting groups, and messages whose time only the producer's clock tells."""

from __future__ import annotations

from tests.trail.story import AS_OF, CLIENT, CONSUMER, GROUP, History, at

DLQ = f"%DLQ%{GROUP}"
OTHER = "10.0.0.3@9#5"
OTHER_HOST = "10.0.0.3:7001"


def reads(history: History, topic: str, group: str = "CG2", offset: int = 1) -> History:
    """A live group that subscribes to another topic only."""
    row = {"group_name": group, "topic": topic, "expression_type": "TAG", "expression": "*"}
    for time in (-60, AS_OF - 1):
        history.sampled("subscriptions", time, **row, consume_type="CONSUME_PASSIVELY", message_model="CLUSTERING")
        history.offset(offset, time, group, topic)
    own = {"group_name": group, "status": "OK", "client_id": "10.0.0.4@1#1", "client_host": "10.0.0.4:1"}
    return history.sampled("clients", AS_OF - 1, **own)


def plain(name: str) -> History:
    """A message that was consumed."""
    return History(name).pub().stored().scanned().group(CLIENT).handled()


def dead(name: str, time: float = 0.0) -> History:
    """A message that is dead after two attempts."""
    history = History(name).pub(time).stored(time + 0.004).scanned().group(CLIENT).handled(time + 0.02, success=False)
    history.retry_copy(time + 10, 1).offset(2, topic="%RETRY%CG")
    return history.handled(time + 10.1, success=False, request="R2", times=1).dead_copy(time + 10.2, 2)


def later(history: History) -> History:
    """Another message, which the group consumed at once."""
    return history.pub(30, msg=2).stored(30.004, offset=8, msg=2).offset(9).handled(30.1, msg=2, request="R8")


def failing(name: str, failures: int) -> History:
    """A message of an ordered group that was handed over twice, without the first end, and another one that failed."""
    history = (
        History(name).pub().stored().scanned().group(CLIENT, offset=9).says("true").before().handled(9, request="R2")
    )
    history.pub(30, msg=2).stored(30.004, offset=8, msg=2)
    for number in range(failures + 1):
        history.handled(30.1 + number, success=number == failures, request=f"R8{number}", times=number, msg=2)
    return history


def broadcast(name: str, *clients: str, offered: float = 0.0) -> History:
    """A message that is sent to clients of a broadcasting group, which are there from before to the end."""
    history = History(name).pub(offered).stored(offered + 0.004).scanned()
    history.group(*clients, offset=None, model="BROADCASTING")
    for client in clients:
        there(history, client, -60, CONSUMER)
    return history


def there(history: History, client: str, time: float, host: str = OTHER_HOST, group: str = GROUP) -> History:
    """A client is in a sample."""
    row = {"group_name": group, "status": "OK", "client_id": client, "client_host": host, "language": "JAVA"}
    return history.sampled("clients", time, **row, version=479, ordered="false")


def unread(name: str, time: float = 0.0, seen: float = 30.0) -> History:
    """A consumed message of a topic that is not read. time: by the producer's clock; seen: when its record came."""
    return History(name).pub(time, stored=seen).group(CLIENT).handled(31)


# fmt: off
WHOLE_HISTORIES = (
    # --- attempts in place
    History("ordered, the second attempt has no end, and the offset passed it").pub().stored().scanned().group(CLIENT)
    .says("true").handled(success=False).before(1.1, "R2", 1, trace_client_id=CLIENT)
    .expect(knowledge="INCOMPLETE", CG="UNKNOWN", group_reasons=("END_NOT_TRACED",)),
    History("ordered, the second attempt has no end, its client is gone, and the offset passed it").pub().stored()
    .scanned().group().handled(success=False).before(1.1, "R2", 1, trace_client_id=CLIENT)
    .expect(knowledge="INCOMPLETE", CG="UNKNOWN", group_reasons=("END_NOT_TRACED",)),
    History("ordered, the second attempt hangs").pub().stored().scanned().group(CLIENT, offset=7)
    .handled(success=False).before(1.1, "R2", 1, trace_client_id=CLIENT).expect(CG="HUNG"),
    History("ordered, failed at one client, and begun again by another").pub().stored().scanned().group(CLIENT)
    .says("true")
    .handled(success=False).handled(1.1, success=False, request="R2", times=1).handled(5, request="R3")
    .expect(CG="CONSUMED,CONSUMED_AFTER_RETRY"),
    History("ordered, failed at three clients").pub().stored().scanned().group(CLIENT, offset=7).says("true")
    .handled(success=False).handled(5, success=False, request="R2").handled(AS_OF - 5, success=False, request="R3")
    .expect(CG="RETRYING"),
    History("ordered, done, and handed over again").pub().stored().scanned().group(CLIENT).says("true").handled()
    .handled(5, request="R3").expect(CG="CONSUMED,DUPLICATE_DELIVERY,DUPLICATE_PROCESSING"),
    *(failing(f"ordered, its client was killed, of a group {what} failures", times)
      .expect(knowledge="INCOMPLETE", CG=codes, group_reasons=("END_NOT_TRACED",)).expect(msg=2, CG=other)
      for what, times, codes, other in (
          ("with", 1, "CONSUMED", "CONSUMED,CONSUMED_AFTER_RETRY"),
          ("without", 0, "CONSUMED,DUPLICATE_DELIVERY", "CONSUMED"),
      )),
    History("ordered, failed, done, and begun again by another client").pub().stored().scanned().group(CLIENT)
    .handled(success=False).handled(1.1, request="R2", times=1).handled(5, request="R3")
    .expect(CG="CONSUMED,CONSUMED_AFTER_RETRY,DUPLICATE_DELIVERY,DUPLICATE_PROCESSING"),
    History("done, and failed when it was handed over again").pub().stored().scanned().group(CLIENT).handled()
    .handled(5, success=False, request="R2").expect(CG="CONSUMED,DUPLICATE_DELIVERY"),
    History("failed after it was handed over again").pub().stored().scanned().group(CLIENT)
    .handled(success=False, cost=10).handled(5, request="R2").expect(CG="CONSUMED,DUPLICATE_DELIVERY"),
    History("failed, and handed over again while its copy waits").pub().stored().scanned().group(CLIENT)
    .handled(success=False).retry_copy(0.1, 1, waits=True, due=AS_OF + 10).handled(5, request="R2")
    .expect(CG="CONSUMED,CONSUMED_AFTER_RETRY,DUPLICATE_DELIVERY"),
    History("failed, and handed over again by another client while its copy waits").pub().stored().scanned()
    .group(CLIENT, OTHER).handled(success=False, trace_client_id=CLIENT)
    .retry_copy(0.1, 1, waits=True, due=AS_OF + 10).handled(5, request="R2", trace_client_id=OTHER)
    .expect(knowledge="INCOMPLETE", CG="CONSUMED,DUPLICATE_DELIVERY", group_reasons=("CLOCKS_NOT_COMPARED",)),
    # --- readers of dead letters, and of topics to which messages are forwarded under their ids
    later(reads(dead("dead, and read from the dead-letter topic"), DLQ)).handled(11, group="CG2", request="R9", times=2)
    .expect(CG="DEAD_LETTERED", CG2="CONSUMED").expect(msg=2, CG="CONSUMED"),
    later(reads(dead("dead, read from the dead-letter topic, and failed there"), DLQ))
    .handled(11, success=False, group="CG2", request="R9", times=2)
    .stored(21, "RETRY", "%RETRY%CG2", 0, group_name="CG2", retry_topic=DLQ, reconsume_times=3)
    .offset(1, 22, "CG2", "%RETRY%CG2").offset(1, group="CG2", topic="%RETRY%CG2")
    .handled(22, group="CG2", request="R10", times=3)
    .expect(CG="DEAD_LETTERED", CG2="CONSUMED,CONSUMED_AFTER_RETRY").expect(msg=2, CG="CONSUMED"),
    later(dead("dead in an earlier hour, and read from the dead-letter topic by a group that is not sampled", -7200))
    .handled(-7189, group="CG2", request="R9", times=2)
    .expect(knowledge="INCOMPLETE", CG="DEAD_LETTERED", CG2="CONSUMED").expect(msg=2, CG="CONSUMED"),
    History("handed over with many attempts, by the trace alone").pub().handled(times=3).never_sampled()
    .expect(knowledge="INCOMPLETE", CG="CONSUMED", group_reasons=("ATTEMPTS_NOT_TRACED",)),
    later(reads(History("forwarded, and consumed there").pub().stored().scanned().group(CLIENT), "archive"))
    .handled().stored(5, topic="archive", offset=0).handled(6, group="CG2", request="R9")
    .expect(CG="CONSUMED", CG2="CONSUMED").expect(msg=2, CG="CONSUMED"),
    later(History("forwarded to a topic with a greater name, and not read in its own").pub().stored(offset=9).scanned()
          .stored(5, topic="payments", offset=0).group(CLIENT, offset=9)).offset(9, AS_OF - 0.5)
    .expect(CG="WAITING").expect(msg=2, CG="CONSUMED"),
    # --- groups that came later: a new group can begin with the first message of a queue
    plain("a group that came later, behind the message, and traces").group(CLIENT, group="CG2", known=30, offset=None)
    .offset(8, 30, "CG2").pub(40, msg=2).stored(40.004, offset=8, msg=2).offset(9).handled(40.1, request="R8", msg=2)
    .handled(40.1, request="R9", msg=2, group="CG2").offset(9, group="CG2")
    .expect(CG="CONSUMED").expect(msg=2, CG="CONSUMED", CG2="CONSUMED"),
    *(lose(plain(f"a group that came later, behind the message, traces, and {what}").group(
        CLIENT, group="CG2", known=30, offset=None).offset(8, 30, "CG2").pub(40, msg=2).stored(40.004, offset=8, msg=2)
      .offset(9).handled(40.1, request="R8", msg=2).handled(40.1, request="R9", msg=2, group="CG2")
      .offset(9, group="CG2")).expect(knowledge="INCOMPLETE", CG="CONSUMED", CG2="UNKNOWN",
                                      group_reasons=("GROUP_SEEN_LATER",)).expect(msg=2, CG="CONSUMED", CG2="CONSUMED")
      for what, lose in (
          ("a range of the trace of that time is gone", lambda history: history.gap(25, 28)),
          ("one of its clients lost records then", lambda history: there(there(
              history.numbered(25, 1, OTHER).numbered(28, 3, OTHER), OTHER, 30, group="CG2"), OTHER, AS_OF - 1,
              group="CG2")),
      )),
    plain("a group that came just now, behind the message").group(CLIENT, group="CG2", known=AS_OF - 20, offset=None)
    .offset(8, AS_OF - 20, "CG2").offset(8, AS_OF - 1, "CG2").expect(CG="CONSUMED"),
    unread("not read, a group that is not traced came later", 0, 1).group(CLIENT, group="CG2", known=40, offset=None)
    .offset(8, 40, "CG2").offset(8, group="CG2")
    .expect(knowledge="INCOMPLETE", CG="CONSUMED", CG2="UNKNOWN", group_reasons=("GROUP_SEEN_LATER",)),
    # --- ordered groups at clients whose clocks differ
    History("ordered, failed at one client, done by another one whose clock is behind").pub().stored().scanned()
    .group(CLIENT, OTHER).says("true").handled(4, success=False, trace_client_id=CLIENT)
    .handled(5, success=False, request="R2", times=1, trace_client_id=CLIENT)
    .handled(2, success=False, request="R3", trace_client_id=OTHER)
    .handled(3, request="R4", times=1, trace_client_id=OTHER)
    .expect(knowledge="INCOMPLETE", CG="CONSUMED,CONSUMED_AFTER_RETRY", group_reasons=("CLOCKS_NOT_COMPARED",)),
    History("ordered, done by one client, and failed at another one long after").pub().stored().scanned()
    .group(CLIENT, OTHER).says("true").handled(success=False, trace_client_id=CLIENT)
    .handled(1.1, request="R2", times=1, trace_client_id=CLIENT)
    .handled(50, success=False, request="R3", trace_client_id=OTHER)
    .handled(51, success=False, request="R4", times=1, trace_client_id=OTHER)
    .expect(CG="CONSUMED,CONSUMED_AFTER_RETRY,DUPLICATE_DELIVERY"),
    # --- one sample after the fact
    later(History("ordered, failed, the offset passed before the only sample").pub().stored().scanned()
          .group(CLIENT, offset=None, time=AS_OF - 2).says("true").handled(success=False, trace_client_id=CLIENT))
    .expect(knowledge="INCOMPLETE", CG="UNKNOWN", group_reasons=("TRACE_PENDING",)).expect(msg=2, CG="CONSUMED"),
    # --- sends without a record
    History("stored twice, one send is traced").pub(trace_client_id="10.0.0.1@5#1").tried(0, 1, "OK", True).stored()
    .stored(3.004, offset=8, born_ms=at(3)).scanned().group(CLIENT, offset=9).handled().handled(3.1, request="R2")
    .expect(message="DUPLICATE_SEND", knowledge="INCOMPLETE", reasons=("SEND_TRIES_NOT_TRACED",),
            CG="CONSUMED,DUPLICATE_PROCESSING"),
    History("failed, and stored later by a send that is not traced").tried(0, 1, "ERROR", True, response_code=2)
    .stored(5.004, born_ms=at(5)).scanned().group(CLIENT).handled(5.1)
    .expect("", knowledge="INCOMPLETE", reasons=("SEND_TRIES_NOT_TRACED",), CG="CONSUMED"),
    History("timed out, and stored later by a send that is not traced").tried(0, 1, "TIMEOUT", True, 3)
    .stored(5.004, born_ms=at(5)).scanned().group(CLIENT).handled(5.1)
    .expect("", knowledge="INCOMPLETE", reasons=("SEND_TRIES_NOT_TRACED",), CG="CONSUMED"),
    History("sent twice, the topic is not read, and the first delivery of one is not traced").pub(offset_msg_id="A")
    .pub(1, offset_msg_id="B").group(CLIENT).handled(success=False).retry_copy(10, 1).offset(2, topic="%RETRY%CG")
    .handled(10.1, times=1, request="R2")
    .expect(message="DUPLICATE_SEND", knowledge="INCOMPLETE", CG="CONSUMED,CONSUMED_AFTER_RETRY",
            group_reasons=("COPIES_NOT_TRACED",)),
    # --- clocks of two clients that differ
    History("handed over twice, one of them by an alive client with a clock that is behind").pub().stored().scanned()
    .group("10.0.0.4@1#1", offset=7).before(80, trace_client_id=OTHER, stored=20)
    .before(40, "R2", trace_client_id="10.0.0.4@1#1", stored=AS_OF - 60)
    .expect(knowledge="INCOMPLETE", CG="HUNG,DUPLICATE_DELIVERY", group_reasons=("END_NOT_TRACED",)),
    # --- light queues
    History("consumed, and put into light queues").pub().stored(kind="NORMAL_LMQ").scanned().group(CLIENT).handled()
    .expect(knowledge="INCOMPLETE", reasons=("GROUPS_NOT_KNOWN",), CG="CONSUMED"),
    # --- clients of broadcasting groups
    broadcast("broadcasting, one client has no record", CLIENT, OTHER).handled()
    .expect(knowledge="INCOMPLETE", reasons=("BROADCAST_NOT_TRACED",), CG="CONSUMED"),
    broadcast("broadcasting, no client has a record", CLIENT)
    .expect(knowledge="INCOMPLETE", reasons=("BROADCAST_NOT_TRACED",)),
    broadcast("broadcasting, both clients have a record", CLIENT, OTHER).handled()
    .handled(0.03, request="R2", trace_client_id=OTHER).expect(CG="CONSUMED"),
    broadcast("broadcasting, one client got it twice, the other not", CLIENT, OTHER)
    .handled(trace_client_id=OTHER).handled(0.03, request="R2", trace_client_id=OTHER)
    .expect(knowledge="INCOMPLETE", reasons=("BROADCAST_NOT_TRACED",), CG="CONSUMED"),
    there(broadcast("broadcasting, a client without a record was killed", CLIENT), OTHER, -5).handled()
    .sampled("clients", 5, group_name=GROUP, status="OK", client_id=CLIENT, client_host=CONSUMER)
    .expect(knowledge="INCOMPLETE", reasons=("BROADCAST_NOT_TRACED",), CG="CONSUMED"),
    there(broadcast("broadcasting, stored after a client was killed", CLIENT, offered=6), OTHER, -5).handled(6.1)
    .sampled("clients", 5, group_name=GROUP, status="OK", client_id=CLIENT, client_host=CONSUMER)
    .expect(CG="CONSUMED"),
    there(broadcast("broadcasting, a client ended in good order", CLIENT), OTHER, -5).handled().ended_well(-4, OTHER)
    .expect(CG="CONSUMED"),
    there(broadcast("broadcasting, a client ended in good order, and a trace message of it is lost", CLIENT), OTHER, 0)
    .handled().numbered(-4, 1, OTHER).numbered(1, 3, OTHER).ended_well(1, OTHER)
    .expect(knowledge="INCOMPLETE", reasons=("BROADCAST_NOT_TRACED",), CG="CONSUMED"),
    there(broadcast("broadcasting, a client came later", CLIENT), OTHER, 5).handled()
    .sampled("clients", AS_OF - 1, group_name=GROUP, status="OK", client_id=OTHER, client_host=OTHER_HOST)
    .expect(CG="CONSUMED"),
    there(History("broadcasting, excluded by the filter").pub().stored().scanned()
          .group(CLIENT, offset=None, model="BROADCASTING", expression="TagB"), CLIENT, -60, CONSUMER).expect(),
    # --- messages of topics that are not read: only the producer's clock tells when they were sent
    unread("not read, by a clock that is behind, in a gap of the samples").unsampled(20, 29)
    .expect(knowledge="INCOMPLETE", reasons=("GROUPS_NOT_KNOWN",), CG="CONSUMED"),
    unread("not read, by a clock that is ahead, in a gap of the samples", 300, 1).unsampled(-40, -5)
    .expect(knowledge="INCOMPLETE", reasons=("GROUPS_NOT_KNOWN",), CG="CONSUMED"),
    unread("not read, by a clock that is ahead, before a gap of the samples", 300, 1).unsampled(200, 400)
    .expect(CG="CONSUMED"),
    unread("not read, since the last sample, by a clock that is behind", 0, AS_OF - 0.5)
    .expect(knowledge="INCOMPLETE", reasons=("GROUPS_NOT_KNOWN",), CG="CONSUMED"),
    unread("not read, by a clock that is behind, a group came since").group(CLIENT, group="CG2", known=25, offset=None)
    .offset(8, 25, "CG2").pub(40, msg=2).handled(40.1, msg=2, group="CG2", request="R9")
    .handled(40.2, request="R8", msg=2).expect(msg=2, CG="CONSUMED", CG2="CONSUMED")
    .expect(knowledge="INCOMPLETE", CG="CONSUMED", CG2="UNKNOWN", group_reasons=("GROUP_SEEN_LATER",)),
    unread("not read, by a clock that is right, in no gap", 0, 0.5).unsampled(1, 40).expect(CG="CONSUMED"),
    unread("not read, by a clock that is behind, the filter changed since")
    .group(CLIENT, group="CG2", offset=None, expression="TagB", time=5)
    .group(CLIENT, group="CG2", offset=None, expression="*", known=10)
    .expect(knowledge="INCOMPLETE", CG="CONSUMED", CG2="UNKNOWN"),
)
# fmt: on
