"""The official Java client as an object: `java/Driver.java` in a child process that is controlled by JSON lines.

    with JavaClient("5.3.3", folder, namesrv) as java:
        java.producer("p", group="PG", trace=True)
        [sent] = java.send("p", [{"topic": "T", "body": "hello", "keys": "k1"}])
        java.consumer("c", group="CG", topics={"T": "*"})
        java.wait(lambda events: any(e["msgId"] == sent["msgId"] for e in events), "consumed")

Results and events are the dictionaries that the Java side writes (see its Values and Receivers).
"""

from __future__ import annotations

import atexit
import contextlib
import itertools
import json
import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from interop import jars
from interop.apache import JVM_OPENS, JVM_SMALL

Json = dict[str, Any]
CALL_TIMEOUT_S = 120.0
SEND_TIMEOUT_MS = 15_000

_living: set[JavaClient] = set()


class JavaError(Exception):
    """The official client refused or failed: class of its exception, and its response code if any."""

    def __init__(self, reply: Json) -> None:
        super().__init__(f"{reply['error']}: {reply['message']}")
        self.kind: str = reply["error"]
        self.code: int | None = reply.get("code")


class JavaClient:
    """One JVM with the client of `version`, its producers and consumers. Thread-safe."""

    def __init__(
        self,
        version: str,
        folder: Path,
        namesrv_address: str,
        *,
        binary_headers: bool = False,
        jvm: Sequence[str] = JVM_SMALL,
        cpus: Sequence[int] | None = None,
    ) -> None:
        """folder: for the client's logs. binary_headers: write ROCKETMQ frames instead of JSON."""
        self.version, self.namesrv_address = version, namesrv_address
        folder.mkdir(parents=True, exist_ok=True)
        self._errors = folder / "stderr.log"
        name = f"client-{version}"
        command = [jars.java_tool("java"), *JVM_OPENS, *jvm, f"-Duser.home={folder}", "-Drocketmq.client.logLevel=WARN"]
        if binary_headers:
            command.append("-Drocketmq.serialize.type=ROCKETMQ")
        command += ["-cp", jars.classpath(name, jars.compiled(name)), "mqtrail.interop.Driver"]
        if cpus is not None:
            command = ["taskset", "-c", ",".join(map(str, cpus)), *command]
        if setpriv := shutil.which("setpriv"):
            command = [setpriv, "--pdeathsig", "KILL", *command]
        with self._errors.open("ab") as errors:
            self.process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True, encoding="utf-8"
            )
        _living.add(self)
        self._changed = threading.Condition()
        self._ids = itertools.count(1)
        self._replies: dict[int, Json] = {}
        self._events: list[Json] = []
        self._ended = False
        self._reader = threading.Thread(target=self._read, name=f"java-{version}", daemon=True)
        self._reader.start()
        try:
            self.wait(lambda events: bool(events), "the driver's start")
        except BaseException:
            self.kill()
            raise
        with self._changed:
            self._events.clear()

    def begin(self, do: str, **arguments: Any) -> int:
        """Send one command and return its number for `end`. Arguments that are None are omitted."""
        number = next(self._ids)
        line = json.dumps({"id": number, "do": do, **{k: v for k, v in arguments.items() if v is not None}})
        assert self.process.stdin is not None
        with self._changed:
            self.process.stdin.write(line + "\n")
            self.process.stdin.flush()
        return number

    def end(self, number: int, *, timeout_s: float = CALL_TIMEOUT_S) -> Json:
        """Return the command's reply. JavaError: the client threw. TimeoutError: no reply in time."""
        with self._changed:
            self._await(lambda: number in self._replies, f"command {number}", timeout_s)
            reply = self._replies.pop(number)
        if not reply["ok"]:
            raise JavaError(reply)
        return reply

    def call(self, do: str, *, timeout_s: float = CALL_TIMEOUT_S, **arguments: Any) -> Json:
        """Run one command and return its reply, with the errors of `end`."""
        return self.end(self.begin(do, **arguments), timeout_s=timeout_s)

    def events(self, kind: str | None = None, **equal: Any) -> list[Json]:
        """Return the handlers' events so far, filtered by kind (began, ended) and by equal values."""
        with self._changed:
            found = list(self._events)
        if kind is not None:
            equal["event"] = kind
        return [event for event in found if all(event.get(key) == value for key, value in equal.items())]

    def wait(self, condition: Callable[[list[Json]], bool], what: str, timeout_s: float = CALL_TIMEOUT_S) -> None:
        """Return once the condition holds for all events so far.

        TimeoutError, which names `what`: not within timeout_s.
        """
        with self._changed:
            self._await(lambda: condition(self._events), what, timeout_s)

    # The commands, by name.

    def producer(self, name: str, *, group: str, namesrv: str | None = None, **options: Any) -> Json:
        """Start a producer; options as in Senders.open: trace, traceTopic, timeoutMs, retries, compressOver…
        The client's default timeout of three seconds is too short for two JVMs that just started on a busy machine.
        """
        options.setdefault("timeoutMs", SEND_TIMEOUT_MS)
        return self.call("producer", name=name, group=group, namesrv=namesrv or self.namesrv_address, **options)

    def send(self, name: str, messages: Sequence[Mapping[str, Any]], mode: str = "sync", **options: Any) -> list[Json]:
        """Send each message, mode sync, async, oneway, batch or ordered (orderKey); return one result per message."""
        results: list[Json] = self.call("send", name=name, messages=list(messages), mode=mode, **options)["results"]
        return results

    def consumer(
        self, name: str, *, group: str, topics: Mapping[str, str], namesrv: str | None = None, **options: Any
    ) -> Json:
        """Start a push consumer; options as in Receivers.open (trace, maxReconsume, threads, batch)."""
        return self.call(
            "consumer", name=name, group=group, topics=topics, namesrv=namesrv or self.namesrv_address, **options
        )

    def close(self) -> None:
        """Stop the process cleanly; open producers and consumers end as by System.exit."""
        if self.process.stdin is not None:
            self.process.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(10)
        self.kill()

    def kill(self) -> None:
        """Kill the process by SIGKILL."""
        self.process.kill()
        self.process.wait()
        self._reader.join(10)
        if self.process.stdout is not None:
            self.process.stdout.close()
        _living.discard(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if not line.startswith("{"):
                continue
            value = json.loads(line)
            with self._changed:
                if "event" in value:
                    self._events.append(value)
                else:
                    self._replies[value["id"]] = value
                self._changed.notify_all()
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def _await(self, condition: Callable[[], bool], what: str, timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        while not condition():
            if self._ended:
                tail = self._errors.read_text(errors="replace")[-2000:]
                raise jars.InteropError(f"the Java client {self.version} ended while waiting for {what}:\n{tail}")
            left = deadline - time.monotonic()
            if left <= 0:
                raise TimeoutError(f"{what}: not within {timeout_s:g} s")
            self._changed.wait(left)


@atexit.register
def _kill_the_living() -> None:
    for client in list(_living):
        client.kill()
