"""The table of causes: what an incident is called, which evidence the name needs, and what to do.

The search finds what bad units share. A cause names it only if the evidence of the cause exists: the first row that
applies is the name, otherwise NO_SINGLE_CAUSE. Units with a narrower explanation that cannot be seen (their hosts,
queues … are unknown) get no name that excludes it.
"""

from __future__ import annotations

from dataclasses import dataclass

HANDLING = ("HANDLERS_FAIL", "HANDLERS_SLOW")
SENDING = ("SENDS_FAIL", "SENDS_SLOW")
CLOCKS = ("SEND_CLOCK", "DELIVERY_CLOCK")


@dataclass(frozen=True, slots=True)
class IncidentCause:
    """One cause. It applies to a symptom of `symptoms` whose first condition is of one of `dimensions`.

    facts: all of them must hold (`facts`). knows: dimensions that nearly all bad units must have. purity_min: share of
    bad units under the conditions; if only few are bad, something narrower that is not seen decides.
    """

    name: str
    symptoms: tuple[str, ...]
    dimensions: tuple[str, ...]
    text: str
    advice: str
    facts: tuple[str, ...] = ()
    knows: tuple[str, ...] = ()
    purity_min: float = 0.25


NO_SINGLE_CAUSE = IncidentCause(
    "NO_SINGLE_CAUSE",
    (),
    (),
    "no single cause",
    "Read the errors and some of the messages; compare with deployments and changes outside of the queue.",
)

CAUSES: tuple[IncidentCause, ...] = (
    IncidentCause(
        "WRONG_CLOCK",
        CLOCKS,
        ("producer_host", "producer_client", "client_host", "client", "broker"),
        "the clock of this host is wrong",
        "Synchronize the clock of the host (chrony, NTP). Its latencies cannot be trusted until then.",
    ),
    IncidentCause(
        "DEPLOYMENT",
        (*HANDLING, "DELIVERED_TWICE", "DISORDER", "WAITS"),
        ("version", "started"),
        "only clients of this version or start are affected",
        "Compare what was deployed with the version before; roll it back.",
    ),
    IncidentCause(
        "MASTER_CHANGED",
        (*SENDING, "WAITS", "DELIVERED_TWICE", "DELAYS_LATE"),
        ("broker",),
        "another broker of the group became master",
        "Find what happened to the master before: its log and its machine at that time. `mqtrail trace` of an example "
        "shows who took over when.",
        facts=("master_changed",),
    ),
    IncidentCause(
        "BROKER_RESTARTED",
        (*SENDING, "WAITS", "DELIVERED_TWICE", "DELAYS_LATE"),
        ("broker",),
        "the broker did not answer for a while, or lost messages",
        "Read the log of the broker: a restart, a crash, a full disk or memory.",
        facts=("broker_changed",),
    ),
    IncidentCause(
        "BROKER_FAILS",
        (*SENDING, "DELAYS_LATE"),
        ("broker",),
        "the broker refuses or delays messages",
        "Check the disk space, flush times and load of the broker; the results of failed tries name the reason.",
    ),
    IncidentCause(
        "BROKER_DELAYS",
        ("WAITS", "DELIVERED_TWICE"),
        ("broker",),
        "messages of all queues of the broker are affected",
        "Check the load and the disk of the broker, and the network between it and the consumers.",
        facts=("queues_spread",),
        knows=("queue",),
    ),
    IncidentCause(
        "POISON_KEY",
        HANDLING,
        ("key",),
        "messages of one key cannot be handled",
        "Read the messages of the key and the error of the handler; correct or dead-letter them.",
    ),
    IncidentCause(
        "REBALANCES",
        ("DELIVERED_TWICE", "DISORDER", "WAITS"),
        ("group_name",),
        "clients of the group came and went",
        "Find why consumers restart or lose their connection: memory, health checks, long pauses of a process.",
        facts=("clients_change_often",),
        purity_min=0.02,
    ),
    IncidentCause(
        "CONSUMER_GONE",
        ("NO_CONSUMER",),
        ("group_name",),
        "no client of the group is online",
        "Start a consumer of the group.",
    ),
    IncidentCause(
        "HOT_QUEUE",
        ("WAITS",),
        ("queue",),
        "this queue gets many more messages than its neighbours",
        "Spread the sharding key, or let more handlers of one queue run side by side.",
        facts=("is_hot",),
    ),
    IncidentCause(
        "QUEUE_BLOCKED",
        ("WAITS",),
        ("queue",),
        "messages of one queue are not delivered",
        "Look for a hung handler or a lock on the queue: `mqtrail search --status HUNG`.",
    ),
    IncidentCause(
        "BAD_HOST",
        (*HANDLING, "DELIVERED_TWICE", "DISORDER"),
        ("client_host", "client"),
        "only this consumer host, or client, is affected",
        "Compare the host with its peers: load, disk, network, configuration. Take it out of service.",
    ),
    IncidentCause(
        "THREADS_EXHAUSTED",
        ("WAITS",),
        ("group_name", "client_host", "client"),
        "messages wait, but handlers take no longer than before: all threads are in use",
        "Raise the number of consumer threads, or add consumers.",
        facts=("handlers_as_usual", "queues_spread"),
        knows=("queue", "client_host"),
    ),
    IncidentCause(
        "DEPENDENCY",
        HANDLING,
        ("group_name",),
        "handlers of the group are affected on all of its hosts: something that they call",
        "Read the errors, and check what the handlers of the group call: databases, services.",
        facts=("hosts_spread",),
        knows=("client_host",),
    ),
    IncidentCause(
        "CONTENT",
        HANDLING,
        ("tag", "body_size", "topic", "producer_group", "producer_host"),
        "messages of this kind cannot be handled",
        "Read some of the messages and the error of the handler; look at what the producer changed.",
    ),
    IncidentCause(
        "BAD_PRODUCER",
        (*SENDING, "SENT_TWICE", "DELAYS_LATE"),
        ("producer_host", "producer_client", "producer_group"),
        "only this producer is affected",
        "Check the network, the load and the pauses of the producer.",
    ),
    IncidentCause(
        "TOPIC_REFUSED",
        SENDING,
        ("topic", "queue"),
        "sends to this topic fail on all brokers",
        "Check that the topic exists, is writable, and that the producer may write to it.",
        facts=("brokers_spread",),
        knows=("broker",),
    ),
    IncidentCause(
        "UNREAD",
        ("GONE_UNREAD",),
        ("group_name",),
        "messages were skipped or deleted before the group read them",
        "Compare the retention with the lag of the group; find who moved its offset.",
    ),
)
"""Every cause. The order decides if several apply."""

MASTER_CHANGED = next(cause for cause in CAUSES if cause.name == "MASTER_CHANGED")
BY_NAME = {cause.name: cause for cause in (*CAUSES, NO_SINGLE_CAUSE)}
