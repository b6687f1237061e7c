"""Docstrings name things by Sphinx's roles; the site links them, and the build fails on names that do not exist."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from typing import Any

import griffe

ROLE = re.compile(r":(?:class|meth|func|mod|attr|data|exc):`(~?)([\w.]+)`")
#: A paragraph before an example ends with two colons there, with one here.
LITERAL = re.compile(r"::$", re.MULTILINE)
#: Warnings below this name make ``mkdocs build --strict`` fail.
log = logging.getLogger("mkdocs.plugins.kova.roles")


class Roles(griffe.Extension):
    """Replaces roles by references that mkdocs-autorefs resolves, where the site has the object."""

    def on_package(self, *, pkg: griffe.Module, **_: Any) -> None:
        """Rewrite every docstring of the package."""
        for found in _objects(pkg):
            if found.docstring is not None:
                text = LITERAL.sub(":", found.docstring.value)
                found.docstring.value = ROLE.sub(lambda match, found=found: _linked(match, found, pkg), text)


def _linked(match: re.Match[str], found: griffe.Object, package: griffe.Module) -> str:
    short, name = match.groups()
    path = _full(name, found, package)
    if path is None:
        log.warning("%s: the docstring names %s, which does not exist", found.path, name)
        return f"`{name}`"
    text = name.rpartition(".")[2] if short else name
    return f'<autoref identifier="{path}" optional><code>{text}</code></autoref>'


def _full(name: str, found: griffe.Object, package: griffe.Module) -> str | None:
    """Return the path of a name as its docstring means it: whole, or seen from where it stands."""
    scope: griffe.Object | None = found
    while scope is not None:
        path = f"{scope.path}.{name}"
        if _exists(path, package):
            return path
        scope = scope.parent
    return name if _exists(name, package) else None


def _exists(path: str, package: griffe.Module) -> bool:
    head, _, rest = path.partition(".")
    if head != package.name:
        return False
    place: Any = package
    for word in filter(None, rest.split(".")):
        try:
            members = place.all_members if hasattr(place, "all_members") else place.members
            place = members[word]
        except (KeyError, griffe.AliasResolutionError):
            return False
    return True


def _objects(found: griffe.Object) -> Iterator[griffe.Object]:
    yield found
    for member in found.members.values():
        if not member.is_alias:
            yield from _objects(member)
