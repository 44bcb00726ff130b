"""What went wrong while the hosts met, in words: findings and the lines of those who wait. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from train.preflight.finding import ERROR, WARNING, Finding
from train.preflight.phrases import listed
from train.preflight.settings import Settings

CLOCK_S = 5.0  # so far apart, clocks are told
# torchrun's rendezvous takes a node for dead whose last sign of life is 15 s old by another's clock;
# nodes give one every 5 s, and read the others' once a second.
CLOCK_BREAKS_S = 15.0 - 5.0 - 1.0

# What a connection attempt met (wire.WireError.trouble), about the host at the other end.
MET = {
    "": "its host answers",
    "unresolved": "its name does not resolve",
    "noroute": "there is no route to it",
    "unreachable": "no host answers at its address, or a firewall rejects",
    "refused": "its host is up, but its script has not started, or a firewall rejects",
    "timeout": "its address does not answer: the host is off, or a firewall drops",
    "silent": "something takes connections there and says nothing: it hangs, or is another program",
    "foreign": "another program answers there",
    "broken": "something there closes the connection at once",
}


def head_name(settings: Settings) -> str:
    """The head's, as the spec has it; else how it is reached."""
    return settings.me if settings.is_head else next(iter(settings.addresses), settings.head)


def at(name: str, address: str) -> str:
    """`b (192.168.7.2)`."""
    return f"{name} ({address})" if address and address != name else name


def named(settings: Settings, rank: int) -> str:
    """A host that is known by its node rank only, with its address where the spec lists it."""
    names = list(settings.addresses)
    if rank < len(names):
        return at(names[rank], settings.addresses[names[rank]])
    return f"node {rank}"


# --- who is not there -----------------------------------------------------------------------------


def waits_for(settings: Settings, missing: Mapping[int, str | None]) -> str:
    """A line that names who is missing, and what the head met when it called there (None: unknown)."""
    lines = []
    for rank, met in list(missing.items())[:6]:
        how = f"; from {settings.me}: {MET.get(met, met)}" if met is not None else ""
        lines.append(f"{named(settings, rank)}: it has not checked in{how}")
    more = len(missing) - len(lines)
    return "waiting for " + "; ".join(lines) + (f"; and for {more} more" if more else "")


def waits_for_head(settings: Settings, address: str, trouble: str) -> str:
    """What a host says while it looks for the head."""
    where = f"port {settings.port} of {at(head_name(settings), address or settings.head)}"
    why = {
        "timeout": f"no answer at all from {where}: a firewall drops, or the host is off",
        "refused": f"{where} is refused: its script has not started, or a firewall rejects",
        "store": f"{where} is held by a run under way, and not by the head's check",
    }.get(trouble, f"{where}: {MET.get(trouble, trouble)}")
    return f"waiting for the head, {why}"


def waits_for_run(settings: Settings) -> str:
    """What a host says that comes too late for the check of an elastic job."""
    return f"the hosts have gathered without {settings.me}; waiting for their run, to join it"


def absent(settings: Settings, rank: int, met: str | None) -> Finding:
    """HOST001: a host that never came."""
    how = f"; from {settings.me}: {MET.get(met, met)}" if met is not None else ""
    name = named(settings, rank)
    return Finding(
        "HOST001",
        name.partition(" (")[0],
        f"{name} has not checked in within {settings.timeout_s:.0f} s{how}",
        f"{_starts(settings, name.partition(' (')[0])}; if starting takes longer, set rendezvous.timeout "
        "in the spec",
    )


def _starts(settings: Settings, host: str) -> str:
    """What to do about a host that has not come."""
    if settings.scheduled:
        return (
            f"see what {settings.scheduled.name} says of it in its log, and whether the node is well; "
            f"to do without it, exclude {host}"
        )
    return "start its script, or see what that says on its terminal"


def _ends(settings: Settings, host: str) -> str:
    """Where to see why it ended."""
    if settings.scheduled:
        return f"see in the log of {settings.scheduled.name}"
    return f"see on the terminal of {host}"


