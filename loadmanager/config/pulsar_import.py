import re
import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from importlib import resources
from pathlib import Path
from typing import Final, NamedTuple

from loadmanager.config.describe import KeyDescription, as_toml, keys_of, section_models
from loadmanager.config.forms import ConfigError, plain_value
from loadmanager.config.load import GivenSettings
from loadmanager.config.sections import EVERY_ADDRESS
from loadmanager.config.strategies import KINDS, STRATEGIES, fields_of, own_placement
from loadmanager.core.hosts import is_loopback
from loadmanager.core.shedding import SHEDDERS

_BLANK: Final = " \t\f"
_LINE_END: Final = re.compile(r"\r\n|\r|\n")
_PAIR: Final = re.compile(r"\A((?:\\.|[^\\=: \t\f])*)[ \t\f]*[=:]?[ \t\f]*(.*)", re.DOTALL)
_ESCAPE: Final = re.compile(r"\\(?:u([0-9a-fA-F]{4})|(.))", re.DOTALL)
_CONTROLS: Final = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}


def parse_properties(text: str) -> dict[str, str]:
    """Of a key given twice the last value counts. Raises `ValueError`, which names the line."""
    found = {}
    for number, line in _logical_lines(text):
        [pair] = _PAIR.findall(line)
        try:
            key, value = map(_unescaped, pair)
        except ValueError as error:
            raise ValueError(f"line {number}: {error}") from None
        found[key] = value
    return found


def _logical_lines(text: str) -> Iterator[tuple[int, str]]:
    """Yield each line with its number, joined with the lines that continue it.

    A line is continued if it ends with an odd number of backslashes. A comment is not.
    """
    joined, first = "", 0
    for number, full in enumerate(_LINE_END.split(text), 1):
        line = full.lstrip(_BLANK)
        if not joined:
            if not line or line[0] in "#!":
                continue
            first = number
        continued = (len(line) - len(line.rstrip("\\"))) % 2 == 1
        joined += line[:-1] if continued else line
        if not continued:
            yield first, joined
            joined = ""
    if joined:
        yield first, joined


def _unescaped(text: str) -> str:
    plain = _ESCAPE.sub(_character, text)
    try:
        # Two escapes may be the halves of one character.
        return plain.encode("utf-16-le", "surrogatepass").decode("utf-16-le")
    except UnicodeDecodeError:
        raise ValueError(f"{text!r} has half a character; expected both of its escapes") from None


def _character(escape: re.Match[str]) -> str:
    code, plain = escape.groups()
    if code:
        return chr(int(code, 16))
    if plain == "u":
        what = escape.string[escape.start() : escape.start() + 6]
        raise ValueError(rf"{what!r}; expected four hexadecimal digits after \u")
    return _CONTROLS.get(plain, plain)


def switch(text: str) -> bool:
    words = {"true": True, "false": False}
    if text.strip().lower() not in words:
        raise ValueError("expected true or false")
    return words[text.strip().lower()]


