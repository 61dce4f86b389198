"""The scenarios that come with the package, by name."""

import difflib
from collections.abc import Mapping
from functools import cache
from importlib import resources
from pathlib import Path
from types import MappingProxyType

from loadmanager.simulator.errors import ScenarioError


@cache
def shipped() -> Mapping[str, Path]:
    folder = Path(str(resources.files(__package__) / "scenarios"))
    return MappingProxyType({path.stem: path for path in sorted(folder.glob("*.toml"))})


def find(name_or_path: str) -> Path:
    """Return the file of a shipped scenario, or the given path.

    A shipped name takes precedence over a file of the same name; ``./name`` is the file.

    Raises:
        ScenarioError: neither exists; the text lists the shipped names.
    """
    if name_or_path in shipped():
        return shipped()[name_or_path]
    path = Path(name_or_path)
    if path.suffix == ".toml" or name_or_path != path.name or path.is_file():
        return path
    close = difflib.get_close_matches(name_or_path, shipped(), 1)
    hint = f"; did you mean {close[0]}?" if close else ""
    names = ", ".join(shipped())
    raise ScenarioError(
        [f"scenario {name_or_path!r}; expected a .toml file or one of {names}{hint}"]
    )
