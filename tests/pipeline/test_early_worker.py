"""Workers of sources connect to Spark before they import anything."""

from __future__ import annotations

import os
import socket
import struct
import subprocess
import sys
from pathlib import Path

import py4j
import pyspark

from mqtrail.pipeline.python import wrap_python

# Imports what a worker does only when its peer asks for it: until then nothing else has been imported.
WORKER = """
import sys
from pyspark.worker_util import get_sock_file_to_executor
with get_sock_file_to_executor(timeout=None) as file:
    file.write(repr((sys.argv[1:], 'pyspark' in sys.modules)).encode())
"""


def _read(peer: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        part = peer.recv(size - len(data))
        assert part, "the worker hung up"
        data += part
    return data


def test_a_worker_connects_before_its_imports(tmp_path: Path) -> None:
    """The worker authenticates before PySpark is imported, and later runs its module over that connection."""
    gate = tmp_path / "pyspark" / "__init__.py"
    gate.parent.mkdir()
    (tmp_path / "late_worker.py").write_text(WORKER)
    # A pyspark that waits for a line, then gives way to the real one.
    gate.write_text(
        f"import sys\nsys.stdin.readline()\nsys.path.remove({str(tmp_path)!r})\ndel sys.modules['pyspark']\n"
        f"import pyspark\nsys.path.append({str(tmp_path)!r})\n"
    )
    with socket.create_server(("127.0.0.1", 0)) as server:
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path]),
            "PYTHON_WORKER_FACTORY_PORT": str(server.getsockname()[1]),
            "PYTHON_WORKER_FACTORY_SECRET": "geheim",
        }
        command = [str(wrap_python(tmp_path)), "-m", "late_worker", "one argument"]
        worker = subprocess.Popen(command, env=environment, cwd=tmp_path.parent, stdin=subprocess.PIPE)
        server.settimeout(60)
        peer, _ = server.accept()
        with peer:
            peer.settimeout(60)
            assert _read(peer, 10) == struct.pack(">i", 6) + b"geheim"
            peer.sendall(struct.pack(">i", 2) + b"ok")
            assert worker.stdin is not None
            worker.stdin.write(b"import\n")
            worker.stdin.close()
            assert struct.unpack(">i", _read(peer, 4)) == (worker.pid,)
            assert b"".join(iter(lambda: peer.recv(4096), b"")) == b"(['one argument'], True)"
        assert worker.wait(60) == 0


def test_without_a_port_it_is_python(tmp_path: Path) -> None:
    """The daemon, and any other Python of Spark, starts as usual."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHON_WORKER_FACTORY_PORT"}
    command = [str(wrap_python(tmp_path)), "-c", "import sys; print(sys.argv[1:], sys.flags.isolated)", "a b"]
    output = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout
    assert output == "['a b'] 0\n"


def test_pyspark_is_not_imported_from_a_zip(tmp_path: Path) -> None:
    """Spark's zips, whose modules every process compiles again, leave the path; other entries stay, in order."""
    home = Path(pyspark.__file__).parent
    zips = [str(home / "python" / "lib" / name) for name in ("pyspark.zip", "py4j-0.10.9.9-src.zip")]
    others = [str(tmp_path / name) for name in ("a folder", "*", "my.zip")]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([others[0], *zips, *others[1:]])}
    code = "import sys, pyspark, py4j; print(sys.path[1:4], pyspark.__file__, py4j.__file__, sep='\\n')"
    command = [str(wrap_python(tmp_path)), "-c", code]
    output = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout.splitlines()
    assert output == [str(others), pyspark.__file__, py4j.__file__]
