"""Runs one scene on our server and on Apache's 5.3.3 with an official client, and compares the results.

    def scene(part: Part) -> Json:
        part.producer("p", group="PG")
        ...
    ours, apache = Stage(...).play(scene, "5.3.3-json")

A scene is a function that uses a client and returns its observations, without values that depend on time, place or
chance; the two results must be equal. It runs on both servers at once because it mostly waits. One JVM per client
serves both servers and all scenes; the part makes names of producers and consumers unique.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from interop.apache import ApacheCluster
from interop.driver import JavaClient, JavaError, Json
from interop.mqadmin import MqAdmin
from interop.ours import OurServer
from interop.probe import request, wait_until
from interop.story import SERVER_PROPERTIES

QUERY_CONSUMER_OFFSET, UPDATE_BROKER_CONFIG = 14, 25
NO_MESSAGE, TOPIC_NOT_EXIST = 208, 17
# Versions of the client and the headers it writes.
CLIENTS = {"5.3.3-json": ("5.3.3", False), "5.3.3-binary": ("5.3.3", True), "4.9.8-json": ("4.9.8", False)}
_AUTH = "org.apache.rocketmq.auth"
# Transaction checks within seconds; and features that 5.3.3 disables but these scenes need.
PROPERTIES: Mapping[str, str] = {
    **SERVER_PROPERTIES,
    "transactionTimeOut": "1500",
    "transactionCheckInterval": "1500",
    "transactionCheckMax": "4",
    "transactionOpBatchInterval": "100",
    "enablePropertyFilter": "true",
    "recallMessageEnable": "true",
    # without both providers the broker serves no users and policies, even if they are disabled
    "authenticationMetadataProvider": f"{_AUTH}.authentication.provider.LocalAuthenticationMetadataProvider",
    "authorizationMetadataProvider": f"{_AUTH}.authorization.provider.LocalAuthorizationMetadataProvider",
}
OURS: Mapping[str, Any] = {
    "transaction_timeout_ms": 1_500,
    "transaction_check_ms": 1_500,
    "transaction_check_max": 4,
    "transaction_op_delay_ms": 100,
    "property_filter": True,
}
# The account that signs mqadmin's requests on a stage with accounts; they must include it.
OPERATOR = "accessKey: operator\nsecretKey: operator1\n"
WAIT_S = 180.0


class Server(Protocol):
    """The server on which a part runs."""

    @property
    def namesrv_address(self) -> str: ...

    @property
    def broker_address(self) -> str: ...


@dataclass
class Part:
    """One scene on one server: the client's commands, with unique names."""

    kind: str
    scene: str
    client: str
    java: JavaClient
    server: Server
    mqadmin: MqAdmin
    _open: list[tuple[str, str]] = field(default_factory=list)

    def named(self, name: str) -> str:
        """Return a name of a topic or group: the same on both servers, different for each client."""
        return f"{name}_{self.client.replace('.', '_')}"

    def producer(self, name: str, *, group: str, **options: Any) -> Json:
        """Start a producer; options as in Senders.open."""
        namesrv = self.server.namesrv_address
        opened = self.java.producer(self._own(name), group=group, namesrv=namesrv, **options)
        self._open.append(("closeProducer", name))
        return opened

    def try_send(self, name: str, messages: Sequence[Mapping[str, Any]], mode: str = "sync") -> list[Json]:
        """Send each message; return one result per message: for a failure, the error's kind and code."""
        return self.java.send(self._own(name), messages, mode)

    def send(self, name: str, messages: Sequence[Mapping[str, Any]], mode: str = "sync", **options: Any) -> list[Json]:
        """Send each message; none may fail."""
        results = self.java.send(self._own(name), messages, mode, **options)
        assert all("error" not in result for result in results), results
        return results

    def labelled(
        self, name: str, topic: str, messages: Mapping[str, Mapping[str, Any]], mode: str = "sync"
    ) -> list[Json]:
        """Send messages by label, with the label as a property; none may fail."""
        wanted = [
            {"body": label, **message, "topic": topic, "properties": {**message.get("properties", {}), "label": label}}
            for label, message in messages.items()
        ]
        return self.send(name, wanted, mode)

    def make_topic(self, topic: str, queues: int = 4) -> None:
        """Create the topic, and wait until the name server knows it, so that consumers find it at once."""
        output = self.mqadmin.run(
            "updateTopic", "-b", self.server.broker_address, "-t", topic, "-r", str(queues), "-w", str(queues)
        )
        assert "success" in output, output

    def consumer(self, name: str, *, group: str, topics: Mapping[str, str], **options: Any) -> Json:
        """Start a push consumer; options as in Receivers.open."""
        if "replier" in options:
            options["replier"] = self._own(options["replier"])
        namesrv = self.server.namesrv_address
        opened = self.java.consumer(self._own(name), group=group, topics=topics, namesrv=namesrv, **options)
        self._open.append(("closeConsumer", name))
        return opened

    def call(self, do: str, name: str, **arguments: Any) -> Json:
        """Run one command on the object with this name."""
        if do == "lite":
            arguments["namesrv"] = self.server.namesrv_address
        reply = self.java.call(do, name=self._own(name), timeout_s=WAIT_S, **arguments)
        if do == "lite":
            self._open.append(("closeLite", name))
        return reply

    def query(self, producer: str, topic: str, key: str) -> list[Json]:
        """Return the messages indexed under the key; none if the topic or the messages are missing."""
        try:
            found: list[Json] = self.call("queryKey", producer, topic=topic, key=key, max=64, beginMs=0, endMs=1 << 45)[
                "messages"
            ]
        except JavaError as error:
            if error.code in (NO_MESSAGE, TOPIC_NOT_EXIST):
                return []
            raise
        return found

    def close(self, name: str) -> None:
        """Stop the object with this name."""
        [opened] = [entry for entry in self._open if entry[1] == name]
        self._open.remove(opened)
        self.call(*opened)

    def handled(self, *names: str) -> list[Json]:
        """Return the ended attempts of these consumers, in order of their ends."""
        own = {self._own(name) for name in names}
        return [event for event in self.java.events("ended") if event["consumer"] in own]

    def wait_handled(self, count: int, *names: str, timeout_s: float = WAIT_S) -> list[Json]:
        """Wait for this many ended attempts of these consumers, and return them."""
        own = {self._own(name) for name in names}

        def enough(events: list[Json]) -> bool:
            return len([e for e in events if e["event"] == "ended" and e["consumer"] in own]) >= count

        try:
            self.java.wait(enough, f"{count} attempts of {', '.join(names)} on {self.kind}", timeout_s)
        except TimeoutError as error:
            raise TimeoutError(f"{error}; so far {labels(self.handled(*names))}") from None
        return self.handled(*names)

    def decisions(self, event: str, *names: str) -> list[Json]:
        """Return the requests to these producers: events `local` or `check`."""
        own = {self._own(name) for name in names}
        return [shown for shown in self.java.events(event) if shown["producer"] in own]

    def set_broker(self, name: str, value: str) -> None:
        """Change one setting of the running broker, by its RocketMQ name."""
        header, _ = request(self.server.broker_address, UPDATE_BROKER_CONFIG, body=f"{name}={value}".encode())
        assert header["code"] == 0, header

    def has_offsets(self, topic: str, group: str) -> bool:
        """Return whether the group has offsets of the topic's four queues: a client first commits after ten seconds."""
        place = {"topic": topic, "consumerGroup": group, "setZeroIfNotFound": "false"}
        address = self.server.broker_address
        asked = (request(address, QUERY_CONSUMER_OFFSET, place | {"queueId": str(i)}) for i in range(4))
        return all(header["code"] == 0 for header, _ in asked)

    def mq(self, *arguments: str) -> str:
        """Return the output of mqadmin."""
        return self.mqadmin.run(*arguments)

    def end(self) -> None:
        """Stop everything that the scene started, in reverse order."""
        while self._open:
            do, name = self._open.pop()
            self.call(do, name)

    def _own(self, name: str) -> str:
        return f"{self.kind}:{self.scene}:{name}"


