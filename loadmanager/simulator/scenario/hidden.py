"""What work costs beyond its rates, in a scenario file; no strategy is told."""

from pydantic import Field

from loadmanager.config.forms import Section


class HiddenSettings(Section):
    """What work costs beyond its rates; no strategy is told, and model 1 has none of it.

    The defaults are assumptions, not measurements. A bundle at a new owner has cold caches
    for ``cold_s``. Its clients connect again, which takes CPU of the new owner within
    ``reconnect_spread_s``. What was not served waits and is sent later, with what room
    there is: at most what came in ``backlog_s``, at most ``catch_up_factor`` times as fast
    as it came.
    """

    bundle_cpu_spread: float = Field(
        0.2,
        ge=0,
        le=3,
        description="How unlike bundles with the same rates are in their CPU: the deviation of a "
        "log-normal factor with mean 1.",
    )
    cpu_growth: float = Field(
        0.1,
        ge=0,
        le=5,
        description="How much more CPU a full broker needs than its work says: at the fraction u "
        "of its CPU it needs u times 1 + u times this.",
    )
    cold_cpu_factor: float = Field(
        1.5,
        ge=1,
        le=100,
        description="CPU of a bundle that has just arrived, as a multiple of its usual; it falls "
        "evenly to 1.",
    )
    cold_s: float = Field(60.0, ge=0, le=86_400, description="How long that takes.")
    reconnect_cpu_ms: float = Field(
        5.0, ge=0, le=10_000, description="CPU of the new owner for each client that connects."
    )
    reconnect_spread_s: float = Field(
        10.0, gt=0, le=3600, description="How long it takes until all have connected."
    )
    backlog_s: float = Field(
        30.0,
        ge=0,
        le=86_400,
        description="How much waits at most of what was not served; producers give up the rest.",
    )
    catch_up_factor: float = Field(
        1.0, ge=0, le=100, description="How fast what waited is sent, beside what comes."
    )
