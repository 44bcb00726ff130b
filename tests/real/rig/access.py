"""Who may enter a host and how: users, keys, and the texts of OpenSSH's files and /etc/hosts.

Owns making the keys; everything else is values in, text out.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.real.rig.spec import CONTROL, Host, Wiring
from tests.real.rig.tools import call, program, where

USER, UID = "trainer", 2000
HOME = f"/home/{USER}"
OWNERS = {"root": 0, USER: UID}
HOMES = {"root": "/root", USER: HOME}


@dataclass(frozen=True)
class Keys:
    """One key of the users and one of the hosts, the same on all of them."""

    directory: Path

    def make(self) -> None:
        for path in (self.identity, self.host):
            call(
                [
                    where("ssh-keygen"),
                    "-q",
                    "-t",
                    "ed25519",
                    "-N",
                    "",
                    "-C",
                    path.name,
                    "-f",
                    str(path),
                ]
            )

    @property
    def identity(self) -> Path:
        return self.directory / "identity"

    @property
    def host(self) -> Path:
        return self.directory / "host"

    @property
    def known_hosts(self) -> str:
        return f"* {public(self.host)}"


def copy(source: Path, target: Path) -> None:
    """Copy a directory to a host, or into what hosts share: it is trainer's there."""
    shutil.copytree(source, target)
    for directory, _, files in os.walk(target):
        for path in (directory, *(os.path.join(directory, name) for name in files)):
            os.chown(path, UID, UID)


def public(key: Path) -> str:
    return key.with_name(key.name + ".pub").read_text()


def ssh_config(hosts: Sequence[Host], wiring: Wiring, keys: Keys, control: int) -> str:
    """For the driver's side: the hosts by name, and the way into the rig for who is outside."""
    text = "# Written by tests/real/rig.\n"
    for host in hosts:
        text += f"Host {host.name}\n  HostName {wiring.address(host.name, CONTROL)}\n"
        text += f"  Port {host.port}\n"
        text += f"  ProxyJump {host.jump}\n" if host.jump else ""
    netns = f"/proc/{control}/ns/net"
    # `Match exec` and not a proxy for everybody: in the network ssh is to connect by itself.
    outside = keys.directory / "outside"
    connect = " ".join(program("connect"))
    return text + (
        f"Match exec {outside}\n"
        f"  ProxyCommand {where('nsenter')} --net={netns} {connect} %h %p\n"
        "  ProxyUseFdpass yes\n"
        "Host *\n"
        f"  User {USER}\n"
        f"  IdentityFile {keys.identity}\n"
        "  IdentitiesOnly yes\n"
        f"  UserKnownHostsFile {keys.directory / 'known_hosts'}\n"
        "  GlobalKnownHostsFile /dev/null\n"
        "  StrictHostKeyChecking yes\n"
    )


def outside(control: int) -> str:
    """A command that succeeds for processes outside the network of the rig."""
    return (
        f'#!/bin/sh\n[ "$(readlink /proc/self/ns/net)" != "$(readlink /proc/{control}/ns/net)" ]\n'
    )


def etc_hosts(host: Host, hosts: Sequence[Host], wiring: Wiring) -> str:
    entries: dict[str, str | None] = {
        other.name: wiring.address(other.name, host.name) for other in hosts
    }
    entries |= host.resolves
    lines = [f"{address} {name}\n" for name, address in entries.items() if address is not None]
    return "127.0.0.1 localhost\n" + "".join(lines)


def files(host: Host, hosts: Sequence[Host], wiring: Wiring, keys: Keys) -> list[dict[str, Any]]:
    """Every file that makes this machine's disk this host's."""
    ports = "".join(f"Host {each.name}\n  Port {each.port}\n" for each in hosts if each.port != 22)
    made = [
        file("/etc/hostname", f"{host.name}\n"),
        file("/etc/hosts", etc_hosts(host, hosts, wiring)),
        # Nobody to ask: a name is in /etc/hosts or it is not, and that is known at once.
        file("/etc/resolv.conf", ""),
        file("/etc/ssh/host_key", keys.host.read_text(), mode=0o600),
        file("/etc/ssh/sshd_config", sshd_config(host.port)),
        file("/etc/ssh/ssh_config", ports + "Host *\n  HashKnownHosts yes\n"),
        file("/etc/ssh/ssh_known_hosts", keys.known_hosts),
    ]
    for user, owner in OWNERS.items():
        place = f"{HOMES[user]}/.ssh"
        identity = keys.identity.read_text()
        made += [
            file(f"{place}/id_ed25519", identity, owner=owner, mode=0o600),
            file(f"{place}/authorized_keys", public(keys.identity), owner=owner, mode=0o600),
        ]
    return made + [file(path, text, mode=mode) for path, (text, mode) in host.files.items()]


def file(path: str, text: str, owner: int = 0, mode: int = 0o644) -> dict[str, Any]:
    return {"path": path, "text": text, "owner": owner, "mode": mode}


def sshd_config(port: int) -> str:
    return (
        f"Port {port}\n"
        "ListenAddress 0.0.0.0\n"
        "HostKey /etc/ssh/host_key\n"
        "PidFile /run/sshd.pid\n"
        "UsePAM no\n"
        "UseDNS no\n"
        "PasswordAuthentication no\n"
        "KbdInteractiveAuthentication no\n"
        "PermitRootLogin prohibit-password\n"
        "LogLevel VERBOSE\n"
        "Subsystem sftp internal-sftp\n"
    )
