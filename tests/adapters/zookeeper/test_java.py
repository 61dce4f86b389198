import importlib.util
from pathlib import Path
from types import SimpleNamespace

import pytest

from loadmanager.adapters.zookeeper.embedded import EmbeddedZooKeeper
from loadmanager.adapters.zookeeper.java import (
    EmbeddedZooKeeperError,
    find_java,
    zookeeper_class_path,
)


def java_that_exits(folder: Path, code: int) -> Path:
    java = folder / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(f"#!/bin/sh\necho broken >&2\nexit {code}\n")
    java.chmod(0o755)
    return java


def hide_packages(monkeypatch: pytest.MonkeyPatch, **found: object) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", found.get)


def test_java_home_comes_first(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    java = java_that_exits(tmp_path, 0)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert find_java() == java


def test_a_java_that_does_not_run_is_passed_over(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    java_that_exits(tmp_path / "broken", 1)
    good = java_that_exits(tmp_path / "good", 0)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "broken"))
    monkeypatch.setenv("PATH", str(good.parent))
    assert find_java() == good


def test_without_a_java_the_error_says_what_was_tried_and_how_to_get_one(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    java_that_exits(tmp_path, 3)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", "")
    hide_packages(monkeypatch)
    expected = r"JAVA_HOME: .*java: exit code 3: broken.*pip install 'loadmanager\[demo\]'"
    with pytest.raises(EmbeddedZooKeeperError, match=expected):
        EmbeddedZooKeeper().start()


def test_without_any_java_the_error_says_where_it_looked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", "")
    hide_packages(monkeypatch)
    with pytest.raises(EmbeddedZooKeeperError, match="looked at JAVA_HOME, the PATH"):
        find_java()


def test_without_pyspark_the_error_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    hide_packages(monkeypatch)
    with pytest.raises(EmbeddedZooKeeperError, match=r"pip install 'loadmanager\[demo\]'"):
        zookeeper_class_path()


def test_a_pyspark_without_zookeeper_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    hide_packages(monkeypatch, pyspark=SimpleNamespace(origin=str(tmp_path / "__init__.py")))
    with pytest.raises(EmbeddedZooKeeperError, match=f"{tmp_path}.*no zookeeper-"):
        zookeeper_class_path()


def test_the_class_path_holds_the_server_and_little_else() -> None:
    names = [Path(jar).name for jar in zookeeper_class_path().split(":")]
    assert any(name.startswith("zookeeper-jute-") for name in names)
    assert all("spark" not in name for name in names)
