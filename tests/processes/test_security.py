"""Sidecars that ask each other, without [security] at an address beside loopback, and secured."""

import asyncio
import json
import os
import ssl
from collections.abc import AsyncIterator
from contextlib import suppress
from functools import partial
from http import HTTPStatus
from ipaddress import ip_address

import aiohttp
import jwt
import psutil
import pytest
import pytest_asyncio
from aiohttp import web
from aiohttp.test_utils import TestServer
from cluster_processes import SharingCluster, process_cluster, run_command
from coordination_worlds import connected
from tls_files import Files

from loadmanager.adapters.zookeeper import ZooKeeperCoordination, ZooKeeperOptions
from loadmanager.core import znodes
from loadmanager.core.bundles import Boundaries
from loadmanager.core.ids import BrokerId, Namespace
from loadmanager.demo.cluster import HASH, NAMESPACE, Children, Cluster, DemoSettings, Member, Table
from loadmanager.demo.traffic import topic_names
from loadmanager.reference_broker.changes import read_record

pytestmark = [
    pytest.mark.processes,
    pytest.mark.timeout(300),
    pytest.mark.asyncio(loop_scope="module"),
]
BUNDLES = 8
NEW_KEY_BOUND_S = 30.0


def address_of_this_host() -> str:
    """Return an IPv4 address of this host that is not loopback."""
    for addresses in psutil.net_if_addrs().values():
        for one in addresses:
            if one.family.name == "AF_INET" and not ip_address(one.address).is_loopback:
                return str(one.address)
    pytest.skip("needs an IPv4 address that is not loopback")


