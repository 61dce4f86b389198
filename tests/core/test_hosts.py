import pytest

from loadmanager.core.hosts import host_of, is_http_url, is_loopback, unreachable
from loadmanager.core.ids import BrokerId


def test_what_is_reached_on_the_same_machine_alone() -> None:
    here = ("localhost", "LOCALHOST.", "127.0.0.1", "127.8.9.10", "::1", "[::1]", "::1%lo")
    for host in (*here, "::ffff:127.0.0.1"):
        assert is_loopback(host), host
    named = ("broker1", "localhost.example.com", "127.0.0.1.example.com", "")
    for host in ("::ffff:10.0.0.1", "10.0.0.1", "fe80::1", "0.0.0.0", *named):  # noqa: S104 - judged, not listened on
        assert not is_loopback(host), host


def test_the_host_of_a_url_or_of_a_broker_s_id() -> None:
    texts = ("http://b1:8080", "https://[::1]:8080", "b1:8080", "[fe80::1]:8080", "http://[::1", "")
    assert [host_of(text) for text in texts] == ["b1", "::1", "b1", "fe80::1", "", ""]


LOCAL = BrokerId("localhost:8080")
REMOTE = BrokerId("b2:8080")


def test_a_loopback_url_leads_elsewhere_on_another_host() -> None:
    why = unreachable("http://127.0.0.1:7750", [LOCAL, BrokerId("b9:8080"), REMOTE])
    assert "advertised_url is http://127.0.0.1:7750" in why
    assert "b2:8080" in why


@pytest.mark.parametrize(
    ("url", "brokers"),
    [
        ("http://127.0.0.1:7750", []),
        ("http://localhost:7750", [LOCAL, BrokerId("127.0.0.1:8081"), BrokerId("[::1]:8081")]),
        ("http://b1:7750", [LOCAL, REMOTE]),
        ("", [REMOTE]),
    ],
)
def test_a_url_that_everybody_reaches_is_no_trouble(url: str, brokers: list[BrokerId]) -> None:
    assert unreachable(url, brokers) == ""


@pytest.mark.parametrize(
    ("text", "is_url", "without_path"),
    [
        ("https://broker-1", True, True),
        ("http://[::1]:8080/", True, True),
        ("http://broker-1:8080/admin", True, False),
        ("http://broker-1:0", False, False),
        ("http://[::1", False, False),
        ("http:///admin", False, False),
        ("pulsar://broker-1:6650", False, False),
    ],
)
def test_what_is_a_url_of_http(text: str, is_url: bool, without_path: bool) -> None:
    assert is_http_url(text) is is_url
    assert is_http_url(text, without_path=True) is without_path
