"""Pages of docs/ that are made from declarations in the code; renew them with `make reference`."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from command_reference import command_reference
from configuration_reference import configuration_reference
from history_reference import history_reference
from rest_reference import rest_reference
from scenario_reference import scenario_reference

from loadmanager.admin.surface import surface
from loadmanager.cli import main
from loadmanager.pipeline.described import described

DOCS: Final = Path(__file__).parents[2] / "docs"
PAGES: Final[Mapping[str, Callable[[], str]]] = {
    "command-line.md": lambda: command_reference(main),
    "configuration.md": configuration_reference,
    "history-format.md": history_reference,
    "pipeline-tables.md": described,
    "rest-api.md": lambda: rest_reference(surface()),
    "scenario-format.md": scenario_reference,
}

if __name__ == "__main__":
    for name, made in PAGES.items():
        (DOCS / name).write_text(made(), encoding="utf-8")
