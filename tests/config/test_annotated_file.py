import re
from pathlib import Path

from loadmanager.config import annotated_toml, describe, load_config

DEPLOYED = Path(__file__).parents[2] / "deploy" / "loadmanager.toml"


def test_the_committed_file_is_the_generated_one() -> None:
    # Renew it with: loadmanager config show-defaults > deploy/loadmanager.toml
    assert DEPLOYED.read_text() == annotated_toml()


def test_the_annotated_file_can_be_run_with() -> None:
    assert load_config(DEPLOYED, {}).broker.id == "localhost:8080"


def test_taking_the_comment_signs_away_changes_nothing(tmp_path: Path) -> None:
    unset = {k.key for k in describe() if k.default is None and not k.required}
    lines = [
        line.removeprefix("#") if re.match(r"#\w+ = ", line) and "unset by" not in line else line
        for line in annotated_toml().splitlines()
    ]
    (tmp_path / "all.toml").write_text("\n".join(lines))
    assert load_config(tmp_path / "all.toml", {}) == load_config(DEPLOYED, {})
    assert sum(bool(re.match(r"\w+ = ", line)) for line in lines) == len(describe()) - len(unset)


def test_the_examples_of_unset_keys_are_accepted(tmp_path: Path) -> None:
    text = re.sub(r"(?m)^#(\w+ = )", r"\1", annotated_toml())
    (tmp_path / "all.toml").write_text(text)
    assert load_config(tmp_path / "all.toml", {}).host.cores == 4.0


def test_every_key_is_in_the_file_once() -> None:
    assert len(re.findall(r"(?m)^#?\w+ = ", annotated_toml())) == len(describe())
