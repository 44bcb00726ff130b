"""Where in a bucket a job keeps what is to outlive its machines, and what to type to reach it. Pure.

Owns the way from the spec to an address, and the cloud's own command for each kind of bucket.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from ddpgen.spec.job import JobSpec
from ddpgen.spec.sky import SkyJob

STOP = "stop"
BY_HAND = "by hand"  # what the request says, where a command is typed

_AZURE = ".blob.core.windows.net"


class _Relative(NamedTuple):
    """One of S3's: the profile and the files that SkyPilot has everybody set up for it."""

    profile: str
    credentials: str = ""
    config: str = ""
    account: str = ""  # the file that says whose server it is

    @property
    def variables(self) -> dict[str, str]:
        files = {"AWS_SHARED_CREDENTIALS_FILE": self.credentials, "AWS_CONFIG_FILE": self.config}
        return {name: file for name, file in files.items() if file}


_RELATIVES = {
    "r2": _Relative("r2", "~/.cloudflare/r2.credentials", account="~/.cloudflare/accountid"),
    "nebius": _Relative("nebius"),
    "coreweave": _Relative("cw", "~/.coreweave/cw.credentials", "~/.coreweave/cw.config"),
    "vastdata": _Relative(
        "vastdata", "~/.vastdata/vastdata.credentials", "~/.vastdata/vastdata.config"
    ),
}
_R2 = "https://{}.r2.cloudflarestorage.com"
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

    @property
    def azure(self) -> tuple[str, str, str]:
        """Account, container, and the place in it."""
        host, container, place = self.url.removeprefix("https://").split("/", 2)
        return host.removesuffix(_AZURE), container, place

    @property
    def account_file(self) -> str:
        """The file without whose content the address is not known; "" for most kinds of bucket."""
        relative = _RELATIVES.get(self.scheme)
        return relative.account if relative else ""

    def fsspec(self, account: str = "") -> tuple[str, Mapping[str, str], str] | None:
        """The address for fsspec, its options, and the package it takes; None where it knows none.

        `account`: what stands in `account_file`.
        """
        if self.scheme == "azure":
            owner, container, place = self.azure
            return f"abfs://{container}/{place}", {"account_name": owner}, "adlfs"
        if self.scheme in ("cos", "oci"):
            return None
        if relative := _RELATIVES.get(self.scheme):
            options = {"profile": relative.profile}
            if relative.account:
                options["endpoint_url"] = _R2.format(account)
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
            return Address(url, relative.variables)
    settings = {
        name: value
        for name, value in job.env.items()
        if name.startswith(_SETTINGS) and name not in environment
    }
    return Address(url, settings)


def stop_by_hand(at: Address) -> str:
    """A command that asks for a clean stop."""
    target = f"{at.url}/{STOP}"
    said = f"echo {BY_HAND} |"
    if at.scheme == "azure":
        account, container, place = at.azure
        words = [f"--account-name={account}", f"--container-name={container}"]
        words += [f"--name={place}/{STOP}", f"--data={BY_HAND}", "--overwrite", "--auth-mode=login"]
        return f"az storage blob upload {shlex.join(words)}"
    if at.scheme in ("gs", "gcs"):
        return f"{said} gcloud storage cp - {shlex.quote(target)}"
    if at.scheme == "oci":
        name, _, place = target.partition("://")[2].partition("/")
        words = [f"--bucket-name={name}", f"--name={place}", "--file=-", "--force"]
        return f"{said} oci os object put {shlex.join(words)}"
    if at.scheme in ("s3", "s3a", *_RELATIVES):
        relative = _RELATIVES.get(at.scheme)
        target = f"s3://{target.partition('://')[2]}"
        words = [said, "aws s3 cp -", shlex.quote(target), _options(at.settings)]
        if relative:
            words[1:1] = [f"{name}={file}" for name, file in relative.variables.items()]
            words[-1] = f"--profile {relative.profile}"
        if relative and relative.account:
            words.append(f'--endpoint-url "{_R2.format(f"$(cat {relative.account})")}"')
        return " ".join(filter(None, words))
    if at.scheme == "cos":  # cos://REGION/BUCKET/…
        target = target.partition("://")[2].partition("/")[2]
    return f"{said} rclone rcat {shlex.quote(f'REMOTE:{target}')}"


def _options(settings: Mapping[str, str]) -> str:
    """What the variables say, as options of `aws`: where the command is typed they may not be set."""
    ways = (
        ("--endpoint-url", ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL")),
        ("--region", ("AWS_REGION", "AWS_DEFAULT_REGION")),
        ("--profile", ("AWS_PROFILE",)),
    )
    words: list[str] = []
    for option, names in ways:
        if value := next((settings[name] for name in names if settings.get(name)), ""):
            words += [option, value]
    return shlex.join(words)
