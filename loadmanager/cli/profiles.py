"""Profiles: named clusters with address and credentials.

They are in ``profiles.toml`` of the program's folder for settings, one table each::

    [default]
    url = "http://sidecar-1:7750"

    [production]
    url = "https://broker-1.example.org:7750"
    token_file = "~/.config/loadmanager/production.jwt"
    ca_file = "/etc/ssl/brokers.pem"
"""

import tomllib
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Final

import click

DEFAULT: Final = "default"


@dataclass(frozen=True, slots=True)
class Profile:
    url: str = ""
    token_file: str = ""
    ca_file: str = ""
    certificate_file: str = ""
    key_file: str = ""


def profiles_file() -> Path:
    return Path(click.get_app_dir("loadmanager")) / "profiles.toml"


def read_profile(name: str) -> Profile:
    """Return the profile called ``name``; "" is the default one, if there is any.

    Raises `click.UsageError`: there is no such profile, or its file is wrong.
    """
    path = profiles_file()
    known = _read(path)
    if not name and DEFAULT not in known:
        return Profile()
    table = known.get(name or DEFAULT)
    if table is None:
        have = ", ".join(sorted(known)) or "none"
        raise click.UsageError(f"{path}: no profile {name!r}; it has {have}")
    return _profile(path, name or DEFAULT, table)


def _read(path: Path) -> dict[str, object]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise click.UsageError(f"{path}: {why}; expected TOML with a table for each profile") from (
            None
        )


def _profile(path: Path, name: str, table: object) -> Profile:
    keys = [field.name for field in fields(Profile)]
    expected = f"expected texts under {', '.join(keys)}"
    if not isinstance(table, dict):
        raise click.UsageError(f"{path}: {name} is no table; {expected}")
    for key, value in table.items():
        if key not in keys or not isinstance(value, str):
            raise click.UsageError(f"{path}: [{name}] {key} = {value!r}; {expected}")
    return Profile(**table)
