import importlib.util
from pathlib import Path
from types import SimpleNamespace

import pytest
from kazoo import exceptions as kazoo
from kazoo.protocol.states import ZnodeStat
from kazoo.security import CREATOR_ALL_ACL, OPEN_ACL_UNSAFE
from pydantic import SecretStr

from loadmanager.adapters.zookeeper import ZooKeeperCoordination, ZooKeeperOptions, options
from loadmanager.adapters.zookeeper.embedded import (
    EmbeddedZooKeeper,
    EmbeddedZooKeeperError,
    find_java,
    zookeeper_class_path,
)
from loadmanager.adapters.zookeeper.session import (
    CHECK_FRACTION,
    PROBE_FRACTION,
    SILENCE_FRACTION,
    Keepalive,
    rejection,
    translated,
)
from loadmanager.config.sections import OwnershipSettings
from loadmanager.ports.coordination import (
    CoordinationError,
    Disconnected,
    NodeExists,
    NodeMissing,
    NotEmpty,
    SessionLost,
    VersionMismatch,
)

LOGIN = {"digest_user": "carol", "digest_password": "known to her"}


def test_sasl_without_its_package_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(options, "find_spec", lambda _: None)
    with pytest.raises(CoordinationError, match=r"pip install 'loadmanager\[sasl\]'"):
        ZooKeeperOptions(hosts="zk1:2181", sasl_mechanism="GSSAPI")


def test_passwords_do_not_show() -> None:
    text = "dont-show"
    secret = SecretStr(text)
    shown = repr(ZooKeeperOptions(hosts="zk1:2181", digest_password=secret, sasl_password=secret))
    assert text not in shown
    assert "zk1:2181" in shown


@pytest.mark.parametrize(
    ("creator_only", "login", "expected"),
    [
        (None, {}, OPEN_ACL_UNSAFE),
        (None, LOGIN, CREATOR_ALL_ACL),
        (False, LOGIN, OPEN_ACL_UNSAFE),
        (True, LOGIN, CREATOR_ALL_ACL),
    ],
)
def test_nodes_are_the_logins_alone_unless_told_otherwise(
    creator_only: bool | None, login: dict[str, str], expected: object
) -> None:
    options = ZooKeeperOptions(hosts="zk1:2181", creator_only=creator_only, **login)  # type: ignore[arg-type]  # two strings
    assert options.access_list() == expected


@pytest.mark.parametrize(
    ("hosts", "timeout_s", "expected_s"),
    [("a:1", 9.0, 3.0), ("a:1,b:1,c:1", 9.0, 1.0), ("a:1,b:1,c:1", 1.0, 0.5)],
)
def test_all_servers_are_tried_in_a_third(hosts: str, timeout_s: float, expected_s: float) -> None:
    options = ZooKeeperOptions(hosts=hosts, session_timeout_s=timeout_s)
    assert options.connect_timeout_s == pytest.approx(expected_s)


@pytest.mark.parametrize(
    ("content", "told"), [(None, r"ca\.pem.*No such file.*readable PEM"), ("hello", "readable PEM")]
)
async def test_what_is_no_certificate_shows_at_the_start(
    tmp_path: Path, content: str | None, told: str
) -> None:
    file = tmp_path / "ca.pem"
    if content is not None:
        file.write_text(content)
    session = ZooKeeperCoordination(ZooKeeperOptions(hosts="127.0.0.1:1", tls_ca_file=str(file)))
    with pytest.raises(CoordinationError, match=told):
        await session.start()
    await session.close()


@pytest.mark.parametrize(
    ("timeout_s", "told_s", "expected_s"),
    [(10.0, None, 0.5), (4.0, None, 0.2), (1.0, None, 0.1), (120.0, None, 2.0), (10.0, 3.0, 3.0)],
)
def test_pauses_between_attempts_are_a_small_part_of_the_session(
    timeout_s: float, told_s: float | None, expected_s: float
) -> None:
    options = ZooKeeperOptions(
        hosts="a:1", session_timeout_s=timeout_s, reconnect_delay_max_s=told_s
    )
    assert options.longest_pause_s == pytest.approx(expected_s)


STAT = ZnodeStat(*range(11))


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (kazoo.NoNodeError(), NodeMissing),
        (kazoo.NodeExistsError(), NodeExists),
        (kazoo.BadVersionError(), VersionMismatch),
        (kazoo.NotEmptyError(), NotEmpty),
        (kazoo.ConnectionLoss(), Disconnected),
        (kazoo.OperationTimeoutError(), Disconnected),
        (kazoo.SessionMovedError(), Disconnected),
        (kazoo.ConnectionClosedError(), Disconnected),
        (kazoo.AuthFailedError(), Disconnected),
        (kazoo.SessionExpiredError(), SessionLost),
        (kazoo.NoAuthError(), CoordinationError),
        (kazoo.QuotaExceededError(), CoordinationError),
    ],
)
def test_an_error_keeps_its_meaning_and_names_the_path(
    error: kazoo.KazooException, expected: type[CoordinationError]
) -> None:
    made = translated(error, "/a")
    assert type(made) is expected
    assert str(made).startswith("/a: ")