def _together(settings: Settings, otherwise: str) -> str:
    """What makes all hosts start as parts of one launch."""
    if settings.scheduled:
        return f"start the job by `{settings.script}` alone, which starts one task on each node"
    return otherwise


def no_head(settings: Settings, address: str, trouble: str) -> Finding:
    """A host waited for the head in vain: HOST001, HOST004, NAME001, PORT003 or PORT006."""
    head, span = (
        at(head_name(settings), address or settings.head),
        f"within {settings.timeout_s:.0f} s",
    )
    if trouble == "unresolved":
        return Finding(
            "NAME001",
            settings.me,
            f"{settings.me} cannot resolve the head's name {settings.head}",
            f"write its address beside {settings.head} in /etc/hosts of {settings.me}, or set address: of "
            "the head in the spec",
        )
    if trouble == "noroute":
        return Finding(
            "HOST004",
            settings.me,
            f"{settings.me} has no route to {head}",
            "see `ip route` there: is the interface up, the cable in, the VPN connected?",
        )
    if trouble == "store":
        return another_program(settings, address, trouble)
    if trouble == "timeout":
        return Finding(
            "PORT003",
            settings.me,
            f"{settings.me} got no answer at all from port {settings.port} of {head} {span}: a firewall "
            "drops it, or the host is off",
            f"switch the host on; {opens(settings.port, head_name(settings), settings.me)}",
        )
    return Finding(
        "HOST001",
        head_name(settings),
        f"the head, {head}, has not checked in {span}; from {settings.me}: {MET.get(trouble, trouble)}",
        f"{_starts(settings, head_name(settings))}; if that runs, {opens(settings.port, head_name(settings), settings.me)}",
    )


def opens(port: int, on: str, source: str) -> str:
    """What to do against a firewall."""
    return f"allow TCP port {port} from {source} on {on}, on what lies between, and out of {source}"


# --- firewalls, programs, names -------------------------------------------------------------------


def filtered(settings: Settings, hosts: Sequence[str], trouble: str) -> Finding:
    """PORT003 or PORT004: they were reached from the head, but not the head from them."""
    who = listed(hosts)
    lost, rejected = ("gets no answer", "PORT003"), ("is rejected", "PORT004")
    how, code = lost if trouble == "timeout" else rejected
    here = at(settings.me, settings.addresses.get(settings.me, settings.head))
    return Finding(
        code,
        settings.me,
        f"what {who} send{'s' * (len(hosts) == 1)} to port {settings.port} of {here} {how}, while "
        f"{settings.me} listens there and reaches the same port of {who}: a firewall stands in that "
        "direction",
        opens(settings.port, settings.me, listed([host.partition(" (")[0] for host in hosts])),
    )


def another_program(settings: Settings, address: str, trouble: str) -> Finding:
    """PORT006."""
    what = {
        "silent": "takes connections and says nothing: another program, or the head's check hangs",
        "store": "is held by a run under way, and not by the head's check",
    }.get(trouble, "is answered by another program")
    head = head_name(settings)
    return Finding(
        "PORT006",
        settings.me,
        f"port {settings.port} of {at(head, address)}, as seen from {settings.me}, {what}",
        f"see with `ss -ltnp 'sport = :{settings.port}'` on {head} what it is and end it, or set another "
        "rendezvous.port in the spec",
    )


def wrong_host(settings: Settings, address: str, met: str) -> Finding:
    """NAME004: at the head's name another host of the job says who it is."""
    leads = (
        f"{settings.head} leads"
        if settings.head == address
        else f"{settings.head} ({address}) leads"
    )
    return Finding(
        "NAME004",
        settings.me,
        f"the head's name {leads} {settings.me} to {met}, which is not the head",
        f"correct {settings.head} in /etc/hosts of {settings.me} or in the DNS, or set address: of the "
        "head in the spec",
    )


