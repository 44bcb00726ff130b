"""The interface and the address by which a host takes part.

Owns the choice between the spec's interface and the route to the others, and what is said about it.
"""

from __future__ import annotations

from train import nic
from train.console import say
from train.errors import EXIT_UNAVAILABLE
from train.supervisor.refusal import Refusal
from train.supervisor.supervisor import Membership


def choose(member: Membership, name: str, peer: str = "") -> tuple[str, str]:
    """Interface and address. `name`: the interface of the spec, if any; `peer`: on the head, another host.

    On the head the port is tried as well. Raises Refusal.
    """
    try:
        chosen, address = nic.choose(member.head_address, name, member.is_head, peer)
        if member.is_head:
            nic.check_port_free(address, member.port)
    except nic.NetworkError as error:
        raise Refusal(EXIT_UNAVAILABLE, str(error)) from None
    say(f"{member.me}: interface {chosen}, address {address}")
    return chosen, address