def test_results_without_an_error_are_no_rejection() -> None:
    assert rejection(["/a", True, STAT], ["/a", "/b", "/c"]) is None


@pytest.mark.parametrize("index", [0, 1, 2])
def test_the_operation_that_failed_is_found_among_those_it_took_along(index: int) -> None:
    results: list[object] = [kazoo.RolledBackError()] * index
    results.append(kazoo.BadVersionError())
    results += [kazoo.RuntimeInconsistency()] * (2 - index)
    rejected = rejection(results, ["/a", "/b", "/c"])
    assert rejected is not None
    assert rejected.index == index
    assert isinstance(rejected.cause, VersionMismatch)
    assert str(rejected.cause).startswith(("/a", "/b", "/c")[index])


def test_a_commit_with_no_culprit_is_rejected_all_the_same() -> None:
    rejected = rejection([kazoo.RuntimeInconsistency()] * 2, ["/a", "/b"])
    assert rejected is not None
    assert rejected.index == 0
    assert "RuntimeInconsistency" in str(rejected.cause)


@pytest.mark.parametrize(
    ("asked_s", "answered_s", "alive_s", "dead_s"),
    [
        ((110.0,), (), 113.0, 113.1),
        # Any answer is a sign of life; requests alone are none.
        ((100.0, 100.0), (102.9,), 105.8, 106.0),
        ((100.0, 101.0, 102.0, 103.0), (), 103.0, 103.1),
    ],
)
def test_an_owed_answer_makes_a_link_dead_after_a_quarter_of_the_session(
    asked_s: tuple[float, ...], answered_s: tuple[float, ...], alive_s: float, dead_s: float
) -> None:
    keepalive = Keepalive(12.0, now_s=100.0)
    for at_s in asked_s:
        keepalive.asked(at_s)
    for at_s in answered_s:
        keepalive.answered(at_s)
    assert not keepalive.is_dead(alive_s)
    assert keepalive.is_dead(dead_s)


def test_a_link_that_owes_nothing_is_not_dead_but_asked() -> None:
    keepalive = Keepalive(12.0, now_s=100.0)
    assert not keepalive.wants_probe(101.9)
    assert keepalive.wants_probe(102.0)
    assert not keepalive.is_dead(1000.0)
    keepalive.asked(102.0)
    assert not keepalive.wants_probe(1000.0)
    keepalive.answered(102.5)
    assert not keepalive.wants_probe(104.0)


def test_a_dead_link_shows_well_before_two_thirds_of_the_session() -> None:
    assert PROBE_FRACTION + SILENCE_FRACTION + 2 * CHECK_FRACTION < 1 / 2


def test_a_link_is_not_probed_between_the_heartbeats_of_an_agent() -> None:
    assert OwnershipSettings().heartbeat_fraction < PROBE_FRACTION


def hide_packages(monkeypatch: pytest.MonkeyPatch, **found: object) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", found.get)


WHERE = "looked at JAVA_HOME, the PATH"
BROKEN = r"JAVA_HOME: .*java: exit code 3: broken.*pip install 'loadmanager\[demo\]'"


@pytest.mark.parametrize(
    ("home_exits", "path_exits", "expected"),
    [(0, 0, "home"), (1, 0, "path"), (3, None, BROKEN), (None, None, WHERE)],
)
def test_a_java_that_works_is_found_first_by_java_home_or_the_error_says_where_it_looked(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    *,
    home_exits: int | None,
    path_exits: int | None,
    expected: str,
) -> None:
    hide_packages(monkeypatch)
    for name, code in (("home", home_exits), ("path", path_exits)):
        java = tmp_path / name / "bin" / "java"
        java.parent.mkdir(parents=True)
        if code is not None:
            java.write_text(f"#!/bin/sh\necho broken >&2\nexit {code}\n")
            java.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", "" if home_exits is None else str(tmp_path / "home"))
    monkeypatch.setenv("PATH", str(tmp_path / "path" / "bin"))
    if expected in {"home", "path"}:
        assert find_java() == tmp_path / expected / "bin" / "java"
        return
    with pytest.raises(EmbeddedZooKeeperError, match=expected):
        EmbeddedZooKeeper().start()


@pytest.mark.parametrize(
    ("found", "told"),
    [
        ({}, r"pip install 'loadmanager\[demo\]'"),
        ({"pyspark": SimpleNamespace(origin="/none/__init__.py")}, "/none.*no zookeeper-"),
    ],
)
def test_without_pyspark_or_zookeeper_in_it_the_error_says_so(
    monkeypatch: pytest.MonkeyPatch, found: dict[str, object], told: str
) -> None:
    hide_packages(monkeypatch, **found)
    with pytest.raises(EmbeddedZooKeeperError, match=told):
        zookeeper_class_path()


def test_the_class_path_holds_the_server_and_little_else() -> None:
    names = [Path(jar).name for jar in zookeeper_class_path().split(":")]
    assert any(name.startswith("zookeeper-jute-") for name in names)
    assert all("spark" not in name for name in names)
