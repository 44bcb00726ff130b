"""The IDX format of the MNIST family, plain or gzip-compressed.

Owns the reading of the two files that make a labelled image set, and the messages about damaged ones. Knows nothing of
the source of the files.
"""

from __future__ import annotations

import gzip
import math
import zlib

import torch

from train.base.errors import TrainError

GZIP_MAGIC = b"\x1f\x8b"
UNSIGNED_BYTE = 0x08


def read_labelled_images(images: str, labels: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Return images as uint8 [n, height, width] and labels as uint8 [n]; the headers give the shapes.

    Raises TrainError, with the file's name, if a file is damaged or the two do not belong together.
    """
    pictures = _read(images, dimensions=3)
    classes = _read(labels, dimensions=1)
    if len(pictures) != len(classes):
        raise TrainError(
            f"{images!r} holds {len(pictures)} images but {labels!r} {len(classes)} labels; "
            f"they do not belong together: {_REMEDY}"
        )
    return pictures, classes


_REMEDY = "remove the file, so that it is downloaded anew, or put a sound copy in its place"


def _read(path: str, dimensions: int) -> torch.Tensor:
    content = _content(path)
    header = 4 + 4 * dimensions
    magic = bytes((0, 0, UNSIGNED_BYTE, dimensions))
    if content[:4] != magic:
        raise TrainError(
            f"{path!r} is no IDX file of bytes in {dimensions} dimension(s): it begins with "
            f"'{content[:4].hex(' ')}', not '{magic.hex(' ')}'; {_REMEDY}"
        )
    shape = [int.from_bytes(content[i : i + 4], "big") for i in range(4, header, 4)]
    promised = header + math.prod(shape)
    if len(content) < header or len(content) != promised:
        raise TrainError(
            f"{path!r} is damaged: its header promises {promised} bytes "
            f"({' x '.join(map(str, shape))} values), it has {len(content)}; {_REMEDY}"
        )
    if promised == header:
        raise TrainError(f"{path!r} holds no values ({' x '.join(map(str, shape))}); {_REMEDY}")
    return torch.frombuffer(content, dtype=torch.uint8, offset=header).view(shape)


def _content(path: str) -> bytearray:
    """Return the file's bytes, decompressed if its content (not its name) shows that it is compressed."""
    try:
        with open(path, "rb") as file:
            content = file.read()
        return bytearray(gzip.decompress(content) if content[:2] == GZIP_MAGIC else content)
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise TrainError(f"{path!r} is damaged: {error}; {_REMEDY}") from None
    except OSError as error:
        raise TrainError(f"cannot read {path!r}: {error.strerror}; make it readable") from None
