"""Who may import whom, and what a render must not drag in."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from tests.ddpgen.conftest import GPT, ROOT

# Each line may import from the lines below it and from its own, never from those above.
LAYERS = [
    {"__main__"},
    {"cli"},
    {
        "cli.comparing",
        "cli.following",
        "cli.launching",
        "cli.measuring",
        "cli.reference",
        "cli.specs",
    },
    {"cli.shared"},
    {"bench", "plot"},
    {"bench_table"},
    {"predict_page"},
    {"predict"},
    {"diff", "lock", "measured", "probe", "reproduce"},
    {"monitor.commands", "monitor.submit_slurm", "monitor.submit_sky", "monitor.watch"},
    {"monitor.screen"},
    {"monitor.at_hosts", "monitor.at_local", "monitor.at_sky", "monitor.at_slurm"},
    {"monitor.skypilot", "monitor.store"},
    {"monitor.places"},
    {
        "monitor.bucket",
        "monitor.slurm_jobs",
        "monitor.sky_jobs",
        "monitor.record",
        "monitor.snapshot",
    },
    {"monitor.report", "monitor.scripts"},
    {"monitor"},
    {"adopt.file", "launch", "plan.tables", "scaffold"},
    {"adopt.script", "adopt.sky"},
    {"adopt.launcher", "adopt.resume", "adopt.sbatch"},
    {"adopt.draft"},
    {"spec.schema"},
    {"job"},
    {"targets"},
    {"targets.hosts", "targets.local", "targets.sky", "targets.slurm"},
    {"render"},
    {"bundle.code", "bundle.lock", "bundle.write", "bundle.script", "bundle.source", "plan.launch"},
    {"plan.sky", "plan.slurm", "plan.supervise", "plan.quantities"},
    {"plan.cost", "plan.parameters"},
    {"resources", "spec.reader"},
    {"explain", "spec.rules"},
    {"spec.hosts", "spec.sky", "spec.slurm"},
    {"spec.job"},
    {"spec.times"},
    {"spec.fields"},
    {"adopt.bash", "spec.secrets", "spec.yamltree", "shell", "yamltext"},
    {"errors"},
    {"__init__", "adopt", "spec", "plan", "bundle"},
    # Copied into the bundle, where there is no ddpgen: nothing of it is below this line.
    {"driver.__main__"},
    {"driver.command"},
    {"driver.asking", "driver.fetch", "driver.job"},
    {"driver.session"},
    {"driver.ssh"},
    {"driver.remote", "driver.state"},
    {
        "driver.argv",
        "driver.child",
        "driver.ends",
        "driver.logs",
        "driver.pace",
        "driver.plan",
        "driver.screen",
    },
    {"driver"},
]
PURE_DRIVER = {f"driver.{name}" for name in ("argv", "ends", "pace", "plan", "remote", "state")}
PURE_MONITOR = {
    f"monitor.{name}" for name in ("bucket", "report", "scripts", "sky_jobs", "slurm_jobs")
}
PURE_MODULES = (
    {"bench_table", "errors", "explain", "predict_page", "shell", "yamltext"}
    | PURE_DRIVER
    | PURE_MONITOR
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
    "matplotlib": "plot",
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


def imports(path: Path) -> set[str]:
    """Everything a module names in an import, absolute. Only the driver's are relative: its name in
    a bundle is another."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level:
            module = ".".join(filter(None, ["ddpgen", path.parent.name, node.module]))
            names |= {f"{module}.{alias.name}" for alias in node.names} | {module}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {f"{node.module}.{alias.name}" for alias in node.names} | {node.module}
    return names


def test_every_module_has_its_place_in_the_layers() -> None:
    assert set(modules()) == set().union(*LAYERS)


@pytest.mark.parametrize("name", modules())
def test_a_module_imports_only_from_layers_below(name: str) -> None:
    rank = {module: depth for depth, layer in enumerate(LAYERS) for module in layer}
    used = {imported.removeprefix("ddpgen.") for imported in imports(modules()[name])}
    above = {module for module in used & set(rank) if rank[module] < rank[name]}
    assert not above


@pytest.mark.parametrize(
    "name", [n for n in modules() if n in PURE_MODULES or n.split(".")[0] in ("spec", "plan")]
)
def test_pure_modules_import_nothing_that_touches_the_world(name: str) -> None:
    roots = {imported.partition(".")[0] for imported in imports(modules()[name])}
    assert not roots & IMPURE


@pytest.mark.parametrize(("library", "owner"), ONLY_IN.items())
def test_each_library_has_one_owner(library: str, owner: str) -> None:
    users = {
        name
        for name, path in modules().items()
        if any(imported.partition(".")[0] == library for imported in imports(path))
    }
    assert {user if user == owner else user.partition(".")[0] for user in users} == {owner}


def test_only_launch_runs_programs() -> None:
    starters = ("subprocess", "os.exec", "os.spawn", "os.system", "os.popen", "os.fork")
    users = {
        name
        for name, path in modules().items()
        if any(starter in path.read_text() for starter in starters)
    }
    assert users == {"launch", "driver.child", "bundle.source"}


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
        for name in ["explain", "monitor", "launch", "spec.schema", "scaffold", "plan.tables"]
    }
