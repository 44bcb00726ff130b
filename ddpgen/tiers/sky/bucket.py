"""Where in a bucket a job keeps what is to outlive its machines, and how fsspec reaches it. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from ddpgen.spec.job import JobSpec
from ddpgen.tiers.sky.fields import SkyJob

STOP = "stop"

_AZURE = ".blob.core.windows.net"


# S3's relatives: the profile, and the variables for the files, that SkyPilot has everybody set up.
_RELATIVES: Mapping[str, tuple[str, Mapping[str, str]]] = {
    "r2": ("r2", {"AWS_SHARED_CREDENTIALS_FILE": "~/.cloudflare/r2.credentials"}),
    "nebius": ("nebius", {}),
    "coreweave": (
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
# Of the job's environment: where a cloud is, and who asks.
_SETTINGS = ("AWS_", "AZURE_", "CLOUDSDK_", "GCSFS_", "GOOGLE_", "STORAGE_EMULATOR_HOST")
_FSSPEC = {"s3": "s3fs", "gs": "gcsfs", "gcs": "gcsfs", "abfs": "adlfs", "az": "adlfs"}


class Address(NamedTuple):
    """One place in a bucket: `url` as the spec writes it, with the job's part at its end.

    `settings`: variables with which it is reached, the spec's or SkyPilot's.
    """

    url: str
    settings: Mapping[str, str] = MappingProxyType({})

    @property
    def scheme(self) -> str:
        """s3, gs, …; azure for a container's https address."""
        return "azure" if self.url.startswith("https:") else self.url.partition("://")[0]

    def fsspec(self, account: str = "") -> tuple[str, Mapping[str, str], str] | None:
        """The address for fsspec, its options, and the package it takes; None where it knows none.

        `account`: what R2_ACCOUNT holds.
        """
        if self.scheme == "azure":
            host, _, place = self.url.removeprefix("https://").partition("/")
            return f"abfs://{place}", {"account_name": host.removesuffix(_AZURE)}, "adlfs"
        if self.scheme in ("cos", "oci"):
            return None
        if relative := _RELATIVES.get(self.scheme):
            options = {"profile": relative[0]}
            if self.scheme == "r2":
                options["endpoint_url"] = f"https://{account}.r2.cloudflarestorage.com"
            return f"s3://{self.url.partition('://')[2]}", options, "s3fs"
        return self.url, {}, _FSSPEC.get(self.scheme, "the package for it")


def address(job: JobSpec, environment: Mapping[str, str]) -> Address | None:
    """Where the job's part of the bucket is; None when it has none.

    What `environment`, the user's own, says of a cloud counts before the spec's `env`.
    """
    url = (job.checkpoint.url or "").rstrip("/")
    if not url:
        if not isinstance(job, SkyJob) or job.bucket is None:
            return None
        url = f"{job.bucket.url.rstrip('/')}/{job.bucket.prefix or job.name}"
        if relative := _RELATIVES.get(url.partition("://")[0]):
            return Address(url, relative[1])
    settings = {
        name: value
        for name, value in job.env.items()
        if name.startswith(_SETTINGS) and name not in environment
    }
    return Address(url, settings)
