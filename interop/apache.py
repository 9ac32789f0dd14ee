"""Apache RocketMQ name servers and brokers as context managers, on free loopback ports.

    with ApacheCluster("5.3.3", folder, properties={"traceTopicEnable": "true"}) as cluster:
        connect(cluster.namesrv_address)

A cluster is ready when its name server lists every broker. Each server is one JVM of about 200 MB; it is killed when
the block ends, and by the kernel when this process dies. Start it from the main thread: Linux treats the end of
the thread that forked as the death of the parent.
"""

from __future__ import annotations

import atexit
import fcntl
import os
import random
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Self

from interop import jars
from interop.probe import request, wait_until

GET_BROKER_CLUSTER_INFO = 106
CONTROLLER_GET_METADATA_INFO = 1005
START_TIMEOUT_S = 180.0  # on a busy machine; on an idle one it takes three seconds
STOP_TIMEOUT_S = 20.0
# Java 17 hides the methods by which 4.9.7 unmaps files and 5.3.3 sets the read-ahead mode.
JVM_OPENS = (
    "--add-opens=java.base/java.nio=ALL-UNNAMED",
    "--add-opens=java.base/sun.nio.ch=ALL-UNNAMED",
    "--add-exports=java.base/jdk.internal.ref=ALL-UNNAMED",
    "--add-exports=java.base/sun.nio.ch=ALL-UNNAMED",
)
# Small and quick to start; benchmarks pass their own. With TLS, a server makes two RSA keys at each start, which takes
# seconds of CPU time. Options of a test come later and override these.
JVM_SMALL = (
    *("-Xms64m", "-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto", "-XX:-UsePerfData"),
    "-Dtls.server.mode=disabled",
)
BROKER_DEFAULTS: Mapping[str, str] = {
    "brokerClusterName": "DefaultCluster",
    "brokerId": "0",
    "brokerRole": "ASYNC_MASTER",
    "brokerIP1": "127.0.0.1",
    "brokerIP2": "127.0.0.1",
    "flushDiskType": "ASYNC_FLUSH",
    "autoCreateTopicEnable": "true",
    "diskMaxUsedSpaceRatio": "95",
    "deleteWhen": "04",
    "fileReservedTime": "72",
    "mappedFileSizeCommitLog": str(64 << 20),
    # A cold JVM is slow: it answers "[TIMEOUT_CLEAN_QUEUE]" after 200 ms otherwise.
    "waitTimeMillsInSendQueue": "5000",
    "bindAddress": "127.0.0.1",
    # 5.x writes its whole timer wheel to its file at each flush. Once a second, the default, takes a third of a core.
    "timerFlushIntervalMs": "20000",
}
LOGBACK = """<configuration>
  <statusListener class="{package}ch.qos.logback.core.status.NopStatusListener"/>
  <appender name="file" class="{package}ch.qos.logback.core.FileAppender">
    <file>{path}</file>
    <encoder><pattern>%d %p %t %c - %m%n</pattern></encoder>
  </appender>
  <root level="WARN"><appender-ref ref="file"/></root>
</configuration>
"""

PORT_FIRST, PORT_END, PORT_BLOCK = 12_000, 32_000, 4
_PORT_LOCKS = Path(tempfile.gettempdir()) / f"mqtrail-ports-{os.getuid()}"
_held_locks: list[IO[str]] = []

_living: set[JavaServer] = set()


