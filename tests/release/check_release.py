"""Builds a release of this commit into dist/, and checks it: make release-check.

The sdist and the wheel are built twice, in two clones with different paths, and again from the
unpacked sdist, and have to be the same to the last byte. dist/ gets both, a list of what the
image of the sidecar contains (SBOM, CycloneDX), and SHA256SUMS. Nothing is published.
"""

import hashlib
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import venv
from collections.abc import Mapping
from pathlib import Path

PROJECT = Path(__file__).parents[2]
SUPPORT = PROJECT / "tests" / "support"
sys.path.insert(0, str(SUPPORT))

from dependency_licences import refused  # noqa: E402 - found through the line above
from public_surfaces import SURFACES, breaks, parsed  # noqa: E402 - the same
from release_contents import difference as other_files  # noqa: E402 - the same
from release_contents import (  # noqa: E402 - the same
    fallback_version,
    members,
    released_at,
    secrets,
    stated_versions,
)

TOOLS = ("cyclonedx-bom", "hatch-vcs", "hatchling", "twine")
UNPACKED = frozenset({"PKG-INFO", "pyproject.toml", ".gitignore"})


class Unfit(Exception):
    """The release is not as it has to be; the message says where and what was expected."""


def run(*command: str | Path, cwd: Path = PROJECT, extra: Mapping[str, str] | None = None) -> str:
    """Return what a command prints; raises `Unfit` with all it said if it fails."""
    environment = {**os.environ, **(extra or {})}
    done = subprocess.run(
        command, cwd=cwd, env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise Unfit(f"{' '.join(map(str, command))}\n{done.stdout}{done.stderr}")
    return done.stdout.strip()


def require(wrong: list[str], what: str) -> None:
    if wrong:
        raise Unfit("\n".join([f"{what}:", *(f"  {one}" for one in wrong)]))
    print(f"ok: {what}")


class Release:
    """One commit, the tools, and the folder where all of it is made."""

    def __init__(self, work: Path) -> None:
        self.work = work
        self.dist = PROJECT / "dist"
        self.tools = work / "tools" / "bin"
        self.epoch = {"SOURCE_DATE_EPOCH": run("git", "log", "-1", "--format=%ct")}
        venv.create(work / "tools", with_pip=False)
        self.install(work / "tools", *TOOLS)

    def install(self, environment: Path, *what: str | Path) -> None:
        python = environment / "bin" / "python"
        run(sys.executable, "-m", "uv", "pip", "install", "--quiet", "--python", python, *what)

    def build(self, source: Path, *targets: str) -> list[Path]:
        into = source.with_name(f"{source.name}-dist")
        for target in targets:
            run(self.tools / "hatchling", "build", "-t", target, "-d", into, cwd=source,
                extra=self.epoch)  # fmt: skip
        return sorted(into.iterdir())

    def builds(self) -> tuple[Path, Path]:
        """Return the sdist and the wheel once they are seen to be reproducible."""
        first, second = self.work / "first", self.work / "other-path" / "second"
        for clone in (first, second):
            run("git", "clone", "--quiet", PROJECT, clone)
        sdist, wheel = sorted(self.build(first, "sdist", "wheel"), key=lambda one: one.suffix)
        again = [*self.build(second, "sdist", "wheel")]
        with tarfile.open(sdist) as archive:
            archive.extractall(self.work / "unpacked", filter="data")
        (unpacked,) = (self.work / "unpacked").iterdir()
        again += self.build(unpacked, "wheel")
        known = {one.name: one.read_bytes() for one in (sdist, wheel)}
        differ = [str(one) for one in again if known.get(one.name) != one.read_bytes()]
        require(differ, f"{sdist.name} and {wheel.name} are the same in each build")
        return sdist, wheel

    def versions(self, version: str) -> None:
        """Check the version against the files that name it, and the tag if there is one."""
        tags = run("git", "tag", "--points-at", "HEAD").split()
        base = version.partition(".dev")[0] if tags or ".dev" not in version else None
        planned = base or fallback_version(PROJECT)
        wrong = [f"{place} has {one}" for place, one in stated_versions(PROJECT) if one != planned]
        if tags:
            wrong += [] if f"v{version}" in tags else [f"tag {' '.join(tags)}"]
            wrong += [] if released_at(PROJECT, version) else ["CHANGELOG.md has no date for it"]
        require(wrong, f"all files name {planned}" + ("" if tags else " (this commit has no tag)"))

    def promises(self, version: str) -> None:
        """Check that a patch or a minor version breaks nothing that an earlier tag promised."""
        try:
            former = run("git", "describe", "--tags", "--abbrev=0", "--match", "v*", "HEAD^")
        except Unfit:
            print("ok: no earlier tag whose users this could break")
            return
        old, new = (one.lstrip("v").split(".")[:2] for one in (former, version))
        if (old[0] == new[0] != "0") or old == new:
            broken = []
            for name in SURFACES:
                path = f"tests/compatibility/{name}.txt"
                was = parsed(run("git", "show", f"{former}:{path}"))
                now = parsed((PROJECT / path).read_text("utf-8"))
                broken += [f"{name}: {one}" for one in breaks(was, now)]
            require(broken, f"nothing breaks that {former} promised")

    def contents(self, sdist: Path, wheel: Path) -> None:
        """Check that both have all files of the commit, nothing else, and no secret."""
        committed = run("git", "ls-files").splitlines()
        package = [name for name in committed if name.startswith("loadmanager/")]
        in_wheel, in_sdist = members(wheel), members(sdist)
        shipped = [name for name in in_wheel if ".dist-info/" not in name]
        require(other_files(shipped, package), f"the wheel has the {len(package)} files of it")
        left_out = (".ci/", ".git")
        wanted = [name for name in committed if not name.startswith(left_out)]
        require(
            other_files(in_sdist.keys() - UNPACKED, set(wanted) - UNPACKED),
            f"the sdist has the {len(wanted)} files of the commit but for CI's",
        )
        require(secrets({**in_wheel, **in_sdist}), "no key, token or password is in them")
        run(self.tools / "twine", "check", "--strict", sdist, wheel)
        print("ok: their metadata can be published")

    def bill_of_materials(self, wheel: Path, version: str) -> Path:
        """Return the list of what the sidecar's image has, by its lock file and the wheel."""
        environment = self.work / "image"
        venv.create(environment, with_pip=False)
        self.install(environment, "--require-hashes", "-r", "deploy/locks/sidecar.txt")
        self.install(environment, "--no-deps", wheel)
        said = run(environment / "bin" / "loadmanager", "--version", cwd=self.work)
        require([] if version in said else [f"it says {said}"], f"the wheel says {version}")
        file = self.dist / f"loadmanager-{version}.cdx.json"
        run(self.tools / "cyclonedx-py", "environment", "--output-reproducible",
            "--output-format", "JSON", "--output-file", file,
            environment / "bin" / "python")  # fmt: skip
        return file

    def check(self) -> None:
        require(run("git", "status", "--porcelain").splitlines(), "nothing is uncommitted")
        require(refused(), "licences of all dependencies are known and listed")
        sdist, wheel = self.builds()
        version = wheel.name.split("-")[1]
        self.versions(version)
        self.promises(version)
        self.contents(sdist, wheel)
        shutil.rmtree(self.dist, ignore_errors=True)
        self.dist.mkdir()
        made = [Path(shutil.copy2(one, self.dist)) for one in (sdist, wheel)]
        made.append(self.bill_of_materials(wheel, version))
        sums = (f"{hashlib.sha256(one.read_bytes()).hexdigest()}  {one.name}\n" for one in made)
        (self.dist / "SHA256SUMS").write_text("".join(sums), "utf-8")
        print("\n".join(["in dist/:", *(f"  {one.name}" for one in sorted(self.dist.iterdir()))]))


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        try:
            Release(Path(folder)).check()
        except Unfit as problem:
            sys.exit(f"not fit to be released: {problem}")
