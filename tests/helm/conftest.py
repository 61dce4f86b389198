"""Helm, built from its Go module, and what it makes of the chart."""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

VERSION = "v3.19.5"
KUBERNETES = "helm.sh/helm/v3/pkg/chartutil.k8sVersion"
"""Helm's own builds have the version of Kubernetes that they know set here."""
CHART = Path(__file__).parents[2] / "deploy" / "helm" / "loadmanager"
VALUES = Path(__file__).parent / "values"
Resource = dict[str, Any]


def _built(go: str, target: Path) -> None:
    """Build Helm; a build that is cut off leaves nothing at ``target``."""
    flags = f"-s -w -X {KUBERNETES}Major=1 -X {KUBERNETES}Minor=34"
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:
        done = subprocess.run(
            [go, "install", f"-ldflags={flags}", f"helm.sh/helm/v3/cmd/helm@{VERSION}"],
            env={**os.environ, "GOBIN": folder},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        Path(folder, "helm").replace(target)


@pytest.fixture(scope="session")
def helm() -> Callable[..., subprocess.CompletedProcess[str]]:
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    binary = cache / "loadmanager-tests" / f"helm-{VERSION}"
    if not binary.exists():
        go = shutil.which("go")
        if go is None:
            pytest.skip("needs Go 1.24 or newer and its module proxy: https://go.dev/doc/install")
        _built(go, binary)

    def call(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [binary, *arguments], capture_output=True, text=True, timeout=60, check=False
        )

    return call


@pytest.fixture(scope="session", params=["smallest", "full", "alone"])
def values(request: pytest.FixtureRequest) -> Path:
    return VALUES / f"{request.param}.yaml"


@pytest.fixture(scope="session")
def resources(
    helm: Callable[..., subprocess.CompletedProcess[str]], values: Path
) -> list[Resource]:
    done = helm("template", "main", CHART, "--values", values, "--kube-version", "1.33")
    assert done.returncode == 0, done.stderr
    return [one for one in yaml.safe_load_all(done.stdout) if one is not None]
