"""The Grafana dashboards of deploy/grafana, from dashboards.yml, and the rules of the Helm chart.

Renew both with: python tests/support/dashboards.py
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml

_WIDTH: Final = 24
_HEIGHT: Final = 8
_SOURCE: Final = {"type": "prometheus", "uid": "${datasource}"}
DEPLOY: Final = Path(__file__).parents[2] / "deploy"
RARE: Final = {
    "loadmanager_attach_": "loadmanager attach",
    "loadmanager_moves_total": "a move",
    "loadmanager_refusals_total": "a broker that might have been unloaded",
    "loadmanager_tasks_ended_total": "a bundle task that ended",
    "loadmanager_assignments_total": "a bundle without an owner",
    "pulsar_lb_bandwidth": "a limit of the network",
}
"""Beginnings of metrics that the stack of docker-compose.yml may lack, and what gives them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Dashboard:
    name: str
    title: str
    rows: list[list[dict[str, Any]]]
    instance_of: str = ""

    @property
    def queries(self) -> list[str]:
        """All queries, as they are at first: of every instance."""
        return [
            expression.replace("$instance", ".+")
            for row in self.rows
            for panel in row
            for expression in panel["queries"].values()
        ]

    def json(self) -> dict[str, Any]:
        others = {"type": "dashboards", "tags": ["loadmanager"], "title": "Load manager"}
        return {
            "uid": f"loadmanager-{self.name}",
            "title": self.title,
            "tags": ["loadmanager"],
            "schemaVersion": 39,
            "editable": True,
            "refresh": "30s",
            "time": {"from": "now-1h", "to": "now"},
            "templating": {"list": list(self._choices())},
            "links": [{**others, "asDropdown": True}],
            "panels": list(self._panels()),
        }

    def _panels(self) -> Iterator[dict[str, Any]]:
        placed = [(x, y) for y, row in enumerate(self.rows) for x in range(len(row))]
        for number, (x, y) in enumerate(placed, start=1):
            panel, width = self.rows[y][x], _WIDTH // len(self.rows[y])
            yield {
                "id": number,
                "type": panel.get("kind", "timeseries"),
                "title": panel["title"],
                "description": panel["about"],
                "datasource": _SOURCE,
                "gridPos": {"h": _HEIGHT, "w": width, "x": x * width, "y": y * _HEIGHT},
                "fieldConfig": {"defaults": {"unit": panel["unit"]}, "overrides": []},
                "options": {},
                "targets": [
                    {
                        "datasource": _SOURCE,
                        "refId": chr(ord("A") + place),
                        "expr": expression,
                        "legendFormat": legend,
                    }
                    for place, (legend, expression) in enumerate(panel["queries"].items())
                ],
            }

    def _choices(self) -> Iterator[dict[str, Any]]:
        yield {
            "name": "datasource",
            "label": "Prometheus",
            "type": "datasource",
            "query": "prometheus",
        }
        if self.instance_of:
            yield {
                "name": "instance",
                "label": "Instance",
                "type": "query",
                "datasource": _SOURCE,
                "query": f"label_values({self.instance_of}, instance)",
                "refresh": 2,
                "sort": 1,
                "includeAll": True,
                "allValue": ".+",
                "multi": True,
            }


def dashboards() -> tuple[Dashboard, ...]:
    declared = yaml.safe_load(Path(__file__).with_suffix(".yml").read_text("utf-8"))
    return tuple(Dashboard(name=name, **each) for name, each in declared.items())


def generated() -> dict[Path, str]:
    files = {
        DEPLOY / "grafana" / f"{one.name}.json": json.dumps(one.json(), indent=2) + "\n"
        for one in dashboards()
    }
    alerts = (DEPLOY / "prometheus" / "alerts.yml").read_text("utf-8")
    attach = alerts[alerts.index("  - name: loadmanager-attach\n") :]
    files[DEPLOY / "helm" / "loadmanager" / "files" / "rules.yml"] = f"groups:\n{attach}"
    return files


if __name__ == "__main__":
    for path, text in generated().items():
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, "utf-8")
