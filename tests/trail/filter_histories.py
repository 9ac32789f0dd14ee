"""Labelled histories of subscriptions: excluded and accepted messages, changed expressions, unknown cases."""

from __future__ import annotations

from tests.trail.story import AS_OF, CLIENT, GROUP, History

CHANGED = ("FILTER_CHANGED", "SUBSCRIPTION")


def sent(name: str, properties: str = "TAGS=TagA,a=2", tags: str = "TagA") -> History:
    """A stored message with properties, of a topic that is read. properties: name=value, joined by commas."""
    kept = "".join(pair.replace("=", "\x01", 1) + "\x02" for pair in properties.split(",") if pair)
    return History(name).pub().stored(properties=kept, tags=tags).scanned()


def sql(name: str, expression: str, properties: str = "TAGS=TagA,a=2", offset: int = 8) -> History:
    """A stored message with properties and a group that subscribes by SQL92 all the time. offset: of the group, 8 is
    after the message."""
    return sent(name, properties).group(CLIENT, offset=offset, expression=expression, expression_type="SQL92")


def changed(name: str, before: str, after: str, kind: str = "SQL92") -> History:
    """A group that has one expression in the last sample before the message and another one in the first after it."""
    history = sent(name).group(CLIENT, offset=7, time=-5, expression=before, expression_type=kind)
    return history.group(CLIENT, known=5, expression=after, expression_type=kind)


def sampled_later(name: str) -> History:
    """A group whose offset is known all the time, and whose subscription is in the last sample alone."""
    history = sent(name).group(CLIENT, offset=None, known=AS_OF - 1, expression="TagB || TagC")
    return history.offset(7, -60).offset(8, 60).offset(8)


# fmt: off
FILTER_HISTORIES = (
    # --- SQL92
    sql("SQL excludes", "a > 3").expect(CG="FILTERED", group_reasons=("SUBSCRIPTION",)),
    sql("SQL excludes, a property is missing", "b > 3").expect(CG="FILTERED"),
    sql("SQL excludes, a property is no number", "a > 3", "a=many").expect(CG="FILTERED"),
    sql("SQL excludes by the tag", "TAGS IN ('TagB', 'TagC') AND a IS NOT NULL").expect(CG="FILTERED"),
    sql("SQL excludes, not read past yet", "a > 3", offset=7).expect(CG="FILTERED"),
    sql("SQL excludes, delivered nevertheless", "a > 3").handled().expect(CG="CONSUMED"),
    sql("SQL accepts, passed untraced", "a < 3")
    .expect(knowledge="INCOMPLETE", CG="UNKNOWN", group_reasons=("GROUP_NOT_TRACED", "!SUBSCRIPTION")),
    sql("SQL accepts, waiting", "a BETWEEN 1 AND 3", offset=7)
    .expect(knowledge="INCOMPLETE", CG="WAITING", group_reasons=("GROUP_NOT_TRACED",)),
    sql("SQL, properties not kept", "a > 3", "")
    .expect(knowledge="INCOMPLETE", CG="UNKNOWN", group_reasons=("PROPERTIES_NOT_KEPT", "SUBSCRIPTION")),
    sql("SQL, properties not kept, waiting", "a > 3", "", offset=7)
    .expect(knowledge="INCOMPLETE", CG="WAITING", group_reasons=("GROUP_NOT_TRACED",)),
    sql("SQL that does not parse", "a >").expect(knowledge="INCOMPLETE", CG="UNKNOWN",
                                                 group_reasons=("FILTER_INVALID",)),
    sent("an unknown kind of expression").group(CLIENT, expression="x", expression_type="XPATH")
    .expect(knowledge="INCOMPLETE", CG="UNKNOWN", group_reasons=("FILTER_INVALID",)),
    History("SQL, of two groups one is excluded").pub().stored(properties="a\x012\x02").scanned()
    .group(CLIENT, expression="a > 3", expression_type="SQL92")
    .group("10.0.0.3@1#1", group="G2", offset=7, expression="a < 3", expression_type="SQL92")
    .expect(knowledge="INCOMPLETE", CG="FILTERED", G2="WAITING"),
    # --- subscriptions that changed
    changed("changed, only the earlier excludes", "a > 3", "a < 3")
    .expect(knowledge="INCOMPLETE", CG="UNKNOWN", group_reasons=CHANGED),
    changed("changed, only the later excludes", "a < 3", "a > 3")
    .expect(knowledge="INCOMPLETE", CG="UNKNOWN", group_reasons=CHANGED),
    changed("changed, both exclude", "a > 3", "a > 5").expect(CG="FILTERED", group_reasons=("!FILTER_CHANGED",)),
    changed("changed, both accept", "a < 3", "a < 5")
    .expect(knowledge="INCOMPLETE", CG="UNKNOWN", group_reasons=("GROUP_NOT_TRACED",)),
    changed("tags changed, only the earlier exclude", "TagB", "TagA", "TAG")
    .expect(knowledge="INCOMPLETE", CG="UNKNOWN", group_reasons=CHANGED),
    changed("tags changed, both exclude", "TagB", "TagC", "TAG").expect(CG="FILTERED"),
    changed("changed long ago", "a < 3", "a < 5").group(CLIENT, known=300, expression="a > 3", expression_type="SQL92")
    .offset(8, 400).expect(knowledge="INCOMPLETE", CG="UNKNOWN", group_reasons=("GROUP_NOT_TRACED",)),
    sql("changed and back just then", "a > 3").group(CLIENT, known=5, time=100, expression="a < 3",
                                                     expression_type="SQL92")
    .expect(knowledge="INCOMPLETE", CG="UNKNOWN", group_reasons=("FILTERS_DIFFER", "SUBSCRIPTION")),
    sql("changed and back long after", "a > 3").group(CLIENT, known=100, time=200, expression="a < 3",
                                                      expression_type="SQL92")
    .expect(CG="FILTERED"),
    sql("members of the group differ", "a > 3").group(CLIENT, expression="a < 3", expression_type="SQL92")
    .expect(knowledge="INCOMPLETE", CG="UNKNOWN", group_reasons=("FILTERS_DIFFER",)),
    sql("members of the group differ, all exclude", "a > 3").group(CLIENT, expression="TagB")
    .expect(CG="FILTERED"),
    # --- sampled on one side only
    sampled_later("sampled later, the group traces others").pub(msg=2).stored(offset=6, msg=2, tags="TagB")
    .handled(msg=2).expect(msg=2, CG="CONSUMED")
    .expect(knowledge="INCOMPLETE", CG="FILTERED", group_reasons=("FILTER_SAMPLED_AT", "SUBSCRIPTION")),
    sampled_later("sampled later, the group never traced")
    .expect(knowledge="INCOMPLETE", CG="UNKNOWN", group_reasons=("FILTER_SAMPLED_AT",)),
    sent("the group went before, and read no more").group(CLIENT, offset=7, time=-5, expression="TagB")
    .sampled("clients", AS_OF - 1, group_name=GROUP, status="OFFLINE").offset(7)
    .expect(knowledge="INCOMPLETE", CG="NO_CONSUMER", group_reasons=("GROUP_NOT_TRACED",)),
    sent("the group went before, and had another filter later").group(CLIENT, offset=7, time=-5, expression="TagB")
    .group(CLIENT, known=300, expression="TagA").offset(8, 400)
    .expect(knowledge="INCOMPLETE", CG="UNKNOWN", group_reasons=("FILTER_CHANGED",)),
)
# fmt: on
