"""Pages may link to files beside ``docs/``, as they must for readers of the repository; the site takes those along.

``../benchmarks/results/step.png`` becomes a file of the site, ``../examples/dqn.py`` a page that shows it,
``../CHANGELOG.md`` a page. A link to what is not there stays as it is, and the build fails on it.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

import jupytext
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

#: What the site takes along, below the repository.
BESIDE = (
    "benchmarks/results/*",
    "examples/*.py",
    "examples/notebooks/*",
    "CHANGELOG.md",
    "CITATION.cff",
    "CONTRIBUTING.md",
    "LICENSE",
)
#: Inline links, ``](target)`` and ``](target#anchor)``.
LINK = re.compile(r"(?<=\]\()([^)\s#]+)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add what lies beside ``docs/``, under its path in the repository."""
    root = Path(config.docs_dir).parent
    for pattern in BESIDE:
        for path in sorted(root.glob(pattern)):
            name = path.relative_to(root).as_posix()
            if path.suffix in (".py", ".md"):
                files.append(File.generated(config, _page(name), content=_shown(path)))
            else:
                files.append(File.generated(config, name, abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files, **_: Any) -> str:
    """Point links that leave ``docs/`` to where the site has the file."""
    generated = page.file.generated_by is not None
    # A generated page was written where it lies in the repository, the others one folder deeper than in the site.
    here = posixpath.dirname(page.file.src_uri if generated else posixpath.join("docs", page.file.src_uri))

    def moved(match: re.Match[str]) -> str:
        target = match.group(1)
        if ":" in target or target.startswith("/"):
            return target
        path = posixpath.normpath(posixpath.join(here, target))
        inside = path.removeprefix("docs/") if path.startswith("docs/") else _page(path)
        if files.get_file_from_path(inside) is None:
            return target
        return posixpath.relpath(inside, posixpath.dirname(page.file.src_uri) or ".")

    return LINK.sub(moved, markdown)


def _page(name: str) -> str:
    """Return the name in the site: that of a page for a program, which would else be downloaded."""
    return f"{name.removesuffix('.py')}.md" if name.endswith(".py") else name


def _shown(path: Path) -> str:
    """Return the text of a page for a file."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".md":
        return text
    if path.parent.name == "notebooks":
        notebook = jupytext.reads(text, fmt="py:percent")
        notebook.metadata = {"jupytext": {"notebook_metadata_filter": "-all"}}
        return f"{jupytext.writes(notebook, fmt='md')}\n\nThe notebook: [`{path.stem}.ipynb`]({path.stem}.ipynb)\n"
    return f"# {path.name}\n\n```python\n{text}```\n"
