"""What `make image` refuses, and which names an image gets; Docker and hatchling are stand-ins."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

PROJECT = Path(__file__).parents[2]
DOCKER = """#!/bin/sh
echo "$@" >>"$CALLS"
case "$1 $2" in
    "image inspect") echo "$LABEL" ;;
    run*) echo "$SAYS" ;;
esac
"""
HATCHLING = """#!/bin/sh
test "$*" = "-m hatchling version" && echo 0.2.0
"""


class Clone:
    def __init__(self, folder: Path) -> None:
        self.folder, self.calls = folder / "clone", folder / "calls"
        self.tools = folder / "tools"
        self.tools.mkdir()
        for name, text in (("docker", DOCKER), ("hatchling", HATCHLING)):
            (self.tools / name).write_text(text, "utf-8")
            (self.tools / name).chmod(0o755)
        (self.folder / "deploy").mkdir(parents=True)
        shutil.copy2(PROJECT / "deploy" / "build-image", self.folder / "deploy")
        self.git("init", "--quiet")
        self.git("add", ".")
        self.git("-c", "user.name=a", "-c", "user.email=a@example.org", "commit", "-qm", "first")

    def git(self, *arguments: str) -> None:
        subprocess.run(["git", "-C", str(self.folder), *arguments], check=True)

    def build(self, says: str = "loadmanager 0.2.0", **given: str) -> tuple[int, str]:
        environment = {
            "PATH": f"{self.tools}:{os.environ['PATH']}",
            "PYTHON": str(self.tools / "hatchling"),
            "CALLS": str(self.calls),
            "LABEL": says.rpartition(" ")[2],
            "SAYS": says,
        }
        done = subprocess.run(
            [self.folder / "deploy" / "build-image", "--network", "host"],
            env={**environment, **given},
            capture_output=True,
            text=True,
            check=False,
        )
        return done.returncode, done.stdout + done.stderr

    def names(self) -> list[str]:
        calls = self.calls.read_text("utf-8").splitlines() if self.calls.exists() else []
        return [one.split()[2] for one in calls if one.startswith("tag ")]


@pytest.fixture
def clone(tmp_path: Path) -> Clone:
    return Clone(tmp_path)


def test_a_release_is_named_by_its_tag(clone: Clone) -> None:
    clone.git("tag", "v0.2.0")
    code, said = clone.build(IMAGE="registry.example/balancer")
    assert (code, "which the tag v0.2.0 names" in said) == (0, True), said
    assert clone.names() == ["registry.example/balancer:0.2.0", "registry.example/balancer"]
    built = clone.calls.read_text("utf-8").splitlines()[0]
    assert built.endswith("--build-arg VERSION=0.2.0 --build-arg EXTRAS= --network host .")


def test_a_commit_without_a_tag_is_said_to_be_none(clone: Clone) -> None:
    clone.git("tag", "v0.1.0")
    code, said = clone.build(EXTRAS="pipeline")
    assert (code, "development version: no tag is on this commit" in said) == (0, True), said
    assert clone.names() == ["loadmanager-pipeline:0.2.0", "loadmanager-pipeline"]


def test_changed_sources_are_refused_unless_a_version_is_named(clone: Clone) -> None:
    clone.git("tag", "v0.2.0")
    (clone.folder / "new.py").touch()
    code, said = clone.build()
    assert (code, "?? new.py" in said) == (1, True), said
    assert clone.names() == []
    assert clone.build("loadmanager 7.8.9", LOADMANAGER_VERSION="7.8.9")[0] == 0
    assert clone.names() == ["loadmanager:7.8.9", "loadmanager"]


def test_sources_without_a_clone_have_to_be_given_a_version(clone: Clone) -> None:
    shutil.rmtree(clone.folder / ".git")
    code, said = clone.build()
    assert (code, "this is no clone" in said) == (1, True), said


@pytest.mark.parametrize(
    ("label", "says", "why"),
    [
        ("", "loadmanager 0.2.0", "its label says nothing; expected 0.2.0"),
        ("0.2.0", "loadmanager 0.1.9", "--version says loadmanager 0.1.9; expected 0.2.0"),
    ],
)
def test_another_versions_image_has_no_name(clone: Clone, label: str, says: str, why: str) -> None:
    code, said = clone.build(LABEL=label, SAYS=says)
    assert (code, why in said) == (1, True), said
    assert clone.names() == []
    assert "image rm" in clone.calls.read_text("utf-8")
