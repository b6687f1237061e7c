"""What is released: the wheel works in an environment of its own, and every file names the same version and address."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import venv
import zipfile
from pathlib import Path

import pytest
import yaml

import kova

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))

#: What a user does first, with every kind of file that the wheel must bring along: presets, sweeps, page templates.
FIRST_STEPS = """
import sys

import torch

import kova
from kova.experiments.sweeps.grid import Sweep, shipped_sweeps

assert kova.__file__.startswith(sys.prefix), kova.__file__
optimizer = kova.KOVA(torch.nn.Linear(3, 1))
optimizer.step(torch.randn(8, 3), torch.randn(8))
assert optimizer.predict(torch.randn(2, 3)).stddev.shape == (2,)
assert all(Sweep.find(name).runs() for name in shipped_sweeps())
print(len(shipped_sweeps()), kova.__version__)
"""


def run(*words: object, **options: object) -> str:
    done = subprocess.run(list(map(str, words)), capture_output=True, text=True, check=False, **options)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def dist(tmp_path_factory) -> Path:
    """The folder of the archives: what ``make dist`` built, or else a build of our own."""
    if "KOVA_DIST" in os.environ:
        return ROOT / os.environ["KOVA_DIST"]
    folder = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, ROOT)
    run(sys.executable, "-m", "twine", "check", "--strict", *folder.iterdir())
    return folder


@pytest.mark.slow
def test_the_archives_hold_the_package_and_nothing_else(dist):
    (wheel,), (source,) = dist.glob("*.whl"), dist.glob("*.tar.gz")
    assert wheel.name == f"kova_rl-{kova.__version__}-py3-none-any.whl"
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.partition("/")[0] for name in names} == {"kova", f"kova_rl-{kova.__version__}.dist-info"}
    shipped = {path.relative_to(ROOT).as_posix() for path in (ROOT / "kova").rglob("*") if path.is_file()}
    shipped = {name for name in shipped if "__pycache__" not in name}
    assert shipped <= set(names), sorted(shipped - set(names))
    with tarfile.open(source) as archive:
        inside = {name.partition("/")[2] for name in archive.getnames()}
    assert shipped | {"pyproject.toml", "README.md", "LICENSE", "CITATION.cff", "tests/reference.py"} <= inside
    assert not any(name.startswith("docs/") for name in inside)


@pytest.mark.slow
def test_the_wheel_works_in_an_environment_of_its_own(dist, tmp_path):
    """torch and the rest are lent by this environment: they are large, and not what is tested."""
    (wheel,) = dist.glob("*.whl")
    venv.create(tmp_path / "venv", with_pip=False)
    python = tmp_path / "venv" / "bin" / "python"
    # A folder on the path lends its packages but not its .pth files: an editable kova does not come along.
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "COV_"))}
    lent = {**clean, "PYTHONPATH": sysconfig.get_path("purelib"), "OMP_NUM_THREADS": "1"}
    run(
        sys.executable,
        "-m",
        "pip",
        "--python",
        python,
        "install",
        "--quiet",
        "--no-deps",
        "--no-index",
        wheel,
        env=clean,
    )

    count, version = run(python, "-c", FIRST_STEPS, env=lent, cwd=tmp_path).split()
    assert int(count) >= 8
    assert version == kova.__version__
    command = tmp_path / "venv" / "bin" / "kova"
    assert run(command, "--version", env=lent, cwd=tmp_path) == f"kova-rl {kova.__version__}\n"
    run(command, "train", "a2c", "CartPole-v1", "--steps", "400", env=lent, cwd=tmp_path)
    run(command, "report", "runs", env=lent, cwd=tmp_path)
    assert "CartPole-v1" in (tmp_path / "report.html").read_text()


def test_the_version_is_the_same_everywhere():
    assert yaml.safe_load((ROOT / "CITATION.cff").read_text())["version"] == kova.__version__
    assert f"version = {{{kova.__version__}}}" in (ROOT / "docs" / "citation.md").read_text()
    changelog = (ROOT / "CHANGELOG.md").read_text()
    released, _, _ = kova.__version__.partition(".dev")
    expected = f"## [{released}]" if released == kova.__version__ else f"## Unreleased ({released})"
    assert expected in changelog, "the changelog has no section for this version"


def test_the_address_is_the_same_everywhere():
    address = PROJECT["urls"]["Repository"]
    files = [
        ROOT / "README.md",
        ROOT / "CITATION.cff",
        *(ROOT / "docs").rglob("*.md"),
        *(ROOT / ".github").rglob("*.yml"),
    ]
    found = {
        match
        for file in files
        for match in re.findall(r"https://github\.com/[\w-]*kova[\w-]*/[\w-]+", file.read_text())
    }
    assert found == {address}
    for file in (ROOT / "README.md", ROOT / "docs" / "tutorial.md"):
        assert f"@ git+{address}" in file.read_text(), file


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_a_workflow_calls_what_there_is(path):
    workflow = yaml.safe_load(path.read_text())
    steps = [step for job in workflow["jobs"].values() for step in job["steps"]]
    assert steps
    targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    made = [target for step in steps for target in re.findall(r"^make ([\w-]+)$", step.get("run", ""), re.MULTILINE)]
    assert made
    assert set(made) <= set(targets)
    # A name and a version, never a branch that moves under us, but PyPI's own.
    used = [step["uses"] for step in steps if "uses" in step]
    assert all(re.fullmatch(r"[\w-]+/[\w-]+@(v\d+|release/v\d+)", action) for action in used), used


def test_the_release_workflow_finds_version_and_section():
    """Its sed and awk, on this repository's files."""
    steps = yaml.safe_load((ROOT / ".github" / "workflows" / "release.yml").read_text())["jobs"]["build"]["steps"]
    script = next(step["run"] for step in steps if step.get("name") == "The tag is the version")
    wrong = subprocess.run(
        ["bash", "-e", "-c", script],
        cwd=ROOT,
        env={**os.environ, "GITHUB_REF_NAME": "v9.9.9"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert wrong.returncode == 1
    assert wrong.stdout == f"kova/__init__.py says {kova.__version__}, the tag v9.9.9\n"


@pytest.mark.parametrize("name", ["bug", "result", "idea"])
def test_an_issue_template_has_what_github_wants(name):
    form = yaml.safe_load((ROOT / ".github" / "ISSUE_TEMPLATE" / f"{name}.yml").read_text())
    assert {"name", "description", "body"} <= form.keys()
    fields = [part for part in form["body"] if part["type"] != "markdown"]
    assert len({part["id"] for part in fields}) == len(fields)
    assert all(part["attributes"]["label"] for part in fields)
