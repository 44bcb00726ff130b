"""Names files that lie near the spec and outside of `code`. No process of the job finds them: only `code` travels."""

from __future__ import annotations

import ast
import posixpath
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

from ddpgen.bundle import code
from ddpgen.lint import source
from ddpgen.lint.arguments import numbered_words
from ddpgen.lint.calls import Script, constant, imported, name_of, warning
from ddpgen.lint.packages import always_imported, is_own, is_packaged
from ddpgen.spec.bashlines import lists_of
from ddpgen.spec.job import JobSpec
from ddpgen.spec.rules import Conflict

# Files that a program reads. Others may be left from a try by hand, and the program writes them.
_READ = re.compile(r"\.(ya?ml|toml|ini|cfg|conf|py|sh|csv|jsonl|parquet|bin|txt)$")
# An option with a file that a program reads: it may be JSON then.
_CONFIG = re.compile(r"config|deepspeed|cfg|settings", re.IGNORECASE)
_WRITTEN = re.compile(r"out|log|save|result|export|write|dump", re.IGNORECASE)
# Lines of bash that may run elsewhere than at the bundle, or may make the file first.
_ELSEWHERE = re.compile(r"\b(echo|printf|cd|pushd|git|wget|curl|cp|mv|tar|unzip|rsync)\b|<<")


def check(job: JobSpec, home: Path) -> Iterator[Conflict]:
    """Yield the files that the words, the lines of bash and the imports of a job name. `home`: the spec's directory."""
    if job.train.program_field != "workload" and not job.train.workdir:
        yield from _words(job, home)
    yield from _lines(job, home)
    yield from _imports(job, home)


def _words(job: JobSpec, home: Path) -> Iterator[Conflict]:
    """Yield the arguments that name such a file. The working directory holds the files of `code` alone."""
    before = ""
    for field, value in numbered_words(job.train):
        word = str(value)
        option = word.partition("=")[0] if word.startswith("-") else before
        name = f"{field} {option}" if option.startswith("-") else field
        path = posixpath.normpath(word.partition("=")[2] if word.startswith("-") else word)
        is_read = _READ.search(path) or (path.endswith(".json") and _CONFIG.search(name))
        before = word
        if is_read and not _WRITTEN.search(name) and _only_outside(path, job, home):
            inside = _inside(path, job, home)
            problem = f"{path} is there, and is not in code ({', '.join(job.code)})"
            remedy = "add it to code, or write the path that it has on the hosts"
            yield warning(field, problem, f"write {inside}" if inside else remedy)


def _only_outside(path: str, job: JobSpec, home: Path) -> bool:
    """True if the path is a file from the spec's directory on, and `code` does not hold it."""
    return (
        bool(job.code)
        and not path.startswith(("/", "~", "-", "{"))
        and _is_file(home / path)
        and not code.find(job.code, home, path)
    )


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except (OSError, ValueError):
        return False


def _inside(path: str, job: JobSpec, home: Path) -> str:
    """Return the path in code/ of a file that the spec names by a longer path; "" if it is not in `code`."""
    parts = path.split("/")
    names = ("/".join(parts[i:]) for i in range(len(parts)))
    return next((name for name in names if name in code.find(job.code, home, name)), "")


def _lines(job: JobSpec, home: Path) -> Iterator[Conflict]:
    """Yield the lines of bash that name such a file. They run in the bundle, whose files are in code/."""
    for field, lines in lists_of(job).items():
        if _ELSEWHERE.search("\n".join(lines)):
            continue
        for i, word in ((i, word) for i, line in enumerate(lines) for word in _split(line)):
            path = posixpath.normpath(word)
            if re.match(r"/|~|-|code/", path) or re.search(r"://|[$`]", word):
                continue
            inside = _inside(path, job, home)
            if not inside and not _is_file(home / path):
                continue
            problem = f"{word} is not in the bundle, where the line runs"
            remedy = "write the path that it has on the hosts, or add it to code"
            if field == "python.activate":
                problem = f"{word} is another file, or none, where the line runs"
                remedy = "write the path that it has on the hosts"
            elif inside:
                remedy = f"write code/{inside}"
            yield Conflict((f"{field}[{i}]", field), problem, remedy, fatal=False)


def _split(line: str) -> list[str]:
    try:
        return shlex.split(line, comments=True)
    except ValueError:
        return []


def _imports(job: JobSpec, home: Path) -> Iterator[Conflict]:
    """Yield the modules and files in its own directory that the job's Python file reads, if `code` does not hold them."""
    path, folder = source.python_file(job, home), posixpath.dirname(job.train.user_file)
    tree = source.parsed(path, "") if path else None
    if path is None or tree is None or isinstance(tree, Conflict):
        return
    near = {
        name: file
        for name in imported(tree) - {""}
        for file in (f"{name}.py", f"{name}/__init__.py")
        if _is_file(path.parent / file)
        and not any(code.find(job.code, home, at) for at in (posixpath.join(folder, file), file))
    }
    beside = {name: f"{name}.py" for name in _beside_spec(tree, job, home)}
    for name, file in sorted((beside | near).items()):
        place = "in its directory" if name in near else "beside the spec"
        problem = (
            f"{path.name} imports {name}, and {file} {place} is not in code ({', '.join(job.code)})"
        )
        yield Conflict(("code",), problem, "add it, or name the directory", fatal=False)
    script = Script(path.name, tree)
    constants = [constant(node) for node in ast.walk(tree) if isinstance(node, ast.Constant)]
    for call in filter(_reads_file, script.calls):
        name = posixpath.normpath(constant(call.args[0]))
        elsewhere = job.train.workdir or "chdir" in script.called or name.startswith("..")
        # The script may make a file that it names twice, or opens under a condition.
        sure = constants.count(constant(call.args[0])) == 1 and call not in script.at_times
        if sure and not elsewhere and _only_outside(name, job, home):
            problem = f"{path.name}:{call.lineno} opens {name}, which is not in code ({', '.join(job.code)})"
            yield Conflict(("code",), problem, "add it, or name the directory", fatal=False)


def _beside_spec(tree: ast.Module, job: JobSpec, home: Path) -> Iterator[str]:
    """Yield the modules that the script always imports, if their files are in the spec's directory alone."""
    attributes = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    if "path" in attributes and "sys" in imported(tree):
        return
    if any(_is_file(home / name) for name in ("pyproject.toml", "setup.py", "setup.cfg")):
        return
    for _, name in always_imported(tree):
        if _is_file(home / f"{name}.py") and not (is_packaged(name) or is_own(name, job, home)):
            yield name


def _reads_file(call: ast.Call) -> bool:
    """True if the call opens a file with a constant relative name for reading."""
    is_plain = name_of(call.func) == "open" and not call.keywords
    if not (is_plain and isinstance(call.func, ast.Name) and len(call.args) in (1, 2)):
        return False
    mode = constant(call.args[1]) if call.args[1:] else "r"
    return bool(constant(call.args[0])) and mode in ("r", "rb", "rt")
