"""The frame of a page: its head, style, scripts, and the policy that it fetches nothing."""

import base64
import errno
import hashlib
import re
from collections.abc import Iterable
from importlib.resources import files
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Final

from loadmanager.charts.markup import Html, joined, tag
from loadmanager.core.errors import LoadManagerError

_NOT_IN_AN_ID: Final = re.compile(r"[^a-z0-9]+")


class MissingCharts(LoadManagerError):
    """The library that draws charts is not installed."""

    def __init__(self) -> None:
        super().__init__(
            "an HTML report needs plotly, which is not installed; expected: "
            "pip install 'loadmanager[simulator]' or 'loadmanager[pipeline]'"
        )


def page(title: str, *body: str) -> str:
    """Return a whole page. The same title and body give the same bytes."""
    scripts = (_plotly_js(), _packaged("page.js"))
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=_policy(scripts)),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        tag("title", title),
        tag("style", Html(_packaged("page.css"))),
    )
    main = tag("main", tag("h1", title), *body)
    drawn = joined(tag("script", Html(script)) for script in scripts)
    return "<!doctype html>\n" + tag("html", head, tag("body", main, drawn), lang="en") + "\n"


def write_page(path: Path, title: str, *body: str) -> int:
    """Write a whole page to ``path`` and return its size in bytes.

    It is written to a temporary file in the same folder first, so that no reader gets an
    incomplete page.

    Raises:
        MissingCharts: plotly is not installed.
        OSError: it cannot be written.
    """
    content = page(title, *body).encode()
    beside = path.with_name(f".{path.name}.part")
    try:
        beside.write_bytes(content)
        beside.replace(path)
    except OSError as error:
        beside.unlink(missing_ok=True)
        raise OSError(error.errno, error.strerror, str(path)) from error
    return len(content)


def check_place(path: Path) -> None:
    """Check that `write_page` can write to ``path``, by writing an empty file beside it.

    Permissions alone do not tell: root may write everywhere, but not to ``/proc``. A file at
    ``path`` is not changed.

    Raises:
        OSError: a page could not be written, with the reason.
    """
    folder = path.absolute().parent
    if not folder.is_dir():
        raise NotADirectoryError(errno.ENOTDIR, f"{folder} is no folder to write to", str(path))
    if path.exists() and not path.is_file():
        raise OSError(errno.EINVAL, "is no file that a page could replace", str(path))
    try:
        with NamedTemporaryFile(dir=folder, prefix=f".{path.name}.", suffix=".part"):
            pass
    except OSError as error:
        text = f"nothing may be written to {folder} ({error.strerror})"
        raise OSError(error.errno, text, str(path)) from error


def section(title: str, *body: str, anchor: str = "", level: int = 2) -> Html:
    """Return a part of a page with a heading, to which `contents` can link."""
    return tag("section", tag(f"h{level}", title), *body, id=anchor or name_of(title))


def folded(title: str, *body: str, note: str = "", level: int = 3, opened: bool = False) -> Html:
    """Return a part that opens with a click; its charts are drawn then."""
    heading = tag("summary", tag(f"h{level}", title), " ", tag("small", note))
    return tag("details", heading, *body, open=opened)


def contents(parts: Iterable[tuple[str, str]]) -> Html:
    """Return links to sections, given by titles and anchors."""
    links = (
        tag("li", tag("a", title, href=f"#{anchor or name_of(title)}")) for title, anchor in parts
    )
    return tag("nav", tag("ul", *links), aria_label="Contents")


def name_of(title: str) -> str:
    """Return the default anchor of a section."""
    return "part-" + _NOT_IN_AN_ID.sub("-", title.lower()).strip("-")


def _policy(scripts: Iterable[str]) -> str:
    """Return the content security policy: only these scripts run, and nothing is fetched."""
    digests = (hashlib.sha256(script.encode()).digest() for script in scripts)
    known = " ".join(f"'sha256-{base64.b64encode(digest).decode()}'" for digest in digests)
    return f"default-src 'none'; script-src {known}; style-src 'unsafe-inline'; img-src data: blob:"


def _packaged(name: str) -> str:
    return files("loadmanager.charts").joinpath(name).read_text(encoding="utf-8")


def _plotly_js() -> str:
    try:
        from plotly.offline import get_plotlyjs  # noqa: PLC0415 - an extra, needed here alone
    except ImportError as error:
        raise MissingCharts from error
    return str(get_plotlyjs())
