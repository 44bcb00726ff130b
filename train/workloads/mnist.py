"""A two-layer convolutional network on images in IDX form: MNIST, or any set of that shape.

Owns the model and the source of the four files. `idx.py` reads them. Knows one fact of processes: one process of a node
downloads for all processes of the node.
"""

from __future__ import annotations

import http.client
import os
import re
import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from train.base.console import say
from train.base.errors import TrainError
from train.base.files import sha256_of
from train.base.words import did_you_mean
from train.workload import Context, Workload
from train.workloads import arguments
from train.workloads.idx import read_labelled_images
from train.workloads.labelled import Labelled, loss, metrics

URL = "https://ossci-datasets.s3.amazonaws.com/mnist/"
STEMS = (
    "train-images-idx3-ubyte",
    "train-labels-idx1-ubyte",
    "t10k-images-idx3-ubyte",
    "t10k-labels-idx1-ubyte",
)
SHA256 = {
    "train-images-idx3-ubyte.gz": "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
    "train-labels-idx1-ubyte.gz": "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
    "t10k-images-idx3-ubyte.gz": "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
    "t10k-labels-idx1-ubyte.gz": "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
}
VERIFICATION_S = 60.0  # how long hashing the four files may take on a slow shared disk


def build(
    context: Context,
    *,
    data_dir: str = "~/.cache/ddpgen/mnist",
    url: str = URL,
    sha256: Mapping[str, str | None] | None = None,
    download_timeout: float = 300.0,
    channels: int = 16,
    hidden: int = 64,
    classes: int = 10,
    dropout: float = 0.0,
    batch_norm: bool = False,
) -> Workload:
    """Classify the images in `data_dir`; the t10k files are the held-out set.

    Missing files are downloaded from `url`, within `download_timeout` seconds in all. `sha256` maps file names to
    hashes and overrides the defaults, which are MNIST's. A null leaves a file unchecked. A name without `.gz` asks for
    the file without compression. Raises TrainError when a file cannot be downloaded or read, has another hash, or is
    damaged.
    """
    arguments.text("data_dir", data_dir)
    arguments.text("url", url)
    arguments.number("download_timeout", download_timeout, above=0)
    arguments.whole_number("channels", channels)
    arguments.whole_number("hidden", hidden)
    arguments.whole_number("classes", classes, at_least=2)
    arguments.probability("dropout", dropout)
    arguments.flag("batch_norm", batch_norm)

    hashes = SHA256 | _checked_hashes(sha256)
    source = DataFolder(
        os.path.abspath(os.path.expanduser(data_dir)), url, hashes, download_timeout
    )
    context.once_per_node(
        f"mnist:{source.folder}", source.provide, download_timeout + VERIFICATION_S
    )
    training = _read_split(source.path(STEMS[0]), source.path(STEMS[1]), classes)
    held_out = _read_split(source.path(STEMS[2]), source.path(STEMS[3]), classes)
    size = training.values.shape[2], training.values.shape[3]
    return Workload(
        model=Network(size, channels, hidden, classes, dropout, batch_norm),
        dataset=training,
        eval_dataset=held_out,
        loss=loss,
        metrics=metrics,
        data_files=[source.path(stem) for stem in STEMS],
    )


def _checked_hashes(sha256: Any) -> dict[str, str | None]:
    if sha256 is None:
        return {}
    if not isinstance(sha256, Mapping):
        raise TrainError(f"train.args.sha256: is {sha256!r}, but must map file names to hashes")
    known = [name for stem in STEMS for name in (stem, f"{stem}.gz")]
    for name, value in sha256.items():
        if name not in known:
            hint = did_you_mean(str(name), known) or f"; the files are {', '.join(known)}"
            raise TrainError(f"train.args.sha256: {name!r} is no file of this workload{hint}")
        if value is not None and not re.fullmatch("[0-9a-fA-F]{64}", str(value)):
            raise TrainError(
                f"train.args.sha256: {value!r} for {name!r} is no sha256; give 64 hexadecimal "
                "digits, or null to leave the file unchecked"
            )
    return dict(sha256)


