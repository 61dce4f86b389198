"""What each session wrote, from the transaction logs of a ZooKeeper server."""

import os
import re
import subprocess
from collections import defaultdict
from pathlib import Path
from typing import Final

from loadmanager.adapters.zookeeper.java import find_java, zookeeper_class_path

_TRANSACTION: Final = re.compile(rb"^\S+ \S+ \S+ UTC session (0x[0-9a-f]+) cxid \S+ zxid \S+ (.*)$")
_ALONE: Final = re.compile(rb"(?:create\w*|setData|delete|setACL) (/[^,]*)")
_WITHIN_MULTI: Final = re.compile(rb"(?:create\w*|setData|delete|check):[^/;]*(/[^\0;]*)")


def paths_written(data_dir: Path) -> dict[str, set[str]]:
    """Return the paths that each session has created, set or deleted so far.

    A session is the hexadecimal number that the log has; one that wrote nothing is left out.
    """
    server = zookeeper_class_path()
    # The server does not need it, its tool does.
    options = next(Path(server.split(os.pathsep)[0]).parent.glob("commons-cli-*.jar"))
    found: dict[str, set[str]] = defaultdict(set)
    for log in sorted((data_dir / "data/version-2").glob("log.*")):
        shown = subprocess.run(
            [
                *(find_java(), "-Duser.timezone=UTC", "-Duser.language=en", "-Duser.country=US"),
                *("-classpath", f"{server}{os.pathsep}{options}"),
                *("org.apache.zookeeper.server.persistence.TxnLogToolkit", "--dump", log),
            ],
            capture_output=True,
            check=True,
        ).stdout
        for line in shown.split(b"\n"):
            transaction = _TRANSACTION.match(line)
            if not transaction:
                continue  # The rest of a value with line ends, or of an access list.
            session, what = transaction.groups()
            alone = _ALONE.match(what)
            within = _WITHIN_MULTI.findall(what) if what.startswith(b"multi ") else ()
            for path in [alone[1]] if alone else within:
                found[session.decode()].add(path.decode(errors="replace"))
    return dict(found)
