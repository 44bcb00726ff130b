"""The database below Slurm's accounting: `database.py DIRECTORY`, as root, once at each boot of its host.

Owns making it at the first boot and starting it; returns when it answers. Nobody but who is on the host
can reach it, and who is needs no password. Knows no Slurm.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time

PATIENCE_S = 30.0
# Where clients look for it that are told "localhost".
SOCKET = "/run/mysqld/mysqld.sock"
# The machine's own configuration is not meant for this one.
OURS = "--no-defaults"


def main() -> None:
    place = sys.argv[1]
    os.makedirs(os.path.dirname(SOCKET), exist_ok=True)
    if not os.path.exists(place):
        make(place)
    log = f"{place}.log"
    with open(log, "ab") as file:
        process = subprocess.Popen(
            [
                *("mariadbd", OURS, "--user=root", f"--datadir={place}", f"--socket={SOCKET}"),
                *("--skip-networking", "--skip-grant-tables", f"--pid-file={place}.pid"),
                *("--innodb-buffer-pool-size=32M", "--innodb-flush-log-at-trx-commit=0"),
            ],
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
            start_new_session=True,
        )
    deadline = time.monotonic() + PATIENCE_S
    while not answers():
        if process.poll() is not None or time.monotonic() > deadline:
            with open(log, encoding="utf-8", errors="replace") as file:
                sys.exit("mariadbd does not start:\n" + file.read())
        time.sleep(0.02)


def make(place: str) -> None:
    made = subprocess.run(
        [
            *("mariadb-install-db", OURS, "--user=root", f"--datadir={place}"),
            *("--skip-test-db", "--auth-root-authentication-method=normal"),
        ],
        capture_output=True,
        text=True,
    )
    if made.returncode:
        sys.exit(f"mariadb-install-db: ended with {made.returncode}:\n{made.stdout}{made.stderr}")


def answers() -> bool:
    asked = ["mariadb", OURS, "-S", SOCKET, "-e", "select 1"]
    return not subprocess.run(asked, capture_output=True).returncode


if __name__ == "__main__":
    main()
