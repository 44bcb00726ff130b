"""The facts of a host that the hosts compare or report: versions, code, processor.

Owns how each fact is read, without importing torch. Compares nothing: compare.py does.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import json
import os
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from train.base.processor import isa
from train.preflight.settings import Settings
from train.run import saves

_PROC = Path("/proc")


@dataclass(frozen=True)
class Torch:
    """The torch that this interpreter would import. `cuda`, `hip`, `nccl`: versions, or "" for a build without them."""

    version: str
    cuda: str = ""
    hip: str = ""
    nccl: str = ""


def gather(torch: Torch | None, bundle: Path, proc: Path = _PROC) -> dict[str, str]:
    """Return every fact that can be read, by name. `bundle`: the directory with train/ and code/."""
    listing = _listing(bundle)
    found = {
        "machine": machine(proc),
        "python": ".".join(map(str, sys.version_info[:3])),
        "isa": isa(proc, os.environ),
        "code": code(bundle, listing),
        "spec": spec(listing),
    }
    if torch is not None:
        found |= {"torch": torch.version, "cuda": torch.cuda, "nccl": torch.nccl}
    return {name: value for name, value in found.items() if value}


def torch() -> Torch | None:
    """Return the installed torch, or None if it is missing or only its directory is left."""
    with contextlib.suppress(ImportError, ValueError):
        found = importlib.util.find_spec("torch")
        if found is not None and found.origin is not None:
            package = Path(found.origin).parent
            return _torch_in(package, _text(package / "version.py"))
    return None


def _torch_in(package: Path, text: str) -> Torch:
    stated = r"^(__version__|cuda|hip)\b[^=\n]*= *['\"]([^'\"]+)['\"]"
    said = dict(re.findall(stated, text, re.MULTILINE))
    version = said.get("__version__", "")
    cuda = said.get("cuda", "")
    # A wheel from another source may name CUDA only in its version: 2.6.0+cu124.
    local = re.search(r"\+cu(\d+)(\d)$", version)
    if not cuda and local:
        cuda = f"{local[1]}.{local[2]}"
    wheels = sorted(package.parent.glob("nvidia_nccl_cu*-*.dist-info"))
    nccl = wheels[-1].name.removesuffix(".dist-info").partition("-")[2] if wheels else ""
    return Torch(version, cuda, said.get("hip", ""), nccl)


def newest_save(settings: Settings) -> str:
    """The save from which a user's script would go on here, as JSON."""
    return json.dumps(saves.newest(settings.saves, settings.checkpoint_dir))


def machine(proc: Path = _PROC) -> str:
    """The machine's boot id and network namespace; "" if unreadable. Hosts that share both may share an address."""
    try:
        boot = (proc / "sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {os.stat(proc / 'self/ns/net').st_ino}"
    except OSError:
        return ""


def code(bundle: Path, listing: Mapping[str, Any]) -> str:
    """A digest of the program: the files of train/ and code/ that the bundle lists, as they are now.

    Files that a run adds (code/ is its working directory) do not count. Returns "" outside of a bundle.
    """
    files = listing.get("files")
    named = sorted(map(str, files)) if isinstance(files, dict) else []
    digest = hashlib.sha256()
    for name in named:
        if name.startswith(("train/", "code/")):
            digest.update(f"{name}\0{_digest(bundle / name)}\0".encode("utf-8", "surrogateescape"))
    return digest.hexdigest() if named else ""


def _digest(path: Path) -> str:
    """The digest of one file; "missing" or "unreadable: ERRNO" without one."""
    if not path.is_file():  # opening a pipe would block
        return "missing"
    try:
        with open(path, "rb") as file:
            digest = hashlib.sha256()
            while chunk := file.read(1 << 20):
                digest.update(chunk)
    except OSError as error:
        return f"unreadable: {error.errno}"
    return digest.hexdigest()


def spec(listing: Mapping[str, Any]) -> str:
    """A digest of the job as it was rendered; "" outside of a bundle."""
    job = listing.get("spec")
    text = json.dumps(job, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest() if job else ""


def _listing(bundle: Path) -> Mapping[str, Any]:
    try:
        listing = json.loads(_text(bundle / "bundle.json"))
    except (ValueError, RecursionError):
        return {}
    return listing if isinstance(listing, dict) else {}


def _text(path: Path) -> str:
    try:
        return path.read_text("utf-8", "replace")
    except OSError:
        return ""
