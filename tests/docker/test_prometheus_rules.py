from collections.abc import Callable
from pathlib import Path

import pytest

pytestmark = [pytest.mark.docker, pytest.mark.timeout(300)]
FOLDER = Path(__file__).parent
RULES = FOLDER.parents[1] / "deploy" / "prometheus"


@pytest.fixture
def promtool(
    docker: Callable[..., str], prometheus_image: str, tmp_path: Path
) -> Callable[..., str]:
    (tmp_path / "prometheus.jwt").write_text("a token", encoding="utf-8")
    tmp_path.chmod(0o755)  # the container's user is another one
    mounts = (
        f"{RULES}:/etc/prometheus:ro",
        f"{FOLDER / 'alerts_test.yml'}:/alerts_test.yml:ro",
        f"{tmp_path}:/run/loadmanager:ro",
    )
    command = ["run", "--rm", "--entrypoint", "promtool"]
    for mount in mounts:
        command += ["--volume", mount]
    return lambda *arguments: docker(*command, prometheus_image, *arguments)


def test_configuration_and_rules_are_valid(promtool: Callable[..., str]) -> None:
    said = promtool("check", "config", "/etc/prometheus/prometheus.yml")
    assert "rules found" in said


def test_alerts_fire_in_their_outage_and_only_there(promtool: Callable[..., str]) -> None:
    assert "SUCCESS" in promtool("test", "rules", "/alerts_test.yml")
