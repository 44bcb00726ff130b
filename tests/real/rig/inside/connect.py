"""ssh's ProxyCommand with ProxyUseFdpass: `connect.py ADDRESS PORT [TIMEOUT_S]`, started in the rig's network.

Opens the connection there and hands the open socket to ssh, which is outside; nothing stays between
them. Says what ssh would say when there is none.
"""

from __future__ import annotations

import array
import socket
import sys

# ssh does not apply its ConnectTimeout to a proxy that passes a socket.
TIMEOUT_S = 10.0


def main() -> None:
    address, port = sys.argv[1], int(sys.argv[2])
    timeout_s = float(sys.argv[3]) if sys.argv[3:] else TIMEOUT_S
    try:
        connection = socket.create_connection((address, port), timeout_s)
    except OSError as error:
        reason = "Connection timed out" if isinstance(error, TimeoutError) else error.strerror
        sys.exit(f"ssh: connect to host {address} port {port}: {reason}")
    connection.setblocking(True)
    with socket.socket(fileno=1) as ssh:
        descriptors = array.array("i", [connection.fileno()])
        ssh.sendmsg([b"\0"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, descriptors)])


if __name__ == "__main__":
    main()
