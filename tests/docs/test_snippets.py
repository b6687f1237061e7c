"""What the site and the README tell a reader to type works: Python is run, commands are parsed, sweeps are read."""

from __future__ import annotations

import ast
import functools
import importlib
import re
import shlex
import tomllib
from pathlib import Path
from typing import Any

import pytest
import torch
import typer
import yaml
from pages import COMMENT, PAGES, ROOT, Block, blocks, name

from kova.cli import app
from kova.cli.errors import WrongWords
from kova.experiments.commands.train import TrainRequest
from kova.experiments.errors import UsageError
from kova.experiments.runs.config import parsed
from kova.experiments.sweeps import engines
from kova.experiments.sweeps.grid import Sweep

#: Numbers of frames that a reader waits for and a test does not.
SHORTER = {
    "learn(100_000)": "learn(256)",
    "learn(20_000)": "learn(2_048)",
    "learn(10_000,": "learn(256,",
    "learn(2048)": "learn(256)",
    "learn(1000)": "learn(100)",
}

#: What a page takes as given, as its sentences say.
GIVEN = {
    "docs/uncertainty.md": """
import torch

import kova
from kova.sb3 import PPO

critic = torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
optimizer = kova.KOVA(critic)
u = states = torch.randn(16, 3)
model = PPO("MlpPolicy", "CartPole-v1", n_steps=64).learn(64)
observation = model.get_env().reset()
""",
}

#: What may keep a block from being run. Another reason is no reason.
REASONS = ("needs a cluster", "needs a GPU", "needs the network")

#: Programs beside kova that a reader has.
OTHER_PROGRAMS = ("export", "gcc", "git", "make", "pip", "tar", "tensorboard")

IDS = {"argvalues": PAGES, "ids": name}
WITH_PYTHON = [page for page in PAGES if any(blocks(page.read_text(), "python"))]


