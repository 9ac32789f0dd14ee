"""Downloading the official jars: errors have a remedy, and only verified jars are used. Needs no Java."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest
from interop.jars import InteropError

from interop import jars


@pytest.fixture
def small_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make a set "s" with one verified jar; return the jar."""
    monkeypatch.setattr(jars, "INTEROP", tmp_path)
    monkeypatch.setattr(jars, "BUILD", tmp_path / "build")
    jar = tmp_path / "build" / "s" / "lib" / "a.jar"
    jar.parent.mkdir(parents=True)
    jar.write_bytes(b"jar")
    (tmp_path / "checksums-s.sha256").write_text(f"{hashlib.sha256(b'jar').hexdigest()}  a.jar\n")
    return jar


def tool(folder: Path, name: str, script: str) -> None:
    """Put a program into the (otherwise empty) PATH folder."""
    folder.mkdir(exist_ok=True)
    path = folder / name
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


@pytest.fixture
def empty_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A PATH with nothing on it, and no JAVA_HOME; returns its folder."""
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    return tmp_path / "bin"


def test_verified_jars_need_no_network(small_set: Path, empty_path: Path) -> None:
    """Jars with the right checksums are used, without Maven."""
    assert jars.fetch("s") == small_set.parent
    assert jars.classpath("s") == str(small_set)


def test_altered_jar_is_downloaded_again(small_set: Path, empty_path: Path) -> None:
    """Jars with wrong checksums are never used: they are downloaded again, which needs Maven."""
    small_set.write_bytes(b"other")
    with pytest.raises(InteropError, match=r"no mvn found on PATH.*apt-get install maven"):
        jars.fetch("s")


def test_wrong_sum_is_refused(small_set: Path, empty_path: Path) -> None:
    """Jars from Maven with wrong checksums are refused, each by name."""
    small_set.unlink()
    tool(empty_path, "javac", "echo javac 17.0.1")
    script = (
        'for a; do case $a in -DoutputDirectory=*) d=${a#*=};; esac; done; /bin/mkdir -p "$d"; echo evil > "$d/a.jar"'
    )
    tool(empty_path, "mvn", script)
    with pytest.raises(InteropError, match=r"1 jars are not those of checksums-s.sha256: a.jar has sum .*expected"):
        jars.fetch("s")


def test_maven_failure_is_shown(small_set: Path, empty_path: Path) -> None:
    """The error has Maven's output and the remedy."""
    small_set.unlink()
    tool(empty_path, "javac", "echo javac 17.0.1")
    tool(empty_path, "mvn", "echo cannot resolve; exit 1")
    with pytest.raises(InteropError, match=r"(?s)mvn could not bring s \(exit 1\).*settings.xml.*cannot resolve"):
        jars.fetch("s")


def test_missing_jdk(empty_path: Path) -> None:
    """The error for a missing Java has the remedy."""
    with pytest.raises(InteropError, match="no java found in JAVA_HOME or on PATH: install a JDK of version 17"):
        jars.java_tool("java")


def test_old_jdk(empty_path: Path) -> None:
    """The error names the version of a Java that is too old."""
    tool(empty_path, "java", "echo 'openjdk version \"11.0.2\"' >&2")
    with pytest.raises(InteropError, match=r'says .openjdk version "11.0.2".*expected version 17 or newer'):
        jars.java_tool("java")


def test_java_home_comes_first(empty_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """JAVA_HOME has priority over PATH."""
    tool(empty_path, "java", "echo 'openjdk version \"11.0.2\"' >&2")
    home = tmp_path / "jdk"
    home.mkdir()
    tool(home / "bin", "java", "echo 'openjdk version \"21.0.1\"' >&2")
    monkeypatch.setenv("JAVA_HOME", str(home))
    assert jars.java_tool("java") == os.fspath(home / "bin" / "java")


@pytest.mark.parametrize("name", jars.SETS)
def test_every_set_is_locked(name: str) -> None:
    """Each set has exact versions in its pom and a sum for its own jars."""
    version = name.rpartition("-")[2]
    pom = (jars.INTEROP / name / "pom.xml").read_text()
    assert pom.count(f"<version>{version}</version>") + 1 == pom.count("<version>")  # and the pom's own
    sums = (jars.INTEROP / f"checksums-{name}.sha256").read_text()
    named = {"s3proxy": "s3proxy", "kafka": "kafka_2.13", "mirror": "connect-mirror"}
    own = named.get(name.partition("-")[0], "rocketmq-client")
    assert f"  {own}-{version}.jar\n" in sums
