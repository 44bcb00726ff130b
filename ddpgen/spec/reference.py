"""The declared fields → docs/spec.md. A test keeps the file equal to what this prints."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import MISSING, Field, fields
from typing import Any

from ddpgen.spec.fields import REQUIRED, Group, Groups, Leaf, Nodes, Pairs, Texts
from ddpgen.spec.job import Host, HostsJob, JobSpec
from ddpgen.spec.schema import default_of
from ddpgen.spec.sky import Bucket, Recovery, SkyJob
from ddpgen.spec.slurm import Container, Environment, SlurmJob

_HEAD = """# The job spec

One YAML file says what a job is; `ddpgen schema` prints the same for editors. This page is made from
the fields' own declarations, so it cannot disagree with what `ddpgen validate` accepts.

```yaml
name: gpt
procs_per_node: 2
train:
  workload: gpt
  steps: 300
  global_batch_size: 16
  micro_batch_size: 4
```

## How values are written

- **Times carry their unit**: `90s`, `10min`, `2h`, `1h30min` (units: ms, s, min, h, d). YAML reads
  `2:00` as the number 120, so that is refused and explained.
- **Periods in steps** too: `200 steps`.
- **Numbers** may be written `1e-3`, `1_000`, `0x1f`. A leading zero is refused: YAML would read octal.
- **Truth values** are `true` and `false`; `yes`, `on` and their likes are refused where a text or
  number belongs, and need quotes to be a text.
- **Environment values** are texts, byte for byte; numbers are taken as written (`007` stays `007`).
- Anchors, aliases, merge keys and tags are refused: a value stands where it acts. What differs from
  tier to tier goes below `targets`.

## Overlays

`targets.<tier>` may hold any field of the job. It is laid over the job first, mapping by mapping, and
the result is checked once, so an error in an overlay is reported at its own line. `steps` in an
overlay takes the place of `epochs` in the job and the other way round; so do `workload` and `script`.
`null` takes a field back to none. A spec without `targets.local` is for `local`, too, where it names no
other tier, or where what stands outside `targets` runs on one machine as it is.

```yaml
targets:
  local:
    procs_per_node: 2
    train: {steps: 20}
```

Tiers: `local`, `hosts`, `slurm` and `sky`.
"""


_HOSTS = """A handful of machines that ssh reaches; [hosts.md](hosts.md) has the whole story. Beside the fields of
the job, which it may overlay, the tier has its own:
"""

_SLURM = """A cluster that Slurm runs; [slurm.md](slurm.md) has the whole story. Beside the fields of the job,
which it may overlay, the tier has its own:
"""

_SKY = """Spot machines of any cloud that SkyPilot reaches; [sky.md](sky.md) has the whole story. Beside the
fields of the job, which it may overlay, the tier has its own:
"""


def markdown() -> str:
    """The whole page."""
    parts = [_HEAD, "## The job\n", *_table(fields(JobSpec), "")]
    for field in fields(JobSpec):
        kind = field.metadata["kind"]
        if isinstance(kind, Group):
            parts += [f"\n## `{field.name}`\n", field.metadata["says"] + "\n"]
            parts += _table(fields(kind.model), f"{field.name}.")  # type: ignore[arg-type]
    own = [field for field in fields(HostsJob) if field not in fields(JobSpec)]
    parts += ["\n## `targets.hosts`\n", _HOSTS, *_table(own, "")]
    parts += ["\n## `targets.hosts.hosts[]`\n", *_table(fields(Host), "")]
    own = [field for field in fields(SlurmJob) if field not in fields(JobSpec)]
    parts += ["\n## `targets.slurm`\n", _SLURM, *_table(own, "")]
    parts += ["\n## `targets.slurm.environment`\n", *_table(fields(Environment), "environment.")]
    names = "environment.container."
    parts += ["\n## `targets.slurm.environment.container`\n", *_table(fields(Container), names)]
    own = [field for field in fields(SkyJob) if field not in fields(JobSpec)]
    parts += ["\n## `targets.sky`\n", _SKY, *_table(own, "")]
    parts += ["\n## `targets.sky.bucket`\n", *_table(fields(Bucket), "bucket.")]
    parts += ["\n## `targets.sky.recovery`\n", *_table(fields(Recovery), "recovery.")]
    return "\n".join(parts) + "\n"


def _table(declared: Iterable[Field[Any]], prefix: str) -> Iterator[str]:
    yield "| field | value | default | what it decides, and what a wrong one costs |"
    yield "|---|---|---|---|"
    for field in declared:
        kind = field.metadata["kind"]
        default = default_of(field)
        if field.default is REQUIRED:
            shown = "**required**"
        elif field.default_factory is not MISSING:
            shown = "see below" if isinstance(kind, Group) else "empty"
        elif isinstance(kind, Texts) and isinstance(field.default, tuple) and field.default:
            shown = f"`[{', '.join(field.default)}]`"
        else:
            written = str(default).lower() if isinstance(default, bool) else default
            shown = "none" if default is None else f"`{written}`"
        cells = (f"`{prefix}{field.name}`", _wants(kind), shown, field.metadata["says"])
        yield "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _wants(kind: Any) -> str:
    if isinstance(kind, Nodes):
        return kind.range_wants
    if isinstance(kind, Groups):
        return "a list of mappings"
    if isinstance(kind, Leaf):
        return kind.wants
    if isinstance(kind, Texts):
        return f"{kind.leaf.wants}, or a list of them"
    if isinstance(kind, Pairs):
        return "a mapping of names to values"
    return f"a mapping, or the {kind.shorthand}" if kind.shorthand else "a mapping"
