import importlib.util
import socket
import subprocess
from contextlib import closing
from pathlib import Path

import pytest

from loadmanager.pipeline.runtime import (
    SparkUnavailable,
    addresses,
    check_memory,
    is_standalone,
    java_home,
    own_address,
)

OPENED = "--add-opens=java.base/sun.security.action=ALL-UNNAMED"
REFUSES_VECTOR = 'case "$*" in *incubator*) exit 1;; esac\n'
WARNS_OF_OPENED = (
    'case "$*" in *sun.security.action*) echo "WARNING: package x not in java.base" >&2;; esac\n'
)


def java_saying(folder: Path, version: str, refusal: str = "") -> Path:
    java = folder / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(f'#!/bin/sh\n{refusal}echo \'openjdk version "{version}"\' >&2\necho "$*"\n')
    java.chmod(0o755)
    return folder


def test_a_whole_java_is_taken_as_it_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    home = java_saying(tmp_path / "jdk", "17.0.15")
    monkeypatch.setenv("JAVA_HOME", str(home))
    assert java_home(tmp_path / "shim") == home
    assert not (tmp_path / "shim").exists()


@pytest.mark.parametrize(
    ("refusal", "passed"),
    [
        (REFUSES_VECTOR, f"{OPENED} -Xmx1g -cp a b:c Main"),
        (WARNS_OF_OPENED, "--add-modules=jdk.incubator.vector -Xmx1g -cp a b:c Main"),
        (REFUSES_VECTOR + WARNS_OF_OPENED, "-Xmx1g -cp a b:c Main"),
    ],
)
def test_a_java_that_lacks_something_gets_a_shim_that_leaves_it_out(
    refusal: str, passed: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(java_saying(tmp_path / "jre", "25", refusal)))
    home = java_home(tmp_path / "shim")
    given = [OPENED, "--add-modules=jdk.incubator.vector", "-Xmx1g", "-cp", "a b:c", "Main"]
    done = subprocess.run(
        [home / "bin" / "java", *given], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == passed
    assert "WARNING" not in done.stderr


def test_an_old_java_is_passed_over_for_the_next_one(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(java_saying(tmp_path / "old", "11.0.22")))
    new = java_saying(tmp_path / "new", "21.0.2")
    monkeypatch.setenv("PATH", f"{new / 'bin'}:/usr/bin:/bin")
    assert java_home(tmp_path / "shim") == new


def test_where_all_are_old_each_is_told_with_its_version(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(java_saying(tmp_path / "home", "1.8.0_402")))
    on_path = java_saying(tmp_path / "path", "11.0.22")
    monkeypatch.setenv("PATH", f"{on_path / 'bin'}:/usr/bin:/bin")
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: None)
    told = r"home/bin/java: is Java 8, Spark needs 17; PATH: .*is Java 11, .*; install Java 17"
    with pytest.raises(SparkUnavailable, match=told):
        java_home(tmp_path / "shim")


@pytest.mark.parametrize(("wanted", "free_mib"), [("2g", 2400), ("900m", 1100), ("64g", None)])
def test_memory_that_is_there_or_not_known_is_accepted(wanted: str, free_mib: int | None) -> None:
    check_memory(wanted, None if free_mib is None else free_mib * 2.0**20)


def test_memory_that_is_not_there_is_told_with_both_sizes() -> None:
    with pytest.raises(SparkUnavailable, match=r"4g needs 4710 MiB .* 2000 MiB are free"):
        check_memory("4g", 2000 * 2.0**20)


@pytest.mark.parametrize("wanted", ["", "2", "much", "-1g"])
def test_a_memory_that_is_no_size_is_refused(wanted: str) -> None:
    with pytest.raises(SparkUnavailable, match="expected a size such as 2g or 900m"):
        check_memory(wanted, None)


def closed_port() -> int:
    """Return a port that nobody listens on: it was free a moment ago."""
    with closing(socket.create_server(("127.0.0.1", 0))) as server:
        return int(server.getsockname()[1])


def test_only_addresses_of_standalone_masters_are_taken_for_such() -> None:
    others = ("local[*]", "yarn", "k8s://https://spark.example.org:6443")
    assert [is_standalone(one) for one in ("spark://a:7077", *others)] == [True, *[False] * 3]


def test_several_masters_are_told_apart() -> None:
    found = addresses("spark://spark-1:7077,[fe80::1]:7078")
    assert found == [("spark-1", 7077), ("fe80::1", 7078)]


@pytest.mark.parametrize("master", ["spark://", "spark://a", "spark://a:7077,b", "spark://a:x"])
def test_an_address_of_another_form_is_refused(master: str) -> None:
    with pytest.raises(SparkUnavailable, match=r"expected spark://HOST:PORT\[,HOST:PORT"):
        addresses(master)


def test_the_own_address_is_that_on_the_way_to_a_master_that_answers() -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as server:
        port = server.getsockname()[1]
        assert own_address(f"spark://127.0.0.1:{closed_port()},127.0.0.1:{port}") == "127.0.0.1"


def test_masters_that_do_not_answer_are_told_with_why() -> None:
    master = f"spark://127.0.0.1:{closed_port()}"
    told = rf"no Spark master answers at {master} \(.*Connection refused\); expected one that runs"
    with pytest.raises(SparkUnavailable, match=told):
        own_address(master)
