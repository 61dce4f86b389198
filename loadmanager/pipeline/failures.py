"""The error of a job, and one-line explanations of the errors that Spark raises."""

import re
from typing import Final

from loadmanager.core.errors import LoadManagerError


class PipelineError(LoadManagerError):
    """A job cannot continue. The text says where, what was found, and what was expected."""


_KNOWN: Final = (
    (
        re.compile(r"No space left on device|Disk quota exceeded"),
        (
            "the disk is full; expected room in --out, and for what is sorted in "
            "spark.local.dir, which is /tmp if it is not set"
        ),
    ),
    (
        re.compile(r"OutOfMemoryError|Container killed .* exceeding .*memory|exit code 137"),
        (
            "the memory is short; expected more: --driver-memory, and on a cluster "
            "--conf spark.executor.memory=SIZE"
        ),
    ),
    (
        re.compile(
            r"Answer from Java side is empty|Error while sending or receiving|Connection refused|"
            r"Connection reset by peer|An error occurred while trying to connect to the Java server"
        ),
        (
            "Spark's Java is gone; the system kills it where memory is short: expected less "
            "--driver-memory than the host or container has, or more of that"
        ),
    ),
    (
        re.compile(r"ModuleNotFoundError: No module named '(loadmanager|numpy|pyarrow|pandas)"),
        (
            "a worker's Python lacks what the jobs need; expected loadmanager[pipeline] in the "
            "Python of every worker, and PYSPARK_PYTHON to name it"
        ),
    ),
    (
        re.compile(r"Cannot run program \"[^\"]*python"),
        (
            "a worker has no such Python; expected PYSPARK_PYTHON to name one that every worker "
            "has, with loadmanager[pipeline] in it"
        ),
    ),
    (
        re.compile(r"PYTHON_VERSION_MISMATCH|Python in worker has different version"),
        (
            "the workers run another Python than this one; expected the same minor version, and "
            "PYSPARK_PYTHON to name it"
        ),
    ),
    (
        re.compile(r"No FileSystem for scheme|ClassNotFoundException: Class org\.apache\.hadoop"),
        (
            "Spark does not support this kind of address; expected its file system's jar: "
            "--conf spark.jars.packages=... (docs/pipeline.md has them)"
        ),
    ),
)
_TRACEBACK: Final = "Traceback (most recent call last)"
_RAISED: Final = re.compile(r"^((?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:: .+)?)$", re.MULTILINE)
"""The last line of a Python stack trace."""

_LONGEST: Final = 400


def plain_cause(text: str) -> str:
    """Return one line that explains the text of an error of Spark or Py4J."""
    for pattern, meaning in _KNOWN:
        found = pattern.search(text)
        if found:
            return f"{meaning} ({_line_with(text, found.start())})"
    raised = _RAISED.findall(text.rpartition(_TRACEBACK)[2]) if _TRACEBACK in text else []
    causes = re.findall(r"^\s*Caused by: (.+)$", text, re.MULTILINE)
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return _short((raised[:1] or causes[-1:] or lines[:1] or ["it failed without a word"])[0])


def _line_with(text: str, position: int) -> str:
    begin = text.rfind("\n", 0, position) + 1
    end = text.find("\n", position)
    return _short(text[begin : end if end >= 0 else None].strip())


def _short(line: str) -> str:
    return line if len(line) <= _LONGEST else f"{line[:_LONGEST]}..."
