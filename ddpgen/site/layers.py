"""Read a spec, the files that it extends and its profile into one tree. Each value keeps its file and line.

Knows no fields by name, except `sweep` and those of LAYERS.
"""

from __future__ import annotations

import errno
import hashlib
import logging
import os
import sys
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from ddpgen.errors import Finding, Position, SpecInvalidError, SpecUnreadableError
from ddpgen.spec import yamltree
from ddpgen.spec.fields import Refused
from ddpgen.spec.job import EXTENDED, NAME
from ddpgen.spec.merge import SWEEP, Models, merge, whole
from ddpgen.spec.reader import SpecTree
from ddpgen.spec.yamltree import Listing, Node, NotYamlError, Scalar, Table, is_null

_log = logging.getLogger(__name__)
VARIABLE = "DDPGEN_PROFILE"


class Chosen(NamedTuple):
    """The options of one command.

    `profile`: its name, or "" for none. `overrides`: texts like train.lr=1e-4; the last one for a field wins.
    """

    profile: str | None = None
    overrides: tuple[str, ...] = ()


AS_WRITTEN = Chosen()
STDIN = "-"  # as the name of a spec


def read(spec: str, chosen: Chosen, models: Models, raw: bytes | None = None) -> SpecTree:
    """Return a spec laid over its profile and over all files that it extends, with the options laid over the spec.

    `raw`: the text of the spec, instead of the file's. Raises SpecUnreadableError, SpecInvalidError.
    """
    reading = _Reading(spec, models)
    try:
        if raw is None:
            raw = sys.stdin.buffer.read(yamltree.MAX_BYTES + 1) if spec == STDIN else _content(spec)
    except OSError as error:
        raise SpecUnreadableError(
            f"{spec}: {error.strerror}; give the path of a job spec"
        ) from None
    root = reading.tree(_Named(spec, os.path.basename(spec)), raw, ())
    root = reading.on_profile(root, chosen.profile)
    root = reading.overridden(root, chosen.overrides)
    record = None
    if len(reading.hashes) > 1 or chosen.overrides:
        record = {"files": reading.hashes, "set": list(chosen.overrides)}
        record |= {"profile": reading.profile} if reading.profile else {}
    sweep = root.entries.pop(SWEEP, None)
    if sweep is not None and is_null(sweep):
        sweep = None
    return SpecTree(spec, root, reading.findings, record, sweep)


class _Named(NamedTuple):
    """A file of a layer. `path`: for messages. `name`: for bundle.json, relative to the spec or as a layer names it."""

    path: str
    name: str

    def beside(self, text: str) -> _Named:
        """Return the file that this file names as `text`."""
        path, name = (
            os.path.normpath(os.path.join(os.path.dirname(start), end))
            for start, end in ((self.path, os.path.expanduser(text)), (self.name, text))
        )
        return _Named(path, text if text.startswith("~") else name)


