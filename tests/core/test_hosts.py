import pytest

from loadmanager.core.hosts import host_of, is_loopback, unreachable
from loadmanager.core.ids import BrokerId


@pytest.mark.parametrize(
    ("host", "loopback"),
    [
        ("localhost", True),
        ("LOCALHOST.", True),
        ("127.0.0.1", True),
        ("127.8.9.10", True),
        ("::1", True),
        ("[::1]", True),
        ("::1%lo", True),
        ("::ffff:127.0.0.1", True),
        ("::ffff:10.0.0.1", False),
        ("10.0.0.1", False),
        ("fe80::1", False),
        ("0.0.0.0", False),  # noqa: S104 - judged, not listened on
        ("broker1", False),
        ("localhost.example.com", False),
        ("127.0.0.1.example.com", False),
        ("", False),
    ],
)
def test_what_is_reached_on_the_same_machine_alone(host: str, *, loopback: bool) -> None:
    assert is_loopback(host) is loopback


@pytest.mark.parametrize(
    ("text", "host"),
    [
        ("http://b1:8080", "b1"),
        ("https://[::1]:8080", "::1"),
        ("b1:8080", "b1"),
        ("[fe80::1]:8080", "fe80::1"),
        ("http://[::1", ""),
        ("", ""),
    ],
)
def test_the_host_of_a_url_or_of_a_broker_s_id(text: str, host: str) -> None:
    assert host_of(text) == host


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
