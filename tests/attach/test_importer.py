"""The leader's copies of namespaces: which ones are asked for."""

from types import SimpleNamespace
from typing import Any

from aiohttp import web
from coordination_worlds import connected
from fake_pulsar import FakePulsar, refused

from loadmanager.adapters.clock import SystemClock
from loadmanager.core import znodes
from loadmanager.core.ids import BrokerId, BundleId, Namespace
from loadmanager.pulsar.client import Access, PulsarAdmin
from loadmanager.pulsar.observation import Rules
from loadmanager.pulsar.sidecar_term import Importer, PulsarBroker
from tests.testbed.memory import MemoryCoordination, MemoryService


async def test_a_deleted_namespace_is_not_asked_for_again(pulsar: FakePulsar) -> None:
    first = pulsar.brokers[0]
    bundle = BundleId(first.owned[0])
    asked: list[str] = []

    async def gone(request: web.Request) -> web.Response:
        asked.append(request.path)
        return refused(404, "Namespace does not exist")

    async def unknown(_: Namespace) -> None:
        return

    session = MemoryCoordination(MemoryService())
    await connected(session)
    owners: dict[BundleId, Any] = {bundle: None}
    cluster_state: Any = SimpleNamespace(
        owners=owners, boundaries=unknown, reread_boundaries=unknown
    )
    context: Any = SimpleNamespace(
        clock=SystemClock(), coordination=session, cluster_state=cluster_state
    )
    admin = PulsarAdmin(Access(), known={one.name for one in pulsar.brokers})
    broker = PulsarBroker(admin, pulsar.url, BrokerId(first.name), Rules().why_stays, "research")
    importer = Importer(context, broker, "research")
    await importer.import_due()
    assert await session.get(znodes.local_policies(Namespace("bench/skew"))) is not None
    first.instead["/admin/v2/namespaces/bench/skew/bundles"] = gone
    await importer.import_due()
    owners.clear()
    assert len(asked) == 1
    importer._group_due_s = dict.fromkeys(importer._group_due_s, 0.0)  # Five minutes later.
    await importer.import_due()
    assert len(asked) == 1
    await broker.close()
    await session.close()
