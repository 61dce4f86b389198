"""What a scenario has, in words: brokers, load, time, events."""

from loadmanager.simulator.scenario import FORMER_MODEL, BrokerClass, Load, Scenario


def facts_of(name: str, scenario: Scenario) -> list[tuple[str, str]]:
    """Return what a scenario has: what is told, and the words."""
    facts = [
        ("scenario", name),
        ("brokers", "; ".join(map(_broker_class, scenario.brokers))),
        ("load", "; ".join(map(_load, scenario.load)) or "none but the trace"),
        ("time", f"{_span(scenario.duration_s)}, the first {_span(scenario.warm_up_s)} warm-up"),
        ("events", str(len(scenario.events)) if scenario.events else "none"),
    ]
    if scenario.model == FORMER_MODEL:
        facts.append(("model", "1, the former one"))
    if scenario.trace is not None:
        facts.append(("trace", str(scenario.trace)))
    return facts


def _broker_class(group: BrokerClass) -> str:
    later = "" if group.joined else ", join later"
    return (
        f"{group.count} {group.name} ({group.cores:g} cores, "
        f"{group.network_mbit_per_s / 1000:g} Gbit/s, {group.memory_mib / 1024:g} GiB{later})"
    )


def _load(load: Load) -> str:
    return (
        f"{load.namespace}: {load.topics:,} topics in {load.bundles:,} bundles, "
        f"{load.msgs_in_per_s:,.0f} messages/s of {load.message_bytes:,.0f} bytes"
    )


def _span(seconds: float) -> str:
    for unit, unit_s in (("h", 3600.0), ("min", 60.0)):
        if seconds >= unit_s:
            return f"{seconds / unit_s:.3g} {unit}"
    return f"{seconds:.3g} s"
