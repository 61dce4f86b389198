import asyncio
import subprocess
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from coordination_worlds import connected
from waiting import eventually
from zookeeper_proxy import SASL, ZooKeeperProxy

from loadmanager.adapters.zookeeper import ZooKeeperCoordination, ZooKeeperOptions
from loadmanager.adapters.zookeeper.embedded import EmbeddedZooKeeper
from loadmanager.common.cluster_conditions import key_of_cluster
from loadmanager.core import znodes
from loadmanager.demo.cluster import free_ports
from loadmanager.ports.coordination import Connection, CoordinationError, SessionState

pytestmark = pytest.mark.zookeeper
LOGIN = {"sasl_mechanism": "DIGEST-MD5", "sasl_username": "alice", "sasl_password": "secret"}
CAROL = {"digest_user": "carol", "digest_password": "known to her"}
JAAS = """
Server {
    org.apache.zookeeper.server.auth.DigestLoginModule required
    user_alice="secret" user_bob="also secret";
};
"""


@dataclass(frozen=True)
class Secured:
    """A server that knows alice and bob, and wants a certificate on its TLS port."""

    plain: str
    tls_port: int
    certificates: Path

    def options(self, **settings: object) -> ZooKeeperOptions:
        """Return how to connect without TLS."""
        usual = {"hosts": self.plain, "session_timeout_s": 6, "reconnect_delay_max_s": 0.2}
        return ZooKeeperOptions.model_validate({**usual, **settings})

    def tls_options(self, **settings: object) -> ZooKeeperOptions:
        """Return how to connect with TLS and the client's certificate."""
        tls = {
            "hosts": f"localhost:{self.tls_port}",
            "tls_ca_file": str(self.certificates / "ca.pem"),
            "tls_certificate_file": str(self.certificates / "client.pem"),
            "tls_key_file": str(self.certificates / "client.key"),
        }
        return self.options(**{**tls, **settings})


def openssl(folder: Path, *arguments: str) -> None:
    subprocess.run(("openssl", *arguments), cwd=folder, check=True, capture_output=True)


def make_certificates(folder: Path) -> None:
    """Make an authority, and a certificate each for the server and a client."""
    key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
    openssl(
        folder, "req", "-x509", *key, "-subj", "/CN=authority", "-keyout", "ca.key", "-out",
        "ca.pem", "-days", "2",
    )  # fmt: skip
    for name, host in (("server", "localhost"), ("client", "client")):
        openssl(
            folder, "req", *key, "-subj", f"/CN={name}", "-keyout", f"{name}.key", "-out",
            f"{name}.csr",
        )  # fmt: skip
        (folder / f"{name}.ext").write_text(f"subjectAltName=DNS:{host}\n")
        openssl(
            folder, "x509", "-req", "-in", f"{name}.csr", "-CA", "ca.pem", "-CAkey", "ca.key",
            "-CAcreateserial", "-days", "2", "-extfile", f"{name}.ext", "-out", f"{name}.pem",
        )  # fmt: skip
    both = (folder / "server.pem").read_text() + (folder / "server.key").read_text()
    (folder / "server-both.pem").write_text(both)


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    folder = tmp_path_factory.mktemp("secured")
    make_certificates(folder)
    jaas = folder / "jaas.conf"
    jaas.write_text(JAAS)
    (tls_port,) = free_ports(1)
    config = {
        "authProvider.sasl": "org.apache.zookeeper.server.auth.SASLAuthenticationProvider",
        "serverCnxnFactory": "org.apache.zookeeper.server.NettyServerCnxnFactory",
        "secureClientPort": str(tls_port),
        "secureClientPortAddress": "127.0.0.1",
        "ssl.keyStore.location": str(folder / "server-both.pem"),
        "ssl.trustStore.location": str(folder / "ca.pem"),
        "ssl.clientAuth": "need",
    }
    login = (f"-Djava.security.auth.login.config={jaas}",)
    with EmbeddedZooKeeper(tick_ms=200, config=config, jvm_options=login) as server:
        yield Secured(server.address, tls_port, folder)


@pytest.fixture
async def opened() -> AsyncIterator[list[ZooKeeperCoordination]]:
    sessions: list[ZooKeeperCoordination] = []
    yield sessions
    for session in sessions:
        await session.close()


async def opened_with(
    sessions: list[ZooKeeperCoordination], options: ZooKeeperOptions
) -> ZooKeeperCoordination:
    session = ZooKeeperCoordination(options)
    sessions.append(session)
    await connected(session)
    return session


async def never_connects(session: ZooKeeperCoordination) -> None:
    told: list[SessionState] = []
    session.on_session(told.append)
    await session.start()
    with pytest.raises(AssertionError, match="still"):
        await eventually(lambda: told, within_s=1.5)
    assert session.session.connection is Connection.SUSPENDED


