import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping

import structlog

from loadmanager.core.ids import BrokerId, BundleId
from loadmanager.core.plan import Refusal
from loadmanager.ports.lookup import LookupRefused, NotLeader, Unavailable
from loadmanager.telemetry.metrics import Metrics

log = structlog.get_logger()

Refusals = Mapping[BundleId, tuple[Refusal, ...]]


class PlacementQueue:
    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._answers: dict[BundleId, asyncio.Future[BrokerId]] = {}

    def __iter__(self) -> Iterator[BundleId]:
        return iter(self._answers)

    def ask(self, bundle: BundleId) -> tuple[asyncio.Future[BrokerId], bool]:
        """Return the future answer, and whether this is the first request for it."""
        new = bundle not in self._answers
        if new:
            self._answers[bundle] = asyncio.get_running_loop().create_future()
        return self._answers[bundle], new

    def answer_planned(self, planned: Callable[[BundleId], BrokerId | None]) -> None:
        """Answer for bundles that have a planned owner by now: by a former leader or a repair."""
        for bundle in list(self._answers):
            broker = planned(bundle)
            if broker is not None:
                self._answers.pop(bundle).set_result(broker)

    def answer(
        self,
        placed: Mapping[BundleId, BrokerId],
        refusals: Refusals,
        not_ordered: Mapping[BundleId, str],
    ) -> None:
        """Answer with the placed brokers, refusals, and reasons why choices were not ordered."""
        for bundle, broker in placed.items():
            self._metrics.assignments.labels("placed").inc()
            log.info("bundle.assignment.decided", bundle=bundle, target=broker)
            future = self._answers.pop(bundle, None)
            if future and not future.done():
                future.set_result(broker)
        for bundle, reasons in refusals.items():
            self._metrics.assignments.labels("refused").inc()
            self._refuse(bundle, Unavailable(f"no broker can take {bundle} ({why(reasons)})"))
        for bundle, reason in not_ordered.items():
            self._refuse(bundle, Unavailable(f"{bundle} could not be ordered: {reason}"))

    def refuse_all(self, reason: str) -> None:
        for bundle in list(self._answers):
            self._refuse(bundle, Unavailable(reason))

    def end(self, epoch: int) -> None:
        for bundle in list(self._answers):
            self._refuse(bundle, NotLeader(f"epoch {epoch} is over"))

    def _refuse(self, bundle: BundleId, error: LookupRefused) -> None:
        future = self._answers.pop(bundle, None)
        if future and not future.done():
            future.set_exception(error)
            future.exception()  # The requester may be gone; the error is then no fault.


def why(reasons: Iterable[Refusal]) -> str:
    return ", ".join(reason.detail or reason.reason.value for reason in reasons)
