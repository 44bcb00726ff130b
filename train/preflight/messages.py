"""The words of the check-in: its findings, and the lines of hosts that wait. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from train.preflight.finding import ERROR, WARNING, Finding
from train.preflight.phrases import NamedHost, join_names
from train.preflight.settings import Settings

CLOCK_S = 5.0  # clocks further apart are reported
# torchrun's rendezvous takes a node for dead if its last sign of life is 15 s old by another node's clock. A node gives
# a sign every 5 s, and reads the signs of the others once a second.
CLOCK_BREAKS_S = 15.0 - 5.0 - 1.0

# The trouble of a connection attempt (wire.WireError.trouble), in words about the host at the other end.
CONTACT_ERRORS = {
    "": "its host answers",
    "unresolved": "its name does not resolve",
    "noroute": "there is no route to it",
    "unreachable": "no host answers at its address, or a firewall rejects",
    "refused": "its host is up, but its script has not started, or a firewall rejects",
    "timeout": "no answer at all: the host is off, or a firewall drops",
    "silent": "something takes connections there and says nothing: it hangs, or is another program",
    "foreign": "another program answers there",
    "broken": "something there closes the connection at once",
    "store": "it is held by a run under way, and not by the head's check",
}


def named_host(settings: Settings, rank: int) -> NamedHost:
    """The host with this node rank: by name and address if the spec lists it, else as `node RANK`."""
    known = list(settings.addresses.items())
    return NamedHost(*known[rank]) if rank < len(known) else NamedHost(f"node {rank}")


def this_host(settings: Settings) -> NamedHost:
    """This host, with its address in the spec."""
    return NamedHost(settings.host_name, settings.own_address)


def _head(settings: Settings, address: str = "") -> NamedHost:
    """The head by its name in the spec, or by the name or address that reaches it."""
    return NamedHost(next(iter(settings.addresses), settings.head), address or settings.head)


# --- missing hosts --------------------------------------------------------------------------------


def waits_for(settings: Settings, missing: Mapping[int, str | None]) -> str:
    """A line that names the missing hosts, each with the trouble of the head's last call (None: not called)."""
    lines = [
        f"{named_host(settings, rank)}: it has not checked in{_called(settings, met)}"
        for rank, met in list(missing.items())[:6]
    ]
    more = len(missing) - len(lines)
    return "waiting for " + "; ".join(lines) + (f"; and for {more} more" if more else "")


def waits_for_head(settings: Settings, address: str, trouble: str) -> str:
    """The line of a host that looks for the head."""
    port = f"port {settings.port} of {_head(settings, address)}"
    return f"waiting for the head, {port}: {CONTACT_ERRORS.get(trouble, trouble)}"


def absent(settings: Settings, rank: int, contact_error: str | None) -> Finding:
    """HOST001: a host that never came."""
    host = named_host(settings, rank)
    return Finding(
        "HOST001",
        host.name,
        f"{host} has not checked in within {settings.timeout_s:.0f} s{_called(settings, contact_error)}",
        f"{_starts(settings, host)}; if starting takes longer, set rendezvous.timeout in the spec",
    )


def _called(settings: Settings, contact_error: str | None) -> str:
    return (
        ""
        if contact_error is None
        else f"; from {settings.host_name}: {CONTACT_ERRORS.get(contact_error, contact_error)}"
    )


def _starts(settings: Settings, host: NamedHost) -> str:
    """The remedy for a host that has not come."""
    if settings.scheduled:
        return (
            f"see what {settings.scheduled.name} says of it in its log, and whether the node is well; "
            f"to do without it, exclude {host.name}"
        )
    return "start its script, or see what that says on its terminal"


def _together(settings: Settings, fallback: str) -> str:
    """The remedy that makes all hosts start as parts of one launch. `fallback`: the remedy without a scheduler."""
    if settings.scheduled:
        return f"start the job by `{settings.script}` alone, which starts one task on each node"
    return fallback


def no_head(settings: Settings, address: str, trouble: str) -> Finding:
    """The head was not found in time: HOST001, HOST004, NAME001, PORT003 or PORT006."""
    me, head = settings.host_name, _head(settings, address)
    span = f"within {settings.timeout_s:.0f} s"
    if trouble == "unresolved":
        return Finding(
            "NAME001",
            me,
            f"{me} cannot resolve the head's name {settings.head}",
            f"write its address beside {settings.head} in /etc/hosts of {me}"
            f"{settings.or_address('the head')}",
        )
    if trouble == "noroute":
        return Finding(
            "HOST004",
            me,
            f"{me} has no route to {head}",
            "see `ip route` there: is the interface up, the cable in, the VPN connected?",
        )
    if trouble == "store":
        return another_program(settings, address, trouble)
    opens = _opens(settings.port, head.name, me)
    if trouble == "timeout":
        return Finding(
            "PORT003",
            me,
            f"{me} got no answer at all from port {settings.port} of {head} {span}: a firewall drops "
            "it, or the host is off",
            f"switch the host on; {opens}",
        )
    return Finding(
        "HOST001",
        head.name,
        f"the head, {head}, has not checked in {span}; from {me}: {CONTACT_ERRORS.get(trouble, trouble)}",
        f"{_starts(settings, head)}; if that runs, {opens}",
    )


def _opens(port: int, on: str, source: str) -> str:
    """The remedy against a firewall."""
    return f"allow TCP port {port} from {source} on {on}, on what lies between, and out of {source}"


# --- firewalls, programs, names -------------------------------------------------------------------


