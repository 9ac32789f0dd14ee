"""Bringing the official jars: what is wrong is named with its remedy, and nothing unverified is used. Needs no Java."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest
from interop.jars import InteropError

from interop import jars


@pytest.fixture
def small_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A set "s" of one jar that is there and verified; returns the jar."""
    monkeypatch.setattr(jars, "INTEROP", tmp_path)
    monkeypatch.setattr(jars, "BUILD", tmp_path / "build")
    jar = tmp_path / "build" / "s" / "lib" / "a.jar"
    jar.parent.mkdir(parents=True)
    jar.write_bytes(b"jar")
    (tmp_path / "checksums-s.sha256").write_text(f"{hashlib.sha256(b'jar').hexdigest()}  a.jar\n")
    return jar


def tool(folder: Path, name: str, script: str) -> None:
    """Put a program of our own on the (otherwise empty) PATH folder."""
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
    """What is there with the right sums is used as it is, without Maven."""
    assert jars.fetch("s") == small_set.parent
    assert jars.classpath("s") == str(small_set)


def test_altered_jar_is_brought_anew(small_set: Path, empty_path: Path) -> None:
    """Other bytes than the locked ones are never used: they are fetched again, which needs Maven."""
    small_set.write_bytes(b"other")
    with pytest.raises(InteropError, match=r"no mvn found on PATH.*apt-get install maven"):
        jars.fetch("s")


def test_wrong_sum_is_refused(small_set: Path, empty_path: Path) -> None:
    """Jars that Maven brings with other sums are refused, each named."""
    small_set.unlink()
    tool(empty_path, "javac", "echo javac 17.0.1")
    script = (
        'for a; do case $a in -DoutputDirectory=*) d=${a#*=};; esac; done; /bin/mkdir -p "$d"; echo evil > "$d/a.jar"'
    )
    tool(empty_path, "mvn", script)
    with pytest.raises(InteropError, match=r"1 jars are not those of checksums-s.sha256: a.jar has sum .*expected"):
        jars.fetch("s")


def test_maven_failure_is_shown(small_set: Path, empty_path: Path) -> None:
    """Maven's own words and what to look at."""
    small_set.unlink()
    tool(empty_path, "javac", "echo javac 17.0.1")
    tool(empty_path, "mvn", "echo cannot resolve; exit 1")
    with pytest.raises(InteropError, match=r"(?s)mvn could not bring s \(exit 1\).*settings.xml.*cannot resolve"):
        jars.fetch("s")


def test_missing_jdk(empty_path: Path) -> None:
    """No java at all."""
    with pytest.raises(InteropError, match="no java found in JAVA_HOME or on PATH: install a JDK of version 17"):
        jars.java_tool("java")


def test_old_jdk(empty_path: Path) -> None:
    """A java that is too old says which it is."""
    tool(empty_path, "java", "echo 'openjdk version \"11.0.2\"' >&2")
    with pytest.raises(InteropError, match=r'says .openjdk version "11.0.2".*expected version 17 or newer'):
        jars.java_tool("java")


def test_java_home_comes_first(empty_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """JAVA_HOME wins over PATH."""
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
    assert f"  rocketmq-client-{version}.jar\n" in sums
