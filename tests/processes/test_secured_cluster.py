import asyncio
import os
import ssl
import sys
from collections.abc import AsyncIterator
from functools import partial

import aiohttp
import jwt
import pytest
import pytest_asyncio
from cluster_processes import SharingCluster, process_cluster
from tls_files import Files

from loadmanager.core.bundles import Boundaries
from loadmanager.core.ids import Namespace
from loadmanager.demo.children import Children
from loadmanager.demo.cluster import HASH, NAMESPACE, Member, Table
from loadmanager.demo.settings import DemoSettings
from loadmanager.demo.traffic import topic_names
from loadmanager.reference_broker.changes import read_record

pytestmark = [
    pytest.mark.processes,
    pytest.mark.timeout(300),
    pytest.mark.asyncio(loop_scope="module"),
]
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
async def cluster(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[SecuredCluster]:
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


async def test_sidecars_place_bundles_over_tls_with_tokens(cluster: SecuredCluster) -> None:
    tmp_path = cluster.folder
    context = ssl.create_default_context(cafile=str(tmp_path / "authorities.pem"))
    topics = topic_names(8, Boundaries.even(Namespace(NAMESPACE), 8), HASH)
    headers = {"Authorization": f"Bearer {token('client')}"}
    connector = aiohttp.TCPConnector(ssl=context)
    async with aiohttp.ClientSession(connector=connector, headers=headers) as client:
        for number, topic in enumerate(topics):
            # Every other question goes to a sidecar that has to ask the leader's.
            url = cluster.members[number % 2].sidecar_url
            path = f"{topic.domain}/{topic.namespace}/{topic.local}"
            async with client.get(f"{url}/lookup/v2/topic/{path}") as answer:
                assert answer.status == 200, await answer.text()
        for member in cluster.members:
            # Each sidecar asks the other for the topics its broker has open.
            listed = f"{member.sidecar_url}/admin/v2/namespaces/{NAMESPACE}/topics"
            async with client.get(listed) as answer:
                assert answer.status == 200, await answer.text()
        async with client.put(
            f"{cluster.members[0].sidecar_url}/admin/v2/namespaces/{NAMESPACE}/unload"
        ) as refused:
            assert refused.status == 403
    served = [one for member in cluster.members for one in read_record(member.record_path, None)]
    assert len({one.bundle for one in served}) == 8


async def test_people_ask_with_their_own_token_and_authority(cluster: SecuredCluster) -> None:
    tmp_path = cluster.folder

    async def said(name: str, *arguments: str) -> tuple[int, str]:
        environ = {
            **os.environ,
            "LOADMANAGER_URL": cluster.members[0].sidecar_url,
            "LOADMANAGER_CA_FILE": str(tmp_path / "authorities.pem"),
            "LOADMANAGER_TOKEN_FILE": str(tmp_path / f"{name}.jwt"),
        }
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "loadmanager", *arguments),
            env=environ,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        out, _ = await process.communicate()
        return process.returncode or 0, out.decode()

    assert (await said("operator", "leader"))[0] == 0
    code, told = await said("client", "leader")
    assert (code, "client may not do this; it needs the role read" in told) == (1, True)
    log = (tmp_path / "sidecar-1.log").read_text()
    assert "admin.change.answered" in log  # the cluster's namespace was made by the operator
    assert token("operator") not in log
