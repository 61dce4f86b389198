"""`tests.testbed.faults` on sidecars whose lease never ends: a build that must be found out."""

from dataclasses import replace
from functools import partial
from typing import Any, cast

from loadmanager.common.context import Context
from loadmanager.ports.broker import BrokerControl, BrokerState
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

    def __getattr__(self, name: str) -> Any:
        return getattr(self._control, name)


def unfenced(context: Context) -> Context:
    return replace(context, broker=cast("BrokerControl", LeaseForEver(context.broker)))


if __name__ == "__main__":
    vars(campaign).update(run_seed=partial(run_seed, build=unfenced))
    main()
