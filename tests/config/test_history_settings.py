from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from loadmanager.config import Config, ConfigError, load_config
from loadmanager.core.history.files import MOST_ROLL_MIB
from loadmanager.pipeline.ingest.history_files import LARGEST_BYTES


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


def test_no_writer_may_make_files_that_the_pipeline_does_not_read(tmp_path: Path) -> None:
    assert config(dir="/x", roll_mib=float(MOST_ROLL_MIB)).history.roll_mib == MOST_ROLL_MIB
    assert MOST_ROLL_MIB << 20 < LARGEST_BYTES
    file = tmp_path / "loadmanager.toml"
    file.write_text('[broker]\nid = "b1:8080"\n[history]\nroll_mib = 257.0\n', encoding="utf-8")
    told = r"\[history\] roll_mib = 257\.0; expected a number from 0\.001 to 256$"
    with pytest.raises(ConfigError, match=told):
        load_config(file, {})