class OpenCluster(Cluster):
    def __init__(
        self, settings: DemoSettings, children: Children, http: aiohttp.ClientSession
    ) -> None:
        super().__init__(settings, children, http)
        self.address = address_of_this_host()
        for member in self.members:
            member.broker = BrokerId(f"{self.address}:{member.broker.rpartition(':')[2]}")

    def _sidecar_settings(self, member: Member) -> Table:
        told = super()._sidecar_settings(member)
        return {**told, "sidecar": {"listen_port": told["sidecar"]["listen_port"]}}

    def elsewhere(self, member: Member) -> str:
        return f"http://{self.address}:{member.sidecar_url.rpartition(':')[2]}"

    async def name_as_leader(self, url: str) -> None:
        session = ZooKeeperCoordination(
            ZooKeeperOptions(hosts=f"127.0.0.1:{self._zookeeper_port}", chroot="/loadmanager/demo")
        )
        await connected(session)
        try:
            node = await session.get(znodes.LEADER)
            assert node is not None
            record = json.loads(node.data)
            record["loadmanager"]["sidecarUrl"] = url
            await session.set(znodes.LEADER, json.dumps(record).encode())
        finally:
            await session.close()

    async def token(self, right: str, *options: str) -> dict[str, str]:
        at = ("--zookeeper", f"127.0.0.1:{self._zookeeper_port}", "--set", "cluster.name=demo")
        code, out, err = await run_command("token", "--right", right, *options, *at)
        assert code == 0, err
        return {"Authorization": f"Bearer {out.strip()}"}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def http() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession() as session:
        yield session


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def cluster(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[OpenCluster]:
    folder = tmp_path_factory.mktemp("open")
    async with process_cluster(folder, brokers=2, bundles=BUNDLES, make=OpenCluster) as processes:
        await processes.start()
        assert isinstance(processes.cluster, OpenCluster)
        yield processes.cluster


async def status(http: aiohttp.ClientSession, url: str, **options: object) -> int:
    async with http.get(url, **options) as answer:  # type: ignore[arg-type]
        return answer.status


async def test_a_token_is_good_everywhere_until_the_key_is_replaced(
    cluster: OpenCluster, http: aiohttp.ClientSession
) -> None:
    urls = [f"{cluster.elsewhere(member)}/metrics" for member in cluster.members]
    former = await cluster.token("read")
    for url in urls:
        assert await status(http, url, headers=former) == HTTPStatus.OK
    present = await cluster.token("read", "--replace-key")
    async with asyncio.timeout(NEW_KEY_BOUND_S):
        for url in urls:
            while await status(http, url, headers=present) != HTTPStatus.OK:  # noqa: ASYNC110
                await asyncio.sleep(0.1)
            assert await status(http, url, headers=former) == HTTPStatus.UNAUTHORIZED
    for member in cluster.members:
        topics = f"{cluster.elsewhere(member)}/admin/v2/namespaces/{NAMESPACE}/topics"
        assert await status(http, topics) == HTTPStatus.OK


# The last one: the leader's node stays wrong.
async def test_a_stranger_whose_url_the_leaders_node_names_is_shown_no_token(
    cluster: OpenCluster, http: aiohttp.ClientSession
) -> None:
    asked: list[str | None] = []

    async def overhear(request: web.Request) -> web.Response:
        asked.append(request.headers.get("Authorization"))
        return web.Response(status=HTTPStatus.SERVICE_UNAVAILABLE)

    stranger = web.Application()
    stranger.router.add_route("*", "/{any:.*}", overhear)
    # Nobody owns bundles of a new namespace, so that the leader is asked.
    url = f"{cluster.members[0].sidecar_url}/admin/v2/namespaces/public/new"
    async with http.put(url, json={"bundles": {"numBundles": BUNDLES}}) as made:
        assert made.status == HTTPStatus.NO_CONTENT
    topics = topic_names(BUNDLES, Boundaries.even(Namespace("public/new"), BUNDLES), HASH)
    async with TestServer(stranger, host=cluster.address) as server:
        await cluster.name_as_leader(str(server.make_url("")))
        for number, topic in enumerate(topics):
            # Every other question goes to a sidecar that has to ask the leader's.
            url = cluster.elsewhere(cluster.members[number % 2])
            path = f"/lookup/v2/topic/{topic.domain}/{topic.namespace}/{topic.local}"
            with suppress(TimeoutError):
                await status(http, url + path, timeout=aiohttp.ClientTimeout(total=1))
    assert set(asked) == {None}


SECRET = b"a secret of the cluster, 32 bytes"


def token(name: str) -> str:
    return jwt.encode({"sub": name}, SECRET, "HS256")


class SecuredCluster(SharingCluster):
    """The demo's cluster, its sidecars with TLS and tokens."""

    def __init__(
        self, settings: DemoSettings, children: Children, http: aiohttp.ClientSession, files: Files
    ) -> None:
        super().__init__(settings, children, http)
        self.folder = settings.data_dir
        self._files = files
        for member in self.members:
            member.sidecar_url = member.sidecar_url.replace("http:", "https:")

    def _sidecar_settings(self, member: Member) -> Table:
        return {
            **super()._sidecar_settings(member),
            "tls": {
                "certificate_file": str(self._files.certificate),
                "key_file": str(self._files.key),
                "authorities_file": str(self._files.authorities),
            },
            "security": {
                "token_secret_key_file": str(self.folder / "secret.key"),
                "own_token_file": str(self.folder / "sidecar.jwt"),
                "admins": ["operator"],
                "readers": ["sidecar"],
                "lookers": ["client"],
            },
        }


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def secured(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[SecuredCluster]:
    tmp_path = tmp_path_factory.mktemp("secured")
    files = Files(tmp_path)
    (tmp_path / "secret.key").write_bytes(SECRET)
    for name in ("sidecar", "operator", "client"):
        (tmp_path / f"{name}.jwt").write_text(token(name))
    context = ssl.create_default_context(cafile=str(files.authorities))
    async with process_cluster(
        tmp_path,
        brokers=2,
        bundles=8,
        make=partial(SecuredCluster, files=files),
        connector=aiohttp.TCPConnector(ssl=context),
        headers={"Authorization": f"Bearer {token('operator')}"},
    ) as processes:
        await processes.start()
        assert isinstance(processes.cluster, SecuredCluster)
        yield processes.cluster


async def test_sidecars_place_bundles_over_tls_with_tokens(secured: SecuredCluster) -> None:
    tmp_path = secured.folder
    context = ssl.create_default_context(cafile=str(tmp_path / "authorities.pem"))
    topics = topic_names(8, Boundaries.even(Namespace(NAMESPACE), 8), HASH)
    headers = {"Authorization": f"Bearer {token('client')}"}
    connector = aiohttp.TCPConnector(ssl=context)
    async with aiohttp.ClientSession(connector=connector, headers=headers) as client:
        for number, topic in enumerate(topics):
            # Every other question goes to a sidecar that has to ask the leader's.
            url = secured.members[number % 2].sidecar_url
            path = f"{topic.domain}/{topic.namespace}/{topic.local}"
            async with client.get(f"{url}/lookup/v2/topic/{path}") as answer:
                assert answer.status == 200, await answer.text()
        for member in secured.members:
            # Each sidecar asks the other for the topics its broker has open.
            listed = f"{member.sidecar_url}/admin/v2/namespaces/{NAMESPACE}/topics"
            async with client.get(listed) as answer:
                assert answer.status == 200, await answer.text()
        async with client.put(
            f"{secured.members[0].sidecar_url}/admin/v2/namespaces/{NAMESPACE}/unload"
        ) as refused:
            assert refused.status == 403
    served = [one for member in secured.members for one in read_record(member.record_path, None)]
    assert len({one.bundle for one in served}) == 8


async def test_people_ask_with_their_own_token_and_authority(secured: SecuredCluster) -> None:
    tmp_path = secured.folder

    async def said(name: str, *arguments: str) -> tuple[int, str]:
        environ = {
            **os.environ,
            "LOADMANAGER_URL": secured.members[0].sidecar_url,
            "LOADMANAGER_CA_FILE": str(tmp_path / "authorities.pem"),
            "LOADMANAGER_TOKEN_FILE": str(tmp_path / f"{name}.jwt"),
        }
        code, out, err = await run_command(*arguments, env=environ)
        return code, out + err

    assert (await said("operator", "leader"))[0] == 0
    code, told = await said("client", "leader")
    assert (code, "client may not do this; it needs the role read" in told) == (1, True)
    log = (tmp_path / "sidecar-1.log").read_text()
    assert "admin.change.answered" in log  # the cluster's namespace was made by the operator
    assert token("operator") not in log