class JavaServer:
    """One server JVM: start, clean stop or kill -9, suspend. Its logs stay in `folder`."""

    name: str
    main_class: str

    def __init__(self, version: str, folder: Path, port: int, jvm: Sequence[str], cpus: Iterable[int] | None) -> None:
        self.version, self.folder, self.port = version, folder, port
        self.jvm, self.cpus = tuple(jvm), tuple(cpus) if cpus is not None else None
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        """The address for clients, "ip:port"."""
        return f"127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        """The JVM's process id, for example to read /proc."""
        assert self.process is not None, f"{self.name} is not running"
        return self.process.pid

    def settings(self) -> Mapping[str, str]:
        """Return the content of the server's properties file."""
        raise NotImplementedError

    def ready(self) -> bool:
        """Return whether the server serves; OSError means not yet."""
        raise NotImplementedError

    def launch(self) -> None:
        """Start the JVM and return at once; follow with `wait_ready`."""
        assert self.process is None, f"{self.name} runs already"
        conf, home = self.folder / "conf", self.folder / "home"
        for path in (conf, home):
            path.mkdir(parents=True, exist_ok=True)
        for kind in ("broker", "namesrv", "controller"):
            write_logback(conf, kind, self.folder / f"{kind}.log")
        properties = self.folder / "server.properties"
        properties.write_text("".join(f"{key}={value}\n" for key, value in self.settings().items()))
        command = [jars.java_tool("java"), *JVM_OPENS, *self.jvm, f"-Duser.home={home}"]
        command += ["-cp", jars.classpath(f"server-{self.version}", conf), self.main_class, "-c", str(properties)]
        if self.cpus is not None:
            command = ["taskset", "-c", ",".join(map(str, self.cpus)), *command]
        if setpriv := shutil.which("setpriv"):
            command = [setpriv, "--pdeathsig", "KILL", *command]
        with (self.folder / "console.log").open("ab") as console:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=console,
                stderr=subprocess.STDOUT,
                cwd=self.folder,
                env={**os.environ, "ROCKETMQ_HOME": str(self.folder)},
            )
        _living.add(self)

    def wait_ready(self, timeout_s: float = START_TIMEOUT_S) -> None:
        """Return once the server serves. InteropError, with its last output: it ended, or is not ready in time."""

        def alive_and_ready() -> bool:
            assert self.process is not None
            if (status := self.process.poll()) is not None:
                raise jars.InteropError(f"{self.name} {self.version} ended with {status}:\n{self.console_tail()}")
            return self.ready()

        try:
            wait_until(alive_and_ready, f"{self.name} {self.version} ready", timeout_s)
        except TimeoutError as error:
            raise jars.InteropError(f"{error}\n{self.console_tail()}") from None

    def start(self) -> Self:
        """Launch the JVM, and wait until it serves."""
        self.launch()
        try:
            self.wait_ready()
        except BaseException:
            self.kill()
            raise
        return self

    def stop(self) -> None:
        """Stop cleanly (SIGTERM: the broker flushes and saves its tables), or kill it after STOP_TIMEOUT_S."""
        if self.process is None:
            return
        self.resume()
        self.process.terminate()
        try:
            self.process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self._ended()

    def kill(self) -> None:
        """Kill it by SIGKILL: nothing is flushed or saved."""
        if self.process is None:
            return
        self.process.kill()
        self.process.wait()
        self._ended()

    def suspend(self) -> None:
        """Send SIGSTOP: an idle JVM on the same core takes a fifth of it."""
        os.kill(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        """Send SIGCONT, which has no effect on a running process."""
        os.kill(self.pid, signal.SIGCONT)

    def console_tail(self, size: int = 3000) -> str:
        """Return the end of the JVM's output."""
        text = (self.folder / "console.log").read_text(errors="replace")
        return text[-size:]

    def _ended(self) -> None:
        self.process = None
        _living.discard(self)


class ApacheNameServer(JavaServer):
    """The official name server."""

    name = "namesrv"
    main_class = "org.apache.rocketmq.namesrv.NamesrvStartup"

    def __init__(
        self, version: str, folder: Path, *, jvm: Sequence[str] = JVM_SMALL, cpus: Iterable[int] | None = None
    ) -> None:
        super().__init__(version, folder, free_port(), jvm, cpus)

    def settings(self) -> Mapping[str, str]:
        return {
            "listenPort": str(self.port),
            "bindAddress": "127.0.0.1",
            "kvConfigPath": str(self.folder / "kvConfig.json"),
            "configStorePath": str(self.folder / "namesrv.properties"),
        }

    def ready(self) -> bool:
        header, _ = request(self.address, GET_BROKER_CLUSTER_INFO)
        return bool(header["code"] == 0)


class ApacheBroker(JavaServer):
    """The official broker, registered with the name server at `namesrv_address` (ours or Apache's)."""

    main_class = "org.apache.rocketmq.broker.BrokerStartup"

    def __init__(
        self,
        version: str,
        folder: Path,
        namesrv_address: str,
        *,
        name: str = "broker-a",
        properties: Mapping[str, str] | None = None,
        store: Path | None = None,
        jvm: Sequence[str] = JVM_SMALL,
        cpus: Iterable[int] | None = None,
    ) -> None:
        """properties: override BROKER_DEFAULTS. store: the storePathRootDir, by default `folder`/store."""
        # Besides its port a broker takes the one two below (fast port) and the one above (replication).
        super().__init__(version, folder, free_port(), jvm, cpus)
        self.name, self.namesrv_address = name, namesrv_address
        self.properties = dict(properties or {})
        self.store = store or folder / "store"

    def settings(self) -> Mapping[str, str]:
        return {
            **BROKER_DEFAULTS,
            "brokerName": self.name,
            "namesrvAddr": self.namesrv_address,
            "listenPort": str(self.port),
            "haListenPort": str(self.port + 1),
            "storePathRootDir": str(self.store),
            "storePathCommitLog": str(self.store / "commitlog"),
            **self.properties,
        }

    def ready(self) -> bool:
        _, body = request(self.namesrv_address, GET_BROKER_CLUSTER_INFO)
        return self.address.encode() in body


class ApacheLedgerBroker(ApacheBroker):
    """The official broker as member of a DLedger group. It is ready once it is in the route, after an election."""

    def __init__(
        self,
        version: str,
        folder: Path,
        namesrv_address: str,
        self_id: str,
        peers: Mapping[str, str],
        *,
        properties: Mapping[str, str] | None = None,
        store: Path | None = None,
    ) -> None:
        """peers: id -> host:port of each member's DLedger port, as this one sees them. store: as of ApacheBroker."""
        self.self_id = self_id
        super().__init__(version, folder, namesrv_address, properties=properties, store=store)
        self._peers = ";".join(f"{name}-{address}" for name, address in peers.items())

    def settings(self) -> Mapping[str, str]:
        given = {
            **super().settings(),
            "enableDLegerCommitLog": "true",
            "dLegerGroup": self.name,
            "dLegerPeers": self._peers,
            "dLegerSelfId": self.self_id,
            "sendMessageThreadPoolNums": "16",  # 4.9: a send waits in its thread
        }
        return {key: value for key, value in given.items() if key not in ("brokerId", "brokerRole")}

    @property
    def ledger(self) -> Path:
        """The folder with its log."""
        return self.store / f"dledger-{self.self_id}"


class ApacheController(JavaServer):
    """The official controller of 5.3.3, alone in its group. A broker's `properties` for it: `broker_properties`."""

    name = "controller"
    main_class = "org.apache.rocketmq.controller.ControllerStartup"

    def __init__(self, folder: Path, *, jvm: Sequence[str] = JVM_SMALL, cpus: Iterable[int] | None = None) -> None:
        super().__init__("5.3.3", folder, free_port(), jvm, cpus)

    def settings(self) -> Mapping[str, str]:
        return {
            "controllerDLegerGroup": "controllers",
            "controllerDLegerPeers": f"n0-{self.address}",
            "controllerDLegerSelfId": "n0",
            "controllerStorePath": str(self.folder / "store"),
            "mappedFileSize": str(10 << 20),
            "listenPort": str(self.port + 1),
        }

    @property
    def broker_properties(self) -> Mapping[str, str]:
        """What a broker of 5.3.3 needs in its configuration to be run by this controller."""
        return {"enableControllerMode": "true", "controllerAddr": self.address}

    def ready(self) -> bool:
        header, _ = request(self.address, CONTROLLER_GET_METADATA_INFO)
        return bool(header.get("extFields", {}).get("isLeader") == "true")


class ApacheCluster:
    """A name server and brokers of one version, stopped together."""

    def __init__(
        self,
        version: str,
        folder: Path,
        *,
        brokers: Sequence[str] = ("broker-a",),
        properties: Mapping[str, str] | None = None,
        jvm: Sequence[str] = JVM_SMALL,
        cpus: Iterable[int] | None = None,
    ) -> None:
        """brokers: names; all use the same `properties`. All files are below `folder`."""
        self.version = version
        cpus = None if cpus is None else tuple(cpus)
        self.namesrv = ApacheNameServer(version, folder / "namesrv", cpus=cpus)
        self.brokers = [
            ApacheBroker(
                version, folder / name, self.namesrv.address, name=name, properties=properties, jvm=jvm, cpus=cpus
            )
            for name in brokers
        ]

    @property
    def namesrv_address(self) -> str:
        """The name server address for clients, "ip:port"."""
        return self.namesrv.address

    @property
    def broker(self) -> ApacheBroker:
        """The first broker."""
        return self.brokers[0]

    def __enter__(self) -> Self:
        try:
            self.namesrv.start()
            for broker in self.brokers:
                broker.start()
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for server in (*self.brokers, self.namesrv):
            server.kill()


def write_logback(conf: Path, kind: str, log: Path) -> None:
    """Make a server or tool write its warnings to `log` and nothing to its output; 4.9 and 5.x read different files."""
    (conf / f"logback_{kind}.xml").write_text(LOGBACK.format(path=log, package=""))
    (conf / f"rmq.{kind}.logback.xml").write_text(LOGBACK.format(path=log, package="org.apache.rocketmq.logging."))


def free_port() -> int:
    """Return a free port whose neighbours, from two below to one above, are free too: a broker needs them.

    This process reserves them by a lock file until it ends, which all runs on the machine respect. They are below the
    kernel's ephemeral range, so they are free again when a server restarts.
    """
    _PORT_LOCKS.mkdir(exist_ok=True)
    blocks = list(range(PORT_FIRST, PORT_END, PORT_BLOCK))
    random.shuffle(blocks)
    for first in blocks:
        lock = (_PORT_LOCKS / str(first)).open("w")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            lock.close()
            continue
        if all(_is_free(port) for port in range(first, first + PORT_BLOCK)):
            _held_locks.append(lock)
            return first + 2
        lock.close()
    raise jars.InteropError(f"no free ports between {PORT_FIRST} and {PORT_END}: end other servers on this machine")


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
        except OSError:
            return False
    return True


@atexit.register
def _kill_the_living() -> None:
    for server in list(_living):
        server.kill()