class _Reading:
    """One pass over a spec and the files below it.

    `hashes`: the hash of each file, by its name. `profile`: the name of the profile, or "" without a profile.
    """

    def __init__(self, spec: str, models: Models):
        self._spec, self._models = spec, models
        self._trees: dict[str, Table] = {}
        self.hashes: dict[str, str] = {}
        self.profile = ""
        self.findings: list[Finding] = []

    def tree(self, file: _Named, raw: bytes, above: tuple[str, ...]) -> Table:
        """Return the file, laid over those that it extends. `above`: the files that extend this one."""
        real_path = os.path.realpath(file.path)
        if real_path in self._trees:
            return self._trees[real_path]
        try:
            root, findings = yamltree.parse(raw, "" if file.path == self._spec else file.path)
        except NotYamlError as error:
            raise SpecInvalidError(self._spec, [*self.findings, *error.findings]) from None
        self.hashes[file.name] = hashlib.sha256(raw).hexdigest()
        self.findings += findings
        base: Table | None = None
        for node, text in self._texts(root.entries.pop("extends", None)):
            below = self._extended(node, file.beside(text), (*above, real_path))
            if below is not None:
                base = below if base is None else self._laid_over(base, below)
        if base is not None:
            root = self._laid_over(base, root)
        self._trees[real_path] = root
        return root

    def _extended(self, node: Node, file: _Named, above: tuple[str, ...]) -> Table | None:
        """Return the tree of a file that `node` names; None if it cannot be read."""
        if os.path.realpath(file.path) in above:
            problem = f"{file.path} extends this file already"
            self.findings.append(yamltree.finding(node, problem, "remove one of the two `extends`"))
            return None
        try:
            raw = _content(file.path, regular=True)
        except OSError as error:
            problem = f"{file.path} cannot be read: {error.strerror}"
            self.findings.append(yamltree.finding(node, problem, f"write {EXTENDED.allowed}"))
            return None
        _log.debug(f"read {file.path}, which the spec extends")
        return self.tree(file, raw, above)

    def _laid_over(self, base: Table, overlay: Table) -> Table:
        return merge(base, overlay, whole(self._models))._replace(position=overlay.position)

    def on_profile(self, root: Table, option: str | None) -> Table:
        """Return the spec, laid over the profile that the option, the environment or the spec itself chooses."""
        node, variable = root.entries.pop("profile", None), os.environ.get(VARIABLE)
        for origin, name in (("--profile", option), (VARIABLE, variable)):
            if name is not None:
                node = Scalar(Position(0, 0, origin), (name,), name, "str", False) if name else None
                break
        if node is None or is_null(node):
            return root
        try:
            name = NAME.value(node)
        except Refused as refused:
            self.findings.append(yamltree.finding(node, refused.problem, refused.remedy))
            return root
        if (file := self._profile(node, name)) is None:
            return root
        try:
            raw = _content(file.path)
        except OSError as error:
            problem = f"{file.path} cannot be read: {error.strerror}"
            self.findings.append(
                yamltree.finding(node, problem, "ask its owner for the permission")
            )
            return root
        _log.debug(f"read {file.path}, the profile {name}")
        self.profile, profile = name, self.tree(file, raw, ())
        if (inner := profile.entries.pop("profile", None)) is not None:
            problem = "a profile cannot choose another one"
            remedy = "write `extends: OTHER.yaml` in it"
            self.findings.append(yamltree.finding(inner, problem, remedy))
        return self._laid_over(profile, root)

    def _profile(self, node: Node, name: str) -> _Named | None:
        """Return the file of the profile that `node` names."""
        from ddpgen.site import profiles

        folders = list(profiles.folders(self._spec))
        for folder in folders:
            file = _Named(os.path.join(folder.path, f"{name}.yaml"), f"{folder.name}/{name}.yaml")
            if os.path.isfile(file.path):
                return file
        first, *_, user, system = (folder.path for folder in folders)
        problem = f"there is no {name}.yaml in {first} or a .ddpgen above it, {user} or {system}"
        known = profiles.known(self._spec)
        remedy = (
            f"write one of {', '.join(known)}" if known else "write that file: docs/profiles.md"
        )
        self.findings.append(yamltree.finding(node, problem, remedy))
        return None

    def overridden(self, root: Table, overrides: Sequence[str]) -> Table:
        """Return the spec with the values of these options."""
        if not overrides:
            return root
        from ddpgen.spec import overrides as options

        values: dict[tuple[str, ...], Node] = {}
        for text in overrides:
            try:
                path, node, findings = options.read(text, root, self._models)
            except NotYamlError as error:
                self.findings += error.findings
                continue
            values.pop(path, None)
            values[path] = node
            self.findings += findings
        return options.with_overrides(root, values, self._models)

    def _texts(self, node: Node | None) -> Iterator[tuple[Node, str]]:
        """Yield each file that `extends` names, and its node."""
        if node is None or is_null(node):
            return
        for item in node.items if isinstance(node, Listing) else [node]:
            try:
                yield item, EXTENDED.value(item)
            except Refused as refused:
                self.findings.append(yamltree.finding(item, refused.problem, refused.remedy))


def _content(file: str, regular: bool = False) -> bytes:
    """Return the content of a file, or enough of it to show that the file is no spec.

    Raises OSError. `regular`: raise it for a pipe or a device as well.
    """
    if regular and os.path.exists(file) and not (os.path.isfile(file) or os.path.isdir(file)):
        # Opening a pipe would wait for ever.
        raise OSError(errno.EINVAL, "it is no file", file)
    with open(file, "rb") as stream:
        return stream.read(yamltree.MAX_BYTES + 1)
