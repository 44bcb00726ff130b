"""Real digits in IDX form: fetched from a real server, read, refused when damaged, and learnt."""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import shutil
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch

from tests.ports import free_port
from tests.train.workers import run
from tests.train.workloads import idx_files
from tests.train.workloads.http_files import Site
from tests.train.workloads.training import train
from train.base.errors import TrainError
from train.workload import Context
from train.workloads import mnist

IMAGES, LABELS, EVAL_IMAGES, EVAL_LABELS = idx_files.NAMES


def hashes(files: dict[str, bytes]) -> dict[str, str]:
    return {name: hashlib.sha256(content).hexdigest() for name, content in files.items()}


def write(folder: Path, files: dict[str, bytes]) -> Path:
    for name, content in files.items():
        (folder / name).write_bytes(content)
    return folder


def from_site(site: Site, folder: Path, **more: Any) -> dict[str, Any]:
    return {"data_dir": str(folder), "url": site.url, "sha256": hashes(site.files)} | more


def unchecked(folder: Path, files: dict[str, bytes]) -> dict[str, Any]:
    """Arguments for files of no known hash; a port of the reserved range, so nothing is fetched."""
    return {"data_dir": str(folder), "url": "http://127.0.0.1:1", "sha256": dict.fromkeys(files)}


@pytest.mark.slow
def test_absent_files_are_downloaded_once_and_learnt(
    context: Context, site: Site, tmp_path: Path
) -> None:
    arguments = from_site(site, tmp_path / "digits", batch_norm=True, dropout=0.1)
    built = mnist.build(context, **arguments)
    assert sorted(site.requests) == sorted(f"{name}.gz" for name in idx_files.NAMES)
    assert (len(built.dataset), len(built.eval_dataset)) == (1500, 297)
    assert train(built, steps=150, lr=0.003)["accuracy"] > 0.9

    again = mnist.build(context, **arguments)
    assert len(site.requests) == 4, "what is there is not downloaded anew"
    assert torch.equal(again.dataset.values, built.dataset.values)


def test_pictures_are_those_of_the_source(context: Context, site: Site, tmp_path: Path) -> None:
    from sklearn.datasets import load_digits

    data = load_digits()
    built = mnist.build(context, **from_site(site, tmp_path))
    pictures, labels = built.dataset.batch([0, 1499, 7])
    assert pictures.shape == (3, 1, 8, 8)
    assert numpy.array_equal(pictures[1, 0].numpy(), data.images[1499] * 15)
    assert labels.tolist() == [data.target[i] for i in (0, 1499, 7)]
    assert torch.equal(built.dataset[1499][0], pictures[1])
    assert built.eval_dataset[0][1] == data.target[1500]


def test_plain_files_are_read_and_downloaded_too(
    context: Context, site: Site, digits: dict[str, bytes], tmp_path: Path
) -> None:
    site.files = {name[:-3]: gzip.decompress(content) for name, content in digits.items()}
    fetched = mnist.build(context, **from_site(site, tmp_path))
    assert sorted(os.listdir(tmp_path)) == sorted(idx_files.NAMES)
    requests = len(site.requests)
    found = mnist.build(context, data_dir=str(tmp_path), url=site.url)
    assert len(site.requests) == requests
    assert torch.equal(found.dataset.values, fetched.dataset.values)


def test_present_file_of_the_wrong_hash_is_refused_and_kept(
    context: Context, site: Site, digits: dict[str, bytes], tmp_path: Path
) -> None:
    write(tmp_path, digits | {f"{LABELS}.gz": b"my own work of years"})
    found = hashlib.sha256(b"my own work of years").hexdigest()
    with pytest.raises(TrainError) as error:
        mnist.build(context, **from_site(site, tmp_path))
    path = str(tmp_path / f"{LABELS}.gz")
    said = str(error.value)
    assert said.startswith(f"{path!r} ")
    assert f" sha256 is {found}, wanted is {hashes(digits)[f'{LABELS}.gz']}; " in said
    assert said.endswith(" train.args.sha256")
    assert (tmp_path / f"{LABELS}.gz").read_bytes() == b"my own work of years"


def test_downloads_are_held_to_the_hashes_of_mnist_by_default(
    context: Context, site: Site, tmp_path: Path
) -> None:
    with pytest.raises(TrainError) as error:
        mnist.build(context, data_dir=str(tmp_path), url=site.url)
    assert str(error.value).startswith(f"{site.url}/{IMAGES}.gz is not the file ")
    assert "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f2" in str(error.value)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    ("fault", "why"),
    [
        ("missing", "HTTP Error 404"),
        ("silent", "timed out"),
        ("nobody", "Connection refused"),
        ("no url", "unknown url type"),
        ("no folder", "File exists"),
    ],
)
def test_what_cannot_be_downloaded_is_named_with_cause_and_remedy_and_is_not_there(
    context: Context, site: Site, tmp_path: Path, fault: str, why: str
) -> None:
    arguments = from_site(site, tmp_path / "digits")
    if fault == "missing":
        del site.files[f"{IMAGES}.gz"]
    elif fault == "silent":
        site.stalls.add(f"{IMAGES}.gz")
        arguments["download_timeout"] = 0.3
    elif fault == "no folder":
        (tmp_path / "digits").write_text("a file")
    else:
        arguments["url"] = f"http://127.0.0.1:{free_port()}" if fault == "nobody" else "digits"
    with pytest.raises(TrainError) as error:
        mnist.build(context, **arguments)
    assert str(error.value).startswith(f"cannot download {arguments['url']}/{IMAGES}.gz to ")
    assert why in str(error.value)
    assert "; check the URL, the network, the proxy" in str(error.value)
    assert not list(tmp_path.rglob("*.gz"))


