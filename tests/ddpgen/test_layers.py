"""The pure modules, the owner of each library, and what a render must not load. tests/project/test_floors.py has the packages."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from tests.ddpgen.conftest import GPT, ROOT
from tests.project.floors import imports

PURE_DRIVER = {
    f"driver.{name}" for name in ("argv", "ends", "pace", "plan", "remote", "state", "wording")
}
PURE_MONITOR = {"monitor.report", "monitor.scripts"}
# A tier's folder: the values of its template are a matter of the spec alone.
PURE_TIERS = {
    "tiers.ranks", "tiers.command", "tiers.tables", "tiers.plan", "tiers.hosts.plan", "tiers.slurm.plan", "tiers.sky.plan", "tiers.slurm.directives", "tiers.slurm.notation", "tiers.slurm.environment", "tiers.sky.directives", "tiers.sky.requirement",
    "tiers.slurm.jobs", "tiers.sky.jobs", "tiers.sky.bucket",
}  # fmt: skip
PURE_MODULES = (
    {"measure.bench_table", "errors", "guide", "measure.page", "text.shell", "text.yamltext"}
    | PURE_DRIVER
    | PURE_MONITOR
    | PURE_TIERS
)
IMPURE = {
    "jinja2",
    "click",
    "subprocess",
    "socket",
    "torch",
    "sky",
    "os",
    "time",
    "datetime",
    "random",
    "secrets",
    "uuid",
    "pathlib",
    "io",
    "sys",
    "tempfile",
    "platform",
}
ONLY_IN = {
    "jinja2": "render",
    "click": "cli",
    "matplotlib": "measure.plot",
    "rich": "monitor.screen",
    "yaml": "spec.yamltree",
}


def modules() -> dict[str, Path]:
    package = ROOT / "ddpgen"
    found = {}
    for path in sorted(package.rglob("*.py")):
        parts = path.relative_to(package).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" and len(parts) > 1 else parts)
        found[name] = path
    return found


def test_no_tier_knows_another() -> None:
    folders = {path.parent.name for path in (ROOT / "ddpgen" / "tiers").glob("*/__init__.py")}
    for name, path in modules().items():
        package, _, rest = name.partition(".")
        own = rest.partition(".")[0]
        if package == "tiers" and own in folders:
            used = {n.split(".")[2] for n in imports(path) if n.startswith("ddpgen.tiers.")}
            assert used & folders <= {own}, name


def roots(path: Path) -> set[str]:
    """The top-level packages that a module imports."""
    return {imported.partition(".")[0] for imported in imports(path)}


def test_pure_modules_import_nothing_that_touches_the_world() -> None:
    known = modules()
    pure = PURE_MODULES | {name for name in known if name.split(".")[0] == "spec"}
    assert pure <= set(known)
    touched = {name: roots(known[name]) & IMPURE for name in sorted(pure)}
    wrong = [f"{name} imports {', '.join(sorted(used))}" for name, used in touched.items() if used]
    assert not wrong, "\n".join(wrong)


def test_each_library_has_one_owner() -> None:
    used = {name: roots(path) for name, path in modules().items()}
    # A package owns a library whole, a module alone.
    wrong = []
    for library, owner in ONLY_IN.items():
        users = {name for name, libraries in used.items() if library in libraries}
        rooms = {name if name == owner else name.partition(".")[0] for name in users}
        if rooms != {owner}:
            wrong.append(f"{library} is for {owner}, and is in {', '.join(sorted(users))}")
    assert not wrong, "\n".join(wrong)


def test_only_four_modules_run_programs() -> None:
    starters = re.compile(
        r"\bsubprocess\.\w|^\s*(import|from) .*subprocess|\bos\.(exec|spawn|system|popen|fork)",
        re.MULTILINE,
    )
    users = {name for name, path in modules().items() if starters.search(path.read_text())}
    assert users == {"programs", "driver.child", "bundle.source", "lint.lines"}


def test_the_driver_needs_nothing_but_python() -> None:
    used = {
        imported.partition(".")[0]
        for name, path in modules().items()
        if name.split(".")[0] == "driver"
        for imported in imports(path)
        if not imported.startswith("ddpgen.driver")
    }
    assert used <= sys.stdlib_module_names


def test_render_loads_no_heavy_library_and_nothing_of_other_commands(tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text(GPT)
    program = (
        "import sys; from ddpgen import cli\n"
        "sys.argv = ['ddpgen', 'render', 'job.yaml', '--target', 'local']\n"
        "assert cli.run() == 0; print(*sys.modules)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        env={"PYTHONPATH": str(ROOT), "PATH": ""},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    loaded = set(done.stdout.split())
    unwanted = "torch sky rich pydantic numpy subprocess asyncio train ctypes multiprocessing"
    assert not loaded & set(unwanted.split())
    assert not loaded & {
        f"ddpgen.{name}"
        for name in [
            "guide",
            "monitor",
            "programs",
            "spec.schema",
            "adopt.scaffold",
            "tiers.tables",
            "tiers.slurm.site_limits",
            "measure",
        ]
    }
