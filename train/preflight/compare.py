"""The checks that need all reports: hosts that differ from the others, and hosts that share an address.

The minority is blamed. If two hosts differ, the one that is not the head is blamed. link_findings.py judges the links
between the hosts. Pure: knows no socket, no file, no clock.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence

from train.base.nic import is_loopback
from train.preflight import link_findings
from train.preflight.finding import NOTE, Finding, ordered
from train.preflight.phrases import join_names
from train.preflight.report import Link, Report
from train.preflight.settings import Settings
from train.run.saves import Saved, remedy

Values = Mapping[str, str]  # one value for each host, by host, the head first


def judge(settings: Settings, reports: Sequence[Report], links: Sequence[Link]) -> list[Finding]:
    """The faults that no host can see by itself, one finding each.

    The order of the reports and of the links does not matter. Raises nothing, whatever a host's report says.
    """
    hosts = sorted(reports, key=lambda report: (report.node_rank, report.host))
    shared = list(_one_address(hosts))
    one_address = {host.host for together in shared for host in together}
    apart = [link for link in links if not {link.host, link.peer} <= one_address]
    found = (
        *_versions(settings, hosts),
        *_head_name(settings, hosts),
        *_addresses(shared),
        *_directory(settings, hosts),
        *_saves(hosts),
        *link_findings.judge(hosts, apart),
    )
    return ordered(found)


def _versions(settings: Settings, hosts: Sequence[Report]) -> Iterator[Finding]:
    """VER001 to VER007."""
    build = "install the same build of torch on all of them"
    one_python = "set python: in the spec, once or for each host, so that all have the same Python"
    # A host with a GPU (2.13.0+cu126) and a host without one (2.13.0+cpu) can work together.
    torch = _facts(hosts, "torch", lambda version: version.partition("+")[0])
    one_torch = (
        "install the same torch on all of them, or set python: in the spec, once or for each host"
    )
    yield from _differing("VER001", torch, "torch {}", one_torch)
    # An update of one system makes 3.11.9 of 3.11.7: a note is enough.
    series = _facts(hosts, "python", lambda version: ".".join(version.split(".")[:2]))
    severity = NOTE if len(set(series.values())) == 1 else ""
    yield from _differing("VER002", _facts(hosts, "python"), "Python {}", one_python, severity)
    if settings.backend == "nccl" or settings.gpus:
        yield from _differing("VER003", _facts(hosts, "cuda"), "a torch built for CUDA {}", build)
    if settings.backend == "nccl":
        remedy = f"{build} (it brings NCCL), or set backend: gloo"
        yield from _differing("VER004", _facts(hosts, "nccl"), "NCCL {}", remedy)
    again = (
        f"send one bundle to all of them (ddpgen launch, or {settings.script}), or copy a whole one"
    )
    for code, fact, why in (
        ("VER005", "code", "the bundles differ"),
        ("VER006", "spec", "their bundles were rendered from different specs"),
    ):
        digests = _facts(hosts, fact, lambda digest: digest[:12])
        yield from _differing(code, digests, f"{fact} {{}}", f"{why}: {again}")
    if settings.same_bits:
        lower = (
            "do nothing if the last bits do not matter; otherwise use hosts of one kind, or set "
            "train.determinism: portable if all have AVX2"
        )
        yield from _differing("VER007", _facts(hosts, "isa"), "processors for {}", lower)


def _facts(
    hosts: Sequence[Report], name: str, describe: Callable[[str], str] = lambda value: value
) -> Values:
    """A fact of each host that knows it. A host that does not know it differs from no other."""
    return {host.host: describe(host.facts[name]) for host in hosts if host.facts.get(name)}


def _differing(
    code: str, values: Values, subject: str, remedy: str, severity: str = ""
) -> Iterator[Finding]:
    """One finding about the first host of the minority, if the hosts differ in a value."""
    kinds = _kinds(values)
    if len(kinds) < 2:
        return
    parts = [
        f"{join_names(names)} {'has' if len(names) == 1 else 'have'} {subject.format(value)}"
        for value, names in kinds
    ]
    first = kinds[0][1][0]
    yield Finding(code, first, _shortened(parts), remedy, severity)


def _kinds(values: Values) -> list[tuple[str, list[str]]]:
    """Each value with its hosts, the rarest value first. The head's value comes after equally common values."""
    counts = Counter(values.values())
    order = {value: rank for rank, value in enumerate(dict.fromkeys(values.values()))}
    kinds = sorted(counts, key=lambda value: (counts[value], -order[value]))
    return [(kind, [host for host, value in values.items() if value == kind]) for kind in kinds]


