"""Executes a program that the kernel ends together with the process that started it.

Run as a file, by a Python without packages: ``parent_death.py PARENT PROGRAM ARGUMENTS``.
A killed parent cannot end its children, so the kernel is set to kill them (Linux only; on other
systems nothing is set). The setting survives ``exec``, the process id stays the same, and no
Python code runs between ``fork`` and ``exec`` in a process with threads. For the kernel the
parent is the thread that started the program, so that thread has to stay alive, too.
"""

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def main(arguments: list[str]) -> None:
    parent, program, *rest = arguments
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != int(parent):  # It died before the line above.
            sys.exit(1)
    os.execv(program, [program, *rest])  # noqa: S606 - what our own parent named


if __name__ == "__main__":
    main(sys.argv[1:])