def names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def whole(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise ValueError("expected a whole number") from None


def times(factor: float) -> Callable[[str], float]:
    """Return a reader that turns a number in Pulsar's unit into ours."""

    def read(text: str) -> float:
        try:
            number = float(text)
        except ValueError:
            raise ValueError("expected a number") from None
        return number * factor if factor >= 1 else number / round(1 / factor)

    return read


def level(text: str) -> str:
    """Return the least severity to log for a switch of debugging."""
    return "debug" if switch(text) else "info"


_READERS: Final[Mapping[str, Callable[[str], object]]] = {
    "level": level,
    "milliseconds": times(0.001),
    "minutes": times(60),
    "names": names,
    "percent": times(0.01),
    "switch": switch,
    "text": str.strip,
    "thousands": times(1000),
    "whole": whole,
}
_KEYS: Final = tomllib.loads(
    resources.files(__package__).joinpath("pulsar_keys.toml").read_text(encoding="utf-8")
)
TRANSLATED: Final[Mapping[str, tuple[Callable[[str], object], tuple[KeyDescription, ...]]]] = {
    name: (
        _READERS[how],
        tuple(keys_of(section)[key] for section, _, key in (one.partition(".") for one in ours)),
    )
    for name, (how, *ours) in _KEYS["translated"].items()
}
"""What reads a value of Pulsar's key, with ValueError for one that means nothing, and our keys."""

UNUSED: Final[Mapping[str, str]] = _KEYS["unused"]
"""Keys of load balancing that mean nothing here, with the reason."""

MISSPELT: Final[Mapping[str, str]] = _KEYS["misspelt"]
"""Older names of weights; as in Pulsar, they count where the right name has its default, 1.0."""

DEPLOYMENT: Final[frozenset[str]] = frozenset(_KEYS["deployment"]["keys"])
"""Keys that say where broker and ZooKeeper are; `import_settings` joins them."""

SECURITY: Final = re.compile(
    "(authenticat|authoriz|anonymousUserRole|superUserRoles|proxyRoles|token|tls|sasl|kinit|athenz"
    "|brokerClient(Tls|Trust|Key|Authentication|Ssl)|bookkeeper(TLS|ClientAuthentication)"
    "|encryption|zookeeper.*acl|kerberos|ssl)",
    re.IGNORECASE,
)
"""Keys about access rights and TLS: what they protect is open until it is set up here."""


_SHEDDING: Final = "loadBalancerLoadSheddingStrategy"
_PLACEMENT: Final = "loadBalancerLoadPlacementStrategy"
_OF_PULSAR: Final = "AvgShedder"
_WEB_PORT: Final = "8080"
_ZOOKEEPER_PORT: Final = "2181"
_CLOSE: Final = 0.9


class Taken(NamedTuple):
    value: object
    source: str


@dataclass(slots=True)
class Imported:
    """The settings of a ``broker.conf``.

    ``taken`` has the values by section, key and, of a key that is a table, its entry.
    ``ignored`` gives a reason for each load-balancer key that means nothing here;
    ``foreign`` are the keys that are not about balancing or ownership at all, among them
    ``security``; ``misspelt`` gives the key that each unknown one probably stands for.
    ``faults`` are values that are not valid, one text each.
    """

    taken: dict[tuple[str, str, str], Taken] = field(default_factory=dict)
    ignored: dict[str, str] = field(default_factory=dict)
    foreign: list[str] = field(default_factory=list)
    security: list[str] = field(default_factory=list)
    misspelt: dict[str, str] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)

    def take(self, section: str, key: str, value: object, source: str, subkey: str = "") -> None:
        """Take a value; of two switches for one thing, the one that is off counts."""
        at = section, key, subkey
        if at not in self.taken or self.taken[at].value is not False:
            self.taken[at] = Taken(value, source)

    def given(self, path: Path) -> GivenSettings:
        given = GivenSettings(faults=[f"{path}: {fault}" for fault in self.faults])
        for (section, key, subkey), (value, source) in self.taken.items():
            known = keys_of(section)[key]
            given.put(known, value, f"{path}: {source} -> {value}", subkey)
        return given

    def summary(self) -> Iterator[str]:
        for key in sorted(self.security):
            yield f"{key} dropped: security is not carried over; see [security] and [tls]"
        for key, meant in sorted(self.misspelt.items()):
            yield f"{key} dropped: no such key; did you mean {meant}?"
        for key, why in sorted(self.ignored.items()):
            yield f"{key} ignored: {why}"
        if self.foreign:
            yield f"not about load balancing, dropped: {', '.join(sorted(self.foreign))}"
        sources = {one.source for one in self.taken.values()}
        yield (
            f"{len(sources)} settings taken, {len(self.security)} of security dropped, "
            f"{len(self.misspelt)} misspelt, {len(self.ignored)} ignored, "
            f"{len(self.foreign)} not about load balancing"
        )

    def toml(self) -> str:
        """Return a configuration file with the keys that were taken, and where each is from."""
        lines = []
        for section in section_models():
            plain: list[str] = []
            inner: list[str] = []
            for (its_section, key, subkey), (value, source) in self.taken.items():
                if its_section == section:
                    line = f"{subkey or key} = {as_toml(value)}  # {source}"
                    (inner if subkey else plain).append(line)
            if plain or inner:
                lines += ["", f"[{section}]", *plain]
            if inner:
                lines += ["", f"[{section}.settings]", *inner]
        return "\n".join(lines).lstrip() + "\n"


