"""A sidecar that goes on renewing its broker's lease without a sign of life of its session."""

import sys

from loadmanager.agent.lease import LeaseKeeper


async def _extend(self: LeaseKeeper) -> bool:
    lease_s = self._terms.fraction * self._coordination.session.timeout_s
    until_s = self._clock.monotonic_s() + lease_s
    self._leased_until_s = self._over_at_s = until_s
    await self._renew(until_s=self._broker_clock_s + until_s - self._broker_clock_read_at_s)
    return True


LeaseKeeper._extend = _extend  # type: ignore[method-assign]  # that is the point
sys.stderr.write("build: no_self_fence\n")
