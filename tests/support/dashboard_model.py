"""What a Grafana dashboard is declared as, and the JSON that Grafana imports."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

_WIDTH: Final = 24
_HEIGHT: Final = 8
_SOURCE: Final = {"type": "prometheus", "uid": "${datasource}"}


@dataclass(frozen=True, slots=True)
class Panel:
    """Queries by their legend, in one unit; ``about`` says what to look for."""

    title: str
    unit: str
    about: str
    queries: Mapping[str, str]
    kind: str = "timeseries"

    def json(self, number: int, *, width: int, x: int, y: int) -> dict[str, Any]:
        return {
            "id": number,
            "type": self.kind,
            "title": self.title,
            "description": self.about,
            "datasource": _SOURCE,
            "gridPos": {"h": _HEIGHT, "w": width, "x": x, "y": y},
            "fieldConfig": {"defaults": {"unit": self.unit}, "overrides": []},
            "options": {},
            "targets": [
                {
                    "datasource": _SOURCE,
                    "refId": chr(ord("A") + place),
                    "expr": expression,
                    "legendFormat": legend,
                }
                for place, (legend, expression) in enumerate(self.queries.items())
            ],
        }


@dataclass(slots=True)
class Dashboard:
    """Rows of panels; each row takes the whole width.

    ``instance_of`` is a metric: then instances that have it are chosen, as ``$instance``.
    """

    name: str
    title: str
    instance_of: str = ""
    rows: list[tuple[Panel, ...]] = field(default_factory=list)

    def row(self, *panels: Panel) -> None:
        self.rows.append(panels)

    @property
    def queries(self) -> list[str]:
        """All queries, as they are at first: of every instance."""
        return [
            expression.replace("$instance", ".+")
            for row in self.rows
            for panel in row
            for expression in panel.queries.values()
        ]

    def json(self) -> dict[str, Any]:
        panels: list[dict[str, Any]] = []
        for y, row in enumerate(self.rows):
            width = _WIDTH // len(row)
            for x, panel in enumerate(row):
                number = len(panels) + 1
                panels.append(panel.json(number, width=width, x=x * width, y=y * _HEIGHT))
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
            "panels": panels,
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
