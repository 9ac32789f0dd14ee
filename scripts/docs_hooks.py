"""Hooks of `make docs`: pages may link to files of the checkout outside docs/.

The site contains copies of them below source/.
"""

from __future__ import annotations

import ast
import os
import re
from pathlib import Path
from typing import Any

from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files, InclusionLevel

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
LINK = re.compile(r"\]\((?P<path>[^)#:\s]+)(?P<anchor>#[^)\s]*)?\)")


def linked(page: Path, link: str) -> Path | None:
    """Return the file of the checkout that a page's link points to, None if there is none."""
    target = (page.parent / link).resolve()
    return target if target.is_file() and target.is_relative_to(ROOT) else None


def uri(file: Path) -> str:
    """Return the path of a file of the checkout in the site's sources."""
    return str(file.relative_to(DOCS) if file.is_relative_to(DOCS) else "source" / file.relative_to(ROOT))


def on_files(files: Files, *, config: Any) -> Files:
    """Add the files outside docs/ that pages link to, and those that these files link to."""
    pages = sorted(DOCS.rglob("*.md"))
    for page in pages:  # it grows meanwhile
        for match in LINK.finditer(page.read_text("utf-8")):
            target = linked(page, match["path"])
            if target is None or files.get_file_from_path(uri(target)) is not None:
                continue
            level = InclusionLevel.NOT_IN_NAV
            files.append(File.generated(config, uri(target), abs_src_path=str(target), inclusion=level))
            if target.suffix == ".md":
                pages.append(target)
    return files


def on_page_markdown(markdown: str, *, page: Any, config: Any, files: Files) -> str:
    """Change links to point to the copies, and links of copied pages to point to the pages of docs/."""
    here = Path(page.file.src_uri)
    origin = ROOT / here.relative_to("source") if here.is_relative_to("source") else DOCS / here

    def moved(match: re.Match[str]) -> str:
        target = linked(origin, match["path"])
        return match[0] if target is None else f"]({os.path.relpath(uri(target), here.parent)}{match['anchor'] or ''})"

    return LINK.sub(moved, markdown)


def on_post_build(*, config: Any) -> None:
    """Fail if a public name of a documented room is missing from its page."""
    missing = []
    for page in sorted((DOCS / "reference/api").glob("*.md")):
        room = ROOT / "src/mqtrail" / page.stem / "__init__.py"
        html = (Path(config.site_dir) / "reference/api" / f"{page.stem}.html").read_text("utf-8")
        names = [f"mqtrail.{page.stem}.{name}" for name in public_names(room)]
        missing += [name for name in names if f'id="{name}"' not in html]
    if missing:
        raise PluginError(f"no entry in the Python API: {', '.join(missing)}")


def public_names(module: Path) -> list[str]:
    """Return `__all__` of a module without importing it."""
    for node in ast.parse(module.read_text("utf-8")).body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and node.targets[0].id == "__all__":
            return list(ast.literal_eval(node.value))
    raise PluginError(f"found no __all__ in {module}")
