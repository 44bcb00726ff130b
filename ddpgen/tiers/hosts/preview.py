"""The commands with which the driver would launch a job on its hosts, as lines for people. Connects to no host."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path

from ddpgen.driver import plan
from ddpgen.monitor.places import connections


def lines(listing: str, bundle: Path, arguments: Sequence[str]) -> Iterator[str]:
    """Yield lines for each host: the copy of the bundle, and the start of its script.

    `listing`: the text of hosts.json. Raises TargetUnavailableError.
    """
    hosts = plan.read(listing)
    with connections(hosts) as ssh:
        for host in hosts.hosts[: len(hosts.regular)]:
            directory = hosts.bundle(host).removeprefix("./")
            yield f"send {bundle} to {host.ssh}:{directory}"
            steps = [["--install"], list(arguments)] if hosts.locked else [list(arguments)]
            for words in steps:
                script = shlex.join(["bash", host.script, *words])
                there = f"cd {shlex.quote(directory)} && {script}"
                yield f"+ {ssh.login_command(host)} {shlex.quote(there)}"
