"""A host as ssh takes it, and the options of ssh that a spec may have. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from ddpgen.spec.fields import Refused, Text, show
from ddpgen.spec.places import checked, number_fault, variable_fault
from ddpgen.spec.yamltree import Scalar

# Letters of ssh(1): options with a value, options without a value, and options with which ssh runs no command.
_SSH_VALUES = "BbcDEeFIiJLlmOoPpQRSwW"
_SSH_FLAGS = "1246AaCgKkMqTtvXxYy"
_SSH_NO_COMMAND = "fGnNQsVW"
# Options of ssh_config(5) that do the same as the last ones.
_SSH_NO_COMMAND_NAMES = re.compile(
    r"\s*(sessiontype[\s=]+(none|subsystem)|(stdinnull|forkafterauthentication)[\s=]+(yes|true)|remotecommand[\s=]+(?!none\b)\S+)\b",
    re.IGNORECASE,
)
# A host of ssh: a name or an IPv6 address. ssh:// takes an IPv6 address in [] alone.
_SSH_HOST = re.compile(r"[^-,/:\[][^,/:]*|\[[^]/]+\]")
_IPV6 = re.compile(r"[^-,/:\[]*:[^,/]*:[^,/]*")
_DESTINATION = "a destination of ssh: an alias, user@host or ssh://user@host:port"


class Destination(Text):
    """A host as ssh takes it on its command line."""

    def __init__(self) -> None:
        super().__init__(r"[^\s\0-][^\s\0]*", _DESTINATION)

    def parse(self, raw: Scalar) -> str:
        return checked(super().parse(raw), _destination_fault)


def _destination_fault(destination: str) -> Refused | None:
    target = destination.removeprefix("ssh://")
    if port := re.search(r":([^:\]/]*)/?$", target) if target != destination else None:
        if not port[1].isdecimal() or not 1 <= int(port[1][:6]) <= 65535:
            return Refused(f"{show(port[1])} is no port", "write one from 1 to 65535")
        target = target[: port.start()]
    elif target != destination:
        target = target.removesuffix("/")
    elif re.fullmatch("[^:/]+:[0-9]+", target):
        problem = f"{destination} is no destination of ssh: it takes a port otherwise"
        return Refused(problem, f"write ssh://{destination}")
    user, at, host = target.rpartition("@")
    if not host:
        return Refused("names no host", "write an alias, user@host or its like")
    if at and (not user or user.endswith("@")):
        return Refused(f"{show(destination)} names no user", f"write {host}, or USER@{host}")
    if not re.fullmatch("[^:,/]*", user):
        problem = f"{show(user)} is no user, and ssh takes neither a password nor a second host"
        return Refused(problem, f"write {_DESTINATION}")
    uri = destination.startswith("ssh://")
    if not (_SSH_HOST.fullmatch(host) or (not uri and _IPV6.fullmatch(host))):
        return Refused(f"{show(host)} is no address", f"write {_DESTINATION}")
    if variable := variable_fault(destination):
        return Refused(variable.problem, "write the name itself")
    # An alias in ~/.ssh/config may have any name, such as 2.
    return number_fault(host) if host.count(".") == 3 else None


def options_faults(words: Sequence[str]) -> Iterator[tuple[int, Refused]]:
    """Yield the faults of words for ssh, each with its index. ssh reads them before the destination, as getopt does."""
    value_of = ""
    for i, word in enumerate(words):
        if value_of:
            if value_of == "o" and (name := _SSH_NO_COMMAND_NAMES.match(word)):
                yield i, Refused(f"with {name[1]} ssh runs no command on the host", "leave it out")
            value_of = ""
            continue
        match = re.fullmatch(rf"-(?!-)([^{_SSH_VALUES}]*)(.?)(.*)", word, re.DOTALL)
        if match is None or len(word) < 2:
            remedy = f'write "-o", "{word}"' if "=" in word else "write options alone"
            yield i, Refused(f"{show(word)} would be the destination", remedy)
            return
        flags, letter, value = match.groups()
        other = re.sub(f"[{_SSH_FLAGS}]", "", flags)[:1] or (letter if letter in "QW" else "")
        if other and other in _SSH_NO_COMMAND:
            yield i, Refused(f"with -{other} ssh runs no command on the host", "leave it out")
        elif other:
            yield i, Refused(f"-{other} is no option of ssh", "write one of ssh(1)")
        elif letter == "o" and (name := _SSH_NO_COMMAND_NAMES.match(value)):
            yield i, Refused(f"with {name[1]} ssh runs no command on the host", "leave it out")
        elif value.startswith(" "):
            remedy = f'write two words: "-{letter}", "{value.strip()}"'
            yield i, Refused(f"{show(word)} is one word with a space in it", remedy)
        value_of = "" if value else letter
    if value_of:
        yield len(words) - 1, Refused(f"-{value_of} has no value", "write it as the next word")
