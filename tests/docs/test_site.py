"""The site builds without a warning, and its pages need nothing from elsewhere."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from pages import ROOT

#: What a browser loads by itself: images, styles, scripts and fonts, not links.
LOADED = re.compile(r"""<(?:img|script|link|source|iframe)\b[^>]*?\b(?:src|href)=["']?((?:https?:)?//[^"'\s>]+)""")


def build(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """Build the site as ``make docs`` does."""
    return subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder), *options],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    done = build(folder)
    assert done.returncode == 0, done.stderr
    return folder


def test_pages_load_nothing_from_elsewhere(site):
    loaded = {
        (page.relative_to(site).as_posix(), address)
        for page in site.rglob("index.html")
        for address in LOADED.findall(page.read_text())
    }
    assert loaded == set()
    styles = " ".join(style.read_text() for style in site.rglob("*.css"))
    assert not re.search(r"url\([\"']?(?:https?:)?//", styles)


def test_what_lies_beside_the_pages_comes_along(site):
    for name in ("benchmarks/results/step.png", "data/a2c.tar.xz", "mujoco-300k.html", "CITATION.cff"):
        assert (site / name).stat().st_size > 100, name
    example = (site / "examples" / "dqn" / "index.html").read_text()
    assert "kova" in example
    # The link of the repository, ../examples/dqn.py, leads to that page.
    assert 'href="dqn/"' in (site / "examples" / "index.html").read_text()


def test_a_number_stays_beside_its_deviation(site):
    page = (site / "results" / "index.html").read_text()
    assert "1,199\N{NO-BREAK SPACE}±\N{NO-BREAK SPACE}291" in page


def test_the_reference_has_docstrings_links_and_every_command(site):
    optimizer = (site / "api" / "kova" / "index.html").read_text()
    assert 'id="kova.KOVA.step"' in optimizer
    assert "minimises the linearised L_EKF" in optimizer
    noise = (site / "api" / "noise" / "index.html").read_text()
    assert re.search(r'<a [^>]*href="\.\./kova/#kova\.KOVA\.step"', noise), "roles are links"
    for page in (site / "api").rglob("index.html"):
        assert not re.search(r":(class|meth|func|mod):", page.read_text()), page
    commands = (site / "api" / "command" / "index.html").read_text()
    assert "kova bench deep-sea" in commands
    assert "--dry-run" in commands


@pytest.mark.parametrize(
    ("text", "fails"),
    [
        ("[fine](training.md#place) [beside](../examples/dqn.py) ![](../benchmarks/results/step.png)", False),
        ("[gone](nowhere.md)", True),
        ("[no such place](training.md#nowhere)", True),
        ("[beside](../examples/nowhere.py)", True),
        ("![picture](figures/nowhere.png)", True),
        ("[absolute](/training/)", True),
    ],
)
def test_a_dead_link_fails(text, fails, tmp_path):
    """In a small site with the settings of ours, beside the same files."""
    docs = tmp_path / "docs"
    docs.mkdir()
    for name in ("examples", "benchmarks"):
        (tmp_path / name).symlink_to(ROOT / name)
    (docs / "index.md").write_text(f"# Home\n\n{text}\n")
    (docs / "training.md").write_text("# Training\n\n## Place\n")
    settings = {
        "INHERIT": str(ROOT / "mkdocs.yml"),
        "docs_dir": str(docs),
        "nav": ["index.md", "training.md"],
        "hooks": [str(ROOT / "docs" / "hooks" / "beside.py")],
        "plugins": ["search"],
        "extra_css": [],
    }
    (tmp_path / "mkdocs.yml").write_text(yaml.safe_dump(settings))
    done = build(tmp_path / "site", "--config-file", str(tmp_path / "mkdocs.yml"))
    assert (done.returncode != 0) is fails, done.stderr
    assert ("Doc file 'index.md' contains" in done.stderr) is fails
