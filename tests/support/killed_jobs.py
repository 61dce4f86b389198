"""A job of the pipeline as a process of its own, which is killed at some moment."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from waiting import eventually

_QUICK_JAVA = "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m -XX:+UseSerialGC"
_WITHIN_S = 300.0


def killed_at(moment: Callable[[], object], folder: Path, *arguments: str) -> bool:
    """Run ``loadmanager pipeline ARGUMENTS`` until ``moment()`` is true, and kill it and its Java.

    ``folder`` gets what it says and what it leaves behind. Return False if it ended by itself.
    """
    folder.mkdir()
    java = f"{_QUICK_JAVA} -Djava.io.tmpdir={folder}"
    with (folder / "said").open("wb") as said:
        process = subprocess.Popen(
            [
                *(sys.executable, "-m", "loadmanager", "pipeline", *arguments),
                *("--master", "local[2]", "--driver-memory", "600m"),
                *("--conf", "spark.sql.shuffle.partitions=1"),
            ],
            env={**os.environ, "JAVA_TOOL_OPTIONS": java, "TMPDIR": str(folder)},
            stdout=said,
            stderr=subprocess.STDOUT,
            # A group of its own: Java is to be killed, too.
            start_new_session=True,
        )
    try:
        wanted = asyncio.run(_first(moment, process))
    finally:
        if process.returncode is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    return wanted


async def _first(moment: Callable[[], object], process: "subprocess.Popen[bytes]") -> bool:
    await eventually(lambda: moment() or process.poll() is not None, within_s=_WITHIN_S)
    return process.returncode is None
