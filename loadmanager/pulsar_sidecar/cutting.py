"""Where to cut a bundle of any broker, by the topics that this broker counts."""

import asyncio
from typing import Final

from loadmanager.adapters.pulsar_admin import Unanswered
from loadmanager.attach.discovery import PulsarCluster
from loadmanager.attach.orders import ordered_cut
from loadmanager.attach.sampling import BrokerSample, Sampler
from loadmanager.attach.splitting import topic_loads
from loadmanager.core.ids import BrokerId, BundleId, range_of
from loadmanager.core.orders import SplitOrder
from loadmanager.core.rate_splits import evenest_cut
from loadmanager.pulsar_sidecar.broker import PulsarBroker

WINDOW_S: Final = 5.0
"""How long the traffic of topics is counted for a cut."""


async def find_cut(
    broker: PulsarBroker, bundle: BundleId, split: SplitOrder, owner: BrokerId
) -> int | None:
    """Return where to cut a bundle of ``owner``, None if no cut leaves topics on both sides.

    Pulsar cuts by itself wherever its own algorithm says; several versions answer 500 to the one
    by traffic, so a position is computed here.

    Raises:
        PulsarAdminError: the owner's topics cannot be read.
    """
    cut = await ordered_cut(bundle, split, owner)
    if cut is not None:
        return cut
    found = await _read(broker, owner)
    traffic = found.bundles.get(bundle)
    if traffic is None:
        return None
    loads = list(topic_loads(found, bundle, traffic.msgs_per_s, traffic.bytes_per_s))
    if split.algorithm == "topic_count_equally_divide":
        loads = [(at, 1.0) for at, _ in loads]
    return evenest_cut(range_of(bundle)[1], loads)


async def _read(broker: PulsarBroker, owner: BrokerId) -> BrokerSample:
    alone = PulsarCluster(name=broker.cluster, brokers=(owner,), version="", manager="unknown")
    sampler = Sampler(broker.admin, broker.address)
    await sampler.sample(alone)
    await asyncio.sleep(WINDOW_S)
    samples, missing = await sampler.sample(alone)
    if owner not in samples:
        raise Unanswered(missing.get(owner, f"{owner} does not say what its topics carry"))
    return samples[owner]
