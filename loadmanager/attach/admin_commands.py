"""The proposed moves and splits as commands of ``pulsar-admin``, to be read, signed off and run.

With the modular load manager a destination is only a wish, which the first lookup of any client
uses up. There each move ends with the lookup that makes the target serve the bundle: it is
written for ``curl``, because ``pulsar-admin`` cannot send it.
"""

from collections.abc import Callable, Iterator
from shlex import join
from typing import Final
from urllib.parse import quote

from loadmanager.attach.observation import Observation
from loadmanager.attach.orders import CUT_AT
from loadmanager.attach.placing import name_in
from loadmanager.attach.pulsar_balancer import SHEDDING
from loadmanager.attach.tasks import Proposal
from loadmanager.core.filters import version_rank
from loadmanager.core.ids import BrokerId, BundleId, parse_full_topic

_WITH_DESTINATIONS: Final = (3,)
"""The first version whose ``namespaces unload`` has ``--destinationBroker``."""


def commands(seen: Observation, address: Callable[[BrokerId], str]) -> Iterator[str]:
    cluster = seen.cluster
    yield _comment(f"{cluster.name}, Pulsar {cluster.version}, {cluster.manager} load manager")
    yield _comment(seen.verdict)
    for broker, why in seen.missing.items():
        yield _comment(f"{broker} takes no part: {why}")
    if "true" in cluster.differing(SHEDDING):
        off = f"brokers update-dynamic-config --config {SHEDDING} --value false"
        yield _comment("Pulsar's own shedding is on, and may undo these moves; to switch it off:")
        yield _comment(f"pulsar-admin {off}")
    if cluster.manager != "extensible" and seen.proposals:
        yield _comment("Where brokers require authentication, give curl the header of a token.")
    for number, one in enumerate((*seen.splits, *seen.proposals), 1):
        yield ""
        yield _comment(f"{number}. {one.source} -> {one.target}: {one.reason}")
        if one.cut is not None:
            yield _split(one)
        elif one.bundle in {split.bundle for split in seen.splits}:
            yield _comment(f"{one.bundle} is split: propose the moves of its parts afterwards")
        else:
            yield _move(seen, one, address)


def _split(one: Proposal) -> str:
    named = ["--split-algorithm-name", CUT_AT, "--split-boundaries", str(one.cut)]
    return join([*_command("split-bundle", one.bundle), *named])


def _move(seen: Observation, one: Proposal, address: Callable[[BrokerId], str]) -> str:
    command = _command("unload", one.bundle)
    if version_rank(seen.cluster.version) >= _WITH_DESTINATIONS:
        command += ["--destinationBroker", one.target]
    if seen.cluster.manager == "extensible" or one.source is None:
        return join(command)
    loaded = seen.samples[one.source].bundles[one.bundle].topic
    topic = parse_full_topic(loaded) if loaded else name_in(one.bundle)
    if topic is None:
        return join(command)
    where = f"{topic.domain}/{topic.namespace}/{quote(topic.local, safe='')}"
    claim = f"{address(one.target)}/lookup/v2/topic/{where}?authoritative=true"
    return f"{join(command)} && {join(['curl', '-fsS', '-o', '/dev/null', claim])}"


def _command(name: str, bundle: BundleId) -> list[str]:
    namespace, _, bounds = bundle.rpartition("/")
    return ["pulsar-admin", "namespaces", name, namespace, "--bundle", bounds]


def _comment(text: str) -> str:
    shown = "".join(one if one.isprintable() else " " for one in text)
    return f"# {shown}"
