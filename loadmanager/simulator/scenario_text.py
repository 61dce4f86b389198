"""The content of a scenario file, and the places of values for messages."""

import json
import re
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from loadmanager.config.describe import as_toml
from loadmanager.simulator.errors import ScenarioError
from loadmanager.simulator.toml_lines import TomlLines, TomlPath, toml_lines

_AT_LINE: Final = re.compile(r"(.*) \(at line (\d+), column (\d+)\)", re.DOTALL)
_BARE_KEY: Final = re.compile(r"[-\w]+", re.ASCII)
_MAX_SHOWN: Final = 60


@dataclass(frozen=True, slots=True)
class ScenarioText:
    """The values of a TOML file before validation."""

    path: Path
    content: dict[str, Any]
    lines: TomlLines

    def place(self, at: TomlPath) -> str:
        """Return ``file:line: key = value`` of a value, or ``key is not set``."""
        found, value = self._value(at)
        shown = f"= {_shortened(value)}" if found else "is not set"
        return f"{self.path}:{self.lines.line(at)}: {dotted(at)} {shown}"

    def place_of_default(self, at: TomlPath, value: object, with_keys: Sequence[TomlPath]) -> str:
        """Return the place of the key that contradicts a default, and the default."""
        line = next((self.lines.line(one) for one in with_keys if self.has(one)), None)
        shown = f"{dotted(at)} = {_shortened(value)} by default"
        return f"{self.path}:{line or self.lines.line(at)}: {shown}"

    def has(self, at: TomlPath) -> bool:
        """Return whether the file sets a value."""
        return self._value(at)[0]

    def _value(self, at: TomlPath) -> tuple[bool, Any]:
        value: Any = self.content
        for step in at:
            try:
                value = value[step]
            except (KeyError, IndexError, TypeError):
                return False, None
        return True, value


def read_text(path: Path) -> ScenarioText:
    """Return the content of a scenario file.

    Raises:
        ScenarioError: it cannot be read, or is not TOML.
    """
    text = ""
    try:
        text = path.read_bytes().decode("utf-8")
        return ScenarioText(path, tomllib.loads(text), toml_lines(text))
    except OSError as error:
        raise ScenarioError([f"{path}: {error.strerror}; expected a scenario file"]) from None
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        fault = f"{path}:{line}: the byte {error.object[error.start]:#04x} is not UTF-8"
        raise ScenarioError([f"{fault}; expected TOML in UTF-8"]) from None
    except RecursionError:
        raise ScenarioError([f"{path}:1: lists in lists without end; expected TOML"]) from None
    except ValueError as error:
        # Besides its own error, tomllib raises errors of numbers and dates.
        raise ScenarioError([_no_toml(path, text.count("\n") + 1, str(error))]) from None


def dotted(at: TomlPath) -> str:
    """Return a path as a dotted key of TOML, without positions in arrays of tables."""
    keys = [_key(step) for step in at if isinstance(step, str)]
    return ".".join(keys) + (f"[{at[-1]}]" if at and isinstance(at[-1], int) else "")


def _key(key: str) -> str:
    return key if _BARE_KEY.fullmatch(key) else json.dumps(key)


def _no_toml(path: Path, lines: int, message: str) -> str:
    found = _AT_LINE.fullmatch(message)
    if found is None:
        line = lines if message.endswith("(at end of document)") else 1
        return f"{path}:{line}: {message}; expected TOML"
    return f"{path}:{found[2]}: {found[1]}, at column {found[3]}; expected TOML"


def _shortened(value: Any) -> str:
    shown = as_toml(value)
    return shown if len(shown) <= _MAX_SHOWN else f"{shown[:_MAX_SHOWN]}..."
