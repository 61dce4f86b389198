"""What users build on changes on purpose alone: docs/upgrade.md is the promise."""

from pathlib import Path

import pytest
from public_surfaces import FOLDER, RENEW, SURFACES, added, breaks, current, parsed, promised, renew
from znode_samples import node_lines

from loadmanager.core import znodes


@pytest.mark.parametrize("name", SURFACES)
def test_nothing_that_users_build_on_has_changed(name: str) -> None:
    old, new = promised(name), current(name)
    broken = "\n".join(breaks(old, new))
    assert not broken, (
        f"this breaks users of {name}:\n{broken}\nif it is meant: the next version is a major one "
        f"(a minor one before 1.0), CHANGELOG.md and docs/upgrade.md say it, and "
        f"{RENEW} BREAKING=yes"
    )
    assert not added(old, new), "\n".join([*added(old, new), f"is new; run: {RENEW}"])


def test_there_is_a_file_for_each_surface_and_no_other() -> None:
    assert sorted(file.stem for file in FOLDER.glob("*.txt")) == sorted(SURFACES)


def test_every_node_of_the_program_is_listed() -> None:
    listed = [name.split(" ")[0] for name, _ in node_lines()]
    roots = [path for name, path in vars(znodes).items() if name.isupper()]
    assert len(roots) > 20
    assert [root for root in roots if not any(f"{one}/".startswith(root) for one in listed)] == []


def test_a_difference_says_what_was_removed_changed_and_added() -> None:
    old = parsed("kept: text\ngone: number\nother: text, default 1\n")
    new = parsed("kept: text\nother: text, default 2\nnew: flag\n")
    assert breaks(old, new) == [
        "removed gone (number)",
        "changed other from text, default 1 to text, default 2",
    ]
    assert added(old, new) == ["added new (flag)"]


def test_additions_are_written_and_what_breaks_users_only_if_it_is_meant(tmp_path: Path) -> None:
    for name in SURFACES:
        (_, *known) = current(name).items()
        text = "".join(f"{item}: {told}\n" for item, told in known)
        (tmp_path / f"{name}.txt").write_text(text, "utf-8")
    assert renew(tmp_path, breaking=False) == ""
    assert promised("metrics", tmp_path) == current("metrics")
    (tmp_path / "metrics.txt").write_text("loadmanager_gone: counter {}\n")
    assert "metrics: removed loadmanager_gone (counter {})" in renew(tmp_path, breaking=False)
    assert promised("metrics", tmp_path) == {"loadmanager_gone": "counter {}"}
    assert renew(tmp_path, breaking=True) == ""
    assert promised("metrics", tmp_path) == current("metrics")
