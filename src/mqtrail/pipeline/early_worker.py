"""The start of a Python worker of Spark: connect to the JVM first, then import the worker's module.

    python early_worker.py -m MODULE        in place of    python -m MODULE

Spark gives a worker of a Python source 10 s to connect, a constant of PythonWorkerFactory.createSimpleWorker. A worker
connects after its imports, which can take longer on a busy machine. This file imports only the standard library before
it connects; then Spark waits for the imports without a limit. It is run by its path, not as a module.
Source: pyspark/util.py, local_connect_and_auth.
"""

import os
import runpy
import socket
import struct
import sys
from typing import Any

_LENGTH = struct.Struct(">i")


def connect(port: int, secret: str) -> tuple[Any, socket.socket]:
    """Connect to the JVM and authenticate, as local_connect_and_auth does; return the same values."""
    host = "::1" if os.environ.get("SPARK_PREFER_IPV6", "false").lower() == "true" else "127.0.0.1"
    timeout_s = int(os.environ.get("SPARK_AUTH_SOCKET_TIMEOUT", "15"))
    connection = socket.create_connection((host, port), timeout_s)
    file: Any = connection.makefile("rwb", int(os.environ.get("SPARK_BUFFER_SIZE", "65536")))
    text = secret.encode()
    file.write(_LENGTH.pack(len(text)) + text)
    file.flush()
    (size,) = _LENGTH.unpack(file.read(_LENGTH.size))
    if file.read(size) != b"ok":
        raise ConnectionError("Spark's JVM refused the worker's secret: start the pipeline again")
    return file, connection


def hand_over(connected: tuple[Any, socket.socket]) -> None:
    """Make PySpark use the existing connection instead of opening one."""
    import pyspark.util

    made = pyspark.util.local_connect_and_auth
    waiting = [connected]

    def local_connect_and_auth(*arguments: Any) -> Any:
        return waiting.pop() if waiting else made(*arguments)

    for module in [each for name, each in sys.modules.items() if name.startswith("pyspark")]:
        if getattr(module, "local_connect_and_auth", None) is made:
            vars(module)["local_connect_and_auth"] = local_connect_and_auth


def main() -> None:
    """Run the module of the arguments."""
    sys.path[0] = os.getcwd()  # as for `python -m`; modules in this file's folder must not be importable by name
    module = sys.argv[2]
    sys.argv = sys.argv[2:]
    port, secret = os.environ.get("PYTHON_WORKER_FACTORY_PORT"), os.environ.get("PYTHON_WORKER_FACTORY_SECRET")
    if port and secret and "PYTHON_WORKER_FACTORY_SOCK_PATH" not in os.environ:
        hand_over(connect(int(port), secret))
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