@dataclass(frozen=True)
class DataFolder:
    """A folder, and the URL from which missing files are downloaded."""

    folder: str
    url: str
    sha256: Mapping[str, str | None]
    download_timeout: float

    def provide(self) -> None:
        """Download the files that are missing, and verify all four. Raises TrainError."""
        deadline = time.monotonic() + self.download_timeout
        for path in map(self.path, STEMS):
            if os.path.exists(path):
                self._verify(path)
                continue
            name = os.path.basename(path)
            url = f"{self.url.rstrip('/')}/{name}"
            _download(url, path, self.sha256.get(name), deadline - time.monotonic())

    def path(self, stem: str) -> str:
        """Return the path of the file for `stem`: the requested form, or the other one if only that exists."""
        plain, packed = os.path.join(self.folder, stem), os.path.join(self.folder, f"{stem}.gz")
        preferred, fallback = (plain, packed) if stem in self.sha256 else (packed, plain)
        return fallback if os.path.exists(fallback) and not os.path.exists(preferred) else preferred

    def _verify(self, path: str) -> None:
        expected = self.sha256.get(os.path.basename(path))
        if expected is None:
            return
        try:
            with open(path, "rb") as file:
                sha256 = sha256_of(file)
        except OSError as error:
            raise TrainError(f"cannot read {path!r}: {error.strerror}; make it readable") from None
        if sha256 != expected.lower():
            raise TrainError(
                f"{path!r} is not the file it should be: its sha256 is {sha256}, wanted is "
                f"{expected.lower()}; remove it, so that it is downloaded anew, or, if it is your "
                "own, give its hash in train.args.sha256"
            )


def _download(url: str, path: str, sha256: str | None, timeout_s: float) -> None:
    """Download `url` to `path`. On return the file is whole and has this hash (None: not checked).

    Raises TrainError and leaves no file, also when the server is silent for `timeout_s`.
    """
    say(f"downloading {url}")
    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(max(timeout_s, 0.001))  # torch.hub takes no timeout
    try:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        expected = sha256 and sha256.lower()
        torch.hub.download_url_to_file(url, path, hash_prefix=expected, progress=False)
    except (OSError, ValueError, http.client.HTTPException) as error:
        raise TrainError(
            f"cannot download {url} to {path!r}: {error}; check the URL, the network, the proxy "
            "variables, SSL_CERT_FILE and the disk, or put the file in its place by hand"
        ) from None
    except RuntimeError as error:  # the file has another hash
        raise TrainError(
            f"{url} is not the file it should be: {error}; a proxy or login page may have answered "
            "instead, so look at what the URL returns; if the file was changed on purpose, give its "
            "new hash in train.args.sha256"
        ) from None
    finally:
        socket.setdefaulttimeout(before)


def _read_split(images: str, labels: str, classes: int) -> Labelled:
    """Return pictures uint8 [n, 1, height, width] with labels. Raises TrainError for damaged files and labels out of
    range."""
    pictures, numbers = read_labelled_images(images, labels)
    highest = int(numbers.max())
    if highest >= classes:
        raise TrainError(
            f"{labels!r} holds the label {highest}, but the model has classes 0 to "
            f"{classes - 1}; set train.args.classes to {highest + 1}"
        )
    return Labelled(pictures.unsqueeze(1), numbers.long())


class Network(nn.Module):
    """Pictures uint8 [b, 1, height, width] -> logits [b, classes]."""

    def __init__(
        self,
        size: tuple[int, int],
        channels: int,
        hidden: int,
        classes: int,
        dropout: float,
        batch_norm: bool,
    ) -> None:
        super().__init__()
        height, width = (-(-side // 4) for side in size)  # halved twice, rounded up
        self.layers = nn.Sequential(
            *_convolution(1, channels, batch_norm),
            *_convolution(channels, 2 * channels, batch_norm),
            nn.Flatten(),
            nn.Linear(2 * channels * height * width, hidden),
            nn.ReLU(),
            nn.Dropout(dropout),
            nn.Linear(hidden, classes),
        )

    def forward(self, pictures: torch.Tensor) -> torch.Tensor:
        # Scale the pictures here, not in the dataset, so that a quarter of the bytes moves to the device.
        logits: torch.Tensor = self.layers(pictures.float() / 127.5 - 1)
        return logits


def _convolution(inputs: int, outputs: int, batch_norm: bool) -> list[nn.Module]:
    """Return a convolution that halves both sides. It uses a stride, because the gradient of max-pooling has no fixed
    order on a GPU."""
    convolution = nn.Conv2d(inputs, outputs, kernel_size=3, stride=2, padding=1)
    return [convolution, *([nn.BatchNorm2d(outputs)] if batch_norm else []), nn.ReLU()]
