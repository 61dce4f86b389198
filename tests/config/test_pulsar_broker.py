"""`[broker] kind = "pulsar"`, and what goes with it."""

from typing import Any

import pytest
from pydantic import ValidationError

from loadmanager.config import Config


def config(kind: str = "pulsar", **sections: Any) -> Config:
    broker = {"id": "b1:8080", "kind": kind, **sections.pop("broker", {})}
    return Config.model_validate({"broker": broker, **sections})


def test_brokers_are_commanded_unless_it_is_said_otherwise() -> None:
    assert Config.model_validate({"broker": {"id": "b1:8080"}}).broker.kind == "contract"


def test_a_pulsar_broker_is_asked_as_the_section_says() -> None:
    made = config(pulsar={"admin_url": "https://127.0.0.1:8443", "token_file": "/t"})
    assert (made.pulsar.admin_url, made.pulsar.token_file) == ("https://127.0.0.1:8443", "/t")


@pytest.mark.parametrize(
    ("kind", "sections", "expected"),
    [
        ("contract", {"pulsar": {"token_file": "/t"}}, r"\[pulsar\] token_file: expected no value"),
        ("pulsar", {"broker": {"control_url": "http://a:1"}}, r"control_url: expected no value"),
        ("pulsar", {"broker": {"control_secret_file": "/s"}}, r"control_secret_file: expected no"),
        ("pulsar", {"pulsar": {"certificate_file": "/c"}}, r"key_file: expected a value"),
        ("pulsar", {"pulsar": {"key_file": "/k"}}, r"certificate_file: expected a value"),
        ("pulsar", {"cluster": {"hash": "murmur3"}}, r'hash: expected "crc32"'),
        ("kafka", {}, "kind"),
    ],
)
def test_what_does_not_go_together_is_refused(
    kind: str, sections: dict[str, Any], expected: str
) -> None:
    with pytest.raises(ValidationError, match=expected):
        config(kind, **sections)
