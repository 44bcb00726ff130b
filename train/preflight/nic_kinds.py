"""What kind of interface a name stands for: wired, Wi-Fi, a bridge, a VPN, the loopback.

Owns the marks that Linux leaves below /sys/class/net, and the names that tell where it leaves none
(macOS; a container's virtual cable). Knows nothing of addresses and routes.
"""

from __future__ import annotations

import re
from pathlib import Path

LOOPBACK, BRIDGE, WIFI, VPN, WIRED = "loopback", "bridge", "Wi-Fi", "VPN", "wired"

_SYS = Path("/sys/class/net")
# Entries that the kernel makes for one kind of device only.
_MARKS = {"bridge": BRIDGE, "wireless": WIFI, "phy80211": WIFI, "tun_flags": VPN}
# ARPHRD_… of if_arp.h: the hardware that an interface says it is.
_TYPES = {
    "772": LOOPBACK,
    "512": VPN,  # PPP
    "65534": VPN,  # none at all: tun, WireGuard
    "768": VPN,  # the tunnels: IPIP, IPv6 in IPv6, SIT, GRE
    "769": VPN,
    "776": VPN,
    "778": VPN,
    "823": VPN,
}
_NAMES = (
    (LOOPBACK, r"lo\d*"),
    (BRIDGE, r"docker\d+|br-.+|br\d+|bridge\d+|virbr\d+.*|podman\d+|cni.*|lxcbr\d+|lxdbr\d+"),
    (WIFI, r"wl.+|wifi\d+|ath\d+"),
    (VPN, r"u?tun.*|tap.*|wg.*|tailscale.*|zt.+|ppp\d+|ipsec.*|nordlynx|proton.*|vpn.*"),
)


def kind(nic: str, sys: Path = _SYS) -> str:
    """One of the five kinds; WIRED for whatever bears no mark of another."""
    return _by_marks(sys / nic) or _by_name(nic)


def _by_marks(entry: Path) -> str:
    for mark, found in _MARKS.items():
        if (entry / mark).exists():
            return found
    try:
        found = _TYPES.get((entry / "type").read_text("utf-8", "replace").strip(), "")
    except OSError:
        found = ""
    # With hardware behind it, and none of these marks, it is a card with a cable.
    return found or (WIRED if (entry / "device").exists() else "")


def _by_name(nic: str) -> str:
    return next((found for found, names in _NAMES if re.fullmatch(names, nic)), WIRED)
