"""The calls and globals of a training script, from its syntax tree. Pure."""

from __future__ import annotations

import ast
import functools
import sys
from collections import Counter
from collections.abc import Iterable, Iterator

from ddpgen.spec.rules import Conflict


class Script:
    """The calls and globals of a script.

    `assigned`: the first value of each global. `settings`: the globals that arguments replace, as nanoGPT's
    configurator does with `globals()`.
    """

    def __init__(self, name: str, tree: ast.Module) -> None:
        self.name, self.tree = name, tree
        self.nodes = [*ast.walk(tree)]
        self.calls = [node for node in self.nodes if isinstance(node, ast.Call)]
        self.called = {name_of(call.func): call for call in reversed(self.calls)}
        self.assigned: dict[str, ast.expr] = {}
        for node in tree.body:
            match node:
                case ast.Assign([ast.Name(name), *_], value) | ast.AnnAssign(
                    ast.Name(name), value=ast.expr() as value
                ):
                    self.assigned.setdefault(name, value)
        self.settings: dict[str, ast.expr] = {}
        if "ArgumentParser" not in self.called and (reads := self._reads_arguments()):
            self.settings = {n: v for n, v in self.assigned.items() if v.lineno < reads}

    def _reads_arguments(self) -> int:
        """Return the line at which words of the command line become globals; 0 without such a line."""
        if "globals" not in self.called:
            return 0
        first = self.called.get("exec")
        if first is not None and "configurator.py" in ast.unparse(first):
            return min(first.lineno, self.called["globals"].lineno)
        nodes = [*self.nodes]
        words = any(isinstance(node, ast.Attribute) and node.attr == "argv" for node in nodes)
        sets = any(
            isinstance(node, ast.Subscript)
            and isinstance(node.ctx, ast.Store)
            and isinstance(node.value, ast.Call)
            and name_of(node.value.func) == "globals"
            for node in nodes
        )
        return self.called["globals"].lineno if words and (sets or "update" in self.called) else 0

    @functools.cached_property
    def at_times(self) -> set[ast.AST]:
        """The nodes below a condition, and those of functions that are called below one."""
        return self.below(_branches(self._conditions))

    @functools.cached_property
    def on_condition(self) -> set[ast.AST]:
        """The nodes of `at_times` without those whose only condition is a GPU."""
        return self.below(_branches(n for n in self._conditions if not self.asks_for_gpu(n)))

    @functools.cached_property
    def _conditions(self) -> list[ast.If | ast.Try | ast.IfExp]:
        nodes = (n for n in self.nodes if isinstance(n, (ast.If, ast.Try, ast.IfExp)))
        return [
            n for n in nodes if not (isinstance(n, ast.If) and "__name__" in ast.unparse(n.test))
        ]

    def asks_for_gpu(self, node: ast.AST) -> bool:
        """True for a condition that is torch.cuda.is_available(), or a name for it."""
        asked = self.value_of(node.test) if isinstance(node, (ast.If, ast.IfExp)) else node
        return isinstance(asked, ast.Call) and name_of(asked.func) == "is_available"

    def below(self, branches: Iterable[ast.AST]) -> set[ast.AST]:
        """Return the nodes of these branches, and those of the functions that are called in them."""
        below = {inner for branch in branches for inner in ast.walk(branch)}
        functions = [n for n in self.nodes if isinstance(n, ast.FunctionDef)]
        while True:
            called = {name_of(node.func) for node in below if isinstance(node, ast.Call)}
            more = [each for each in functions if each.name in called and each not in below]
            if not more:
                return below
            below |= {inner for each in more for inner in ast.walk(each)}

    @functools.cached_property
    def _bound(self) -> Counter[str]:
        """How often each name gets a value. A parameter of a function counts as many."""
        names = (n for n in self.nodes if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store))
        parameters = {n.arg: 2 for n in self.nodes if isinstance(n, ast.arg)}
        return Counter(name.id for name in names) + Counter(parameters)

    @functools.cached_property
    def _values(self) -> dict[str, ast.expr]:
        """The first value of each name that an assignment gives to it alone."""
        values: dict[str, ast.expr] = {}
        for node in self.nodes:
            if isinstance(node, ast.Assign) and len(node.targets) == 1:
                values.setdefault(name_of(node.targets[0]), node.value)
        return values

    def is_fixed(self, name: str) -> bool:
        """True if the script gives the name one value, and no function has a parameter of this name."""
        return self._bound[name] == 1

    def value_of(self, node: ast.expr) -> ast.expr:
        """Return the one value that the script gives a name; the node itself if it is no such name."""
        if not isinstance(node, ast.Name) or not self.is_fixed(node.id):
            return node
        return self._values.get(node.id, node)

    @functools.cached_property
    def changed(self) -> set[str]:
        """The attributes that the script sets."""
        nodes = (node for node in self.nodes if isinstance(node, ast.Attribute))
        return {node.attr for node in nodes if isinstance(node.ctx, ast.Store)}

    @property
    def defaults(self) -> dict[str, ast.expr | None]:
        """The options of its parsers with _ for -, and their defaults."""
        return {
            constant(call.args[-1]).lstrip("-").replace("-", "_"): next(
                (keyword.value for keyword in call.keywords if keyword.arg == "default"), None
            )
            for call in self.calls
            if name_of(call.func) == "add_argument" and call.args
        }

    def location(self, node: ast.expr) -> str:
        return f"{self.name}:{node.lineno}"


def _branches(conditions: Iterable[ast.If | ast.Try | ast.IfExp]) -> Iterator[ast.AST]:
    """Yield the parts that may not run. The test of a condition always runs."""
    for node in conditions:
        for part in (node.body, node.orelse) if isinstance(node, (ast.If, ast.IfExp)) else (node,):
            yield from part if isinstance(part, list) else (part,)


def imported(tree: ast.Module) -> set[str]:
    """Return the first names of the modules that a source imports; "" for a relative import."""
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names.add("" if node.level else (node.module or "").partition(".")[0])
    return names


# Modules that read no words of the command line, and save nothing by themselves.
PLAIN_MODULES = {*sys.stdlib_module_names, "numpy", "torch", "torchvision", "tqdm"}


def constant(value: ast.expr | None) -> str:
    """Return the text of a constant string; else ""."""
    return value.value if isinstance(value, ast.Constant) and isinstance(value.value, str) else ""


def text_of(value: ast.expr) -> str:
    """Return a constant as text, or the name of another expression."""
    return str(value.value) if isinstance(value, ast.Constant) else name_of(value)


def name_of(function: ast.expr) -> str:
    """Return the last name of an expression, such as `save` of torch.save; else ""."""
    if isinstance(function, ast.Attribute):
        return function.attr
    return function.id if isinstance(function, ast.Name) else ""


def warning(field: str, problem: str, remedy: str) -> Conflict:
    """Return a warning about a script. Without `field`, it stands at the arguments or the script of the spec."""
    return Conflict(
        (field, "train.args", "train.script", "train.command"), problem, remedy, fatal=False
    )
