"""How to install what a part of kova needs beside torch."""

#: There is no release on PyPI yet.
SOURCE = "git+https://github.com/kova-rl/kova"


def pip_install(*extras: str) -> str:
    """Return the command that installs kova with some of its extras."""
    return f'pip install "kova-rl[{",".join(extras)}] @ {SOURCE}"'
