"""How commands end that somebody stops."""

import subprocess
import sys
from pathlib import Path

INTERRUPTED_WHILE_DEFINING = """
import signal

import click
from loadmanager.cli.options import interrupted

@click.command()
def main():
    signal.signal(signal.SIGINT, signal.default_int_handler)  # what runs aside may be deaf to it
    try:
        exec("import os, signal; os.kill(os.getpid(), signal.SIGINT); [*range(10**6)]")
    except KeyboardInterrupt:
        raise interrupted() from None

if __name__ == "__main__":
    main()
"""


def test_an_interrupt_in_the_midst_of_an_import_ends_a_command_as_any_other(tmp_path: Path) -> None:
    (tmp_path / "command.py").write_text(INTERRUPTED_WHILE_DEFINING)
    done = subprocess.run(
        [sys.executable, "-m", "command"], check=False, cwd=tmp_path, capture_output=True
    )
    assert (done.returncode, done.stdout, done.stderr) == (130, b"", b"")
