"""YAML text → a tree of nodes that remember where they stand. Judges YAML, not job specs.

Scalars keep their source text beside what YAML 1.1 takes them for, so that `2:00` or `yes` can be
explained instead of silently becoming 120 or true. Anchors, aliases, merge keys and tags are
refused: with them a value would stand somewhere else than where it acts.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import yaml

from ddpgen.errors import Finding, Place

MAX_BYTES = 1 << 20
MAX_DEPTH = 24

_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class Scalar(NamedTuple):
    """A value: `text` as written, `tag` what YAML 1.1 reads it as (str, int, float, bool, null…)."""

    place: Place
    path: tuple[str, ...]
    text: str
    tag: str
    quoted: bool


class Listing(NamedTuple):
    """A list."""

    place: Place
    path: tuple[str, ...]
    items: list[Node]


class Table(NamedTuple):
    """A mapping; `keys` holds where each key stands."""

    place: Place
    path: tuple[str, ...]
    entries: dict[str, Node]
    keys: dict[str, Place]


Node = Scalar | Listing | Table


class NotYamlError(Exception):
    """The text is no YAML mapping at all; carries the findings."""

    def __init__(self, *findings: Finding):
        super().__init__()
        self.findings = findings


def dotted(path: tuple[str, ...]) -> str:
    """A path as people write it: train.args.width, code[1]."""
    text = ""
    for part in path:
        text += part if part.startswith("[") else f".{part}" if text else part
    return text


def parse(raw: bytes) -> tuple[Table, list[Finding]]:
    """The spec's mapping, and what is wrong with its YAML but does not hide the rest.

    Raises NotYamlError when there is nothing to go on with.
    """
    text = _decode(raw)
    loader = _Loader(text)
    try:
        builder = _Builder(loader)
        root = builder.document()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        raise NotYamlError(_syntax(error, _place(mark), text)) from None
    except yaml.reader.ReaderError as error:
        before = text[: error.position]
        place = Place(before.count("\n") + 1, len(before) - before.rfind("\n"))
        raise NotYamlError(_unfit_character(place)) from None
    except yaml.YAMLError as error:
        raise NotYamlError(_first(f"not YAML: {error}", "fix the syntax")) from None
    finally:
        loader.dispose()
    if not isinstance(root, Table):
        what = "is empty" if root is None else "is not a mapping of keys to values"
        remedy = "start with `name: my-job`; `ddpgen init` writes a spec to begin with"
        raise NotYamlError(_first(f"the spec {what}", remedy), *builder.findings)
    return root, builder.findings


def _decode(raw: bytes) -> str:
    if len(raw) > MAX_BYTES:
        what = f"the file has more than {MAX_BYTES >> 20} MiB, far more than a job spec"
        raise NotYamlError(_first(what, "give the path of the spec itself"))
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        before = raw[: error.start]
        place = Place(before.count(b"\n") + 1, error.start - before.rfind(b"\n"))
        what = f"byte 0x{raw[error.start]:02x} is not UTF-8"
        raise NotYamlError(Finding(place, "", what, "save the file as UTF-8")) from None
    for line, content in enumerate(text.split("\n"), 1):
        if "\0" in content:
            raise NotYamlError(_unfit_character(Place(line, content.index("\0") + 1)))
    return text


class _Builder:
    """Turns the event stream into nodes, without recursion: depth is the author's choice."""

    def __init__(self, loader: Any):
        self.loader = loader
        self.findings: list[Finding] = []

    def document(self) -> Node | None:
        self.loader.get_event()  # stream start
        if self.loader.check_event(yaml.StreamEndEvent):
            return None
        self.loader.get_event()  # document start
        root = self._tree()
        self.loader.get_event()  # document end
        if not self.loader.check_event(yaml.StreamEndEvent):
            place = _place(self.loader.get_event().start_mark)
            what = "a second document begins here"
            self.findings.append(Finding(place, "", what, "keep one job in one file"))
        return root

    def _tree(self) -> Node:
        root: Node | None = None
        stack: list[tuple[Listing | Table, tuple[str, Place] | None]] = []
        while True:
            event = self.loader.get_event()
            if isinstance(event, (yaml.MappingEndEvent, yaml.SequenceEndEvent)):
                stack.pop()
                if not stack:
                    assert root is not None
                    return root
                continue
            holder, key = stack[-1] if stack else (None, None)
            if isinstance(holder, Table) and key is None:
                stack[-1] = (holder, self._key(event, holder))
                continue
            node = self._node(event, holder, key)
            root = root or node
            if stack:
                stack[-1] = (stack[-1][0], None)
            if isinstance(node, Scalar):
                if not stack:
                    return node
                continue
            if len(stack) >= MAX_DEPTH:
                what = f"is nested more than {MAX_DEPTH} levels deep"
                raise NotYamlError(Finding(node.place, dotted(node.path), what, "flatten it"))
            stack.append((node, None))

    def _key(self, event: Any, holder: Table) -> tuple[str, Place]:
        place = _place(event.start_mark)
        self._refuse_sharing(event, place, holder.path)
        if not isinstance(event, yaml.ScalarEvent):
            what = "a list or mapping stands where a key should be"
            raise NotYamlError(Finding(place, dotted(holder.path), what, "use a plain word as key"))
        name = event.value
        if name in holder.keys:
            path = dotted((*holder.path, name))
            what = f"is given twice; the first is on line {holder.keys[name].line}"
            self.findings.append(Finding(place, path, what, "keep one of them"))
        elif name == "<<" and not event.style:
            what = "merge keys are not supported: a value has to stand where it acts"
            remedy = "write the values out, or use targets.<tier> for what differs"
            self.findings.append(Finding(place, dotted(holder.path), what, remedy))
        return name, place

    def _node(self, event: Any, holder: Any, key: tuple[str, Place] | None) -> Node:
        place = _place(event.start_mark)
        path: tuple[str, ...] = ()
        if isinstance(holder, Listing):
            path = (*holder.path, f"[{len(holder.items)}]")
        elif isinstance(holder, Table) and key:
            path = (*holder.path, key[0])
        self._refuse_sharing(event, place, path)
        node = self._build(event, place, path)
        if isinstance(holder, Listing):
            holder.items.append(node)
        elif isinstance(holder, Table) and key and key[0] != "<<":
            holder.entries.setdefault(key[0], node)
            holder.keys.setdefault(key[0], key[1])
        return node

    def _build(self, event: Any, place: Place, path: tuple[str, ...]) -> Node:
        if isinstance(event, yaml.MappingStartEvent):
            return Table(place, path, {}, {})
        if isinstance(event, yaml.SequenceStartEvent):
            return Listing(place, path, [])
        if isinstance(event, yaml.AliasEvent):
            return Scalar(place, path, "", "alias", False)
        text, quoted = event.value, event.style not in (None, "")
        if "\0" in text or any("\ud800" <= character <= "\udfff" for character in text):
            what = "holds a NUL or half of a surrogate pair, which no program can be passed"
            self.findings.append(Finding(place, dotted(path), what, "remove that escape"))
            text = "?"
        tag = "tag:yaml.org,2002:str"
        if not quoted and event.implicit[0]:
            tag = self.loader.resolve(yaml.ScalarNode, text, (True, False))
        return Scalar(place, path, text, tag.rpartition(":")[2], quoted)

    def _refuse_sharing(self, event: Any, place: Place, path: tuple[str, ...]) -> None:
        remedy = "write the value out where it is used, or use targets.<tier> for what differs"
        if isinstance(event, yaml.AliasEvent):
            what = f"the alias *{event.anchor} makes the value stand somewhere else"
            self.findings.append(Finding(place, dotted(path), what, remedy))
        elif event.anchor is not None:
            what = f"the anchor &{event.anchor} is not supported"
            self.findings.append(Finding(place, dotted(path), what, remedy))
        if getattr(event, "tag", None) is not None and not isinstance(event, yaml.AliasEvent):
            what = f"the tag {event.tag} is not supported"
            self.findings.append(Finding(place, dotted(path), what, "remove the tag"))


def _place(mark: Any) -> Place:
    return Place(mark.line + 1, mark.column + 1) if mark else Place()


def _first(what: str, remedy: str) -> Finding:
    return Finding(Place(), "", what, remedy)


def _unfit_character(place: Place) -> Finding:
    what = "a control character that YAML does not allow stands here"
    return Finding(place, "", what, 'remove it, or write it as an escape in "double quotes"')


def _syntax(error: yaml.MarkedYAMLError, place: Place, text: str) -> Finding:
    lines = text.split("\n")
    line = lines[place.line - 1] if place.line <= len(lines) else ""
    problem = error.problem or "the syntax is wrong"
    if "\t" in line[: place.column]:
        what, remedy = "a tab stands in the indentation", "indent with spaces"
    elif "mapping values are not allowed" in problem:
        what = "a second `: ` stands in one line"
        remedy = "put the value in quotes, or check the indentation of this line and the one above"
    else:
        context = f" ({error.context})" if error.context else ""
        what, remedy = f"not YAML: {problem}{context}", "fix the syntax here or just above"
    return Finding(place, "", what, remedy)
