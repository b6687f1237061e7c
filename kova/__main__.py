"""``python -m kova``: the ``kova`` command, for whoever has two installations of it."""

from kova.cli import app

app(prog_name="kova")
