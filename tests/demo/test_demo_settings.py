"""What the demo can be asked to do, and how it refuses the rest."""

import re
from pathlib import Path
from typing import Any

import pytest

from loadmanager.demo.settings import DemoSettings, Kill


def settings(**fields: Any) -> DemoSettings:
    return DemoSettings(data_dir=Path(), **fields)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("leader@15", Kill("leader", 15.0)),
        ("2@0.5", Kill("2", 0.5)),
        ("broker-3@7", Kill("3", 7.0)),
    ],
)
def test_a_kill_names_a_broker_and_a_second(text: str, expected: Kill) -> None:
    assert Kill.parse(text) == expected
    assert Kill.parse(str(expected)) == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("leader", "'leader': expected seconds after the @"),
        ("leader@soon", "'leader@soon': expected seconds after the @"),
        ("leader@0", "'leader@0': expected more than 0 seconds"),
        ("leader@nan", "'leader@nan': expected more than 0 seconds"),
        ("0@5", "'0@5': expected leader@SECONDS or NUMBER@SECONDS"),
        ("zookeeper@5", "'zookeeper@5': expected leader@SECONDS or NUMBER@SECONDS"),
    ],
)
def test_another_kill_is_refused_with_the_form_that_is_meant(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        Kill.parse(text)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"brokers": 4, "bundles": 3}, "--bundles 3: expected at least one a broker"),
        ({"topics": 31}, "--topics 31: expected at least one a bundle"),
        (
            {"brokers": 2, "kills": (Kill("leader", 1), Kill("leader", 2))},
            "--kill: expected at most 1, so that one remains",
        ),
        ({"kills": (Kill("5", 1),)}, "--kill 5@1: expected broker 1 to 4"),
        (
            {"kills": (Kill("leader", 20),), "duration_s": 20.0},
            "--kill leader@20: expected before the end at 20 s",
        ),
        (
            {"kills": (Kill.parse("2@5"), Kill.parse("broker-02@9"))},
            "--kill 2@...: given 2 times; expected once",
        ),
    ],
)
def test_options_that_do_not_go_together_are_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        settings(**fields)


@pytest.mark.parametrize(
    ("fields", "ends_at_s"),
    [
        ({}, None),
        ({"duration_s": 90.0}, 90.0),
        ({"kills": (Kill("leader", 20.0),)}, 60.0),
        ({"kills": (Kill("leader", 20.0), Kill("2", 5.0))}, 60.0),
        ({"kills": (Kill("leader", 20.0),), "duration_s": 30.0}, 30.0),
    ],
)
def test_a_demo_with_a_kill_ends_by_itself(fields: dict[str, Any], ends_at_s: float | None) -> None:
    assert settings(**fields).ends_at_s == ends_at_s


@pytest.mark.parametrize("rate_per_s", [10.0, 120.0, 500.0, 2000.0])
def test_brokers_together_never_burn_more_than_their_budget(rate_per_s: float) -> None:
    asked = settings(rate_per_s=rate_per_s)
    assert asked.cpu_ms_per_message <= 2.0
    assert asked.cpu_ms_per_message * rate_per_s / 1000 <= 0.24 + 1e-9


def test_a_broker_is_declared_so_small_that_the_mean_load_is_forty_percent() -> None:
    asked = settings(brokers=4, rate_per_s=100.0)
    # 25 messages a second of 3 ms each and 0.01 idle: 0.085 of a core.
    assert asked.cores_per_broker == pytest.approx(0.085 / 0.4, abs=0.001)
