"""Labelled histories in which a client is no longer there: its last records may be lost with it, if it was killed. And
those of groups in which a client has no record at all: its trace may be off."""

from __future__ import annotations

from tests.trail.story import AS_OF, CLIENT, GROUP, History

LEFT = "10.0.0.3@9#5"
NAMED = "10.0.0.2@worker"


def two(name: str, time: float = 0.0) -> History:
    """A message that was sent and stored, and an earlier one that the group consumed."""
    history = History(name).pub(time).stored(time + 0.004).scanned()
    return history.pub(-1, msg=2).stored(-1, offset=3, msg=2).handled(-0.9, msg=2, request="R8")


def known_two(history: History) -> History:
    """The label of the earlier message."""
    return history.expect(msg=2, CG="CONSUMED")


def handed(name: str, begun: float = 100, client: str = "", time: float = 0.0) -> History:
    """A message that was handed to a client at 10.0.0.2; such a client is there."""
    history = two(name, time).group(client or "10.0.0.2@1#9", offset=7)
    return history.before(begun, client_id=client, trace_client_id=client)


def failed(name: str, time: float = 0.02) -> History:
    """A message whose first attempt failed."""
    return two(name).group(CLIENT).handled(time, success=False)


def joined(
    history: History, time: float = AS_OF - 1, client: str = LEFT, host: str = "10.0.0.3:7001", group: str = GROUP
) -> History:
    """Another client of the group is in a sample."""
    row = {"group_name": group, "status": "OK", "client_id": client, "client_host": host, "ordered": "false"}
    return history.sampled("clients", time, **row, language="JAVA", version=479)


def silent(history: History, first: float = -60) -> History:
    """Another client of the group is there to the end, and has no record."""
    return joined(joined(history, first), AS_OF - 1)


SILENT = ("CLIENT_NOT_TRACED",)
TRACED = ("!CLIENT_NOT_TRACED",)
GONE = ("CLIENT_VANISHED",)
COMPLETE = ("!CLIENT_VANISHED",)

