"""The parts that several commands share: group, types and options, and the handling of a spec, a bundle or a run."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
from click.shell_completion import CompletionItem

from ddpgen import __version__
from ddpgen.cli.completion import ProfileName, beginning, hosts_of
from ddpgen.cli.verbosity import Commands, hide

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ddpgen.api import Spec
    from ddpgen.site.layers import Chosen
    from ddpgen.spec.reader import Reading

_F = TypeVar("_F", bound="Callable[..., Any]")
_HELP = {"help_option_names": ["-h", "--help"], "max_content_width": 100}

# The commands as `ddpgen --help` lists them, each with the first sentence of its own help.
GROUPS = {
    "Write": ("init", "adopt", "site", "lock", "schema"),
    "Check": ("validate", "plan", "explain"),
    "Launch": ("render", "launch"),
    "Follow": ("status", "logs", "stop", "doctor"),
    "Measure": ("predict", "probe", "bench", "report"),
    "Prove": ("verify", "reproduce", "diff"),
    "Shell": ("completion",),
}


class Grouped(Commands):
    """A group whose help lists the commands by what a user wants to do."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write one section for each of GROUPS."""
        for title, names in GROUPS.items():
            with formatter.section(title):
                rows = [
                    (f"{name:<10}", self.commands[name].get_short_help_str(62)) for name in names
                ]
                formatter.write_dl(rows)


@click.group(cls=Grouped, context_settings=_HELP)
@click.version_option(__version__, prog_name="ddpgen", message="%(prog)s %(version)s")
def cli() -> None:
    """One YAML job spec in, launch artefacts for every tier out.

    \b
    Example:
      ddpgen init --yes && ddpgen launch job.yaml --target local
    """


@contextlib.contextmanager
def refusals() -> Iterator[None]:
    """Turn a Refused error inside the context into a usage error of the command."""
    from ddpgen.spec.fields import Refused

    try:
        yield
    except Refused as refused:
        end = "" if refused.remedy.endswith("?") else "."
        raise click.UsageError(f"{refused.problem}; {refused.remedy}{end}") from None


class PathOption(click.Path):
    """A file or a directory. A path that cannot be meant is refused before the command begins its work."""

    def convert(self, value: Any, param: Any, ctx: Any) -> Any:
        file = not self.dir_okay
        noun = "file" if file else "directory"
        if not str(value):
            self.fail(f"it is empty; name a {noun}.", param, ctx)
        path = Path(value)
        if file and path.is_dir():
            self.fail(f"{value} is a directory; name a file.", param, ctx)
        if self.exists and not (path.is_file() if file else path.is_dir()):
            self.fail(f"there is no {noun} {value}; name another.", param, ctx)
        if file and not path.parent.is_dir():
            self.fail(
                f"there is no directory {path.parent}; create it, or name another file.", param, ctx
            )
        return super().convert(value, param, ctx)


class Count(click.IntRange):
    """A whole number within a range, read as in a spec."""

    def convert(self, value: Any, param: Any, ctx: Any) -> Any:
        from ddpgen.spec.fields import MAX_INTEGER, Refused, WholeNumber

        kind = WholeNumber(int(self.min or 0), MAX_INTEGER if self.max is None else int(self.max))
        try:
            return kind.parse_text(value) if isinstance(value, str) else value
        except Refused as refused:
            self.fail(f"{refused.problem}; {refused.remedy}.", param, ctx)


class TierName(click.ParamType):  # type: ignore[type-arg]  # generic since click 8.2 only
    """The name of a tier, or `all` if the command takes several. A shell completes it."""

    name = "tier"

    def __init__(self, several: bool) -> None:
        self.several = several

    def _names(self) -> list[str]:
        from ddpgen.tiers.registry import TIERS

        return [*TIERS, *(["all"] if self.several else [])]

    def convert(self, value: Any, param: Any, ctx: Any) -> Any:
        names = self._names()
        if value not in names:
            problem = "it takes one tier" if value == "all" else f"there is no tier {value}"
            self.fail(f"{problem}; write one of {', '.join(names)}.", param, ctx)
        return value

    def get_missing_message(self, param: Any, ctx: Any = None) -> str:
        return f"Write one of {', '.join(self._names())}."

    def shell_complete(self, ctx: Any, param: Any, incomplete: str) -> list[CompletionItem]:
        return beginning(incomplete, self._names())


class Quantity(click.ParamType):  # type: ignore[type-arg]  # generic since click 8.2 only
    """A number with its unit. The function of this name in measure/quantities.py reads it."""

    def __init__(self, name: str) -> None:
        self.name = name

    def convert(self, value: Any, param: Any, ctx: Any) -> Any:
        from ddpgen.measure import quantities
        from ddpgen.spec.fields import Refused

        try:
            return getattr(quantities, self.name)(value) if isinstance(value, str) else value
        except Refused as refused:
            self.fail(f"{refused.problem}; {refused.remedy}.", param, ctx)


class HostTime(Quantity):
    """A time, or HOST=TIME. A shell completes the hosts of the spec."""

    def __init__(self) -> None:
        super().__init__("step_time")

    def shell_complete(self, ctx: Any, param: Any, incomplete: str) -> list[CompletionItem]:
        return beginning(incomplete, (f"{name}=" for name in hosts_of(ctx)))