class Stage:
    """Both servers, the clients and the admin tools, each started at first use."""

    def __init__(self, folder: Path, *, apache: str = "5.3.3", tool: str = "5.3.3", acl: str = "") -> None:
        """`apache` is the version of the servers beside ours, `tool` mqadmin's; `acl` a plain_acl.yml for both."""
        self.folder, self.apache, self.tool, self.acl = folder, apache, tool, acl
        self._stack = ExitStack()
        self._clients: dict[str, JavaClient] = {}
        self.servers: dict[str, Server] = {}
        self._mqadmin: dict[str, MqAdmin] = {}

    def __enter__(self) -> Stage:
        with ExitStack() as stack:
            on = {"aclEnable": "true"} if self.acl else {}
            ours = OurServer(self.folder / "mqtrail", broker=dict(OURS) | {"acl": bool(self.acl)})
            apache = ApacheCluster(self.apache, self.folder / "apache", properties={**PROPERTIES, **on})
            if self.acl:
                for home in (ours.store, apache.broker.folder):
                    (home / "conf").mkdir(parents=True)
                    (home / "conf" / "plain_acl.yml").write_text(self.acl)
            stack.enter_context(ours)
            stack.enter_context(apache)
            self.servers = {"mqtrail": ours, "apache": _ApacheServer(apache)}
            for kind, server in self.servers.items():
                folder = self.folder / f"mqadmin-{kind}"
                if self.acl:  # our name server refuses unsigned changes
                    (folder / "conf").mkdir(parents=True)
                    (folder / "conf" / "tools.yml").write_text(OPERATOR)
                tool = MqAdmin(self.tool, folder, server.namesrv_address)
                self._mqadmin[kind] = stack.enter_context(tool)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def help(self) -> str:
        """Return mqadmin's list of its commands."""
        return self._mqadmin["apache"].help()

    def client(self, name: str) -> JavaClient:
        """Return the official client of this name (see CLIENTS)."""
        if name not in self._clients:
            version, binary = CLIENTS[name]
            namesrv = self.servers["mqtrail"].namesrv_address
            client = JavaClient(version, self.folder / f"client-{name}", namesrv, binary_headers=binary)
            self._clients[name] = self._stack.enter_context(client)
        return self._clients[name]

    def play(self, scene: Callable[[Part], Json], client: str) -> tuple[Json, Json]:
        """Return the results of the scene on our server and on Apache's, run at once."""
        java = self.client(client)

        def play(kind: str) -> Json:
            part = Part(kind, scene.__name__, client, java, self.servers[kind], self._mqadmin[kind])
            try:
                return scene(part)
            except BaseException as error:
                error.add_note(f"on {kind}")
                raise
            finally:
                part.end()

        with ThreadPoolExecutor(2) as threads:
            ours, apache = threads.map(play, ("mqtrail", "apache"))
        return ours, apache


