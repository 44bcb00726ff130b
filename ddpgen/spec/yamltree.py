"""Parse YAML text into a tree of nodes that keep their places in the file. Judges YAML, not job specs.

A scalar keeps its source text and YAML 1.1's type for it, so that a message can explain `2:00` or `yes`. Without the
text they would silently become 120 or true. Anchors, aliases, merge keys and tags are refused, because with them a
value would stand at another place than where it acts.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import yaml

from ddpgen.errors import Finding, Position

MAX_BYTES = 1 << 20
MAX_DEPTH = 24

_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class Scalar(NamedTuple):
    """A value. `text`: as written. `tag`: its type in YAML 1.1 (str, int, float, bool, null…)."""

    place: Position
    path: tuple[str, ...]
    text: str
    tag: str
    quoted: bool


class Listing(NamedTuple):
    """A list."""

    place: Position
    path: tuple[str, ...]
    items: list[Node]


class Table(NamedTuple):
    """A mapping. `keys`: the place of each key."""

    place: Position
    path: tuple[str, ...]
    entries: dict[str, Node]
    keys: dict[str, Position]


Node = Scalar | Listing | Table


class NotYamlError(Exception):
    """The text is not a YAML mapping. `findings` says why."""

    def __init__(self, *findings: Finding):
        super().__init__()
        self.findings = findings


def dotted(path: tuple[str, ...]) -> str:
    """Return a path as people write it: train.args.width, code[1]."""
    text = ""
    for part in path:
        text += part if part.startswith("[") else f".{part}" if text else part
    return text


def is_null(node: Node) -> bool:
    """True if the node is an empty value."""
    return isinstance(node, Scalar) and node.tag == "null"


def finding(node: Node, what: str, remedy: str) -> Finding:
    """Return a finding at the place of `node`."""
    return Finding(node.place, dotted(node.path), what, remedy)


def parse(raw: bytes) -> tuple[Table, list[Finding]]:
    """Return the spec's mapping, and those errors in its YAML that do not hide the rest.

    Raises NotYamlError if there is no mapping to go on with.
    """
    text = _decode(raw)
    loader = _Loader(text)
    try:
        builder = _Builder(loader)
        root = builder.document()
    except yaml.MarkedYAMLError as error:
        raise NotYamlError(_syntax(error, text)) from None
    except yaml.reader.ReaderError as error:
        before = text[: error.position]
        place = Position(before.count("\n") + 1, len(before) - before.rfind("\n"))
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
        place = Position(before.count(b"\n") + 1, error.start - before.rfind(b"\n"))
        what = f"byte 0x{raw[error.start]:02x} is not UTF-8"
        raise NotYamlError(Finding(place, "", what, "save the file as UTF-8")) from None
    for line, content in enumerate(text.split("\n"), 1):
        if "\0" in content:
            raise NotYamlError(_unfit_character(Position(line, content.index("\0") + 1)))
    return text


class _Builder:
    """Turns the stream of YAML events into nodes, depth first."""

    def __init__(self, loader: Any):
        self.loader = loader
        self.findings: list[Finding] = []

    def document(self) -> Node | None:
        self.loader.get_event()  # stream start
        if self.loader.check_event(yaml.StreamEndEvent):
            return None
        self.loader.get_event()  # document start
        root = self._node(())
        self.loader.get_event()  # document end
        if not self.loader.check_event(yaml.StreamEndEvent):
            place = _place(self.loader.get_event().start_mark)
            self._found(place, (), "a second document begins here", "keep one job in one file")
        return root

    def _node(self, path: tuple[str, ...], depth: int = 0) -> Node:
        event = self.loader.get_event()
        place = _place(event.start_mark)
        self._refuse_sharing(event, place, path)
        if isinstance(event, yaml.AliasEvent):
            return Scalar(place, path, "", "alias", False)
        if isinstance(event, yaml.ScalarEvent):
            return self._scalar(event, place, path)
        if depth >= MAX_DEPTH:
            what = f"is nested more than {MAX_DEPTH} levels deep"
            raise NotYamlError(Finding(place, dotted(path), what, "flatten it"))
        if isinstance(event, yaml.SequenceStartEvent):
            listing = Listing(place, path, [])
            while not self.loader.check_event(yaml.SequenceEndEvent):
                item = self._node((*path, f"[{len(listing.items)}]"), depth + 1)
                listing.items.append(item)
            self.loader.get_event()
            return listing
        table = Table(place, path, {}, {})
        while not self.loader.check_event(yaml.MappingEndEvent):
            name, where = self._key(table)
            node = self._node((*path, name), depth + 1)
            if name != "<<":
                table.entries.setdefault(name, node)
                table.keys.setdefault(name, where)
        self.loader.get_event()
        return table

    def _key(self, holder: Table) -> tuple[str, Position]:
        event = self.loader.get_event()
        place = _place(event.start_mark)
        self._refuse_sharing(event, place, holder.path)
        if not isinstance(event, yaml.ScalarEvent):
            what = "a list or mapping stands where a key should be"
            raise NotYamlError(Finding(place, dotted(holder.path), what, "use a plain word as key"))
        name: str = event.value
        if name in holder.keys:
            what = f"is given twice; the first is on line {holder.keys[name].line}"
            self._found(place, (*holder.path, name), what, "keep one of them")
        elif name == "<<" and not event.style:
            what = "merge keys are not supported: a value has to stand where it acts"
            remedy = "write the values out, or use targets.<tier> for what differs"
            self._found(place, holder.path, what, remedy)
        return name, place

    def _scalar(self, event: Any, place: Position, path: tuple[str, ...]) -> Scalar:
        text, quoted = event.value, event.style not in (None, "")
        if "\0" in text or any("\ud800" <= character <= "\udfff" for character in text):
            what = "holds a NUL or half of a surrogate pair, which no program can be passed"
            self._found(place, path, what, "remove that escape")
            text = "?"
        tag = "tag:yaml.org,2002:str"
        if not quoted and event.implicit[0]:
            tag = self.loader.resolve(yaml.ScalarNode, text, (True, False))
        return Scalar(place, path, text, tag.rpartition(":")[2], quoted)

    def _refuse_sharing(self, event: Any, place: Position, path: tuple[str, ...]) -> None:
        remedy = "write the value out where it is used, or use targets.<tier> for what differs"
        if isinstance(event, yaml.AliasEvent):
            what = f"the alias *{event.anchor} makes the value stand somewhere else"
            self._found(place, path, what, remedy)
            return
        if event.anchor is not None:
            self._found(place, path, f"the anchor &{event.anchor} is not supported", remedy)
        if event.tag is not None:
            self._found(place, path, f"the tag {event.tag} is not supported", "remove the tag")

    def _found(self, place: Position, path: tuple[str, ...], what: str, remedy: str) -> None:
        self.findings.append(Finding(place, dotted(path), what, remedy))


def _place(mark: Any) -> Position:
    return Position(mark.line + 1, mark.column + 1) if mark else Position()


def _first(what: str, remedy: str) -> Finding:
    return Finding(Position(), "", what, remedy)


def _unfit_character(place: Position) -> Finding:
    what = "a control character that YAML does not allow stands here"
    return Finding(place, "", what, 'remove it, or write it as an escape in "double quotes"')


def _syntax(error: yaml.MarkedYAMLError, text: str) -> Finding:
    """Return the finding. YAML notices an open quote or bracket at its end, and a key without a value a line later."""
    place = _place(error.problem_mark or error.context_mark)
    begins = _place(error.context_mark) if error.context_mark else None
    problem, context = error.problem or "the syntax is wrong", error.context or ""
    lines = text.split("\n")
    line = lines[place.line - 1] if place.line <= len(lines) else ""
    if "\t" in line[: place.column]:
        what, remedy = "a tab stands in the indentation", "indent with spaces"
    elif "mapping values are not allowed" in problem and line.count(": ") > 1:
        what, remedy = "a second `: ` stands in one line", "put the value in quotes"
    elif "mapping values are not allowed" in problem and line.startswith(" "):
        what = "this line is indented below a line that has a value already"
        remedy = "indent it like the line above"
    elif "mapping values are not allowed" in problem or "could not find expected ':'" in problem:
        place, what = begins or Position(place.line - 1), "this line is no `key: value`"
        remedy = "write a colon and a space after the key"
    elif "quoted scalar" in context and "end of stream" in problem:
        place, what, remedy = begins or place, "a quote opens here and is never closed", "close it"
    elif "parsing a flow" in context and "expected ','" in problem:
        place, what = begins or place, "a bracket opens here and is never closed"
        remedy = "close it, and put a comma between two entries"
    elif "expected key" in problem or "<block end>" in problem:
        what = "this line is indented differently from the lines of its group"
        remedy = "indent all of them with the same number of spaces"
    else:
        what = f"not YAML: {problem}" + (f" ({context})" if context else "")
        remedy = "fix the syntax here or just above"
    return Finding(place, "", what, remedy)
