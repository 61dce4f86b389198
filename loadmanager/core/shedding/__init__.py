from collections.abc import Mapping
from typing import Final

from loadmanager.core.shedding.avg import AvgShedder
from loadmanager.core.shedding.contract import Deciding, Shed, Shedder, Spread
from loadmanager.core.shedding.joint import JointShedder, MovePrice
from loadmanager.core.shedding.overload import OverloadShedder
from loadmanager.core.shedding.threshold import ThresholdShedder
from loadmanager.core.shedding.transfer import TransferShedder
from loadmanager.core.shedding.uniform import UniformLoadShedder

_MODULAR: Final = "org.apache.pulsar.broker.loadbalance.impl"
_EXTENSIBLE: Final = "org.apache.pulsar.broker.loadbalance.extensions.scheduler"

SHEDDERS: Final[Mapping[str, type[Shedder]]] = {
    **{
        name: kind
        for short, package, kind in (
            ("threshold", _MODULAR, ThresholdShedder),
            ("overload", _MODULAR, OverloadShedder),
            ("uniform", _MODULAR, UniformLoadShedder),
            ("avg", _MODULAR, AvgShedder),
            ("transfer", _EXTENSIBLE, TransferShedder),
        )
        for name in (short, kind.__name__, f"{package}.{kind.__name__}")
    },
    "joint": JointShedder,
}
"""Each strategy by our short name, Pulsar's class name, and that with its package."""

__all__ = [
    "SHEDDERS",
    "AvgShedder",
    "Deciding",
    "JointShedder",
    "MovePrice",
    "OverloadShedder",
    "Shed",
    "Shedder",
    "Spread",
    "ThresholdShedder",
    "TransferShedder",
    "UniformLoadShedder",
]
