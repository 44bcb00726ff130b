"""The rig's storage and its SkyPilot: what a bucket promises, and what can go wrong with one.

The stories of spot jobs build on this. Knows nothing of ddpgen.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator

import pytest

from tests.real.conftest import NewRig
from tests.real.rig import Host, Machine, s3
from tests.real.rig.s3 import Bucket
from tests.real.rig.sky import BIN

pytestmark = [pytest.mark.real, pytest.mark.nightly, pytest.mark.timeout(120)]
MIB = 1 << 20


@pytest.fixture(scope="module")
def client(new_rig: NewRig, sky_possible: None) -> Machine:
    rig = new_rig(Host("client"), s3.host("store", BIN / "rclone", size_mib=64))
    client = rig["client"]
    client.store = rig["store"]  # type: ignore[attr-defined]
    return client


@pytest.fixture
def bucket(client: Machine) -> Iterator[Bucket]:
    made = Bucket(client.store, "things")  # type: ignore[attr-defined]
    made.make()
    yield made
    made.remove()


def rclone(
    client: Machine, *words: str, secret: str = s3.SECRET, stdin: str | None = None
) -> subprocess.CompletedProcess[str]:
    env = {
        "AWS_ACCESS_KEY_ID": s3.KEY,
        "AWS_SECRET_ACCESS_KEY": secret,
        "RCLONE_S3_ENDPOINT": s3.endpoint("store"),
        "RCLONE_S3_ENV_AUTH": "true",
        "RCLONE_S3_PROVIDER": "Other",
        "RCLONE_RETRIES": "1",
        "RCLONE_LOW_LEVEL_RETRIES": "1",
    }
    return client.run([BIN / "rclone", *words], env=env, stdin=stdin)


def test_what_is_put_is_there_for_who_has_the_keys(client: Machine, bucket: Bucket) -> None:
    bucket.put("a/b", b"beside the server")
    assert rclone(client, "cat", ":s3:things/a/b").stdout == "beside the server"
    assert rclone(client, "rcat", ":s3:things/c", stdin="through it").returncode == 0
    assert bucket.get("c") == b"through it"
    assert bucket.objects() == {"a/b": 17, "c": 10}
    bucket.delete("a/")
    assert rclone(client, "lsf", "-R", ":s3:things").stdout == "c\n"
    refused = rclone(client, "cat", ":s3:things/c", secret="guessed")
    assert refused.returncode != 0
    assert "403" in refused.stderr


def test_an_upload_that_is_cut_off_leaves_nothing(client: Machine, bucket: Bucket) -> None:
    bucket.slow(kib_per_s=200)
    cut_off = ["timeout", "--signal=KILL", "3", str(BIN / "rclone"), "rcat", ":s3:things/large"]
    env = {"AWS_ACCESS_KEY_ID": s3.KEY, "AWS_SECRET_ACCESS_KEY": s3.SECRET}
    options = ["--s3-endpoint", s3.endpoint("store"), "--s3-env-auth", "--s3-provider", "Other"]
    done = client.run([*cut_off, *options], env=env, stdin="x" * (8 * MIB))
    bucket.fast()
    assert done.returncode != 0
    assert bucket.objects() == {}
