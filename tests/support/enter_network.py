"""Run Python in the network of another process: ``enter_network.py PID ARGUMENTS...``."""

import ctypes
import os
import sys
from pathlib import Path

CLONE_NEWNET = 0x40000000

with Path(f"/proc/{sys.argv[1]}/ns/net").open() as network:
    if ctypes.CDLL(None, use_errno=True).setns(network.fileno(), CLONE_NEWNET):
        raise OSError(ctypes.get_errno(), f"cannot enter the network of process {sys.argv[1]}")
os.execv(sys.executable, [sys.executable, *sys.argv[2:]])  # noqa: S606 - no shell is wanted
