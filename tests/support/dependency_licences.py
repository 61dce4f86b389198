"""The licences of all packages that loadmanager needs, as installed here, and which may not be."""

import re
import tomllib
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Final

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

RULES: Final = Path(__file__).parents[1] / "release" / "licences.toml"
_WORDS: Final = re.compile(r"\s+(?:AND|OR)\s+|[()]")


def needed(package: str, without: frozenset[str] = frozenset({"test", "tools"})) -> frozenset[str]:
    """Return what a package needs with all its extras but some, and what that needs in turn."""
    told = metadata.metadata(package).get_all("Provides-Extra") or []
    wanted: dict[str, set[str]] = {canonicalize_name(package): set(told) - without}
    open_names = list(wanted)
    while open_names:
        name = open_names.pop()
        for one in _requirements(name, wanted[name]):
            known, found = wanted.get(one[0]), set(one[1])
            if known is None or not found <= known:
                wanted[one[0]] = found | (known or set())
                open_names.append(one[0])
    return frozenset(wanted.keys() - {canonicalize_name(package)})


def _requirements(name: str, extras: set[str]) -> Iterator[tuple[str, set[str]]]:
    for text in metadata.requires(name) or []:
        one = Requirement(text)
        worlds = [{"extra": extra} for extra in ("", *extras)]
        if one.marker is None or any(map(one.marker.evaluate, worlds)):
            yield canonicalize_name(one.name), one.extras


def licences(package: str, aliases: dict[str, str]) -> frozenset[str]:
    """Return the SPDX names in what a package says of its licence; none if it says nothing."""
    told = metadata.metadata(package)
    classified = [
        one.rpartition(" :: ")[2]
        for one in told.get_all("Classifier") or []
        if one.startswith("License :: ") and not one.endswith("OSI Approved")
    ]
    texts = [one.strip().partition("\n")[0] for one in told.get_all("License") or []]
    expressions = told.get_all("License-Expression")
    found = _WORDS.split(expressions[0]) if expressions else classified or texts
    return frozenset(aliases.get(one, one) for one in map(str.strip, found) if one)


def refused(package: str = "loadmanager", rules: Path = RULES) -> list[str]:
    known = tomllib.loads(rules.read_text("utf-8"))
    permissive, reasons = set(known["permissive"]), known["reasons"]
    wrong = []
    for name in sorted(needed(package)):
        found = licences(name, known["aliases"])
        excused = {reasons[name]["licence"]} if name in reasons else set()
        if not found or found - permissive - excused:
            said = ", ".join(sorted(found)) or "no licence"
            wrong.append(f"{name} has {said}; expected one of {RULES.name}, or a reason there")
    return wrong
