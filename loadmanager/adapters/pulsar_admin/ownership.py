import asyncio
from collections.abc import Callable, Collection, Mapping, Sized
from contextlib import suppress
from dataclasses import dataclass
from http import HTTPStatus
from typing import Final
from urllib.parse import quote

from loadmanager.adapters.pulsar_admin.client import (
    AnswerRefused,
    NotPulsar,
    PulsarAdmin,
    PulsarAdminError,
    RequestFailed,
    answer_of,
)
from loadmanager.core.errors import InvalidName
from loadmanager.core.ids import BrokerId, BundleId, TopicName, parse_bundle

_COUNTERS: Final = ("msgInCounter", "msgOutCounter", "bytesInCounter", "bytesOutCounter")


async def read_owned(
    admin: PulsarAdmin, url: str, cluster: str, broker: BrokerId, before: Sized = ()
) -> Mapping[BundleId, bool]:
    """Return the bundles, without those of version 1, and whether each is active.

    One that is not active is being unloaded: its topics are closed one by one. Raises as
    `PulsarAdmin.json`, and `NotPulsar`: the answer is no object, or is empty unlike ``before``.
    """
    where = f"{url}/admin/v2/brokers/{quote(cluster, safe='')}/{broker}/ownedNamespaces"
    answer = await admin.json(where)
    if not isinstance(answer, dict):
        raise NotPulsar(f"{where}: answered {str(answer)[:60]!r}; expected an object of bundles")
    owned: dict[BundleId, bool] = {}
    for name, status in answer.items():
        with suppress(InvalidName):
            closing = isinstance(status, dict) and status.get("is_active") is False
            owned[parse_bundle(name)] = not closing
    if before and not owned:
        raise NotPulsar(f"{where}: lists no bundle; expected about {len(before):,}, as before")
    return owned


@dataclass(frozen=True, slots=True)
class BrokerQueries:
    admin: PulsarAdmin
    address: Callable[[BrokerId], str]
    cluster: str
    brokers: Callable[[], Collection[BrokerId]]

    async def owned(self, broker: BrokerId) -> Mapping[BundleId, bool]:
        return await read_owned(self.admin, self.address(broker), self.cluster, broker)

    async def serves(self, broker: BrokerId, *bundles: BundleId) -> bool:
        """Return whether a broker reports that it serves all of these; raises as `read_owned`."""
        owned = await self.owned(broker)
        return all(owned.get(one, False) for one in bundles)

    async def surely_serves(self, broker: BrokerId, bundle: BundleId) -> bool:
        """Return as `serves`, but False for a broker that does not answer."""
        try:
            return await self.serves(broker, bundle)
        except RequestFailed:
            return False

    async def owner(self, bundle: BundleId, *, but: BrokerId | None = None) -> BrokerId | None:
        """Return a broker other than ``but`` that serves a bundle; raises as `surely_serves`."""
        asked = [broker for broker in self.brokers() if broker != but]
        serve = await asyncio.gather(*(self.surely_serves(one, bundle) for one in asked))
        return next((one for one, does in zip(asked, serve, strict=True) if does), None)

    async def look_up(self, broker: BrokerId, topic: TopicName) -> bool:
        """Look up a topic at a broker, which then acquires its bundle if no other broker has it.

        Returns False if the answer is that there is no such topic.
        """
        local = quote(topic.local, safe="")
        path = f"/lookup/v2/topic/{topic.domain}/{topic.namespace}/{local}"
        try:
            await self.admin.text(f"{self.address(broker)}{path}?authoritative=true")
        except RequestFailed as error:
            return not (isinstance(error, AnswerRefused) and error.status == HTTPStatus.NOT_FOUND)
        return True

    async def counted(self, broker: BrokerId, topic: TopicName) -> float | None:
        """Return what a topic has counted since the broker loaded it, None if it cannot load it.

        Pulsar loads a topic in order to answer.
        """
        local = quote(topic.local, safe="")
        path = f"/admin/v2/{topic.domain}/{topic.namespace}/{local}/stats"
        try:
            with answer_of(self.address(broker)):
                stats = await self.admin.json(f"{self.address(broker)}{path}")
                counts = (stats.get(name, 0) for name in _COUNTERS)
                return float(sum(one for one in counts if isinstance(one, int | float)))
        except PulsarAdminError:
            return None

    async def why_not_ready(self, broker: BrokerId) -> str:
        """Return why a broker is not ready for bundles, "" if it is; raises as `surely_serves`."""
        try:
            ready = await self.admin.text(f"{self.address(broker)}/admin/v2/brokers/ready")
        except RequestFailed as error:
            return str(error)
        if ready.strip() != "ok":
            return f"{broker} says {ready[:60]!r} of itself; expected 'ok'"
        return ""
