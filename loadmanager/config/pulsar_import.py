"""Pulsar's ``broker.conf`` in our words: what carries over, and what does not and why."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Final

from loadmanager.config.deployment import EVERY_ADDRESS
from loadmanager.config.describe import as_toml, keys_of, section_models
from loadmanager.config.errors import ConfigError
from loadmanager.config.java_properties import parse_properties
from loadmanager.config.pulsar_keys import (
    DEPLOYMENT,
    MISSPELT,
    SECURITY,
    TRANSLATED,
    UNUSED,
    times,
)
from loadmanager.config.sources import Given
from loadmanager.config.strategies import fields_of, own_placement
from loadmanager.core.hosts import is_loopback
from loadmanager.core.placement import PLACEMENTS
from loadmanager.core.shedding import SHEDDERS

STRATEGIES: Final[Mapping[str, Mapping[str, type]]] = {
    "shedding": SHEDDERS,
    "placement": PLACEMENTS,
}
"""The strategies that a section chooses from, by all their names."""

_SHEDDING: Final = "loadBalancerLoadSheddingStrategy"
_PLACEMENT: Final = "loadBalancerLoadPlacementStrategy"
_OF_PULSAR: Final = "AvgShedder"
_WEB_PORT: Final = "8080"
_ZOOKEEPER_PORT: Final = "2181"
_CLOSE: Final = 0.9


@dataclass(frozen=True, slots=True)
class Taken:
    """One value of ours, and Pulsar's key that it comes from."""

    section: str
    key: str
    value: object
    source: str
    subkey: str = ""


@dataclass(slots=True)
class Imported:
    """What a ``broker.conf`` came to.

    ``ignored`` gives a reason for each load-balancer key that means nothing here;
    ``foreign`` are the keys that are not about balancing or ownership at all, among them
    ``security``; ``misspelt`` gives the key that each unknown one probably stands for.
    ``faults`` are values that no value of ours stands for, one text each.
    """

    taken: list[Taken] = field(default_factory=list)
    ignored: dict[str, str] = field(default_factory=dict)
    foreign: list[str] = field(default_factory=list)
    security: list[str] = field(default_factory=list)
    misspelt: dict[str, str] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)

    def given(self, path: Path) -> Given:
        """Return the values as a source of settings, each placed by Pulsar's key."""
        given = Given(faults=[f"{path}: {fault}" for fault in self.faults])
        for one in self.taken:
            known = keys_of(one.section)[one.key]
            given.put(known, one.value, f"{path}: {one.source} -> {one.value}", one.subkey)
        return given

    def summary(self) -> Iterator[str]:
        """Yield what became of the keys that were not taken, what endangers most first."""
        for key in sorted(self.security):
            yield f"{key} dropped: security is not carried over; see [security] and [tls]"
        for key, meant in sorted(self.misspelt.items()):
            yield f"{key} dropped: no such key; did you mean {meant}?"
        for key, why in sorted(self.ignored.items()):
            yield f"{key} ignored: {why}"
        if self.foreign:
            yield f"not about load balancing, dropped: {', '.join(sorted(self.foreign))}"
        sources = {one.source for one in self.taken}
        yield (
            f"{len(sources)} settings taken, {len(self.security)} of security dropped, "
            f"{len(self.misspelt)} misspelt, {len(self.ignored)} ignored, "
            f"{len(self.foreign)} not about load balancing"
        )

    def toml(self) -> str:
        """Return a configuration file with the keys that were taken, and where each is from."""
        lines = []
        for section in section_models():
            plain = [one for one in self.taken if one.section == section and not one.subkey]
            inner = [one for one in self.taken if one.section == section and one.subkey]
            if plain or inner:
                lines += ["", f"[{section}]", *(f"{one.key} = {_line(one)}" for one in plain)]
            if inner:
                lines += ["", f"[{section}.{inner[0].key}]"]
                lines += [f"{one.subkey} = {_line(one)}" for one in inner]
        return "\n".join(lines).lstrip() + "\n"