def no_such_head(settings: Settings, host: str, head: str, address: str, there: str) -> Finding:
    """NAME004: the head's name leads elsewhere, to the host `there` where that is known."""
    whose = f"{there}'s and " if there else ""
    return Finding(
        "NAME004",
        host,
        f"the head's name {head} leads {host} to {address}, which is {whose}no address of {settings.me}",
        f"correct {head} in /etc/hosts of {host} or in the DNS, or set address: of the head in the "
        "spec",
    )


def another_bundle(settings: Settings, met: str) -> Finding:
    """VER005: its preflight speaks another version of the exchange."""
    return Finding(
        "VER005",
        settings.me,
        f"{settings.me} and {met} check in with different versions of the bundle",
        "render once, and copy that bundle to all hosts",
    )


# --- ranks ----------------------------------------------------------------------------------------


def same_rank(settings: Settings, rank: int, first: str, second: str) -> Finding:
    """RANK001."""
    host, other = first.partition(" (")[0], second.partition(" (")[0]
    if host == other:
        cause = f"{host} was started twice, as node {rank}: {first} and {second}"
        remedy = _together(settings, "end one of the two and start again")
        return Finding("RANK001", host, cause, remedy)
    return Finding(
        "RANK001",
        other,
        f"{first} and {second} were both started as node {rank}",
        _together(settings, "start on each host its own script, with a node rank of its own"),
    )


def bad_rank(settings: Settings, host: str, rank: int) -> Finding:
    """RANK002."""
    nodes = settings.nodes
    return Finding(
        "RANK002",
        host.partition(" (")[0],
        f"{host} was started as node {rank}; of {nodes} hosts the node ranks are 0 to {nodes - 1}",
        _together(
            settings, "start it with its own script, rendered from the same spec as the head's"
        ),
    )


def disagree(settings: Settings, host: str, theirs: str, head: str, ours: str) -> Finding:
    """RANK003."""
    return Finding(
        "RANK003",
        host.partition(" (")[0],
        f"{host} was started for {theirs}, {head} for {ours}",
        _together(
            settings,
            "render once, copy that bundle to all hosts, and start it with the same options everywhere",
        ),
    )


def other_job(host: str, job: str, head: str, its_job: str, port: int) -> Finding:
    """RANK004."""
    return Finding(
        "RANK004",
        host.partition(" (")[0],
        f"{host} belongs to the job {job}, but at port {port} {head} gathers the job {its_job}",
        "wait until that job is done, or give one of the two another rendezvous.port in its spec",
    )


# --- hosts that leave or fall silent --------------------------------------------------------------


def hangs(host: str, doing: str, silent_s: float) -> Finding:
    """HOST002."""
    return Finding(
        "HOST002",
        host.partition(" (")[0],
        f"{host} stopped answering for {silent_s:.0f} s in the middle of the check; "
        f"what it did last: {doing}",
        f"see on {host.partition(' (')[0]} whether the host, its network, or just its script hangs "
        "(stopped, suspended, out of memory), then start again",
    )


def left(settings: Settings, host: str, doing: str) -> Finding:
    """HOST003."""
    return Finding(
        "HOST003",
        host.partition(" (")[0],
        f"the script of {host} ended before the verdict; what it did last: {doing}",
        f"{_ends(settings, host.partition(' (')[0])} why it ended, then start again",
    )


def clocks(head: str, ahead_s: Mapping[str, float]) -> Iterator[Finding]:
    """CLK001 for each host that is not the head's time. `ahead_s`: how far each is ahead of it."""
    spread = max(0.0, *ahead_s.values()) - min(0.0, *ahead_s.values()) if ahead_s else 0.0
    for host, apart_s in ahead_s.items():
        if abs(apart_s) <= CLOCK_S:
            continue
        way = "ahead of" if apart_s > 0 else "behind"
        yield Finding(
            "CLK001",
            host.partition(" (")[0],
            f"the clock of {host} is {abs(apart_s):.0f} s {way} that of {head}",
            "let all hosts keep time by NTP (`timedatectl set-ntp true`): else torchrun takes a node "
            "for dead, and logs mislead",
            ERROR if spread > CLOCK_BREAKS_S else WARNING,
        )
