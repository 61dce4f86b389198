"""How `make docs` builds the documentation: all pages of docs/, searchable without a network."""

import tomllib
from importlib.metadata import version as version_of
from pathlib import Path

from sphinx.application import Sphinx

project = "loadmanager"
author = "the authors of loadmanager"
release = version = version_of("loadmanager")

extensions = ["myst_parser"]
root_doc = "index"
exclude_patterns = ["site"]
html_theme = "furo"
html_title = f"loadmanager {version}"
html_copy_source = False
html_show_sourcelink = False
# Anchors as GitHub makes them, so that one link holds there and here.
myst_heading_anchors = 4
nitpicky = True
# A diagram stands as text: drawing it would need a script from elsewhere, or a large one.
suppress_warnings = ["misc.highlighting_failure"]


def add_navigation(_app: Sphinx, page: str, source: list[str]) -> None:
    """Append the navigation to the first page: in the file itself it would be text to others."""
    if page != root_doc:
        return
    navigation = tomllib.loads(Path(__file__).with_name("navigation.toml").read_text("utf-8"))
    for caption, pages in navigation.items():
        lines = ["", "```{toctree}", ":hidden:", ":glob:", f":caption: {caption}", "", *pages]
        source[0] += "\n".join([*lines, "```", ""])


def setup(app: Sphinx) -> None:
    """Connect the navigation."""
    app.connect("source-read", add_navigation)
