from pathlib import Path

import pytest
from kazoo.security import CREATOR_ALL_ACL, OPEN_ACL_UNSAFE

from loadmanager.adapters.zookeeper import ZooKeeperCoordination, ZooKeeperOptions, options
from loadmanager.ports.coordination import CoordinationError

LOGIN = {"digest_user": "carol", "digest_password": "known to her"}


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({"hosts": "zk1:2181/chroot"}, "without a path"),
        ({"hosts": ""}, "expected host:port"),
        ({"hosts": "zk1:port"}, "expected host:port"),
        ({"sasl_mechanism": "PLAIN"}, "'PLAIN'; expected DIGEST-MD5, GSSAPI or nothing"),
        ({"creator_only": True}, "expected a digest or SASL login with it"),
        ({"tls_certificate_file": "client.pem"}, "without tls_ca_file"),
    ],
)
def test_options_that_contradict_one_another_are_refused(
    settings: dict[str, object], complaint: str
) -> None:
    with pytest.raises(CoordinationError, match=complaint):
        ZooKeeperOptions(**{"hosts": "zk1:2181", **settings})  # type: ignore[arg-type]  # the point of the test


def test_sasl_without_its_package_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(options, "find_spec", lambda _: None)
    with pytest.raises(CoordinationError, match=r"pip install 'loadmanager\[sasl\]'"):
        ZooKeeperOptions(hosts="zk1:2181", sasl_mechanism="GSSAPI")


def test_passwords_do_not_show() -> None:
    text = "dont-show"
    shown = repr(ZooKeeperOptions(hosts="zk1:2181", digest_password=text, sasl_password=text))
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
def test_all_servers_can_be_tried_within_a_third_of_the_session(
    hosts: str, timeout_s: float, expected_s: float
) -> None:
    options = ZooKeeperOptions(hosts=hosts, session_timeout_s=timeout_s)
    assert options.connect_timeout_s == pytest.approx(expected_s)


async def test_missing_certificates_show_at_the_start(tmp_path: Path) -> None:
    missing = tmp_path / "ca.pem"
    options = ZooKeeperOptions(hosts="127.0.0.1:1", tls_ca_file=str(missing))
    session = ZooKeeperCoordination(options)
    with pytest.raises(CoordinationError, match=r"ca\.pem.*No such file.*readable PEM"):
        await session.start()
    await session.close()


async def test_files_that_are_no_certificates_show_at_the_start(tmp_path: Path) -> None:
    (tmp_path / "ca.pem").write_text("hello")
    options = ZooKeeperOptions(hosts="127.0.0.1:1", tls_ca_file=str(tmp_path / "ca.pem"))
    session = ZooKeeperCoordination(options)
    with pytest.raises(CoordinationError, match="readable PEM"):
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
