"""The secret of the broker contract: who does not show it changes nothing."""

from pathlib import Path

import pytest
from aiohttp.test_utils import TestClient, TestServer

from loadmanager.adapters.broker.contract import PREFIX
from loadmanager.adapters.broker.http_control import HttpBrokerControl
from loadmanager.adapters.broker.secret import SecretUnusable, read_secret
from loadmanager.config import BrokerSettings
from loadmanager.core.ids import BrokerId, BundleId
from loadmanager.ports.broker import BrokerRefused, StaleAgent
from loadmanager.reference_broker.memory_broker import MemoryBroker
from loadmanager.reference_broker.server import ServerOptions, broker_application

SHOWN = "a-secret-of-some-length"
BUNDLE = f"{PREFIX}/bundles/t/n/0x00000000_0xffffffff"
LEASE = {"agentEpoch": 2**63 - 1, "untilSeconds": None, "incarnation": None}
COMMANDS = (
    ("PUT", f"{PREFIX}/lease", LEASE),
    ("PUT", BUNDLE, {"agentEpoch": 2**63 - 1, "fencingToken": 2**63 - 1}),
    ("DELETE", f"{BUNDLE}?agentEpoch={2**63 - 1}&fencingToken={2**62}", None),
    ("GET", f"{PREFIX}/stats", None),
    ("GET", f"{BUNDLE}/topics", None),
)
WRONG: tuple[list[tuple[str, str]], ...] = (
    [],
    [("Authorization", SHOWN)],
    [("Authorization", f"Bearer {SHOWN[:-1]}")],
    [("Authorization", f"Bearer {SHOWN}x")],
    [("Authorization", f"bearer {SHOWN}")],
    [("Authorization", "Bearer \u00e4" + SHOWN)],
    [("Authorization", f"Bearer {SHOWN}"), ("Authorization", f"Bearer {SHOWN}")],
)


def served() -> TestServer:
    """Return the reference broker with a secret, not started yet."""
    clock_s = 100.0
    broker = MemoryBroker(
        broker="b:1", incarnation="one", clock_s=lambda: clock_s, record=lambda _: None
    )
    options = ServerOptions(control_secret=SHOWN)
    return TestServer(broker_application(broker, options))


@pytest.mark.parametrize("headers", WRONG, ids=range(len(WRONG)))
async def test_without_the_secret_nothing_changes(headers: list[tuple[str, str]]) -> None:
    server = served()
    async with TestClient(server) as client:
        for method, path, body in COMMANDS:
            answer = await client.request(method, path, json=body, headers=headers)
            assert answer.status == 401, (method, path)
            assert answer.headers["WWW-Authenticate"] == "Bearer"
            assert "Authorization" in (await answer.json())["reason"]
            assert SHOWN not in await answer.text()
        control = HttpBrokerControl(str(server.make_url("")).rstrip("/"), secret=SHOWN)
        # The highest epoch that came with a command is still the lowest there is.
        await control.renew_lease(agent_epoch=0, until_s=120.0, incarnation="one")
        bundle = BundleId("t/n/0x00000000_0xffffffff")
        await control.load(bundle, agent_epoch=0, fencing_token=1)
        assert (await control.stats()).bundles.keys() == {bundle}
        await control.topics(bundle)
        await control.unload(bundle, agent_epoch=0, fencing_token=1)
        with pytest.raises(BrokerRefused, match=r"status 503"):
            await control.load(bundle, agent_epoch=7, fencing_token=2)
        with pytest.raises(StaleAgent):
            await control.load(bundle, agent_epoch=6, fencing_token=3)
        await control.close()


async def test_health_and_publishing_need_no_secret() -> None:
    async with TestClient(served()) as client:
        assert (await client.get(f"{PREFIX}/health")).status == 200
        published = await client.post("/publish/persistent/t/n/topic", data=b"x")
        assert published.status == 503  # There is no lease.


async def test_a_sidecar_without_the_secret_is_told_so() -> None:
    server = served()
    async with TestClient(server):
        control = HttpBrokerControl(str(server.make_url("")).rstrip("/"))
        with pytest.raises(BrokerRefused, match=r"status 401: .*Authorization: Bearer"):
            await control.renew_lease(agent_epoch=1, until_s=None, incarnation=None)
        await control.close()


def test_a_secret_is_read_without_the_line_end(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    path.write_text(f"{SHOWN}\n")
    assert read_secret(path) == SHOWN


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (None, "No such file"),
        (b"", "no usable secret"),
        (b"short", "no usable secret"),
        (b"two words of a secret", "no usable secret"),
        ("sécret of some length".encode(), "no ASCII"),
        (b"x" * 1025, "no usable secret"),
    ],
)
def test_a_file_without_a_usable_secret_is_named(
    tmp_path: Path, content: bytes | None, why: str
) -> None:
    path = tmp_path / "secret"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(SecretUnusable, match=rf"{path}: {why}.*expected a file with 16 to 1,024"):
        read_secret(path)


@pytest.mark.parametrize(
    ("control_url", "secret", "exposed"),
    [
        ("http://127.0.0.1:8080", "", False),
        ("http://[::1]:8080", "", False),
        ("http://localhost:8080", "", False),
        ("http://broker-1:8080", "", True),
        ("https://10.0.0.1:8080", "", True),
        ("http://broker-1:8080", "/etc/secret", False),
    ],
)
def test_a_control_url_that_strangers_reach_needs_a_secret(
    control_url: str, secret: str, exposed: bool
) -> None:
    settings = BrokerSettings(
        id=BrokerId("broker-1:8080"), control_url=control_url, control_secret_file=secret
    )
    assert bool(settings.exposure()) is exposed
    assert not exposed or control_url in settings.exposure()