def _shortened(parts: Sequence[str]) -> str:
    """The parts joined; if there are more than six, only the five rarest and the most common one."""
    if len(parts) > 6:
        parts = [*parts[:5], f"{len(parts) - 6} other kinds", parts[-1]]
    return "; ".join(parts)


def _head_name(settings: Settings, hosts: Sequence[Report]) -> Iterator[Finding]:
    # A loopback address, such as Debian's 127.0.1.1 for a host's own name, is another fault: NAME002 or NAME003.
    resolved = {
        host.host: host.resolved
        for host in hosts
        if host.resolved and host.head == settings.head and not is_loopback(host.resolved)
    }
    kinds = _kinds(resolved)
    if len(kinds) < 2:
        return
    parts = [f"{address} on {join_names(names)}" for address, names in kinds]
    yield Finding(
        "NAME005",
        kinds[0][1][0],
        f"the head's name {settings.head} is {_shortened(parts)}",
        f"give the name one meaning in DNS or in every /etc/hosts{settings.or_address('the head')}",
    )


def _one_address(hosts: Sequence[Report]) -> Iterator[Sequence[Report]]:
    """Yield the hosts that have the same address, for each address that belongs to different machines."""
    by_address: dict[str, list[Report]] = {}
    for host in hosts:
        if host.address and host.facts.get("machine") and not is_loopback(host.address):
            by_address.setdefault(host.address, []).append(host)
    for together in by_address.values():
        if len({host.facts["machine"] for host in together}) > 1:
            yield together


def _addresses(shared: Sequence[Sequence[Report]]) -> Iterator[Finding]:
    for together in shared:
        names = join_names([host.host for host in together])
        by = join_names(list(dict.fromkeys(host.nic for host in together if host.nic)))
        yield Finding(
            "NIC009",
            together[-1].host,
            f"{names} are different machines, and take part with one address, {together[0].address}"
            + (f" (by {by})" if by else ""),
            "set nic: of each host to the interface that leads to the others (never docker0 or the NAT "
            "of a virtual machine), or give each an address of its own",
        )


def _directory(settings: Settings, hosts: Sequence[Report]) -> Iterator[Finding]:
    if not settings.shared:
        return
    seen = _facts(hosts, "filesystem")
    kinds = _kinds(seen)
    if len(kinds) < 2:
        return
    alone = [name for name in seen if name not in kinds[-1][1]]
    see = "does not see" if len(alone) == 1 else "do not see"
    yield Finding(
        "DIR005",
        alone[0],
        f"{join_names(alone)} {see} in {settings.checkpoint_dir} what {join_names(kinds[-1][1])} put there",
        "mount the shared file system there on every host, or let checkpoint.dir point to where it is"
        + ("" if settings.scheduler else ", or leave checkpoint.shared out of the spec"),
    )


def _saves(hosts: Sequence[Report]) -> Iterator[Finding]:
    """DIR007, about the first host without the newest save: the script would go on at another step there."""
    saves = {
        host: saved
        for host, text in _facts(hosts, "save").items()
        if (saved := Saved.parse(text)) is not None
    }
    if not saves:
        return
    has = max(saves, key=lambda host: (saves[host].step, bool(saves[host].path)))
    for host, saved in saves.items():
        if not saved.is_like(saves[has]):
            cause = f"{has} has {saves[has].words}, and {host} has {saved.words}: the script would begin at another step there"
            yield Finding("DIR007", host, cause, remedy(saves[has].path, has, host))
            return