def read_broker_conf(path: Path) -> dict[str, str]:
    """Empty texts are left out. Raises `ConfigError`: it is no properties file."""
    try:
        found = parse_properties(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise ConfigError([f"{path}: {why}; expected Pulsar's broker.conf"]) from None
    return {key: text.strip() for key, text in found.items() if text.strip()}


def import_settings(found: Mapping[str, str], host: str) -> Imported:
    """Return the settings that Pulsar's keys in ``broker.conf`` stand for.

    ``host`` is the broker's where ``advertisedAddress`` is not set, as Pulsar uses it.
    """
    imported = Imported()
    _deploy(imported, found, host)
    chosen = _chosen(imported, found)
    for key, text in found.items():
        if key in TRANSLATED:
            try:
                read, ours = TRANSLATED[key]
                for known in ours:
                    imported.take(known.section, known.key, read(text), key)
            except ValueError as error:
                imported.faults.append(f"{key}={text}; {error}")
        elif key in UNUSED:
            imported.ignored[key] = UNUSED[key]
        elif key not in DEPLOYMENT:
            _give_to_strategies(imported, found, chosen, key, text)
    _count_cards(imported, found)
    _outlast_reports(imported)
    return imported


def _deploy(imported: Imported, found: Mapping[str, str], host: str) -> None:
    name = found.get("advertisedAddress", host)
    port = found.get("webServicePort", _WEB_PORT)
    source = " and ".join(
        [key for key in ("advertisedAddress", "webServicePort") if key in found] or ["this host"]
    )
    imported.take("broker", "id", f"{name}:{port}", source)
    for key, scheme, port_key in (
        ("broker_url", "pulsar", "brokerServicePort"),
        ("broker_url_tls", "pulsar+ssl", "brokerServicePortTls"),
        ("http_url_tls", "https", "webServicePortTls"),
    ):
        if port_key in found:
            imported.take("broker", key, f"{scheme}://{name}:{found[port_key]}", port_key)
    bound = found.get("bindAddress", "")
    if bound and not is_loopback(bound):
        imported.take("sidecar", "listen_host", bound, "bindAddress")
    else:
        why = "so that the other sidecars reach it"
        imported.take("sidecar", "listen_host", EVERY_ADDRESS[1], why)
    imported.take("cluster", "hash", "crc32", "as Pulsar places topics")
    for key in ("metadataStoreUrl", "zookeeperServers"):
        if key in found:
            _reach_zookeeper(imported, key, found[key])
            return


def _reach_zookeeper(imported: Imported, key: str, url: str) -> None:
    scheme, colon, rest = url.partition(":")
    if colon and scheme in {"rocksdb", "memory", "etcd", "oxia"} | {"metadata-store"}:
        imported.faults.append(f"{key}={url}; expected zk:host:port,host:port/path")
        return
    hosts, slash, chroot = (rest if scheme == "zk" else url).partition("/")
    with_ports = [one if ":" in one else f"{one}:{_ZOOKEEPER_PORT}" for one in hosts.split(",")]
    imported.take("zookeeper", "hosts", ",".join(with_ports), key)
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
            imported.take("shedding", "strategy", shedder, "Pulsar's default")
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
    if not any(right in fields_of(kind) for kind in KINDS):
        if meant := misspelt(key):
            imported.misspelt[key] = meant
        else:
            (imported.security if SECURITY.match(key) else imported.foreign).append(key)
        return
    sections = sections_with(right, chosen)
    for section in sections:
        imported.take(section, "settings", plain_value(text), key, right)
    if not sections:
        imported.ignored[key] = "not a setting of the chosen strategies"


def _counts_instead(key: str, found: Mapping[str, str]) -> str:
    """Return the other name of a weight with two, if that one is there and counts; else "".

    Which one counts is Pulsar's accident `misspelt-weight`.
    """
    for older, right in MISSPELT.items():
        if older in found and right in found:
            counts = older if _is_one(found[right]) else right
            if key in {older, right} - {counts}:
                return counts
    return ""


def misspelt(key: str) -> str:
    """Return the key that an unknown one probably stands for, empty if there is none.

    A known key with something after it is another key of Pulsar's, such as
    ``allowAutoTopicCreationType``.
    """
    settings = {name for kind in KINDS for name in fields_of(kind)}
    names = {*TRANSLATED, *UNUSED, *MISSPELT, *DEPLOYMENT}
    names |= {name for name in settings if name.startswith("loadBalancer")}
    known = {name.casefold(): name for name in sorted(names)}
    text = key.casefold()
    close = get_close_matches(text, known, n=1, cutoff=_CLOSE)
    if not close or (text != close[0] and text.startswith(close[0])):
        return ""
    return known[close[0]]


def _is_one(text: str) -> bool:
    try:
        return float(text) == 1.0
    except ValueError:
        return False  # It is set, and reported where it is checked itself.


def sections_with(key: str, chosen: Mapping[str, str]) -> list[str]:
    """Return the sections whose chosen strategy has a setting called ``key``, by us or Pulsar.

    ``chosen`` is the name of the strategy in each section, ``shedding`` and ``placement``.
    """
    return [
        section
        for section, known in STRATEGIES.items()
        if chosen[section] in known and key in fields_of(known[chosen[section]])
    ]


def _count_cards(imported: Imported, found: Mapping[str, str]) -> None:
    """Multiply the speed of one network card, which Pulsar states, by the cards named."""
    cards = imported.taken.get(("host", "nics", ""))
    speed = imported.taken.get(("host", "nic_speed_mbit_per_s", ""))
    if cards is not None and speed is not None and isinstance(cards.value, list):
        count = len(cards.value)
        both = times(1000 * count)(found["loadBalancerOverrideBrokerNicSpeedGbps"])
        imported.take("host", "nic_speed_mbit_per_s", both, f"{speed.source} of {count} cards")


def _outlast_reports(imported: Imported) -> None:
    """Let reports count as stale only after twice the time in which they must be renewed.

    Pulsar has no such limit, and lets reports be as old as a quarter of an hour.
    """
    usual = keys_of("leader")["report_stale_s"].default
    longest = imported.taken.get(("report", "max_interval_s", ""))
    if longest and isinstance(longest.value, float) and isinstance(usual, float):
        stale_s = max(usual, 2 * longest.value)
        if stale_s > usual:
            imported.take("leader", "report_stale_s", stale_s, f"twice {longest.source}")
