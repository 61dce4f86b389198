"""An observation as text for a terminal, at most 80 columns wide if names are short enough."""

from collections import Counter
from collections.abc import Iterable, Iterator

from loadmanager.attach.doctor import Finding
from loadmanager.attach.observation import Observation, refusal_text
from loadmanager.core.ids import BrokerId
from loadmanager.core.rates import total

_MOST_SHOWN = 10


def columns(seen: Observation) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    names = ("broker", "msg/s>", "of mean>", "MB/s>", "of mean>", "CPU>", "topics>", "bundles>")
    totals = {broker: sample.total for broker, sample in seen.samples.items()}
    whole, count = total(totals.values()), len(totals) or 1
    rows: list[tuple[str, ...]] = [
        (
            broker,
            f"{rates.msgs_per_s:,.0f}",
            _share(rates.msgs_per_s, whole.msgs_per_s / count),
            f"{rates.bytes_per_s / 1e6:,.2f}",
            _share(rates.bytes_per_s, whole.bytes_per_s / count),
            _cpu(seen, broker),
            f"{seen.samples[broker].topics_in_bundles:,}",
            f"{len(seen.samples[broker].bundles):,}",
        )
        for broker, rates in sorted(totals.items(), key=lambda one: -one[1].msgs_per_s)
    ]
    return names, rows


def title(seen: Observation) -> str:
    cluster = seen.cluster
    return (
        f"{cluster.name}: Pulsar {cluster.version}, {cluster.manager} load manager, "
        f"{len(cluster.brokers)} brokers"
    )


def summary(seen: Observation, *, proposals: bool = True) -> Iterator[str]:
    for broker, why in seen.missing.items():
        yield f"{broker}: no sample, so it neither gives nor takes ({why})"
    if seen.plan is not None:
        yield (
            f"fullest broker: {seen.plan.max_over_mean:.2f} times the mean; "
            f"no assignment of these bundles can be below {seen.plan.least_max_over_mean:.2f}"
        )
    if not seen.whole and seen.samples:
        yield "some topics were loaded within the window: their rates are lower bounds"
    if proposals:
        yield from _first(
            f"  cut {one.bundle} at 0x{one.cut:08x}: {one.reason}" for one in seen.splits
        )
    yield seen.verdict
    if proposals:
        yield from _first(
            f"  {number}. {move.bundle}: {move.source} -> {move.target}\n     {move.reason}"
            for number, move in enumerate(seen.proposals, 1)
        )
    yield from _first(
        f"  {one.subject}: {refusal_text(one)}" for one in seen.refusals if one.subject
    )
    staying = Counter((*seen.staying.values(), *seen.late.values())).most_common()
    yield from _first(f"  {count} stay (with traffic): {why}" for why, count in staying)


def _first(texts: Iterable[str]) -> Iterator[str]:
    every = list(texts)
    for text in every[:_MOST_SHOWN]:
        yield from text.splitlines()
    if len(every) > _MOST_SHOWN:
        yield f"  and {len(every) - _MOST_SHOWN} more (--json has all)"


def findings(found: tuple[Finding, ...]) -> Iterator[str]:
    for one in found:
        yield f"{one.level:8}{one.about}: {one.what}"
        if one.remedy:
            yield f"{'':8}-> {one.remedy}"


def _share(value: float, mean: float) -> str:
    return f"{value / mean:.2f}" if mean > 0 else "-"


def _cpu(seen: Observation, broker: BrokerId) -> str:
    sample = seen.samples[broker]
    known = None if sample.host is None else sample.host.usages.get("cpu")
    percent = sample.usages.get("cpu")
    if known is not None and known.fraction is not None:
        percent = 100 * known.fraction
    whole = [] if percent is None else [f"{percent:.0f} %"]
    if sample.cpu_cores is not None:
        whole.insert(0, f"{sample.cpu_cores:.2f} cores")
    return ", ".join(whole) or "-"
