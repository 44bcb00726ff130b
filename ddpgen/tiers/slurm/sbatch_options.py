"""targets.slurm.extra: the options of sbatch for which the tier has no field. Pure.

Owns which of them sbatch would refuse, and why. Source: sbatch(1) of Slurm 25.05. A test compares the values with the
installed sbatch.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from ddpgen.spec.fields import show, similar
from ddpgen.spec.groups import SBATCH_OPTIONS
from ddpgen.spec.rules import Conflict
from ddpgen.tiers.slurm import directives
from ddpgen.tiers.slurm.fields import SlurmJob

# An option of srun that sbatch lacks → the remedy.
_OF_SRUN = {"cpu-bind": "leave it out: each node has one task, which gets all CPUs"}
# Options without a value, and those with or without one. Each other option has a value.
FLAGS = frozenset([
    "consolidate-segments", "contiguous", "hold", "ignore-pbs", "overcommit", "oversubscribe", "reboot",
    "spread-job", "spread-segments", "stepmgr", "use-min-nodes", "verbose",
])  # fmt: skip
_VALUE_OR_NONE = frozenset([
    "exclusive", "get-user-env", "nice", "no-kill", "oom-kill-step", "propagate", "resources", "resv-ports",
])  # fmt: skip
_NUMBER, _SIZE = "0*[1-9][0-9]*", "[0-9]+([KMGT]B?)?"
_TIME = r"[0-9]+|[0-9]+:[0-9]+(:[0-9]+)?|[0-9]+-[0-9]+(:[0-9]+){0,2}|infinite|unlimited"
_CLOCK = "([01]?[0-9]|2[0-3]):[0-5][0-9](:[0-5][0-9])?([ap]m)?|midnight|noon|fika|teatime|elevenses"
_MONTH, _DAY = "(0?[1-9]|1[0-2])", "(0?[1-9]|[12][0-9]|3[01])"
_DATE = rf"[0-9]{{4}}-(?=..-..){_MONTH}-{_DAY}|(?=[0-9]{{6}}){_MONTH}{_DAY}[0-9]{{2}}|{_MONTH}[./]{_DAY}([./][0-9]{{2}}([0-9]{{2}})?)?"
_MOMENT = rf"now(\+[0-9]+((second|minute|hour|day|week)s?)?)?|today|tomorrow|({_CLOCK})|({_DATE})([T-]({_CLOCK}))?"
_FREQUENCY, _GOVERNOR = (
    "low|medium|highm1|high|[0-9].*",
    "conservative|ondemand|performance|powersave|schedutil|userspace",
)
_GRES_FLAG = "(allow-task-sharing|disable-binding|enforce-binding|multiple-tasks-per-sharing|one-task-per-sharing)"
_LIMIT = "(ALL|NONE|AS|CORE|CPU|DATA|FSIZE|MEMLOCK|NOFILE|NPROC|RSS|STACK)"
_BINDING = "(q(uiet)?|v(erbose)?|local|no(ne)?|prefer|rank|sort|nosort)"
_MEASURED = "task|energy|network|filesystem"
_GRES = r"(gres[:/])?[a-z_][\w.-]*(:[a-z_0-9][\w.-]*)?(:[0-9]+[kmgtp]?b?)?"
# Option → the pattern of its values.
VALUES: Mapping[str, re.Pattern[str]] = {
    name: re.compile(pattern, re.IGNORECASE)
    for names, pattern in (
        ("begin deadline", _MOMENT),
        ("cores-per-socket sockets-per-node threads-per-core ntasks-per-core ntasks-per-socket", rf"({_NUMBER})"),
        ("mincpus thread-spec", rf"({_NUMBER})"),
        ("core-spec", "[0-9]+"),
        ("delay-boot time-min", _TIME),
        ("mem-per-cpu mem-per-gpu tmp", _SIZE),
        ("distribution", r"(\*|block|cyclic|arbitrary|hostfile|plane=\d+|pack|nopack)?(:(\*|block|f?cyclic))*(,(no)?pack)?"),
        ("cpu-freq", rf"({_FREQUENCY})(-({_FREQUENCY})(:({_GOVERNOR}))?)?|{_GOVERNOR}"),
        ("exclusive", "user|mcs|topo"),
        ("gpu-bind", r"(verbose,)?(closest|none|(single|per_task):\d+|(map|mask)_gpu:.+)"),
        ("gres-flags", rf"{_GRES_FLAG}(,{_GRES_FLAG})*"),
        ("profile", "all|none|(energy|lustre|network|task)(,(energy|lustre|network|task))*"),
        ("hint", "(compute_bound|memory_bound|(no)?multithread|,)+"),
        ("kill-on-invalid-dep", "yes|no"),
        ("nice", "-?0*([0-9]{1,9}|1[0-9]{9}|20[0-9]{8}|21[0-3][0-9]{7}|214[0-7][0-9]{6})"),
        ("propagate", rf"(?-i:{_LIMIT}(,{_LIMIT})*)"),
        ("mem-bind", f"{_BINDING}(,{_BINDING})*(,?(map|mask)_mem:.+)?|(map|mask)_mem:.+"),
        ("acctg-freq", rf"[0-9]+|({_MEASURED})=[0-9]+(,({_MEASURED})=[0-9]+)*"),
        ("gres", rf"{_GRES}(,{_GRES})*|none"),
        ("no-kill", "off"),
        ("priority", "[0-9]+|top"),
        ("switches", rf"{_NUMBER}(@({_TIME}))?"),
        ("oom-kill-step wait-all-nodes", "[01]"),
    )
    for name in names.split()
}  # fmt: skip
_MEMORY = ("mem-per-cpu", "mem-per-gpu")
_ASKS_FOR_GPUS = {"gpus", "gpus-per-socket", "gres", "tres-per-task"}


def check(job: SlurmJob) -> Iterator[Conflict]:
    """Yield the options of `extra` that ddpgen writes itself, or that sbatch would refuse."""
    for i, option in enumerate(job.extra):
        fields = (f"extra[{i}]", "extra")
        name, has_value, value = option[2:].partition("=")
        instead = directives.WRITTEN_OPTIONS.get(name)
        if instead and not (name == "exclusive" and has_value):  # no field says with whom to share
            yield Conflict(fields, f"--{name} is decided by ddpgen", instead)
        elif instead is None and name not in SBATCH_OPTIONS:
            yield _unknown(name, fields)
        elif fault := _fault(name, value if has_value else None):
            yield Conflict(fields, *fault)
        elif name == "time-min" and job.time is not None and _seconds(value) > job.time:
            problem = f"--time-min={value} is longer than --time={directives.clock(job.time)}"
            yield Conflict((*fields, "time"), problem, "write a shorter one")
        if name in _MEMORY and job.mem is not None:
            problem = f"sbatch takes --{name} or the memory of a node, not both"
            yield Conflict((*fields, "mem"), problem, "leave mem out, or this option")
    yield from _together(job)


def _together(job: SlurmJob) -> Iterator[Conflict]:
    """Yield the options that need or exclude others."""
    given = {option[2:].partition("=")[0] for option in job.extra}
    for one, other in (_MEMORY, ("core-spec", "thread-spec")):
        if {one, other} <= given:
            problem = f"sbatch takes one of --{one} and --{other}, not both"
            yield Conflict(("extra",), problem, "leave one of them out")
    if "mem-per-gpu" in given and not (job.gpus_per_node or given & _ASKS_FOR_GPUS):
        problem = "--mem-per-gpu asks for the memory of each GPU, and the job has none"
        yield Conflict(("extra",), problem, "write gpus_per_node, or leave it out")
    features_of_job = re.findall(r"[\w.-]+", job.constraint or "")
    for features in directives.option_values(job, "batch"):
        names = re.findall(r"[\w.-]+", features)
        if missing := [name for name in names if name not in features_of_job]:
            problem = f"--batch={features} names {missing[0]}, which is not in constraint"
            yield Conflict(("extra",), problem, "write it in constraint as well")


def _seconds(limit: str) -> int:
    """Return a time as sbatch reads it: minutes, MM:SS, HH:MM:SS, D-HH, D-HH:MM or D-HH:MM:SS. 0 without a limit."""
    if not limit[0].isdigit():
        return 0
    days, is_long, rest = limit.rpartition("-")
    parts = [int(part) for part in rest.split(":")]
    units = (3600, 60, 1) if is_long or len(parts) == 3 else (60, 1)
    return int(days or 0) * 86400 + sum(map(int.__mul__, parts, units))


def _unknown(name: str, fields: tuple[str, ...]) -> Conflict:
    close = similar(name, [*directives.WRITTEN_OPTIONS, *SBATCH_OPTIONS], at_least=0.85)
    known = f"did you mean --{close}?" if close else "leave it out if no plugin does"
    problem = f"sbatch has no --{name}, unless a plugin of the site adds it"
    remedy = directives.WRITTEN_OPTIONS.get(close, _OF_SRUN.get(name, known))
    return Conflict(fields, problem, remedy, False)


def _fault(name: str, value: str | None) -> tuple[str, str] | None:
    """Return the problem and the remedy of an option that sbatch has. `value`: None without =."""
    if name in FLAGS:
        return (f"--{name} takes no value", f"write --{name}") if value is not None else None
    if not value:
        if name in _VALUE_OR_NONE and value is None:
            return None
        return f"--{name} has no value", f"write --{name}=VALUE: see sbatch(1)"
    if name in VALUES and not VALUES[name].fullmatch(value):
        return f"{show(value)} is no value of --{name}", f"see --{name} in sbatch(1)"
    return None
