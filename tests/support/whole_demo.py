import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class Demo:
    folder: Path
    summary: dict[str, Any]
    history: Path


def run_demo(data_dir: Path, *arguments: str) -> dict[str, Any]:
    """Run the demo to its end and return its summary; its own words say what went wrong."""
    done = subprocess.run(
        [
            *(sys.executable, "-m", "loadmanager", "demo", "--json"),
            *("--data-dir", str(data_dir), *arguments),
        ],
        cwd=data_dir.parent,
        capture_output=True,
        text=True,
        timeout=450,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    summary: dict[str, Any] = json.loads(done.stdout)
    return summary
