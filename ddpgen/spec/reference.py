"""The declared fields → docs/spec.md. A test keeps the file equal to what this prints."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import MISSING, Field, fields
from typing import Any

from ddpgen.spec.fields import REQUIRED, Group, Groups, Texts
from ddpgen.spec.job import JobSpec, Python
from ddpgen.spec.reader import MODELS
from ddpgen.spec.schema import default_of

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
    job = fields(JobSpec)
    parts = [_HEAD, "## The job\n", *_table(job, ""), *_groups(job, "", "")]
    for tier, says in (("hosts", _HOSTS), ("slurm", _SLURM), ("sky", _SKY)):
        own = [field for field in fields(MODELS[tier]) if field not in job]
        parts += [f"\n## `targets.{tier}`\n", says, *_table(own, "")]
        parts += _groups(own, f"targets.{tier}.", "")
    return "\n".join(parts) + "\n"


def _groups(declared: Iterable[Field[Any]], place: str, prefix: str) -> Iterator[str]:
    """A section for each of these fields that has fields of its own."""
    for field in declared:
        kind, name = field.metadata["kind"], prefix + field.name
        if isinstance(kind, Groups):
            kind, name = kind.group, f"{name}[]"
        if not isinstance(kind, Group) or (place and kind.model is Python):
            continue
        inner = fields(kind.model)  # type: ignore[arg-type]
        yield from (f"\n## `{place}{name}`\n", field.metadata["says"] + "\n")
        yield from _table(inner, f"{name}.")
        yield from _groups(inner, place, f"{name}.")


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
        cells = (f"`{prefix}{field.name}`", kind.wants, shown, field.metadata["says"])
        yield "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
