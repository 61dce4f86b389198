"""What a release has to say and to contain, and what it must not."""

import re
import tarfile
import tomllib
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Final

SECRETS: Final = {
    "a private key": re.compile(rb"-----BEGIN (?:[A-Z]+ )*PRIVATE KEY-----\s+[A-Za-z0-9+/]{40}"),
    "a signed token": re.compile(rb"eyJ[\w-]{10,}\.eyJ[\w-]{10,}\.[\w-]{20,}"),
    "a password in a URL": re.compile(rb"https?://[\w.-]+:[^@\s/{}<>$*'\"]{3,}@"),
}


def fallback_version(project: Path) -> str:
    """Return the version that is being made, which holds where there is no tag."""
    text = (project / "pyproject.toml").read_text("utf-8")
    version = tomllib.loads(text)["tool"]["hatch"]["version"]["raw-options"]["fallback_version"]
    return str(version).partition(".dev")[0]


def stated_versions(project: Path) -> Iterator[tuple[str, str]]:
    places = {
        "CHANGELOG.md": r"^## (\d+\.\d+\.\d+)",
        "deploy/helm/loadmanager/Chart.yaml": r"^(?:version|appVersion): (\S+)",
        "deploy/kubernetes/loadmanager.yaml": r"image: loadmanager:(\S+)",
        "deploy/kubernetes/pulsar-sidecar.yaml": r"image: loadmanager:(\S+)",
        "deploy/Dockerfile": r"^ARG VERSION=(\S+)\.dev0$",
        "docker-compose.yml": r"LOADMANAGER_VERSION:-(\S+)\.dev0}",
    }
    for name, pattern in places.items():
        found = re.findall(pattern, (project / name).read_text("utf-8"), re.MULTILINE)
        # Older versions follow in the changelog.
        yield from ((name, version) for version in (found[:1] if "CHANGE" in name else found))


def released_at(project: Path, version: str) -> str | None:
    text = (project / "CHANGELOG.md").read_text("utf-8")
    found = re.search(rf"^## {re.escape(version)} \((\d{{4}}-\d\d-\d\d)\)$", text, re.MULTILINE)
    return found[1] if found else None


def members(archive: Path) -> dict[str, bytes]:
    if archive.suffix == ".whl":
        with zipfile.ZipFile(archive) as wheel:
            return {name: wheel.read(name) for name in wheel.namelist()}
    with tarfile.open(archive) as sdist:
        return {
            one.name.partition("/")[2]: content.read()
            for one in sdist
            if (content := sdist.extractfile(one)) is not None
        }


def secrets(files: Mapping[str, bytes]) -> list[str]:
    return [
        f"{name} has {what}"
        for name, content in sorted(files.items())
        for what, pattern in SECRETS.items()
        if pattern.search(content)
    ]


def difference(found: Iterable[str], expected: Iterable[str]) -> list[str]:
    there, wanted = set(found), set(expected)
    return [
        *(f"{name} is missing" for name in sorted(wanted - there)),
        *(f"{name} is not expected" for name in sorted(there - wanted)),
    ]
