"""What a sidecar proves itself with is looked at when it starts."""

from pathlib import Path

import pytest

from loadmanager.adapters.http.security import KeyUnusable
from loadmanager.config import Config
from loadmanager.securing import make_leader_line


def config(token_file: Path) -> Config:
    security = {"own_token_file": str(token_file)}
    return Config.model_validate({"broker": {"id": "b1:8080"}, "security": security})


@pytest.mark.parametrize(
    ("content", "why"), [(None, "No such file or directory"), (b"\xff", "can't decode")]
)
def test_a_token_that_cannot_be_read_is_told_at_the_start(
    content: bytes | None, why: str, tmp_path: Path
) -> None:
    path = tmp_path / "sidecar.jwt"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(KeyUnusable, match=f"{path}: .*{why}.*; expected a file with a token"):
        make_leader_line(config(path))


async def test_a_token_that_can_be_read_is_no_obstacle(tmp_path: Path) -> None:
    path = tmp_path / "sidecar.jwt"
    path.write_text("a.b.c")
    await make_leader_line(config(path)).close()