def test_a_download_that_fails_ends_every_process_with_its_message(
    site: Site, tmp_path: Path
) -> None:
    arguments = from_site(site, tmp_path / "digits")
    site.files[f"{EVAL_LABELS}.gz"] = b"<html>please log in</html>"
    given = [f"--arg={name}={json.dumps(value)}" for name, value in arguments.items()]
    done = run(tmp_path / "job", "mnist", 2, *given)
    assert 1 in done.codes
    assert f"{site.url}/{EVAL_LABELS}.gz is not the file " in done.status
    assert "Traceback" not in done.output
    assert f"{EVAL_LABELS}.gz" not in os.listdir(tmp_path / "digits")


def test_one_process_of_a_node_fetches_and_its_failure_is_everybodys(
    site: Site, tmp_path: Path
) -> None:
    keys = []

    def another_does_it(key: str, action: Any, timeout_s: float) -> None:
        keys.append((key, timeout_s))
        raise TrainError("the disk of this node is full")

    waiting = Context(0, 1, 1, 2, torch.device("cpu"), 16, another_does_it)
    with pytest.raises(TrainError, match="is full"):
        mnist.build(waiting, **from_site(site, tmp_path, download_timeout=7))
    assert keys == [(f"mnist:{tmp_path}", 67.0)]
    assert site.requests == []


def damage(content: bytes, how: str) -> bytes:
    return {
        "empty": b"",
        "no-idx": b"<html>please log in</html>",
        "truncated": content[:-1],
        "no-images": content[:4] + bytes(4) + content[8:16],
        "gzip-truncated": gzip.compress(content)[:-10],
        "gzip-flipped": gzip.compress(content)[:-8] + b"\0\0\0\0" + gzip.compress(content)[-4:],
    }[how]


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("empty", "is no IDX file of bytes in 3 dimension(s): it begins with ''"),
        ("no-idx", "it begins with '3c 68 74 6d', not '00 00 08 03'"),
        ("truncated", "96016 bytes (1500 x 8 x 8 values), it has 96015"),
        ("no-images", "holds no values (0 x 8 x 8)"),
        ("gzip-truncated", "is damaged: Compressed file ended"),
        ("gzip-flipped", "is damaged: CRC check failed"),
    ],
)
def test_damaged_file_is_named_with_the_remedy(
    context: Context, digits: dict[str, bytes], tmp_path: Path, how: str, said: str
) -> None:
    files = {name[:-3]: gzip.decompress(content) for name, content in digits.items()}
    write(tmp_path, files | {IMAGES: damage(files[IMAGES], how)})
    with pytest.raises(TrainError) as error:
        mnist.build(context, **unchecked(tmp_path, files))
    assert str(error.value).startswith(f"{str(tmp_path / IMAGES)!r} ")
    assert said in str(error.value)
    assert "remove the file" in str(error.value)


def test_images_and_labels_that_do_not_belong_together(
    context: Context, digits: dict[str, bytes], tmp_path: Path
) -> None:
    write(tmp_path, digits)
    shutil.copy(tmp_path / f"{EVAL_LABELS}.gz", tmp_path / f"{LABELS}.gz")
    with pytest.raises(TrainError, match=r"holds 1500 images but .* 297 labels"):
        mnist.build(context, **unchecked(tmp_path, digits))


def test_labels_beyond_the_classes(
    context: Context, digits: dict[str, bytes], tmp_path: Path
) -> None:
    write(tmp_path, digits)
    with pytest.raises(TrainError, match=r"holds the label 9, .*; set train.args.classes to 10"):
        mnist.build(context, **unchecked(tmp_path, digits), classes=4)


@pytest.mark.parametrize("size", [(28, 28), (8, 8), (5, 13), (1, 1)])
def test_any_picture_size_will_do(context: Context, tmp_path: Path, size: tuple[int, int]) -> None:
    random = numpy.random.default_rng(0)
    files = idx_files.image_set(
        random.integers(0, 256, (20, *size)), random.integers(0, 10, 20), held_out=5
    )
    built = mnist.build(context, **unchecked(write(tmp_path, files), files), channels=4, hidden=8)
    batch = built.dataset.batch([0, 1, 2])
    assert batch[0].shape == (3, 1, *size)
    assert built.model(batch[0]).shape == (3, 10)
    assert built.loss(built.model, batch).isfinite()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            {"sha256": {"t10k-image-idx3-ubyte": "0" * 64}},
            "train.args.sha256: 't10k-image-idx3-ubyte' ",
        ),
        ({"sha256": {f"{IMAGES}.gz": "abc"}}, "train.args.sha256: 'abc' for"),
        ({"sha256": "abc"}, "train.args.sha256: is 'abc', "),
        ({"download_timeout": 0}, "train.args.download_timeout: is 0, but must be a number above"),
        ({"url": ""}, "train.args.url: is '', but must be a string "),
        ({"channels": "16"}, "train.args.channels: is '16', but must be a whole number"),
    ],
)
def test_argument_out_of_range(
    context: Context, tmp_path: Path, arguments: dict[str, Any], message: str
) -> None:
    with pytest.raises(TrainError) as error:
        mnist.build(context, data_dir=str(tmp_path), **arguments)
    assert str(error.value).startswith(message)
