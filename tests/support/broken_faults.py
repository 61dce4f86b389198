"""`tests.testbed.faults` on sidecars whose lease never ends: a build that must be found out."""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial

from loadmanager.common.context import Context
from loadmanager.core.ids import BundleId, TopicName
from loadmanager.core.rates import Rates
from loadmanager.ports.broker import BrokerControl, BrokerState, BrokerStats
from tests.testbed.faults import campaign
from tests.testbed.faults.__main__ import main
from tests.testbed.faults.seed_run import run_seed

_FOR_EVER_S = 1e9


class LeaseForEver:
    """A broker control that leases for ever: nothing fences the broker any more."""

    def __init__(self, control: BrokerControl) -> None:
        self._control = control

    async def renew_lease(
        self, *, agent_epoch: int, until_s: float | None, incarnation: str | None
    ) -> BrokerState:
        return await self._control.renew_lease(
            agent_epoch=agent_epoch,
            until_s=None if until_s is None else _FOR_EVER_S,
            incarnation=incarnation,
        )

    async def stats(self) -> BrokerStats:
        return await self._control.stats()

    async def topics(self, bundle: BundleId) -> Mapping[TopicName, Rates]:
        return await self._control.topics(bundle)

    async def load(self, bundle: BundleId, *, agent_epoch: int, fencing_token: int) -> None:
        await self._control.load(bundle, agent_epoch=agent_epoch, fencing_token=fencing_token)

    async def unload(
        self, bundle: BundleId, *, agent_epoch: int, fencing_token: int, next_owner_url: str = ""
    ) -> None:
        await self._control.unload(
            bundle,
            agent_epoch=agent_epoch,
            fencing_token=fencing_token,
            next_owner_url=next_owner_url,
        )

    async def health(self, timeout_s: float) -> None:
        await self._control.health(timeout_s)

    async def close(self) -> None:
        await self._control.close()


def unfenced(context: Context) -> Context:
    """Return the parts of a sidecar that does not fence its broker."""
    return replace(context, broker=LeaseForEver(context.broker))


if __name__ == "__main__":
    vars(campaign).update(run_seed=partial(run_seed, build=unfenced))
    main()