BOB = {**LOGIN, "sasl_username": "bob", "sasl_password": "also secret"}


@pytest.mark.parametrize(("hers", "anothers"), [(CAROL, {}), (LOGIN, BOB)], ids=["digest", "sasl"])
async def test_what_a_user_creates_is_closed_to_others(
    secured: Secured,
    opened: list[ZooKeeperCoordination],
    hers: dict[str, str],
    anothers: dict[str, str],
) -> None:
    chroot = f"/{len(hers)}"
    owner = await opened_with(opened, secured.options(chroot=chroot, **hers))
    stranger = await opened_with(opened, secured.options(chroot=chroot, **anothers))
    await owner.create("/a", b"hers")
    for attempt in (stranger.get("/a"), stranger.set("/a", b""), stranger.create("/b", b"")):
        with pytest.raises(CoordinationError, match="NoAuthError"):
            await attempt
    again = await opened_with(opened, secured.options(chroot=chroot, **hers))
    node = await again.get("/a")
    assert node is not None
    assert node.data == b"hers"


async def test_the_clusters_key_is_closed_to_others_even_where_nodes_are_open(
    secured: Secured, opened: list[ZooKeeperCoordination]
) -> None:
    owner = await opened_with(opened, secured.options(chroot="/key", creator_only=False, **CAROL))
    stranger = await opened_with(opened, secured.options(chroot="/key"))
    await owner.create("/a", b"hers")
    await stranger.set("/a", b"everybody's")
    key = await key_of_cluster(owner)
    assert await key_of_cluster(owner) == key
    assert await stranger.children("/loadbalance") == ("key",)
    for attempt in (stranger.get(znodes.KEY), stranger.set(znodes.KEY, bytes(32))):
        with pytest.raises(CoordinationError, match="NoAuthError"):
            await attempt


async def test_a_digest_login_holds_after_a_reconnect(
    secured: Secured, opened: list[ZooKeeperCoordination]
) -> None:
    async with ZooKeeperProxy(secured.plain) as proxy:
        owner = await opened_with(
            opened, secured.options(hosts=proxy.address, chroot="/again", **CAROL)
        )
        await owner.create("/a", b"")
        before = owner.session
        proxy.drop()
        await eventually(lambda: owner.session.connection is Connection.SUSPENDED)
        await eventually(lambda: owner.session == before)
        await owner.set("/a", b"still hers")
        await owner.close()


async def test_a_connection_that_breaks_during_the_login_costs_no_session(
    secured: Secured, opened: list[ZooKeeperCoordination]
) -> None:
    """Kazoo takes it for a refused login, and gives up for ever."""
    async with ZooKeeperProxy(secured.plain) as proxy:
        owner = await opened_with(
            opened, secured.options(hosts=proxy.address, chroot="/resumed", **LOGIN)
        )
        stat = await owner.create("/lock", b"", ephemeral=True)
        before = owner.session
        told: list[SessionState] = []
        owner.on_session(told.append)
        proxy.drop_at_kind = SASL
        proxy.drop()
        await eventually(lambda: told and owner.session == before)
        assert proxy.drop_at_kind is None
        assert [state.connection for state in told] == [Connection.SUSPENDED, Connection.CONNECTED]
        assert await owner.create("/lock", b"", ephemeral=True) == stat
        await owner.close()


async def test_a_session_over_tls_carries_large_and_many_answers(
    secured: Secured, opened: list[ZooKeeperCoordination]
) -> None:
    session = await opened_with(opened, secured.tls_options(chroot="/tls", **LOGIN))
    content = b"x" * 900_000
    await session.create("/large", content)
    node = await session.get("/large")
    assert node is not None
    assert node.data == content
    for i in range(100):
        await session.create(f"/many/{i:03}", b"")
    assert len(await session.children("/many")) == 100


async def test_wrong_logins_and_certificates_never_show_as_connected(
    secured: Secured, opened: list[ZooKeeperCoordination], tmp_path: Path
) -> None:
    make_certificates(tmp_path)
    hosts = f"127.0.0.1:{secured.tls_port}"
    wrong = (
        secured.options(**{**LOGIN, "sasl_password": "wrong"}),
        secured.tls_options(hosts=hosts),  # The certificate names another host.
        secured.tls_options(tls_ca_file=str(tmp_path / "ca.pem")),  # An unknown authority.
        secured.tls_options(tls_certificate_file="", tls_key_file=""),  # One is asked for.
    )
    opened += map(ZooKeeperCoordination, wrong)
    await asyncio.gather(*map(never_connects, opened))
    await opened_with(opened, secured.tls_options(hosts=hosts, tls_verify_hostname=False))
