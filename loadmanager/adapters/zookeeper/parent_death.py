"""Becomes another program that ends with the process that started it.

Run as a file, by a Python without anything installed: ``parent_death.py PARENT PROGRAM ARGUMENTS``.
A parent that is killed cannot end its children, so the kernel is asked to (Linux only;
elsewhere nothing is asked). The wish outlives ``exec``, the process id stays the same,
and no code of ours runs between ``fork`` and ``exec`` in a process with threads. To the
kernel the parent is the thread that started the program, so that has to last as well.
"""

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def main(arguments: list[str]) -> None:
    """Ask for the end, and become the program."""
    parent, program, *rest = arguments
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != int(parent):  # It died before the line above.
            sys.exit(1)
    os.execv(program, [program, *rest])  # noqa: S606 - what our own parent named


if __name__ == "__main__":
    main(sys.argv[1:])
