"""``python -m kova``: the ``kova`` command of this interpreter's installation."""

from kova.cli import app

app(prog_name="kova")
