"""The notebooks are their .py twins, hold no output, and run from top to bottom."""

from __future__ import annotations

import re

import jupytext
import nbformat
import pytest
from nbclient import NotebookClient
from pages import ROOT

NOTEBOOKS = ROOT / "examples" / "notebooks"
TWINS = sorted(NOTEBOOKS.glob("*.py"))


def printed(notebook: nbformat.NotebookNode) -> str:
    """Run a notebook in a kernel of its own; return what it printed."""
    # Without a shell's history and profile, and with pictures drawn but not shown.
    NotebookClient(notebook, timeout=600, kernel_name="python3", resources={"metadata": {"path": "."}}).execute()
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", ())]
    assert any("image/png" in output.get("data", {}) for output in outputs), "no picture"
    return "".join(output["text"] for output in outputs if output.get("name") == "stdout")


@pytest.mark.parametrize("twin", TWINS, ids=lambda path: path.stem)
def test_a_notebook_is_its_twin_without_output(twin):
    notebook = nbformat.read(twin.with_suffix(".ipynb"), as_version=4)
    nbformat.validate(notebook)
    expected = jupytext.read(twin)
    assert [(cell.cell_type, cell.source) for cell in notebook.cells] == [
        (cell.cell_type, cell.source) for cell in expected.cells
    ], f"run: jupytext --to ipynb {twin.relative_to(ROOT)}"
    assert not any(cell.get("outputs") for cell in notebook.cells)


def test_every_notebook_has_a_twin():
    assert {path.stem for path in NOTEBOOKS.glob("*.ipynb")} == {path.stem for path in TWINS}


def test_a_loop_of_ones_own_learns_and_knows_where_it_has_not_been(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = printed(nbformat.read(NOTEBOOKS / "own_loop.ipynb", as_version=4))
    first, last = map(int, re.search(r"first 50 episodes lasted (\d+) frames, the last 50 (\d+)", text).groups())
    assert last > 2 * first
    inside, outside = map(float, re.search(r"value: (\S+) where it has been, (\S+) where", text).groups())
    assert outside > 2 * inside


@pytest.mark.slow
def test_one_import_trains_and_its_band_is_finite(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = printed(nbformat.read(NOTEBOOKS / "one_import.ipynb", as_version=4))
    inside, seen = (int(share) for share in re.findall(r"(\d+)%", text))
    assert inside >= 70
    assert 80 <= seen <= 97
    assert "nan" not in text
