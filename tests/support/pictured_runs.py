"""Runs made by hand, as a simulation would return them, for what shows them."""

import numpy as np

from loadmanager.core.ids import BrokerId, BundleId
from loadmanager.core.plan import Cause
from loadmanager.simulator.results import MoveRecord, Run, Timeline, Why


def a_timeline(load: np.ndarray, *, every_s: float = 60.0) -> Timeline:
    """Return a timeline of brokers whose CPU load is ``load`` (moments, brokers), NaN absent."""
    moments, brokers = load.shape
    demand = np.repeat(load[:, :, None], 4, axis=2).astype(np.float32)
    demand[:, :, 1:] *= 0.5
    return Timeline(
        time_s=np.arange(moments, dtype=np.float64) * every_s,
        brokers=tuple(BrokerId(f"large-{number}:8080") for number in range(1, brokers + 1)),
        demand=demand,
        bytes_per_s=np.where(np.isfinite(load), load * 1e6, 0).astype(np.float32),
        bundles=np.full(load.shape, 10, dtype=np.int32),
        bound=np.full(moments, 0.4, dtype=np.float32),
        unowned_msgs_per_s=np.zeros(moments, dtype=np.float32),
        excess=np.zeros(moments, dtype=np.float32),
        unmoved_cpu=np.zeros(load.shape, dtype=np.float32),
    )


def a_move(at_s: float, number: int = 0, *, placed: bool = False) -> MoveRecord:
    """Return a move from the first broker to the second, or of a bundle nobody had."""
    return MoveRecord(
        at_s=at_s,
        bundle=BundleId(f"shop/orders/0x{number:08x}_0x{number + 1:08x}"),
        source=None if placed else BrokerId("large-1:8080"),
        target=BrokerId("large-2:8080"),
        why=Why.PLACED if placed else Why.SHED,
        cause=Cause.UNOWNED if placed else Cause.OVERLOADED,
        msgs_per_s=1500.0,
        bytes_per_s=1_000.0 * (number + 1),
        interrupted_client_s=2.5,
    )


def a_run(load: np.ndarray, *moves: MoveRecord, every_s: float = 60.0, **changed: object) -> Run:
    fields: dict[str, object] = {
        "warm_up_s": 120.0,
        "duration_s": len(load) * every_s,
        "timeline": a_timeline(load, every_s=every_s),
        "moves": moves,
        "rounds": len(load),
        "refusals": {"within_threshold": 12},
        "interrupted_client_s": 2.5 * len(moves),
        "happened": ((300.0, "large-2 joins"),),
        **changed,
    }
    return Run(**fields)  # type: ignore[arg-type] # a test names fields of any type
