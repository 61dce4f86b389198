from pathlib import Path

from click.testing import CliRunner, Result
from simulated_jobs import SCENARIO

from loadmanager.cli import main


def written(file: Path, *more: str) -> Path:
    file.write_text("\n".join([SCENARIO, *more]))
    return file


def simulate(*arguments: object) -> Result:
    return CliRunner().invoke(main, ["simulate", "--jobs", "1", *map(str, arguments)])
