"""The port at which the workers of a start meet, held from the first moment of rank 0.

torchrun's agent looks for a free port, lets go of it, and has rank 0 listen there once that has imported
torch: for seconds anybody may take it, and the start fails by "address already in use". Owns the socket that
keeps it meanwhile. Knows nothing of torch, which takes the socket over.
"""

from __future__ import annotations

import socket
from collections.abc import Mapping

_held: list[socket.socket] = []


def hold(env: Mapping[str, str]) -> None:
    """Have MASTER_PORT, where this is rank 0 of workers whose port torchrun has just chosen.

    Where the agent keeps a store there itself, or the port is the job's own (to which a host may come that
    asks who listens), there is nothing to hold. A port that is taken by now is for torch to tell.
    """
    if env.get("RANK") != "0" or not env.get("TORCHELASTIC_RUN_ID", "").strip():
        return
    if env.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
        return
    both = socket.has_dualstack_ipv6()
    made = socket.socket(socket.AF_INET6 if both else socket.AF_INET)
    # Bound, and not listening: who comes before torch does is refused, and tries again until its time is
    # up. Let in, it would wait for torch's first word without an end.
    try:
        if both:
            made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        made.bind(("", int(env["MASTER_PORT"])))
    except (KeyError, ValueError, OSError, OverflowError):
        made.close()
        return
    _held.append(made)


def take() -> int | None:
    """The descriptor of the bound socket, which is the caller's from now on; None without one."""
    return _held.pop().detach() if _held else None