@pytest.mark.parametrize("page", WITH_PYTHON, ids=name)
def test_python_runs_from_top_to_bottom(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    namespace: dict[str, Any] = {"__name__": "__main__"}
    exec(GIVEN.get(name(page), ""), namespace)
    for block in blocks(page.read_text(), "python"):
        if block.reason is None:
            exec(compiled(block, page), namespace)


def compiled(block: Block, page: Path) -> Any:
    """Return the code of a block; a traceback names its line in the page."""
    text = block.text
    for long, short in SHORTER.items():
        text = text.replace(long, short)
    return compile("\n" * (block.line - 1) + text, str(page), "exec")


@pytest.mark.parametrize("page", **IDS)
def test_a_block_that_is_not_run_has_a_reason_and_names_what_there_is(page):
    text = page.read_text()
    kept = [block for block in blocks(text, "python") if block.reason is not None]
    assert len(kept) == len(COMMENT.findall(text)), "a comment stands before no block of Python"
    for block in kept:
        assert block.reason in REASONS, f"{name(page)}:{block.line}: give one of {REASONS}"
        for node in ast.walk(ast.parse(block.text)):
            if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "kova":
                module = importlib.import_module(node.module or "")
                assert all(hasattr(module, alias.name) for alias in node.names), ast.unparse(node)


def test_every_shorter_number_is_of_a_page():
    texts = [page.read_text() for page in PAGES]
    assert [long for long in SHORTER if not any(long in text for text in texts)] == []
    assert [given for given in GIVEN if not (ROOT / given).is_file()] == []


def lines(text: str) -> list[list[str]]:
    """Return the words of every command in the shell blocks of a page."""
    typed = (block.text.replace("\\\n", " ").splitlines() for block in blocks(text, "sh"))
    return [words for block in typed for line in block if (words := shlex.split(line, comments=True))]


#: A command in a sentence, if it can be typed as it stands: without a place to fill in.
SPOKEN = re.compile(r"`kova ([a-z][^`…\[|]*)`")


def spoken(text: str) -> list[list[str]]:
    """Return the words of every whole command in the sentences of a page."""
    found = (shlex.split(words.replace("\n", " ")) for words in SPOKEN.findall(text))
    return [words for words in found if not any(word.isupper() for word in words)]


@pytest.mark.parametrize("page", **IDS)
def test_commands_are_understood(page):
    text = page.read_text()
    for words in lines(text):
        if words[0] == "kova":
            understood(words[1:])
        else:
            assert words[0] in OTHER_PROGRAMS, words
    for words in spoken(text):
        named(words)


def understood(words: list[str]) -> None:
    """Let the real parser read a command, and check what only its work would have found."""
    command = typer.main.get_command(app)
    seen: list[tuple[str, dict[str, Any]]] = []
    for path, leaf in leaves(command, ()):
        leaf.callback = lambda path=path, **given: seen.append((path, given))
    command.main(list(words), standalone_mode=False)
    ((path, given),) = seen
    CHECKS.get(path, lambda _: None)(given)


def named(words: list[str]) -> None:
    """Check that a command which a sentence names exists; it may lack its arguments."""
    below: Any = typer.main.get_command(app)
    while words and not words[0].startswith("-") and hasattr(below, "commands"):
        assert words[0] in below.commands, words
        below, words = below.commands[words[0]], words[1:]
    options = {option for parameter in below.params for option in parameter.opts}
    assert {word for word in words if word.startswith("-")} <= options, words


def leaves(command: Any, path: tuple[str, ...]) -> list[tuple[str, Any]]:
    below = getattr(command, "commands", None)
    if below is None:
        return [(" ".join(path), command)]
    return [leaf for word, child in below.items() for leaf in leaves(child, (*path, word))]


def check_train(given: dict[str, Any]) -> None:
    if not given["resume"]:
        if (given["preset"] or "").endswith(".yaml"):
            # The file is what another command of the page leaves.
            given = {**given, "preset": None}
        names = ("algo", "env", "critic", "preset", "steps", "seed")
        TrainRequest(*(given[name] for name in names), settings=tuple(given["settings"] or ())).config()


def check_sweep(given: dict[str, Any]) -> None:
    engines.check(given["engine"], address=given["address"], fetch=given["fetch"])
    if not given["name"].endswith(".yaml"):
        planned(given["name"], given["seeds"], tuple(given["settings"] or ()))


@functools.cache
def planned(name: str, seeds: int | None, settings: tuple[str, ...]) -> int:
    """Return how many runs a sweep has; the pages name the same few again and again."""
    return len(Sweep.find(name).changed(seeds, parsed(settings)).runs())


#: What is checked beyond the parser, before any work begins.
CHECKS = {"train": check_train, "sweep": check_sweep}


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("fly", "fly"),
        ("bench leap", "leap"),
        ("train ppo CartPole-v1 --stepz 3", "--stepz"),
        ("train ppo CartPole-v1 --set critic.covarianze=full", "covarianze"),
        ("train pppo CartPole-v1", "pppo"),
        ("sweep quik", "quik"),
        ("sweep quick --jobs 0", ""),
    ],
)
def test_a_command_that_does_not_exist_would_be_found(words, says):
    with pytest.raises((UsageError, WrongWords)) as found:
        understood(words.split())
    assert says in str(getattr(found.value, "message", found.value))


@pytest.mark.parametrize("page", **IDS)
def test_sweeps_are_sweeps(page, tmp_path):
    for block in blocks(page.read_text(), "yaml"):
        if "arms" in yaml.safe_load(block.text):
            (tmp_path / "sweep.yaml").write_text(block.text)
            assert Sweep.from_file(tmp_path / "sweep.yaml").runs()


@pytest.mark.parametrize("page", **IDS)
def test_what_is_installed_and_made_exists(page):
    """The distribution is kova-rl: the plain name is somebody else's package."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    text = page.read_text()
    assert not re.search(r"pip install (-U |--upgrade )?kova(?!-rl)", text)
    for listed in re.findall(r"kova-rl\[([\w,]+)\]|pip install \"?\.\[([\w,]+)\]", text):
        assert set("".join(listed).split(",")) <= extras.keys()
    targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    made = [words[1] for words in lines(text) if words[0] == "make"] + re.findall(r"`make ([\w-]+)`", text)
    assert [target for target in made if target not in targets] == []


def test_blocks_are_found_where_they_stand():
    listed = "- list\n\n    ```python\n    a = 1\n    ```\n\n"
    kept = "<!-- not run: needs a GPU -->\n```python\nb\n```\n"
    first, second = blocks(f"{listed}{kept}```sh\nc\n```\n", "python")
    assert first == Block("python", "a = 1\n", 4, None)
    assert second == Block("python", "b\n", 9, "needs a GPU")


def test_links_of_the_readme_lead_somewhere():
    """Those of the pages are checked where the site is built."""
    found = re.findall(r"\]\((?!https?:)([^)#]+)", (ROOT / "README.md").read_text())
    assert len(found) > 20
    assert [link for link in found if not (ROOT / link).exists()] == []