def filtered(settings: Settings, hosts: Sequence[NamedHost], trouble: str) -> Finding:
    """PORT003 or PORT004: the head has reached these hosts, but they have not reached the head."""
    who = join_names(hosts)
    lost = trouble == "timeout"
    head = NamedHost(settings.host_name, settings.own_address or settings.head)
    return Finding(
        "PORT003" if lost else "PORT004",
        settings.host_name,
        f"what {who} send{'s' * (len(hosts) == 1)} to port {settings.port} of {head} "
        f"{'gets no answer' if lost else 'is rejected'}, while {settings.host_name} listens there and reaches "
        f"the same port of {who}: a firewall stands in that direction",
        _opens(settings.port, settings.host_name, join_names([host.name for host in hosts])),
    )


def another_program(settings: Settings, address: str, trouble: str) -> Finding:
    """PORT006."""
    head = _head(settings, address)
    return Finding(
        "PORT006",
        settings.host_name,
        f"at port {settings.port} of {head}, as seen from {settings.host_name}, is no check of this job: "
        f"{CONTACT_ERRORS[trouble]}",
        f"see with `ss -ltnp 'sport = :{settings.port}'` on {head.name} what it is and end it, or set "
        "another rendezvous.port in the spec",
    )


def wrong_host(settings: Settings, host: str, head: NamedHost, where: str) -> Finding:
    """NAME004: the head's name leads `host` to another host. `where`: that host or its address, in words."""
    return Finding(
        "NAME004",
        host,
        f"the head's name {head} leads {host} to {where}",
        f"correct {head.name} in /etc/hosts of {host} or in the DNS{settings.or_address('the head')}",
    )


def another_bundle(settings: Settings, other_host: NamedHost) -> Finding:
    """VER005: the other host's preflight speaks another version of the exchange."""
    return Finding(
        "VER005",
        settings.host_name,
        f"{settings.host_name} and {other_host} check in with different versions of the bundle",
        "render once, and copy that bundle to all hosts",
    )


# --- ranks ----------------------------------------------------------------------------------------


def same_rank(settings: Settings, rank: int, first: NamedHost, second: NamedHost) -> Finding:
    """RANK001."""
    cause = f"{first} and {second} were both started as node {rank}"
    remedy = "start on each host its own script, with a node rank of its own"
    if first.name == second.name:
        cause = f"{first.name} was started twice, as node {rank}: {first} and {second}"
        remedy = "end one of the two and start again"
    return Finding("RANK001", second.name, cause, _together(settings, remedy))


def bad_rank(settings: Settings, host: NamedHost, rank: int) -> Finding:
    """RANK002."""
    nodes = settings.nodes
    own = "start it with its own script, rendered from the same spec as the head's"
    return Finding(
        "RANK002",
        host.name,
        f"{host} was started as node {rank}; of {nodes} hosts the node ranks are 0 to {nodes - 1}",
        _together(settings, own),
    )


def disagree(
    settings: Settings, host: NamedHost, client_value: str, head: NamedHost, head_value: str
) -> Finding:
    """RANK003."""
    once = (
        "render once, copy that bundle to all hosts, and start it with the same options everywhere"
    )
    return Finding(
        "RANK003",
        host.name,
        f"{host} was started for {client_value}, {head} for {head_value}",
        _together(settings, once),
    )


def other_job(host: NamedHost, job: str, head: NamedHost, its_job: str, port: int) -> Finding:
    """RANK004."""
    return Finding(
        "RANK004",
        host.name,
        f"{host} belongs to the job {job}, but at port {port} {head} gathers the job {its_job}",
        "wait until that job is done, or give one of the two another rendezvous.port in its spec",
    )


# --- hosts that leave or fall silent --------------------------------------------------------------


def hangs(host: NamedHost, doing: str, silent_s: float) -> Finding:
    """HOST002."""
    return Finding(
        "HOST002",
        host.name,
        f"{host} stopped answering for {silent_s:.0f} s in the middle of the check; what it did last: "
        f"{doing}",
        f"see on {host.name} whether the host, its network, or just its script hangs (stopped, "
        "suspended, out of memory), then start again",
    )


def departed(settings: Settings, host: NamedHost, doing: str) -> Finding:
    """HOST003."""
    where = f"on the terminal of {host.name}"
    if settings.scheduled:
        where = f"in the log of {settings.scheduled.name}"
    return Finding(
        "HOST003",
        host.name,
        f"the script of {host} ended before the verdict; what it did last: {doing}",
        f"see {where} why it ended, then start again",
    )


def head_gone(settings: Settings, address: str, trouble: str, silent_s: float) -> Finding:
    """HOST002 or HOST003, about the head itself."""
    head, doing = _head(settings, address), "it gathered the hosts"
    return hangs(head, doing, silent_s) if trouble == "silent" else departed(settings, head, doing)


def clocks(head: str, ahead_s: Mapping[NamedHost, float]) -> Iterator[Finding]:
    """CLK001 for each host whose clock differs from the head's. `ahead_s`: seconds by which each clock is ahead."""
    spread = max(0.0, *ahead_s.values()) - min(0.0, *ahead_s.values()) if ahead_s else 0.0
    for host, apart_s in ahead_s.items():
        if abs(apart_s) <= CLOCK_S:
            continue
        way = "ahead of" if apart_s > 0 else "behind"
        yield Finding(
            "CLK001",
            host.name,
            f"the clock of {host} is {abs(apart_s):.0f} s {way} that of {head}",
            "let all hosts keep time by NTP (`timedatectl set-ntp true`): else torchrun takes a node "
            "for dead, and logs mislead",
            ERROR if spread > CLOCK_BREAKS_S else WARNING,
        )
