"""The history that ``loadmanager attach --history`` writes."""

import re
import secrets
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from prometheus_client import CollectorRegistry

from loadmanager.adapters.history import open_history
from loadmanager.attach.discovery import PulsarCluster, addresses
from loadmanager.attach.recording import AttachHistory
from loadmanager.attach.sampled_loads import SampledLoads
from loadmanager.attach.strategy import Strategy
from loadmanager.cli.simulated_history import warnings_alone
from loadmanager.config.history import HistorySettings
from loadmanager.core.history import Origin
from loadmanager.core.ids import BrokerId
from loadmanager.telemetry.history import HistoryMetrics

if TYPE_CHECKING:
    from loadmanager.attach.observation import Observation
    from loadmanager.cli.attach_output import DecisionLog
    from loadmanager.core.bundle_task import BundleTask

_CLOSE_S: Final = 30.0
_NO_HOST: Final = re.compile(r"[^-.\w]", re.ASCII)


@contextmanager
def recording(
    options: Mapping[str, Any], cluster: PulsarCluster, strategy: Strategy, epoch: int = 0
) -> Iterator[AttachHistory | None]:
    """Yield the history writer of a term, None if the options ask for none."""
    if options["history_dir"] is None:
        yield None
        return
    host = _NO_HOST.sub("_", socket.gethostname()) or "localhost"
    origin = Origin(cluster.name, BrokerId(f"attach-{host}:0"), secrets.token_hex(8))
    settings = HistorySettings(dir=str(options["history_dir"]))
    with warnings_alone():
        sink = open_history(settings, origin, HistoryMetrics(CollectorRegistry()))
        sink.start()
        history = AttachHistory(
            sink=sink,
            strategy=strategy,
            loads=strategy.loads or SampledLoads(addresses(options["url"])),
            interval_s=options["interval_s"],
            most_moves=options["most_moves"],
            balances=options["balance"],
            epoch=epoch,
            base_every_rounds=settings.base_every_rounds,
        )
        history.began()
        try:
            yield history
        finally:
            history.ended()
            sink.close(_CLOSE_S)


@dataclass(slots=True)
class RecordedLog:
    """Prints what a balancer sees, decides and does, and writes it to history."""

    log: "DecisionLog"
    history: AttachHistory
    _trouble: str = ""

    def round(self, seen: "Observation", held: str) -> None:
        """Write one observation of the cluster, and report errors of the files."""
        self.history.round(seen, held)
        self.log.round(seen, held)
        trouble = self.history.sink.trouble
        if trouble and not self._trouble:
            self.log.event(f"history is not written: {trouble}")
        self._trouble = trouble

    def task(self, task: "BundleTask", why: str) -> None:
        """Report a task in a new state."""
        self.history.task(task)
        self.log.task(task, why)

    def event(self, what: str) -> None:
        """Report anything else."""
        self.log.event(what)
