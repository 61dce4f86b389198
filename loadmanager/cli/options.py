"""What commands have in common: how an option is declared, and how JSON is printed."""

import json
from collections.abc import Callable
from typing import Any, Final

import click

Decorator = Callable[[Callable[..., None]], Callable[..., None]]


def option(*names: str, **settings: Any) -> Decorator:
    """Declare an option as `click.option` does; its help shows the default, if there is one."""
    settings.setdefault("show_default", settings.get("default") not in {None, "", ()})
    return click.option(*names, **settings)


JSON_OPTION: Final = option(
    "--json", "as_json", is_flag=True, help="Print JSON instead of a table."
)


def print_json(value: object) -> None:
    """Print a value as JSON, over several lines."""
    click.echo(json.dumps(value, indent=2))
