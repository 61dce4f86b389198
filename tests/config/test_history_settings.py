from typing import Any

import pytest
from pydantic import ValidationError

from loadmanager.config import Config


def config(**history: Any) -> Config:
    return Config.model_validate({"broker": {"id": "b1:8080"}, "history": history})


def test_no_history_is_kept_unless_it_is_asked_for() -> None:
    assert config().history.dir == ""


def test_a_url_needs_a_spool() -> None:
    expected = r"\[history\] spool_dir: expected a folder on this host.*dir is a URL"
    with pytest.raises(ValidationError, match=expected):
        config(dir="s3://bucket/prefix")
    assert config(dir="s3://bucket/prefix", spool_dir="/spool").history.is_remote
    assert not config(dir="/var/lib/history").history.is_remote


@pytest.mark.parametrize(
    "change", [{"write": "gossip"}, {"compression_level": 10}, {"queue_records": 0}]
)
def test_what_makes_no_sense_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        config(dir="/x", **change)
