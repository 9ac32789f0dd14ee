"""The load generator as a function: compiled once, run for one shape, its figures as a value.

run_load("127.0.0.1:10911", SYNC64, cpus=[1], seconds=4) -> Load(rate=…, p99_us=…, errors=0, …)
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

SOURCE = Path(__file__).with_name("loadgen.c")
BUILD = Path(__file__).parent.parent / ".build"
TIMEOUT_MARGIN_S = 30.0


@dataclass(frozen=True, slots=True)
class Shape:
    """The behaviour of clients. `each`: send every request separately, like a Java client with many threads."""

    name: str
    connections: int
    outstanding: int
    each: bool = False
    mode: str = "send"
    header: str = "json"
    id_size: int = 32
    body_size: int = 500
    queues: int = 16
    count: int = 32  # messages per batch or pull
    credentials: tuple[str, str] = ("", "")  # access key and secret key: sign each request
    sql: str = ""  # of pulls: their filter; of sends: if not empty, add a property n (0 to 99) to each
    property: str = ""  # NAME=VALUE, a further property of each message

    def with_binary(self) -> Shape:
        return replace(self, name=f"{self.name}-binary", header="binary")

    def with_long_ids(self) -> Shape:
        return replace(self, name=f"{self.name}-id56", id_size=56)


SYNC64 = Shape("64x1", 64, 1)
ONE64 = Shape("1x64", 1, 64, each=True)
DEEP = Shape("16x64", 16, 64)
BATCH = Shape("batch32", 4, 4, mode="batch")
BATCH_SYNC = Shape("batch32-64x1", 64, 1, mode="batch")
PULL = Shape("pull32", 16, 1, mode="pull")
PULL_DEEP = Shape("pull32-16x4", 16, 4, mode="pull")
SHAPES = {shape.name: shape for shape in (SYNC64, ONE64, DEEP, BATCH, BATCH_SYNC, PULL, PULL_DEEP)}


@dataclass(frozen=True, slots=True)
class Load:
    """One run. rate: requests a second; message_rate: messages a second. loadgen_share: of one core, 1.0 is full."""

    rate: float
    message_rate: float
    requests: int
    errors: int
    error: str
    seconds: float
    p50_us: float
    p99_us: float
    loadgen_share: float


def loadgen() -> Path:
    """Compile loadgen.c if needed; return the program's path."""
    BUILD.mkdir(exist_ok=True)
    program = BUILD / f"loadgen-{hashlib.sha256(SOURCE.read_bytes()).hexdigest()[:12]}"
    if not program.exists():
        compiler = next((name for name in ("cc", "gcc", "clang") if shutil.which(name)), None)
        if compiler is None:
            raise SystemExit("no C compiler found (cc, gcc, clang); expected one: install gcc to run the benchmarks")
        temporary = program.with_suffix(f".{os.getpid()}")
        subprocess.run([compiler, "-O2", "-o", str(temporary), str(SOURCE)], check=True)
        temporary.replace(program)
    return program


def run_load(
    address: str,
    shape: Shape,
    *,
    seconds: float = 4.0,
    warmup: float = 1.0,
    topic: str = "BenchTopic",
    cpus: Sequence[int] | None = None,
) -> Load:
    """Put load of one shape on the broker at `host:port`. cpus: of the load generator; None: any."""
    host, _, port = address.rpartition(":")
    command = [
        *(str(part) for part in (loadgen(), "--host", host, "--port", port, "--mode", shape.mode)),
        *("--header", shape.header, "--connections", str(shape.connections), "--outstanding", str(shape.outstanding)),
        *("--seconds", str(seconds), "--warmup", str(warmup), "--topic", topic, "--queues", str(shape.queues)),
        *("--body", str(shape.body_size), "--id", str(shape.id_size), "--batch", str(shape.count)),
        *("--pull", str(shape.count)),
        *(("--each",) if shape.each else ()),
        *(("--access-key", shape.credentials[0]) if shape.credentials[0] else ()),
        *(("--sql", shape.sql) if shape.sql else ()),
        *(("--property", shape.property) if shape.property else ()),
    ]
    environ = {**os.environ, "LOADGEN_SECRET_KEY": shape.credentials[1]}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environ)
    if cpus is not None:
        os.sched_setaffinity(process.pid, cpus)
    output, complaint = process.communicate(timeout=seconds + warmup + TIMEOUT_MARGIN_S)
    if process.returncode:
        raise RuntimeError(f"loadgen on {address} in shape {shape.name} failed: {complaint.strip()}")
    found: dict[str, Any] = json.loads(output)
    return Load(
        rate=found["requests"] / found["seconds"],
        message_rate=found["messages"] / found["seconds"],
        requests=found["requests"],
        errors=found["errors"],
        error=found["error"],
        seconds=found["seconds"],
        p50_us=found["p50_us"],
        p99_us=found["p99_us"],
        loadgen_share=found["loadgen_cpu_s"] / found["seconds"],
    )
