import shlex
from pathlib import Path

import pytest
from whole_demo import Demo, run_demo

DOCUMENT = Path(__file__).parents[2] / "docs" / "pipeline.md"


@pytest.fixture(scope="session")
def first_commands() -> dict[str, list[str]]:
    block = DOCUMENT.read_text(encoding="utf-8").partition("```sh\n")[2].partition("```")[0]
    lines = [shlex.split(line) for line in block.splitlines()]
    return {words[1]: words[2:] for words in lines if words[0] == "loadmanager"}


@pytest.fixture(scope="session")
def demo_with_a_killed_leader(
    first_commands: dict[str, list[str]], tmp_path_factory: pytest.TempPathFactory
) -> Demo:
    folder = tmp_path_factory.mktemp("demo")
    return Demo(folder, run_demo(folder / "data", *first_commands["demo"]), folder / "history")
