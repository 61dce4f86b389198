"""Take a small part of a folder of recorded decisions: python take.py FROM_FOLDER.

Of each file the shortest scenario of every tag is taken, then others spread evenly
over the file, until the part has its share of the bytes.
"""

import gzip
import json
import sys
from pathlib import Path

BYTES_PER_FILE = 90_000


def chosen(lines: list[bytes]) -> list[bytes]:
    """Return the lines to keep, in their order."""
    kept: dict[int, bytes] = {}
    shortest: dict[str, int] = {}
    for row, line in enumerate(lines):
        for tag in json.loads(line)["tags"]:
            if tag not in shortest or len(line) < len(lines[shortest[tag]]):
                shortest[tag] = row
    kept.update({row: lines[row] for row in shortest.values()})
    size = sum(len(gzip.compress(line)) for line in kept.values())
    # 97 shares no factor with the number of lines: every line comes up once, far apart.
    for step in range(len(lines)):
        row = step * 97 % len(lines)
        cost = len(gzip.compress(lines[row])) if row not in kept else 0
        if cost and size + cost <= BYTES_PER_FILE:
            kept[row] = lines[row]
            size += cost
    return [kept[row] for row in sorted(kept)]


def main(source: Path, target: Path) -> None:
    """Write the small part of each file of ``source`` into ``target``."""
    for path in sorted(source.glob("*.jsonl.gz")):
        lines = gzip.decompress(path.read_bytes()).splitlines(keepends=True)
        content = gzip.compress(b"".join(chosen(lines)), compresslevel=9, mtime=0)
        (target / path.name).write_bytes(content)
        sys.stdout.write(f"{path.name}: {len(content)} bytes\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(__file__).parent)