class _ApacheServer:
    def __init__(self, cluster: ApacheCluster) -> None:
        self.namesrv_address, self.broker_address = cluster.namesrv_address, cluster.broker.address


# Properties whose values depend on time, place or chance: only their names are compared.
CHANCE = (
    *("UNIQ_KEY", "__transactionId__", "ORIGIN_MESSAGE_ID", "REPLY_TO_CLIENT", "CORRELATION_ID", "1ST_POP_TIME"),
    *("TIMER_OUT_MS", "TIMER_ENQUEUE_MS", "TIMER_DEQUEUE_MS", "TIMER_DELIVER_MS", "ARRIVE_TIME", "REAL_QID"),
    *("TRAN_PREPARED_QUEUE_OFFSET", "MIN_OFFSET", "MAX_OFFSET", "CONSUME_START_TIME", "PUSH_REPLY_TIME", "INNER_NUM"),
    *("REPLY_MESSAGE_ARRIVE_TIME", "SEND_MSG_TIME", "_REPLY_MESSAGE_ARRIVE_TIME_", "TRANSACTION_CHECK_TIMES"),
)


def shape(message: Mapping[str, Any], *without: str) -> Json:
    """Return the parts of a message that must be equal on both servers. without: properties to ignore."""
    shown = {name: message[name] for name in ("topic", "body", "flag", "sysFlag", "reconsumeTimes") if name in message}
    shown["properties"] = properties(message["properties"], *without)
    if "outcome" in message:
        shown["outcome"] = message["outcome"]
    return shown


def properties(values: Mapping[str, str], *without: str) -> dict[str, str]:
    """Return properties with those of CHANCE blanked."""
    return {name: "…" if name in CHANCE else value for name, value in sorted(values.items()) if name not in without}


def labels(events: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return the labels of messages, in order."""
    return [event["properties"].get("label", event["body"]) for event in events]


def by_label(events: Iterable[Mapping[str, Any]], *without: str) -> dict[str, list[Json]]:
    """Return the shapes of messages or attempts by label, in order."""
    shown: dict[str, list[Json]] = {}
    for event in events:
        shown.setdefault(event["properties"]["label"], []).append(shape(event, *without))
    return dict(sorted(shown.items()))


def refusal(action: Callable[[], object]) -> tuple[str, int | None]:
    """Return kind and code of the client's error; ("", None): no error."""
    try:
        action()
    except JavaError as error:
        return error.kind, error.code
    return "", None


def wait_for(condition: Callable[[], bool], what: str, timeout_s: float = WAIT_S, interval_s: float = 0.2) -> None:
    """Return once the condition holds, checked every interval_s.

    TimeoutError, which names `what`: not within timeout_s.
    """
    wait_until(condition, what, timeout_s, interval_s)