def read_broker_conf(path: Path) -> dict[str, str]:
    """Return the keys of a Java properties file with their texts; empty ones are left out.

    Raises:
        ConfigError: the file cannot be read, or is no properties file.
    """
    try:
        found = parse_properties(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise ConfigError([f"{path}: {why}; expected Pulsar's broker.conf"]) from None
    return {key: text.strip() for key, text in found.items() if text.strip()}


def import_settings(found: Mapping[str, str], host: str) -> Imported:
    """Return what Pulsar's keys come to.

    Args:
        found: the keys of ``broker.conf`` with their texts.
        host: name of the broker's host, used where ``advertisedAddress`` is not set,
            as Pulsar uses it.
    """
    imported = Imported()
    _deploy(imported, found, host)
    chosen = _chosen(imported, found)
    for key, text in found.items():
        if key in TRANSLATED:
            _translate(imported, key, text)
        elif key in UNUSED:
            imported.ignored[key] = UNUSED[key]
        elif key not in DEPLOYMENT:
            _give_to_strategies(imported, found, chosen, key, text)
    _count_cards(imported, found)
    _outlast_reports(imported)
    return imported


def _line(one: Taken) -> str:
    return f"{as_toml(one.value)}  # {one.source}"


def _translate(imported: Imported, key: str, text: str) -> None:
    for ours in TRANSLATED[key]:
        try:
            value = ours.read(text)
        except ValueError as error:
            imported.faults.append(f"{key}={text}; {error}")
            return
        _put(imported, Taken(ours.section, ours.key, value, key))


def _put(imported: Imported, new: Taken) -> None:
    """Take a value; of two switches for one thing, the one that is off counts."""
    for at, old in enumerate(imported.taken):
        if (old.section, old.key, old.subkey) == (new.section, new.key, new.subkey):
            if old.value is not False:
                imported.taken[at] = new
            return
    imported.taken.append(new)


def _deploy(imported: Imported, found: Mapping[str, str], host: str) -> None:
    """Take in where the broker and ZooKeeper are, and how Pulsar hashes."""
    name = found.get("advertisedAddress", host)
    port = found.get("webServicePort", _WEB_PORT)
    source = " and ".join(
        [key for key in ("advertisedAddress", "webServicePort") if key in found] or ["this host"]
    )
    imported.taken.append(Taken("broker", "id", f"{name}:{port}", source))
    for key, scheme, port_key in (
        ("broker_url", "pulsar", "brokerServicePort"),
        ("broker_url_tls", "pulsar+ssl", "brokerServicePortTls"),
        ("http_url_tls", "https", "webServicePortTls"),
    ):
        if port_key in found:
            address = f"{scheme}://{name}:{found[port_key]}"
            imported.taken.append(Taken("broker", key, address, port_key))
    imported.taken.append(Taken("sidecar", "listen_host", *_listen_host(found)))
    imported.taken.append(Taken("cluster", "hash", "crc32", "as Pulsar places topics"))
    for key in ("metadataStoreUrl", "zookeeperServers"):
        if key in found:
            _reach_zookeeper(imported, key, found[key])
            return


def _listen_host(found: Mapping[str, str]) -> tuple[str, str]:
    """Return what to listen on and why; other hosts' sidecars must reach it."""
    bound = found.get("bindAddress", "")
    if bound and not is_loopback(bound):
        return bound, "bindAddress"
    return EVERY_ADDRESS[1], "so that the other sidecars reach it"


def _reach_zookeeper(imported: Imported, key: str, url: str) -> None:
    scheme, colon, rest = url.partition(":")
    if colon and scheme in {"rocksdb", "memory", "etcd", "oxia"} | {"metadata-store"}:
        imported.faults.append(f"{key}={url}; expected zk:host:port,host:port/path")
        return
    hosts, slash, chroot = (rest if scheme == "zk" else url).partition("/")
    with_ports = [one if ":" in one else f"{one}:{_ZOOKEEPER_PORT}" for one in hosts.split(",")]
    imported.taken.append(Taken("zookeeper", "hosts", ",".join(with_ports), key))
    if chroot:
        imported.ignored[f"{slash}{chroot} in {key}"] = (
            "Pulsar's own nodes are there; ours are below [zookeeper] chroot"
        )


def _chosen(imported: Imported, found: Mapping[str, str]) -> dict[str, str]:
    """Return the strategies of the file by section: those named, else Pulsar's or our own.

    A file that names no shedder, but a placement or what only Pulsar's default shedder has,
    is about that one.
    """
    shedder, placement = found.get(_SHEDDING), found.get(_PLACEMENT)
    if shedder is None:
        own = str(keys_of("shedding")["strategy"].default)
        has, lacks = fields_of(SHEDDERS[_OF_PULSAR]), fields_of(SHEDDERS[own])
        shedder = own
        if placement is not None or any(key in has and key not in lacks for key in found):
            shedder = _OF_PULSAR
            imported.taken.append(Taken("shedding", "strategy", shedder, "Pulsar's default"))
    kind = SHEDDERS.get(shedder)
    own = own_placement(kind) if kind else ""
    return {"shedding": shedder, "placement": own if placement is None else placement}


def _give_to_strategies(
    imported: Imported, found: Mapping[str, str], chosen: Mapping[str, str], key: str, text: str
) -> None:
    right = MISSPELT.get(key, key)
    if instead := _counts_instead(key, found):
        imported.ignored[key] = f"{instead} is set"
        return
    if not is_of_strategies(right):
        _drop(imported, key)
        return
    taken = list(for_strategies(right, text, chosen, source=key))
    imported.taken += taken
    if not taken:
        imported.ignored[key] = "not a setting of the chosen strategies"


def _counts_instead(key: str, found: Mapping[str, str]) -> str:
    """Return the other name of a weight with two, if that one is there and counts; else ""."""
    for older, right in MISSPELT.items():
        if older in found and right in found:
            counts = older if _is_one(found[right]) else right
            if key in {older, right} - {counts}:
                return counts
    return ""


def _drop(imported: Imported, key: str) -> None:
    meant = misspelt(key)
    if meant:
        imported.misspelt[key] = meant
    elif SECURITY.match(key):
        imported.security.append(key)
    else:
        imported.foreign.append(key)


def misspelt(key: str) -> str:
    """Return the key that an unknown one probably stands for, empty if there is none.

    A known key with something after it is another key of Pulsar's, such as
    ``allowAutoTopicCreationType``.
    """
    known = {name.casefold(): name for name in (*_all_keys(), *DEPLOYMENT)}
    text = key.casefold()
    close = get_close_matches(text, known, n=1, cutoff=_CLOSE)
    if not close or (text != close[0] and text.startswith(close[0])):
        return ""
    return known[close[0]]


def _all_keys() -> Iterator[str]:
    yield from (*TRANSLATED, *UNUSED, *MISSPELT)
    for kinds in STRATEGIES.values():
        for kind in kinds.values():
            yield from (name for name in fields_of(kind) if name.startswith("loadBalancer"))


def _is_one(text: str) -> bool:
    try:
        return float(text) == 1.0
    except ValueError:
        return False  # It is set, and reported where it is checked itself.


def is_of_strategies(key: str) -> bool:
    """Return whether any strategy has a setting that Pulsar calls ``key``."""
    kinds = {kind for known in STRATEGIES.values() for kind in known.values()}
    return any(key in fields_of(kind) for kind in kinds)


def for_strategies(
    key: str, text: str, chosen: Mapping[str, str], *, source: str
) -> Iterator[Taken]:
    """Yield a setting for each chosen strategy that has one called ``key``.

    Args:
        key: the setting's name, ours or Pulsar's.
        text: its value, in the unit that goes with the name.
        chosen: the name of the strategy in each section, ``shedding`` and ``placement``.
        source: what the value comes from.
    """
    for section, known in STRATEGIES.items():
        kind = known.get(chosen[section])
        if kind is not None and key in fields_of(kind):
            yield Taken(section, "settings", _plain(text), source, key)


def _plain(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def _count_cards(imported: Imported, found: Mapping[str, str]) -> None:
    """Multiply the speed of one network card, which Pulsar states, by the cards named."""
    cards = next((t.value for t in imported.taken if t.key == "nics"), None)
    for at, one in enumerate(imported.taken):
        if one.key == "nic_speed_mbit_per_s" and isinstance(cards, list):
            speed = times(1000 * len(cards))(found["loadBalancerOverrideBrokerNicSpeedGbps"])
            both = f"{one.source} of {len(cards)} cards"
            imported.taken[at] = Taken(one.section, one.key, speed, both)


def _outlast_reports(imported: Imported) -> None:
    """Let reports count as stale only after twice the time in which they must be renewed.

    Pulsar has no such limit, and lets reports be as old as a quarter of an hour.
    """
    usual = keys_of("leader")["report_stale_s"].default
    longest = next((one for one in imported.taken if one.key == "max_interval_s"), None)
    if longest and isinstance(longest.value, float) and isinstance(usual, float):
        stale_s = max(usual, 2 * longest.value)
        if stale_s > usual:
            source = f"twice {longest.source}"
            imported.taken.append(Taken("leader", "report_stale_s", stale_s, source))
