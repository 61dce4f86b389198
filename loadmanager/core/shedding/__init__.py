"""Which bundles should leave which brokers: one strategy a file, and the table of them."""

from collections.abc import Mapping
from typing import Final

from loadmanager.core.shedding.contract import Shed, Shedder
from loadmanager.core.shedding.threshold import ThresholdShedder

SHEDDERS: Final[Mapping[str, type[Shedder]]] = {
    "threshold": ThresholdShedder,
    "ThresholdShedder": ThresholdShedder,
    "org.apache.pulsar.broker.loadbalance.impl.ThresholdShedder": ThresholdShedder,
}
"""Each strategy by our short name, Pulsar's class name, and that with its package."""

__all__ = ["SHEDDERS", "Shed", "Shedder", "ThresholdShedder"]
