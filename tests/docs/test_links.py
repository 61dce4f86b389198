"""Links between files of the project lead somewhere, and every page is in the site's navigation."""

import re
import tomllib
from collections.abc import Iterator
from fnmatch import fnmatch
from functools import cache
from pathlib import Path

import pytest

PROJECT = Path(__file__).parents[2]
DOCS = PROJECT / "docs"
PAGES = sorted([*PROJECT.glob("*.md"), *DOCS.glob("**/*.md")])

_FENCE = re.compile(r"^ *```.*?^ *```$", re.MULTILINE | re.DOTALL)
_CODE = re.compile(r"`[^`\n]*`")
_LINK = re.compile(r"\]\(([^)\s]+)\)")
_HEADING = re.compile(r"^#{1,6} +(.+?) *$", re.MULTILINE)


def links(page: Path) -> Iterator[str]:
    text = _CODE.sub("", _FENCE.sub("", page.read_text("utf-8")))
    yield from (link for link in _LINK.findall(text) if "://" not in link)


@cache
def anchors(page: Path) -> frozenset[str]:
    """Return the anchors of a page's headings, as GitHub and the site make them."""
    found: list[str] = []
    for heading in _HEADING.findall(_FENCE.sub("", page.read_text("utf-8"))):
        words = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading).lower()
        slug = re.sub(r"[^\w\- ]", "", words).replace(" ", "-")
        same = found.count(slug)
        found += [slug, f"{slug}-{same}"] if same else [slug]
    return frozenset(found)


def broken(page: Path) -> list[str]:
    found = []
    for link in links(page):
        name, _, anchor = link.partition("#")
        target = (page.parent / name).resolve() if name else page
        if not target.exists() or (anchor and anchor not in anchors(target)):
            found.append(link)
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(PROJECT)))
def test_every_link_leads_to_a_file_and_a_heading(page: Path) -> None:
    assert broken(page) == []


def test_links_that_lead_nowhere_are_found(tmp_path: Path) -> None:
    (tmp_path / "other.md").write_text("# Two words\n\n## Two words\n")
    page = tmp_path / "page.md"
    page.write_text(
        "[a](other.md#two-words) [b](other.md#two-words-1) [c](other.md#three) [d](gone.md)\n"
        "[e](#here) `[f](code.md)` [g](https://example.org/x)\n```\n[h](fenced.md)\n```\n"
    )
    assert broken(page) == ["other.md#three", "gone.md", "#here"]


def test_every_page_is_in_the_navigation() -> None:
    navigation = tomllib.loads((DOCS / "site" / "navigation.toml").read_text("utf-8"))
    listed = {"index", *(one for pages in navigation.values() for one in pages)}
    pages = [str(page.relative_to(DOCS).with_suffix("")) for page in DOCS.glob("**/*.md")]
    assert [name for name in pages if not any(fnmatch(name, one) for one in listed)] == []


def test_the_readme_fits_one_screen() -> None:
    assert len((PROJECT / "README.md").read_text("utf-8").splitlines()) <= 45
