import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

PIN = re.compile(r"^(?P<pin>[a-z0-9][^\s\\]*==[^\\]+?)\s*\\$", re.MULTILINE)
HASH = re.compile(r"^    --hash=sha256:[0-9a-f]{64}( \\)?$")


def entries(lock: str) -> list[list[str]]:
    """Return the lines of each package: its name and version, then its hashes."""
    found: list[list[str]] = []
    for line in lock.splitlines():
        if line.lstrip().startswith("#") or not line:
            continue
        if line.startswith(" "):
            found[-1].append(line)
        else:
            found.append([line])
    return found


def pinned(lock: str) -> dict[str, list[Requirement]]:
    """Return what each package is pinned to; several versions have markers that exclude another."""
    found: dict[str, list[Requirement]] = {}
    for pin in PIN.findall(lock):
        requirement = Requirement(pin)
        found.setdefault(canonicalize_name(requirement.name), []).append(requirement)
    return found


def lock(project: Path, name: str) -> str:
    return (project / "deploy" / "locks" / f"{name}.txt").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", ["build", "sidecar", "pipeline"])
def test_every_package_of_a_lock_has_one_version_and_hashes(name: str, project: Path) -> None:
    text = lock(project, name)
    found = entries(text)
    assert len(found) == len(PIN.findall(text)) > 0
    for first, *hashes in found:
        assert PIN.match(first), first
        assert hashes, first
        assert [line for line in hashes if not HASH.match(line)] == []


@pytest.mark.parametrize(
    ("name", "extras"), [("sidecar", ("sasl",)), ("pipeline", ("sasl", "pipeline"))]
)
def test_lock_has_every_dependency_in_a_version_that_the_package_allows(
    name: str, extras: tuple[str, ...], project: Path
) -> None:
    declared = tomllib.loads((project / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    wanted = list(declared["dependencies"])
    for extra in extras:
        wanted += declared["optional-dependencies"][extra]
    pins = pinned(lock(project, name))
    for requirement in map(Requirement, wanted):
        versions = pins.get(canonicalize_name(requirement.name), [])
        assert versions, f"{requirement} is not in deploy/locks/{name}.txt: make lock"
        for pin in versions:
            (version,) = pin.specifier
            assert requirement.specifier.contains(version.version), (
                f"{pin} of deploy/locks/{name}.txt; pyproject.toml: {requirement}; make lock"
            )


def test_both_images_have_the_same_versions(project: Path) -> None:
    sidecar, pipeline = (pinned(lock(project, name)) for name in ("sidecar", "pipeline"))
    assert {name: pipeline[name] for name in sidecar} == sidecar


def test_tools_that_build_the_wheel_are_locked_too(project: Path) -> None:
    declared = tomllib.loads((project / "pyproject.toml").read_text(encoding="utf-8"))
    build = pinned(lock(project, "build"))
    needed = {Requirement(each).name for each in declared["build-system"]["requires"]}
    assert needed <= build.keys()
