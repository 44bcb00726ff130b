"""Parse YAML text into a tree of nodes that keep their positions in the file. Judges YAML, not job specs.

A scalar keeps its source text and YAML 1.1's type for it, so that a message can explain `2:00` or `yes`. Without the
text they would silently become 120 or true. Anchors, aliases, merge keys and tags are refused, because with them a
value would stand at another place than where it acts.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, NamedTuple

import yaml

from ddpgen.errors import Finding, Position

MAX_BYTES = 1 << 20
MAX_DEPTH = 24
# A brace within a word, where YAML begins a mapping.
_BRACE_IN_A_WORD = re.compile(r"[^\s{\[,]\{\w+\}")
_QUOTED = re.compile(r"\"[^\"]*\"|'[^']*'|(^|\s)#.*")
_BRACED = (
    "a word in these brackets has { and } in it, and no quotes",
    'put the word in quotes, like "--resume={newest}"',
)
_OPEN = (
    "a bracket opens here and is never closed",
    "close it, and put a comma between two entries",
)

# A complaint of YAML's reader about a character with a meaning in YAML → the problem and the remedy.
_SPECIAL = (
    (
        re.compile("cannot start any token"),
        ("a value cannot begin with this character", "put the value in 'single quotes'"),
    ),
    (
        re.compile("scanning an? (alias|anchor)|undefined alias"),
        ("* and & have a meaning at the beginning of a value", "put the value in 'single quotes'"),
    ),
    (
        re.compile(r"scanning a double-quoted|hexdecimal|escape|parsing a quoted scalar"),
        ('a backslash has a meaning in "double quotes"', "write 'single quotes'"),
    ),
    (
        re.compile("node content"),
        ("an entry is missing here", "write it; behind a space, # begins a comment"),
    ),
)  # fmt: skip

_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class Scalar(NamedTuple):
    """A value. `text`: as written. `tag`: its type in YAML 1.1 (str, int, float, bool, null…)."""

    position: Position
    path: tuple[str, ...]
    text: str
    tag: str
    quoted: bool


class Listing(NamedTuple):
    """A list."""

    position: Position
    path: tuple[str, ...]
    items: list[Node]


class Table(NamedTuple):
    """A mapping. `keys`: the position of each key."""

    position: Position
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


def finding(node: Node, problem: str, remedy: str) -> Finding:
    """Return a finding at the position of `node`."""
    return Finding(node.position, dotted(node.path), problem, remedy)


def parse(raw: bytes, file: str = "") -> tuple[Table, list[Finding]]:
    """Return the spec's mapping, and those errors in its YAML that do not hide the rest.

    `file`: the name of a file that holds only a part of the spec. Such a file may be empty. Raises NotYamlError if
    there is no mapping to go on with.
    """
    try:
        return _parse(raw, file)
    except NotYamlError as error:
        raise NotYamlError(*(_moved(each, file=file) for each in error.findings)) from None


def _parse(raw: bytes, file: str) -> tuple[Table, list[Finding]]:
    text = _decode(raw)
    place = (lambda mark: _position(mark)._replace(file=file)) if file else _position
    try:
        builder = _Builder(_Loader(text), place)
        root = builder.document()
    except yaml.MarkedYAMLError as error:
        raise NotYamlError(_syntax(error, text, builder.last_quoted)) from None
    except yaml.reader.ReaderError as error:
        text_before = text[: error.position]
        position = Position(text_before.count("\n") + 1, len(text_before) - text_before.rfind("\n"))
        raise NotYamlError(_unfit_character(position)) from None
    except yaml.YAMLError as error:
        raise NotYamlError(_finding_at_start(f"not YAML: {error}", "fix the syntax")) from None
    if root is None and file:
        root = Table(Position(file=file), (), {}, {})
    if not isinstance(root, Table):
        problem = "is empty" if root is None else "is not a mapping of keys to values"
        remedy = "start with `name: my-job`; `ddpgen init` writes a spec to begin with"
        if file:
            remedy = "write fields of a spec, like `restarts: 5`"
        raise NotYamlError(_finding_at_start(f"the spec {problem}", remedy), *builder.findings)
    return root, builder.findings


def parse_value(text: str, position: Position, path: tuple[str, ...]) -> tuple[Node, list[Finding]]:
    """Return the value at `path` from a text outside of files, and those errors that do not hide the rest.

    Each node has `position`. Raises NotYamlError.
    """
    try:
        builder = _Builder(_Loader(text), lambda mark: position)
        node = builder.document(path) or Scalar(position, path, "", "null", False)
    except yaml.YAMLError:
        problem = "the value is not YAML"
    else:
        if not isinstance(node, Scalar) or node.quoted or node.text == text.strip():
            return node, builder.findings
        problem = f"YAML reads only a part of the value: {node.text}"
    remedy = "put it in quotes, and these in the quotes of the shell"
    raise NotYamlError(Finding(position, dotted(path), problem, remedy)) from None


def _decode(raw: bytes) -> str:
    if len(raw) > MAX_BYTES:
        problem = f"the file has more than {MAX_BYTES >> 20} MiB, far more than a job spec"
        raise NotYamlError(_finding_at_start(problem, "give the path of the spec itself"))
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        text_before = raw[: error.start]
        position = Position(text_before.count(b"\n") + 1, error.start - text_before.rfind(b"\n"))
        problem = f"byte 0x{raw[error.start]:02x} is not UTF-8"
        raise NotYamlError(Finding(position, "", problem, "save the file as UTF-8")) from None
    for line, content in enumerate(text.split("\n"), 1):
        if "\0" in content:
            raise NotYamlError(_unfit_character(Position(line, content.index("\0") + 1)))
    return text


class _Builder:
    """Turns the stream of YAML events into nodes, depth first. `last_quoted`: start and end of the last text in quotes."""

    def __init__(self, loader: Any, position: Callable[[Any], Position]):
        self.loader, self.position = loader, position
        self.findings: list[Finding] = []
        self.last_quoted: tuple[Position, Position] | None = None

    def document(self, path: tuple[str, ...] = ()) -> Node | None:
        self.loader.get_event()  # stream start
        if self.loader.check_event(yaml.StreamEndEvent):
            return None
        self.loader.get_event()  # document start
        root = self._node(path)
        self.loader.get_event()  # document end
        if not self.loader.check_event(yaml.StreamEndEvent):
            position = self.position(self.loader.get_event().start_mark)
            self._add_finding(
                position, path, "a second document begins here", "keep one job in one file"
            )
        return root

    def _node(self, path: tuple[str, ...], depth: int = 0) -> Node:
        event = self._event()
        position = self.position(event.start_mark)
        self._refuse_sharing(event, position, path)
        if isinstance(event, yaml.AliasEvent):
            return Scalar(position, path, "", "alias", False)
        if isinstance(event, yaml.ScalarEvent):
            return self._scalar(event, position, path)
        if depth >= MAX_DEPTH:
            problem = f"is nested more than {MAX_DEPTH} levels deep"
            raise NotYamlError(Finding(position, dotted(path), problem, "flatten it"))
        if isinstance(event, yaml.SequenceStartEvent):
            listing = Listing(position, path, [])
            while not self.loader.check_event(yaml.SequenceEndEvent):
                item = self._node((*path, f"[{len(listing.items)}]"), depth + 1)
                listing.items.append(item)
            self.loader.get_event()
            return listing
        table = Table(position, path, {}, {})
        while not self.loader.check_event(yaml.MappingEndEvent):
            name, key_position = self._key(table)
            node = self._node((*path, name), depth + 1)
            if name != "<<":
                table.entries.setdefault(name, node)
                table.keys.setdefault(name, key_position)
        self.loader.get_event()
        return table

    def _event(self) -> Any:
        event = self.loader.get_event()
        if isinstance(event, yaml.ScalarEvent) and event.style in ("'", '"'):
            self.last_quoted = _position(event.start_mark), _position(event.end_mark)
        return event

    def _key(self, holder: Table) -> tuple[str, Position]:
        event = self._event()
        position = self.position(event.start_mark)
        self._refuse_sharing(event, position, holder.path)
        if not isinstance(event, yaml.ScalarEvent):
            problem = "a list or mapping stands where a key should be"
            raise NotYamlError(
                Finding(position, dotted(holder.path), problem, "use a plain word as key")
            )
        name: str = event.value
        if name in holder.keys:
            problem = f"is given twice; the first is on line {holder.keys[name].line}"
            self._add_finding(position, (*holder.path, name), problem, "keep one of them")
        elif name == "<<" and not event.style:
            problem = "merge keys are not supported: a value has to stand where it acts"
            remedy = "write the values out, or use targets.<tier> for what differs"
            self._add_finding(position, holder.path, problem, remedy)
        return name, position

    def _scalar(self, event: Any, position: Position, path: tuple[str, ...]) -> Scalar:
        text, quoted = event.value, event.style not in (None, "")
        if "\0" in text or any("\ud800" <= character <= "\udfff" for character in text):
            problem = "holds a NUL or half of a surrogate pair, which no program can be passed"
            self._add_finding(position, path, problem, "remove that escape")
            text = "?"
        tag = "tag:yaml.org,2002:str"
        if not quoted and event.implicit[0]:
            tag = self.loader.resolve(yaml.ScalarNode, text, (True, False))
        return Scalar(position, path, text, tag.rpartition(":")[2], quoted)

    def _refuse_sharing(self, event: Any, position: Position, path: tuple[str, ...]) -> None:
        remedy = "write the value out where it is used, or use targets.<tier> for what differs"
        if isinstance(event, yaml.AliasEvent):
            problem = f"the alias *{event.anchor} makes the value stand somewhere else"
            self._add_finding(position, path, problem, remedy)
            return
        if event.anchor is not None:
            self._add_finding(
                position, path, f"the anchor &{event.anchor} is not supported", remedy
            )
        if event.tag is not None:
            self._add_finding(
                position, path, f"the tag {event.tag} is not supported", "remove the tag"
            )

    def _add_finding(
        self, position: Position, path: tuple[str, ...], problem: str, remedy: str
    ) -> None:
        self.findings.append(Finding(position, dotted(path), problem, remedy))


def _position(mark: Any) -> Position:
    return Position(mark.line + 1, mark.column + 1) if mark else Position()


def _moved(finding: Finding, **changes: Any) -> Finding:
    return finding._replace(position=finding.position._replace(**changes))


def _finding_at_start(problem: str, remedy: str) -> Finding:
    return Finding(Position(), "", problem, remedy)


def _unfit_character(position: Position) -> Finding:
    problem = "a control character that YAML does not allow stands here"
    return Finding(position, "", problem, 'remove it, or write it as an escape in "double quotes"')


def _syntax(
    error: yaml.MarkedYAMLError, text: str, last_quoted: tuple[Position, Position] | None
) -> Finding:
    """Return the finding, at the place to correct.

    YAML notices an open quote or bracket only further down, and a line without a colon one line later. An open quote
    ends at the next quote, perhaps lines below, and the error is the text behind that quote. `last_quoted`: the last
    text in quotes before the error.
    """
    position = _position(error.problem_mark or error.context_mark)
    start = _position(error.context_mark) if error.context_mark else None
    yaml_problem, context = error.problem or "the syntax is wrong", error.context or ""
    lines = text.split("\n")
    line = lines[position.line - 1] if position.line <= len(lines) else ""
    no_mapping = "mapping values are not allowed" in yaml_problem
    opened, closed = last_quoted or (None, None)
    if opened and closed == position:
        position = opened
        problem = f"a quote opens here and closes on line {closed.line}, and text follows"
        remedy = f"close it on line {opened.line}"
        if closed.line == opened.line:
            problem = (
                f"a quote opens here and closes before column {closed.column}, and text follows"
            )
            remedy = """write a ' within quotes as '', or put the value in "double quotes\""""
    elif "\t" in line[: position.column]:
        indents = "\t" in line[: len(line) - len(line.lstrip())]
        problem = f"a tab stands in {'the indentation' if indents else 'this line'}"
        remedy = "write spaces"
    elif no_mapping and ": " in line[: position.column - 1]:
        problem = "a second colon stands in this line"
        remedy = "remove it, or put the value in quotes"
    elif no_mapping and line.startswith(" "):
        problem = "this line is indented below a line that has a value already"
        remedy = "indent it like the line above"
    elif no_mapping or "could not find expected ':'" in yaml_problem:
        position = start or Position(max(1, position.line - 1))
        problem = "this line is no `key: value`"
        remedy = "write a colon and a space after the key"
    elif "quoted scalar" in context and "end of stream" in yaml_problem:
        position = start or position
        problem, remedy = "a quote opens here and is never closed", "close it"
    elif "parsing a flow" in context and "expected ','" in yaml_problem:
        position = start or position
        problem, remedy = _BRACED if _BRACE_IN_A_WORD.search(_QUOTED.sub("", line)) else _OPEN
    elif "expected key" in yaml_problem or "<block end>" in yaml_problem:
        problem = "this line is indented differently from the lines of its group"
        remedy = "indent all of them with the same number of spaces"
    else:
        complaint = yaml_problem + (f" ({context})" if context else "")
        unknown = (f"not YAML: {complaint}", "fix the syntax here or just above")
        problem, remedy = next((w for form, w in _SPECIAL if form.search(complaint)), unknown)
    return Finding(position, "", problem, remedy)
