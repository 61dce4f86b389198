import re
import subprocess
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


def traces(project: Path, pattern: re.Pattern[str]) -> list[str]:
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=project, capture_output=True, text=True, check=False
    )
    if listed.returncode:
        pytest.skip("needs a git checkout: git clone the project instead of unpacking it")
    files = [project / name for name in listed.stdout.split("\0") if name]
    return [
        f"{file.relative_to(project)}: {found.group()}"
        for file in files
        if file.is_file()
        for found in pattern.finditer(file.read_text(encoding="utf-8", errors="replace"))
    ]


@pytest.mark.parametrize(
    ("pattern", "line"),
    [
        (REGISTRY, "index-url = https://pypi<dot>org/simple"),
        (REGISTRY, "FROM quay<dot>io/library/python"),
        (MACHINE_PATH, "cd <slash>home/ann/loadmanager"),
    ],
)
def test_no_file_names_a_registry_or_a_path_of_one_machine(
    project: Path, pattern: re.Pattern[str], line: str
) -> None:
    assert pattern.search(line.replace("<dot>", ".").replace("<slash>", "/"))
    assert traces(project, pattern) == []
