"""The history that ``loadmanager attach --history`` writes."""

import re
import secrets
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

from prometheus_client import CollectorRegistry

from loadmanager.adapters.history import open_history
from loadmanager.attach.discovery import Addresses, PulsarCluster
from loadmanager.attach.recording import AttachHistory
from loadmanager.attach.strategy import Strategy
from loadmanager.attach.tallied import Reports, Tallied
from loadmanager.cli.simulated_history import warnings_alone
from loadmanager.config.history import HistorySettings
from loadmanager.core.history import Origin
from loadmanager.core.ids import BrokerId
from loadmanager.telemetry.history import HistoryMetrics

_CLOSE_S: Final = 30.0


def host_name() -> str:
    """Return the name of this host as a part of a broker's name."""
    return re.sub(r"[^-.\w]", "_", socket.gethostname(), flags=re.ASCII) or "localhost"


@contextmanager
def recording(
    options: Mapping[str, Any], cluster: PulsarCluster, strategy: Strategy, epoch: int = 0
) -> Iterator[AttachHistory | None]:
    """Yield the history writer of a term, None if the options ask for none."""
    if options["history_dir"] is None:
        yield None
        return
    origin = Origin(cluster.name, BrokerId(f"attach-{host_name()}:0"), secrets.token_hex(8))
    settings = HistorySettings(dir=str(options["history_dir"]))
    with warnings_alone():
        sink = open_history(settings, origin, HistoryMetrics(CollectorRegistry()))
        sink.start()
        history = AttachHistory(
            sink=sink,
            strategy=strategy,
            tallied=strategy.tallied or Tallied(Reports(Addresses.of(options["url"]))),
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