class Override(click.ParamType):  # type: ignore[type-arg]  # generic since click 8.2 only
    """FIELD=VALUE of a spec."""

    name = "override"

    def convert(self, value: Any, param: Any, ctx: Any) -> Any:
        if not value.partition("=")[0].strip() or "=" not in value:
            self.fail("it takes FIELD=VALUE; write --set train.lr=1e-4.", param, ctx)
        return value


def layer_options(command: Any) -> Any:
    """Add the options that change a spec: `command` gets them as `chosen`."""

    @functools.wraps(command)
    def called(profile: str | None, overrides: tuple[str, ...], **arguments: Any) -> Any:
        from ddpgen.site.layers import Chosen

        return command(chosen=Chosen(profile, overrides), **arguments)

    for parameter in (
        click.option(
            "--profile", type=ProfileName(), metavar="NAME",
            help="Take what the spec leaves out from NAME.yaml of this site.  [default: $DDPGEN_PROFILE, or the spec's]",
        ),
        click.option(
            "--set", "overrides", type=Override(), multiple=True, metavar="FIELD=VALUE",
            help="Set a field of the spec, like train.lr=1e-4. May be repeated.",
        ),
    ):  # fmt: skip
        called = parameter(called)
    return called


def spec_argument(command: Any) -> Any:
    """Add the argument SPEC, and the options that change it: `command` gets them as `chosen`."""
    # A path, so that a shell completes it.
    return layer_options(click.argument("spec", metavar="SPEC", type=click.Path())(command))


# A path, so that a shell completes it.
JOB = click.argument("job", metavar="JOB", type=click.Path())
FILE = PathOption(path_type=Path, dir_okay=False)
JSON = click.option("--json", "as_json", is_flag=True, help="For programs instead of people.")
OUTPUT = click.option(
    "-o", "--output", type=PathOption(path_type=Path), metavar="DIR",
    help="The bundle's directory.  [default: build/<name>]",
)  # fmt: skip
PLOT = click.option(
    "--plot", type=FILE, metavar="FILE",
    help="Draw it, too: FILE.svg or FILE.png (needs matplotlib).",
)  # fmt: skip
PROCS = click.option(
    "--procs", type=Count(1), metavar="N", help="Processes.  [default: what fits here]"
)


ONLY = click.option(
    "--only", multiple=True, metavar="FIELD=VALUE",
    help="Of a sweep the points with this value, like lr=1e-3. May be repeated.",
)  # fmt: skip


def tier_option(says: str, several: bool = False, **more: Any) -> Callable[[_F], _F]:
    """Return the option --target. `several`: True if the value may be `all`."""
    return click.option("--target", metavar="TIER", type=TierName(several), help=says, **more)


ONE_TIER = tier_option("The tier: local, hosts, slurm or sky.", required=True)


def render_options(command: Any) -> Any:
    """Add the options that are those of api.Spec.render."""
    for option in (
        click.option(
            "--max-code-mib", "limit_mib", type=Count(1), default=100, show_default=True,
            help="Refuse to copy more code than this.",
        ),
        click.option("--force", is_flag=True, help="Overwrite edits made by hand in the bundle."),
        click.option(
            "--templates", type=PathOption(path_type=Path, exists=True, file_okay=False),
            metavar="DIR", help="Templates that replace ours by name, or extend them by block.",
        ),
        OUTPUT,
    ):  # fmt: skip
        command = option(command)
    return command


def follow_options(command: Any) -> Any:
    """Add the options that choose a run of a job; see api.find_run."""
    says = "The tier.  [default: the one where it runs, else of the newest run]"
    return OUTPUT(tier_option(says)(command))


def loaded(spec: str, target: str, chosen: Chosen) -> Spec:
    """Return the spec, whose secrets no message shows from now on."""
    from ddpgen import api

    read = api.read(spec, chosen)
    hide(each.name for tier in read.resolve(target) for each in read.readings[tier].job.secrets)
    return read


def checked(spec: str, target: str, chosen: Chosen) -> tuple[Mapping[str, Reading], list[str]]:
    """Return the spec for each tier, and the tiers that `target` means. Show the warnings about these."""
    read = loaded(spec, target, chosen)
    read.log(read.validate(target))
    return read.readings, read.resolve(target)


def visible(job: str, target: str | None, output: Path | None = None) -> Path:
    """Return the checkpoint directory of the job, which must be on this machine."""
    from ddpgen import api
    from ddpgen.tiers import commands

    return commands.visible(api.find_run(job, target, output))


def named(spec: Path, output: Path | None = None) -> str:
    """Return the spec, and the option -o if the bundle has another place, as words for a shell."""
    import shlex

    from ddpgen.text.shell import as_argument

    words = [as_argument(str(spec)), *(["-o", str(output)] if output else [])]
    return shlex.join(words)


def given(**options: Any) -> list[str]:
    """Return options as words for a command of the training module, without those that are None or False."""
    flags = [f"--{name}" for name, value in options.items() if value is True]
    values = {name: value for name, value in options.items() if not isinstance(value, bool)}
    return [*flags, *(f"--{name}={value}" for name, value in values.items() if value is not None)]
