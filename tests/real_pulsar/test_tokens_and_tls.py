"""`loadmanager attach` at a real broker that speaks TLS alone and wants a token or certificate."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from attaching import balancing, first, told_until
from pulsar_processes import NoPulsar
from real_pulsar import CHOSEN, VERSION, RealPulsar, marks, real_pulsar
from secured_pulsar import SUPERUSER, Secured

from loadmanager.pulsar.state import SWITCHES

pytestmark = marks(600)
# What they refuse does not depend on the manager.
MANAGER = CHOSEN[0]


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Secured:
    return Secured(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def broker(secured: Secured, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealPulsar]:
    folder = tmp_path_factory.mktemp("secured")
    try:
        with real_pulsar(
            folder, version=VERSION, manager=MANAGER, brokers=1, secured=secured
        ) as made:
            yield made
    except NoPulsar as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def chart(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[RealPulsar, Secured]]:
    """Two brokers as the official Helm chart makes them: named by ports without TLS."""
    secured = Secured(tmp_path_factory.mktemp("chart-certificates"), beside_plain=True)
    folder = tmp_path_factory.mktemp("chart")
    try:
        with real_pulsar(
            folder, version=VERSION, manager=MANAGER, brokers=2, secured=secured
        ) as made:
            yield made, secured
    except NoPulsar as error:
        pytest.skip(str(error))


def once(broker: RealPulsar, *options: str) -> subprocess.CompletedProcess[str]:
    asked = [sys.executable, "-m", "loadmanager", "attach", "--pulsar", broker.url, "--once"]
    return subprocess.run(
        [*asked, "--interval", "1", *options],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


def trusting(secured: Secured) -> tuple[str, str]:
    return "--ca-file", str(secured.files.authorities)


def test_a_cluster_is_observed_over_tls_with_a_token(broker: RealPulsar, secured: Secured) -> None:
    token = secured.token_file("whole", secured.token())
    found = once(broker, *trusting(secured), "--token-file", str(token))
    assert found.returncode == 0, found.stderr
    assert broker.brokers[0] in found.stdout


def test_brokers_of_the_chart_speak_tls(chart: tuple[RealPulsar, Secured], tmp_path: Path) -> None:
    brokers, secured = chart
    token = secured.token_file("whole", secured.token())
    access = (*trusting(secured), "--token-file", str(token))
    found = once(brokers, "--json", *access)
    assert found.returncode == 0, found.stderr
    told = json.loads(found.stdout)
    assert told["missing"] == {}
    assert {one["broker"] for one in told["brokers"]} == set(brokers.brokers)
    with balancing(brokers, tmp_path, "--interval", "1", *access) as (process, told):
        told_until(told, lambda line: "verdict" in line and not line["missing"])
        process.terminate()
        assert process.wait(60) == 0


def test_a_client_certificate_lets_it_observe(broker: RealPulsar, secured: Secured) -> None:
    def shown(role: str) -> subprocess.CompletedProcess[str]:
        certificate, key = secured.files.client(role)
        files = ("--certificate-file", str(certificate), "--key-file", str(key))
        return once(broker, *trusting(secured), *files)

    found = shown(SUPERUSER)
    assert found.returncode == 0, found.stderr
    assert broker.brokers[0] in found.stdout
    refused = shown("somebody")
    assert refused.returncode == 1
    assert "the right of a superuser" in refused.stderr


@pytest.mark.parametrize(
    ("role", "lasts_s"),
    [("operator", -60.0), ("somebody", 3600.0), (None, 0.0)],
    ids=["expired", "without the right", "none"],
)
def test_what_is_refused_is_named(
    broker: RealPulsar, secured: Secured, role: str | None, lasts_s: float
) -> None:
    options = list(trusting(secured))
    if role is not None:
        token = secured.token_file("refused", secured.token(role, lasts_s))
        options += ["--token-file", str(token)]
    found = once(broker, *options)
    assert found.returncode == 1
    assert "Traceback" not in found.stderr
    assert "answered 401" in found.stderr
    assert "the right of a superuser" in found.stderr


def test_other_certificates_fail(broker: RealPulsar, secured: Secured, tmp_path: Path) -> None:
    token = secured.token_file("whole", secured.token())
    other = Secured(tmp_path)
    found = once(broker, *trusting(other), "--token-file", str(token))
    assert found.returncode == 1
    assert "Traceback" not in found.stderr
    assert "certificate" in found.stderr


def test_a_renewed_token_is_read_and_an_expired_one_holds_moves(
    broker: RealPulsar, secured: Secured, tmp_path: Path
) -> None:
    short_s = 15.0
    token = secured.token_file("renewed", secured.token(lasts_s=short_s))
    access = (*trusting(secured), "--token-file", str(token))

    def counted(line: dict[str, Any]) -> bool:
        return "verdict" in line and bool(line["brokers"])

    with balancing(broker, tmp_path, "--interval", "1", *access) as (process, told):
        first(told, "event", "Pulsar's own shedding and automatic splits are off")
        told_until(told, counted)
        lasting = secured.token(lasts_s=3600)
        secured.token_file("renewed", lasting)
        # By then the first token would not do any more.
        told_until(told, lambda line: counted(line) and len(told) > short_s, since=len(told))
        secured.token_file("renewed", secured.token(lasts_s=-1))
        told_until(told, lambda line: "answered 401" in json.dumps(line), since=len(told))
        secured.token_file("renewed", lasting)
        told_until(told, counted, since=len(told))
        process.terminate()
        assert process.wait(60) == 0
    restored = [line["event"] for line in told if "event" in line]
    assert all(f"{key}: not overridden again" in restored for key in SWITCHES)
