"""`loadmanager attach` at a real broker that speaks TLS alone and wants a token or certificate."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from attaching import balancing, command, first, told_until
from pulsar_processes import NoPulsar
from real_pulsar import RealPulsar, real_pulsar
from secured_pulsar import SUPERUSER, Secured

from loadmanager.attach.pulsar_balancer import SWITCHES

pytestmark = [
    pytest.mark.pulsar,
    pytest.mark.thorough,
    pytest.mark.timeout(600),
    pytest.mark.flaky(reruns=1),
]

VERSION = os.environ.get("LOADMANAGER_PULSAR_VERSION", "4.0.7")
MANAGER = os.environ.get("LOADMANAGER_PULSAR_MANAGER") or "modular"


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


def test_a_certificate_of_another_authority_is_refused(
    broker: RealPulsar, secured: Secured, tmp_path: Path
) -> None:
    token = secured.token_file("whole", secured.token())
    other = Secured(tmp_path)
    found = once(broker, *trusting(other), "--token-file", str(token))
    assert found.returncode == 1
    assert "Traceback" not in found.stderr
    assert "certificate" in found.stderr


def test_a_renewed_token_is_read_and_an_expired_one_stops_it(
    broker: RealPulsar, secured: Secured, tmp_path: Path
) -> None:
    short_s = 15.0
    token = secured.token_file("renewed", secured.token(lasts_s=short_s))
    access = (*trusting(secured), "--token-file", str(token))
    with balancing(broker, tmp_path, "--interval", "1", *access) as (process, told):
        first(told, "event", "Pulsar's own shedding and automatic splits are off")
        told_until(told, lambda line: "verdict" in line)
        old = secured.token_file("renewed", secured.token(lasts_s=3600)).read_text()
        expired = secured.token_file("expired", secured.token(lasts_s=-1)).read_text()
        # By then the first token would not do any more.
        began_s = len(told)
        told_until(told, lambda line: "verdict" in line and len(told) > began_s + short_s)
        assert process.poll() is None, told
        secured.token_file("renewed", expired)
        assert process.wait(60) == 1
        said = [line["event"] for line in told if "event" in line]
    assert any("not restored" in one and "--restore" in one for one in said)
    secured.token_file("renewed", old)
    done = subprocess.run(
        command(broker, tmp_path, "--restore", *access),
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert all(f"{key}: not overridden again" in done.stdout for key in SWITCHES)
