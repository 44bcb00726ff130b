"""Hooks of mkdocs (see mkdocs.yml): the pages and files outside docs/ that the site needs.

README.md, CHANGELOG.md and CONTRIBUTING.md become pages. A file of examples/ to which a page links becomes a file of
the site. Links between all of these are written for GitHub, relative to the repository, and are rewritten here.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parent.parent
PAGES = {
    "README.md": "index.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
}
_LINK = re.compile(r"(\]\()([^)#:\s]+)((?:#[^)\s]*)?\))")


def on_files(files: Files, config: Any) -> Files:
    """Add the pages, and each other file of the repository to which a page links."""
    for source, page in PAGES.items():
        files.append(File.generated(config, page, content=(ROOT / source).read_text("utf-8")))
    for file in list(files.documentation_pages()):
        for target in _targets(file.src_uri, file.content_string):
            if (ROOT / target).is_file() and not files.get_file_from_path(_in_site(target)):
                files.append(
                    File.generated(config, _in_site(target), abs_src_path=str(ROOT / target))
                )
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Rewrite the links of a page from the repository's paths to the site's."""

    def rewritten(link: re.Match[str]) -> str:
        target = _in_site(_in_repository(page.file.src_uri, link[2]))
        start = posixpath.dirname(page.file.src_uri) or "."
        return f"{link[1]}{posixpath.relpath(target, start)}{link[3]}"

    return _LINK.sub(rewritten, markdown)


def _targets(page: str, markdown: str) -> list[str]:
    return [_in_repository(page, link[2]) for link in _LINK.finditer(markdown)]


def _in_repository(page: str, link: str) -> str:
    """Return the path from the repository's root to which `link` leads on `page`, a path of the site."""
    sources = {to: source for source, to in PAGES.items()}
    source = sources.get(page, f"docs/{page}")
    return posixpath.normpath(posixpath.join(posixpath.dirname(source), link))


def _in_site(path: str) -> str:
    """Return the site's path of a file of the repository."""
    return PAGES.get(path, path.removeprefix("docs/"))
