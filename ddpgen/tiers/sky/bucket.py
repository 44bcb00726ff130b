"""The place in a bucket where a job keeps files that must outlive its machines, and fsspec's address of it. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from ddpgen.spec.job import JobSpec
from ddpgen.tiers.sky.fields import SkyJob

STOP = "stop"

_AZURE = ".blob.core.windows.net"


# Stores with S3's protocol: the profile, and the variables that name its files, as SkyPilot's setup makes them.
_S3_COMPATIBLE: Mapping[str, tuple[str, Mapping[str, str]]] = {
    "r2": ("r2", {"AWS_SHARED_CREDENTIALS_FILE": "~/.cloudflare/r2.credentials"}),
    "nebius": ("nebius", {}),
    "cw": (
        "cw",
        {
            "AWS_SHARED_CREDENTIALS_FILE": "~/.coreweave/cw.credentials",
            "AWS_CONFIG_FILE": "~/.coreweave/cw.config",
        },
    ),
    "vastdata": (
        "vastdata",
        {
            "AWS_SHARED_CREDENTIALS_FILE": "~/.vastdata/vastdata.credentials",
            "AWS_CONFIG_FILE": "~/.vastdata/vastdata.config",
        },
    ),
}
R2_ACCOUNT = "~/.cloudflare/accountid"  # holds the id that is part of R2's address
# Variables of the job's environment that hold a cloud's address or credentials begin so.
_SETTINGS = ("AWS_", "AZURE_", "CLOUDSDK_", "GCSFS_", "GOOGLE_", "STORAGE_EMULATOR_HOST")
# By the scheme of a URL, the package that fsspec needs for it.
PACKAGES = {
    "s3": "s3fs", "s3a": "s3fs", "gs": "gcsfs", "gcs": "gcsfs", "abfs": "adlfs", "az": "adlfs",
}  # fmt: skip


class Address(NamedTuple):
    """One place in a bucket: `url` as the spec writes it, with the job's part at its end.

    `settings`: the variables, from the spec or SkyPilot, that a cloud's library needs to reach the place.
    """

    url: str
    settings: Mapping[str, str] = MappingProxyType({})

    @property
    def scheme(self) -> str:
        """s3, gs, …; azure for a container's https address."""
        return "azure" if self.url.startswith("https:") else self.url.partition("://")[0]

    def fsspec(self, account: str = "") -> tuple[str, Mapping[str, str], str] | None:
        """Return the address for fsspec, its options, and the package it needs; None if fsspec cannot reach it.

        `account`: the content of R2_ACCOUNT.
        """
        if self.scheme == "azure":
            host, _, path = self.url.removeprefix("https://").partition("/")
            return f"abfs://{path}", {"account_name": host.removesuffix(_AZURE)}, "adlfs"
        if self.scheme in ("cos", "oci"):
            return None
        if profile := _S3_COMPATIBLE.get(self.scheme):
            options = {"profile": profile[0]}
            if self.scheme == "r2":
                options["endpoint_url"] = f"https://{account}.r2.cloudflarestorage.com"
            return f"s3://{self.url.partition('://')[2]}", options, "s3fs"
        return self.url, {}, PACKAGES.get(self.scheme, "the package for it")


def address(job: JobSpec, environment: Mapping[str, str]) -> Address | None:
    """Return the address of the job's part of the bucket; None if the job has no bucket.

    `environment`: the user's own. A cloud's variable in it takes precedence over the same one in the spec's `env`.
    """
    url = (job.checkpoint.url or "").rstrip("/")
    if not url:
        if not isinstance(job, SkyJob) or job.bucket is None:
            return None
        url = f"{job.bucket.url.rstrip('/')}/{job.bucket.prefix or job.name}"
        if profile := _S3_COMPATIBLE.get(url.partition("://")[0]):
            return Address(url, profile[1])
    settings = {
        name: value
        for name, value in job.env.items()
        if name.startswith(_SETTINGS) and name not in environment
    }
    return Address(url, settings)