# fmt: off
VANISHED_HISTORIES = (
    known_two(two("no consumer, its last client may have had it").group(offset=7).vanished(50, 55)
              .expect(knowledge="INCOMPLETE", CG="NO_CONSUMER", group_reasons=GONE)),
    known_two(two("no consumer, its last client numbered its trace").group(offset=7).numbered(5, 1, LEFT)
              .numbered(40, 2, LEFT).vanished(50, 55)
              .expect(knowledge="INCOMPLETE", CG="NO_CONSUMER", group_reasons=GONE)),
    known_two(two("no consumer, its last client ended in good order").group(offset=7).ended_well(52, LEFT)
              .vanished(50, 55).expect(CG="NO_CONSUMER", group_reasons=COMPLETE)),
    known_two(two("no consumer, its last client's record of its end came while it was still there").group(offset=7)
              .ended_well(49, LEFT).vanished(50, 55).expect(CG="NO_CONSUMER", group_reasons=COMPLETE)),
    known_two(two("no consumer, one client ended in good order, another did not").group(offset=7).ended_well(52, LEFT)
              .vanished(50, 55).vanished(50, 55, "10.0.0.5@1#1")
              .expect(knowledge="INCOMPLETE", CG="NO_CONSUMER", group_reasons=GONE)),
    known_two(two("no consumer, its last client ended in another group in good order").group(offset=7)
              .ended_well(52, LEFT, "CG2").vanished(50, 55)
              .expect(knowledge="INCOMPLETE", CG="NO_CONSUMER", group_reasons=GONE)),
    known_two(two("no consumer, an earlier run of its last client ended in good order").group(offset=7)
              .ended_well(20, LEFT).vanished(50, 55)
              .expect(knowledge="INCOMPLETE", CG="NO_CONSUMER", group_reasons=GONE)),
    known_two(two("no consumer, its last client ended in good order, a trace message of it is lost").group(offset=7)
              .numbered(5, 1, LEFT).numbered(52, 3, LEFT).ended_well(52, LEFT).vanished(50, 55)
              .expect(knowledge="INCOMPLETE", CG="NO_CONSUMER", group_reasons=("TRACE_MESSAGES_LOST", *COMPLETE))),
    known_two(two("consumed after a deployment in good order").group(CLIENT).ended_well(52, LEFT).vanished(50, 55)
              .handled(57).expect(CG="CONSUMED", group_reasons=COMPLETE)),
    known_two(two("no consumer, stored after its last client was gone", 56).group(offset=7).vanished(50, 55)
              .expect(CG="NO_CONSUMER", group_reasons=COMPLETE)),
    known_two(two("no consumer, stored before the first sample without its last client", 54).group(offset=7)
              .vanished(50, 55).expect(knowledge="INCOMPLETE", CG="NO_CONSUMER", group_reasons=GONE)),
    known_two(two("no consumer, stored long after the last sample with a client", 70).group(offset=7).vanished(50, 90)
              .expect(CG="NO_CONSUMER", group_reasons=COMPLETE)),
    known_two(two("waiting, a deployment since it was stored").group(CLIENT, offset=7).vanished(50, 55)
              .expect(knowledge="INCOMPLETE", CG="WAITING", group_reasons=GONE)),
    known_two(two("waiting, stored after a deployment", 60).group(CLIENT, offset=7).vanished(50, 55)
              .expect(CG="WAITING", group_reasons=COMPLETE)),
    # --- the hand-over that was recorded may be the second one: the first client could not send its record
    known_two(two("consumed after a deployment").group(CLIENT).vanished(50, 55).handled(57)
              .expect(knowledge="INCOMPLETE", CG="CONSUMED", group_reasons=GONE)),
    known_two(two("consumed at once after a deployment", 54).group(CLIENT).vanished(50, 55).handled(54.01)
              .expect(CG="CONSUMED", group_reasons=COMPLETE)),
    known_two(two("consumed a moment after a deployment", 54).group(CLIENT).vanished(50, 55).handled(54.06)
              .expect(knowledge="INCOMPLETE", CG="CONSUMED", group_reasons=GONE)),
    known_two(two("consumed late by the others, before a client left", 40).group(CLIENT).vanished(50, 55).handled(49)
              .expect(CG="CONSUMED", group_reasons=COMPLETE)),
    known_two(two("consumed late, stored after a client was gone", 56).group(CLIENT).vanished(50, 55).handled(70)
              .expect(CG="CONSUMED", group_reasons=COMPLETE)),
    known_two(failed("consumed by the retry, a client left while its copy was ready").retry_copy(49, 1)
              .offset(2, topic="%RETRY%CG").vanished(50, 55).handled(51, times=1, request="R2")
              .expect(knowledge="INCOMPLETE", CG="CONSUMED,CONSUMED_AFTER_RETRY", group_reasons=GONE)),
    known_two(failed("consumed by the retry, a client left before its copy was ready").retry_copy(56, 1)
              .offset(2, topic="%RETRY%CG").vanished(50, 55).handled(57, times=1, request="R2")
              .expect(CG="CONSUMED,CONSUMED_AFTER_RETRY", group_reasons=COMPLETE)),
    known_two(two("waiting, a client of another group left").group(CLIENT, offset=7).group(CLIENT, group="CG2")
              .handled(group="CG2", request="R2").vanished(50, 55, group="CG2")
              .expect(CG="WAITING", CG2="CONSUMED"))
    .expect(msg=2, knowledge="INCOMPLETE", CG="CONSUMED", CG2="UNKNOWN"),
    known_two(two("waiting, a client has a new connection").group(CLIENT, offset=7)
              .vanished(50, 55, CLIENT, "10.0.0.2:9999").expect(CG="WAITING", group_reasons=COMPLETE)),
    known_two(two("waiting, an instance with a name has a new connection").group(NAMED, offset=7)
              .vanished(50, 55, NAMED, "10.0.0.2:9999")
              .expect(knowledge="INCOMPLETE", CG="WAITING", group_reasons=GONE)),
    known_two(two("no consumer, its last client left, and its clients are not known now").group(offset=7)
              .vanished(50, 55).sampled("clients", AS_OF - 0.5, group_name=GROUP, status="ERROR")
              .expect(knowledge="INCOMPLETE", CG="UNKNOWN", group_reasons=("CLIENTS_NOT_SAMPLED", *COMPLETE))),
    History("waiting, the group never traced, a client left").pub().stored().scanned().group(CLIENT, offset=7)
    .vanished(50, 55)
    .expect(knowledge="INCOMPLETE", CG="WAITING", group_reasons=("GROUP_NOT_TRACED", *COMPLETE)),
    History("scheduled, a client left before it is due").pub(msg_type=3).delay_wait(7200, 18).scanned()
    .group(CLIENT, offset=7).vanished(50, 55).pub(-1, msg=2).stored(-1, offset=3, msg=2)
    .handled(-0.9, msg=2, request="R8").expect(message="SCHEDULED", CG="WAITING").expect(msg=2, CG="CONSUMED"),
    # --- the next attempt
    known_two(failed("retrying, a client left before the copy").retry_copy(100, 1).offset(1, topic="%RETRY%CG")
              .vanished(50, 55).expect(CG="RETRYING", group_reasons=COMPLETE)),
    known_two(failed("retrying, a client left since the copy").retry_copy(100, 1).offset(1, topic="%RETRY%CG")
              .vanished(150, 155).expect(knowledge="INCOMPLETE", CG="RETRYING", group_reasons=GONE)),
    known_two(failed("retrying, a client left while the copy waits").retry_copy(1, 1, waits=True, due=AS_OF + 10)
              .vanished(50, 55).expect(CG="RETRYING", group_reasons=COMPLETE)),
    known_two(failed("retrying, a client left since it failed, no copy read", 500).vanished(510, 515)
              .expect(knowledge="INCOMPLETE", CG="RETRYING", group_reasons=GONE)),
    # --- handed over, no end
    known_two(handed("hung, another process of its address left").vanished(150, 155, host="10.0.0.2:7001")
              .expect(knowledge="INCOMPLETE", CG="UNKNOWN", group_reasons=("END_MAY_BE_LOST", *GONE))),
    known_two(handed("in flight, another process of its address left", AS_OF - 20)
              .vanished(AS_OF - 15, AS_OF - 10, host="10.0.0.2:7001")
              .expect(knowledge="INCOMPLETE", CG="UNKNOWN", group_reasons=("END_MAY_BE_LOST", *GONE))),
    known_two(handed("hung, another process of its address left before").vanished(50, 55, host="10.0.0.2:7001")
              .expect(knowledge="INCOMPLETE", CG="HUNG", group_reasons=GONE)),
    known_two(handed("hung, another process of its address left before it was stored", time=60)
              .vanished(50, 55, host="10.0.0.2:7001").expect(CG="HUNG", group_reasons=COMPLETE)),
    known_two(handed("hung, a process of another address left").vanished(150, 155).expect(CG="HUNG")),
    known_two(handed("hung, its client is known, another process of its address left", client=CLIENT)
              .vanished(150, 155, host="10.0.0.2:7001").expect(CG="HUNG")),
    known_two(handed("hung, its client is an instance with a name that has a new connection", client=NAMED)
              .vanished(150, 155, NAMED, "10.0.0.2:9999")
              .expect(knowledge="INCOMPLETE", CG="UNKNOWN", group_reasons=("END_MAY_BE_LOST", *GONE))),
    known_two(handed("handed over, its client left").group(offset=7)
              .vanished(150, 155, "10.0.0.2@1#9", "10.0.0.2:6001")
              .expect(knowledge="INCOMPLETE", CG="NO_CONSUMER", group_reasons=("HANDLER_GONE", *GONE))),
    # --- removed, passed or gone
    known_two(two("expired, its last client may have had it").group(offset=7).vanished(30, 35).unread("EXPIRED", 7, 9)
              .expect(knowledge="INCOMPLETE", CG="EXPIRED", group_reasons=("REMOVED_UNREAD", *GONE))),
    known_two(two("expired before a client left").group(CLIENT, offset=7).unread("EXPIRED", 7, 9).vanished(80, 85)
              .expect(CG="EXPIRED", group_reasons=COMPLETE)),
    known_two(two("expired after many clients left, one of them since it was stored").group(offset=7)
              .vanished(-30, -25).vanished(30, 35, "10.0.0.5@1#1").vanished(80, 85, "10.0.0.6@1#1")
              .unread("EXPIRED", 7, 9).expect(knowledge="INCOMPLETE", CG="EXPIRED", group_reasons=GONE)),
    known_two(two("skipped, the clients that left may have had it").group(CLIENT, offset=9).vanished(30, 35)
              .unread("OFFSET_MOVED", 5, 9)
              .expect(knowledge="INCOMPLETE", CG="SKIPPED", group_reasons=("OFFSET_MOVED", *GONE))),
    known_two(two("skipped, stored after the clients left").group(CLIENT, offset=9).vanished(-30, -25)
              .unread("OFFSET_MOVED", 5, 9).expect(CG="SKIPPED", group_reasons=("OFFSET_MOVED", *COMPLETE))),
    known_two(two("lost, a client that left may have had it").group(CLIENT, offset=9).vanished(30, 35)
              .unread("TRUNCATED", 7, 9, live=1)
              .expect(knowledge="INCOMPLETE", CG="UNKNOWN", group_reasons=("TRUNCATED", *GONE))),
    known_two(two("lost, no client since, one had left before").group(offset=7).vanished(-30, -25)
              .unread("TRUNCATED", 7, 9).expect(CG="LOST", group_reasons=("TRUNCATED", *COMPLETE))),
    # --- groups of which one client has no record: it may have been handed the message
    known_two(silent(two("waiting, a client of the group has no record").group(CLIENT, offset=7))
              .expect(knowledge="INCOMPLETE", CG="WAITING", group_reasons=SILENT)),
    known_two(silent(two("waiting, a client without a record came since").group(CLIENT, offset=7), 300)
              .expect(knowledge="INCOMPLETE", CG="WAITING", group_reasons=SILENT)),
    known_two(silent(two("waiting, each client of the group has a record").group(CLIENT, offset=7))
              .pub(-2, msg=3).stored(-2, offset=2, msg=3).handled(-1.9, msg=3, request="R9", trace_client_id=LEFT)
              .expect(CG="WAITING", group_reasons=TRACED).expect(msg=3, CG="CONSUMED")),
    known_two(silent(two("waiting, another client of the group's host has a record").group(CLIENT, offset=7))
              .pub(-2, msg=3).stored(-2, offset=2, msg=3)
              .handled(-1.9, msg=3, request="R9", trace_born_host="10.0.0.3:9")
              .expect(CG="WAITING", group_reasons=TRACED).expect(msg=3, CG="CONSUMED")),
    silent(two("waiting, a client has records of another group only").group(CLIENT, offset=7))
    .pub(-2, msg=3).stored(-2, offset=2, msg=3).handled(-1.9, msg=3, request="R9", trace_client_id=LEFT, group="CG2")
    .expect(knowledge="INCOMPLETE", CG="WAITING", CG2="UNKNOWN", group_reasons=SILENT)
    .expect(msg=2, knowledge="INCOMPLETE", CG="CONSUMED", CG2="UNKNOWN")
    .expect(msg=3, knowledge="INCOMPLETE", CG="UNKNOWN", CG2="CONSUMED"),
    known_two(silent(failed("retrying, a client of the group has no record").retry_copy(100, 1)
                     .offset(1, topic="%RETRY%CG"))
              .expect(knowledge="INCOMPLETE", CG="RETRYING", group_reasons=SILENT)),
    known_two(silent(failed("retrying, a client has no record, the copy waits").retry_copy(1, 1, waits=True,
                                                                                          due=AS_OF + 10))
              .expect(CG="RETRYING", group_reasons=TRACED)),
    known_two(silent(handed("hung, another client of the group has no record"))
              .expect(CG="HUNG", group_reasons=TRACED)),
    known_two(silent(two("consumed, another client of the group has no record").group(CLIENT).handled())
              .expect(CG="CONSUMED", group_reasons=TRACED)),
    known_two(silent(two("passed without a record, a client of the group has none").group(CLIENT))
              .expect(knowledge="INCOMPLETE", CG="UNKNOWN", group_reasons=("PASSED_UNTRACED", *SILENT))),
    known_two(silent(two("expired, passed by a client without a record").group(CLIENT, offset=9))
              .unread("EXPIRED", 7, 9, live=1)
              .expect(knowledge="INCOMPLETE", CG="EXPIRED", group_reasons=("REMOVED_UNREAD", *SILENT))),
    known_two(silent(two("lost, passed by a client without a record").group(CLIENT, offset=9))
              .unread("TRUNCATED", 7, 9, live=1)
              .expect(knowledge="INCOMPLETE", CG="UNKNOWN", group_reasons=("TRUNCATED", *SILENT))),
    # --- what explains a missing record
    known_two(two("passed without a record, a client left").group(CLIENT).vanished(30, 35)
              .expect(knowledge="INCOMPLETE", CG="UNKNOWN", group_reasons=("PASSED_UNTRACED", *GONE))),
    known_two(two("passed without a record, records are lost and a client left").group(CLIENT).loss(0, 1)
              .vanished(30, 35).expect(knowledge="INCOMPLETE", CG="UNKNOWN",
                                       group_reasons=("TRACE_DROPPED_SPOOL_FULL", *COMPLETE))),
)
# fmt: on
