import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

# Where packages and images come from is the installer's own setting, never the project's.
REGISTRY = re.compile(
    r"\b(pypi\.org|pythonhosted\.org|(registry-1|index|hub)\.docker\.(io|com)|quay\.io|ghcr\.io"
    r"|gcr\.io|registry\.k8s\.io|npmjs\.(org|com)|proxy\.golang\.org|crates\.io|repo1?\.maven\."
    r"|(deb|security|snapshot)\.debian\.org|anaconda\.(org|com))",
    re.IGNORECASE,
)
MACHINE_PATH = re.compile(r"(?<![\w.~}-])/(work|home|root|Users|farm)/")


def places(text: str, pattern: re.Pattern[str]) -> Iterator[tuple[int, str]]:
    for number, line in enumerate(text.splitlines(), 1):
        if found := pattern.search(line):
            yield number, found.group()


def traces(project: Path, pattern: re.Pattern[str]) -> list[str]:
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=project, capture_output=True, text=True, check=False
    )
    if listed.returncode:
        pytest.skip("needs a git checkout: git clone the project instead of unpacking it")
    files = [project / name for name in listed.stdout.split("\0") if name]
    return [
        f"{file.relative_to(project)}:{number}: {found}"
        for file in files
        if file.is_file()
        for number, found in places(file.read_text(encoding="utf-8", errors="replace"), pattern)
    ]


def test_no_file_names_a_package_or_image_registry(project: Path) -> None:
    assert traces(project, REGISTRY) == []


def test_no_file_names_a_path_of_one_machine(project: Path) -> None:
    assert traces(project, MACHINE_PATH) == []


@pytest.mark.parametrize(
    ("line", "pattern"),
    [
        ("index-url = https://pypi<dot>org/simple", REGISTRY),
        ("FROM quay<dot>io/library/python", REGISTRY),
        ("cd <slash>home/ann/loadmanager", MACHINE_PATH),
    ],
)
def test_a_trace_would_be_found(line: str, pattern: re.Pattern[str]) -> None:
    spelled = line.replace("<dot>", ".").replace("<slash>", "/")
    assert [number for number, _ in places(f"first\n{spelled}\n", pattern)] == [2]
