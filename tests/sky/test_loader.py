"""SkyPilot's own loader on what we render: it takes all of it, strictly, and for what was meant."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ddpgen.errors import SpecInvalidError
from ddpgen.tiers.sky import mounts
from ddpgen.tiers.sky.extra import FREE, RESOURCES, SET, TOP, UNFIT
from ddpgen.tiers.sky.machines import WITHOUT
from tests.ddpgen import test_unusual
from tests.sky import files
from tests.sky.skypilot import RefusedError, SkyPilot

pytestmark = pytest.mark.real

HOSTILE = {
    "SUBSTITUTED": "$(touch pwned) `touch pwned` ${HOME} $HOME \\$x",
    "QUOTED": """it's "quoted" 'twice' \\" \\'""",
    "LINES": "first\nsecond: #x\n\n  fourth\n",
    "MAPPING": "a: b # c",
    "LIST": "- a",
    "FLOW": "{a: [b, *c, &d]}, %e @f `g` ! h | i > j",
    "UNICODE": "Grüße, 日本語, \U0001f680, \u00a0\u2028\u200b|",
    "BOOLEAN": "no",
    "NUMBER": "0123",
    "EXPONENT": "1e3",
    "DATE": "2026-11-21",
    "NULL": "null",
    "Yes": "on",
    "y": "n",
    "TILDE": "~",
    "EMPTY": "",
    "SPACES": "  both ends\t ",
    "MERGE": "<<",
    "SEXAGESIMAL": "12:30:45",
    "TAG": "!!python/object/apply:os.system ['touch pwned']",
    "SKY_LOOKALIKE": "secrets:WANDB",
    "JINJA": "{{ 7 * 7 }} {% raw %}",
}

OVERLAYS: dict[str, dict[str, Any]] = {
    "nothing": {},
    "gpus": {"accelerators": "A100:2", "gpus_per_node": 2},
    "alternatives": {"accelerators": ["A100:2", "H100:2"], "gpus_per_node": 2},
    "in order": {"accelerators": ["H100:2", "A100:2"], "gpus_per_node": 2, "ordered": True},
    "places": {"infra": ["aws/us-east-1", "gcp", "k8s"]},
    "places in order": {"infra": ["aws/us-east-1", "aws/us-west-2"], "ordered": True},
    "fallback": {"on_demand_fallback": True},
    "full price": {"spot": False},
    "machine": {"instance_type": "m6i.2xlarge", "infra": "aws"},
    "size": {"cpus": "4+", "memory": "16+", "disk_size": 100, "disk_tier": "high"},
    "network": {"network_tier": "best"},
    "image": {"image": "docker:a/b@sha256:" + "0" * 64},
    "labels": {"labels": {"team": "no", "cost-centre": "0123", "what/for": "a-b_c.d"}},
    "autostop": {"autostop": "10min"},
    "recovery": {"recovery": {"strategy": "failover", "restarts_on_errors": 3}},
    "cached": {
        "bucket": {"url": "s3://bbb", "mode": "cached", "path": "/data/ck", "prefix": "a/b"}
    },
    "google": {"bucket": "gs://my-checkpoints"},
    "azure": {"bucket": "https://account.blob.core.windows.net/container"},
    "r2": {"bucket": "r2://my-checkpoints"},
    "ibm": {"bucket": "cos://us-east/my-checkpoints"},
    "oracle": {"bucket": "oci://my-checkpoints"},
    "nebius": {"bucket": "nebius://my-checkpoints"},
    "vast": {"bucket": "vastdata://my-checkpoints"},
    "coreweave": {"bucket": "cw://my-checkpoints"},
    "url": {"bucket": None, "checkpoint": {"dir": "s3://my-checkpoints/job"}},
    "setup": {"setup": ["sudo true", "echo 'a: b' # c"], "requirements": ["torch==2.13.0"]},
    "secrets": {"secrets": ["WANDB_API_KEY", "HF_TOKEN", "ON"]},
    "pods": {"infra": "k8s", "accelerators": "H100:2", "gpus_per_node": 2},
    "no notices": {"notices": False, "preempted_every": "2h"},
    "env": {"rendezvous": {"launcher": "env"}, "nodes": 3, "nic": "ens5"},
}


@pytest.mark.parametrize("example", files.EXAMPLES, ids=lambda path: path.stem)
def test_every_example_is_taken_without_a_warning(
    skypilot: SkyPilot, tmp_path: Path, example: Path
) -> None:
    wanted = yaml.safe_load(example.read_text())
    nodes = wanted["targets"]["sky"].get("nodes", wanted.get("nodes"))
    secrets = wanted["targets"]["sky"].get("secrets", [])
    path = files.laid_out(tmp_path, wanted)
    task = skypilot.load(path, secrets=dict.fromkeys(secrets, "x"))
    assert task["warnings"] == []
    assert (task["name"], task["num_nodes"]) == (wanted["name"], nodes)
    assert task["workdir"] == str(tmp_path)
    # Nothing of ours outside of the subshell: behind it SkyPilot puts lines of its own.
    assert re.fullmatch(r"\( #[^\n]*\n[^)].*\n  \$DDPGEN_ARGS\n\)\n", task["run"], re.DOTALL)
    assert task["secrets"] == secrets
    assert task["copies"] == {}  # what is copied does not come back
    bucket = {"source": "s3://my-checkpoints", "name": None, "mode": "MOUNT"}
    assert task["buckets"] == {"/checkpoints": bucket}
    assert task["recovery"] == {
        "strategy": "EagerFailoverStrategyExecutor", "restarts_on_errors": 0, "exit_codes": [175],
    }  # fmt: skip


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_every_field_means_to_skypilot_what_it_says(
    skypilot: SkyPilot, tmp_path: Path, overlay: str
) -> None:
    tier = OVERLAYS[overlay]
    secrets = tier.get("secrets", [])
    task = skypilot.load(
        files.laid_out(tmp_path, files.spec(tier=tier)), secrets=dict.fromkeys(secrets, "x")
    )
    assert task["warnings"] == []
    assert task["num_nodes"] == tier.get("nodes", 1)
    assert task["ordered"] == (tier.get("ordered", False))
    assert task["secrets"] == sorted(secrets)
    assert asked(task) == EXPECTED.get(overlay, [{"use_spot": True}])
    assert task["buckets"] == buckets(tier)
    recovery = tier.get("recovery", {})
    strategy = {"failover": "FailoverStrategyExecutor"}.get(recovery.get("strategy"))
    assert task["recovery"] == {
        "strategy": strategy or "EagerFailoverStrategyExecutor",
        "restarts_on_errors": recovery.get("restarts_on_errors", 0),
        "exit_codes": [175],
    }


def test_it_takes_extra_keys_as_they_are_written(skypilot: SkyPilot, tmp_path: Path) -> None:
    (tmp_path / "y").touch()
    pod = {"spec": {"tolerations": [{"key": f"k{i}", "operator": "Exists"} for i in range(5)]}}
    extra: dict[str, Any] = {
        "file_mounts": {"/data": "/etc/hostname", "~/x": f"{tmp_path}/y"},
        "volumes": {"/mnt/v": "my-volume"},
        "event_callback": "echo '$JOB_ID' \"done: #1\"",
        "config": {"kubernetes": {"pod_config": pod}},
        "resources": {"ports": ["8080", "10052-10100"], "max_hourly_cost": 20.5, "priority": 7},
    }
    wanted = files.spec(tier={"infra": "aws", "extra": extra})
    task = skypilot.load(files.laid_out(tmp_path, wanted))
    assert task["warnings"] == []
    (resources,) = task["resources"]
    assert {key: resources[key] for key in ("ports", "max_hourly_cost", "priority")} == {
        "ports": ["8080", "10052-10100"], "max_hourly_cost": 20.5, "priority": 7,
    }  # fmt: skip
    assert task["copies"] == extra["file_mounts"]
    assert task["volumes"] == extra["volumes"]
    assert task["callback"] == extra["event_callback"]
    assert resources["_cluster_config_overrides"] == extra["config"]
    assert list(task["buckets"]) == ["/checkpoints"]


@pytest.mark.parametrize("section", [TOP, RESOURCES])
def test_the_recorded_keys_are_those_of_skypilot(skypilot: SkyPilot, section: str) -> None:
    theirs = skypilot.keys()[section]
    assert sorted([*FREE[section], *SET[section], *UNFIT[section]]) == sorted(theirs)
    words = {
        "array": ["list"], "boolean": ["bool"], "integer": ["int"], "null": ["null"],
        "number": ["float", "int"], "object": ["map"], "string": ["str"],
    }  # fmt: skip
    for name, form in FREE[section].items():
        types = {word for each in theirs[name] for word in words[each]}
        assert types == set(form.types), name


@pytest.mark.parametrize(
    ("extra", "is_taken"),
    [
        ("ports: 65535", True), ("ports: '80,443'", True), ("ports: [80, 10020-10040]", True), ("ports: []", True),
        ("ports: null", True), ("ports: 65536", False), ("ports: 0", False), ("ports: [80, x]", False),
        ("priority: -1000", True), ("priority: 1001", False), ("priority: '5'", False), ("max_hourly_cost: .5", True),
        ("max_hourly_cost: 2", True), ("max_hourly_cost: 0", False), ("max_hourly_cost: 1e1", False),
        ("ephemeral_storage: 100gb", True), ("ephemeral_storage: 100", True), ("ephemeral_storage: 100+", False),
        ("local_disk: nvme", True), ("local_disk: SSD:100+", True), ("local_disk: 100+", True), ("local_disk: hdd", False),
        ("priority_class: high", True), ("priority_class: 5", False), ("volumes: []", True),
        ("volumes: x", False), ("accelerator_args: {tpu_vm: true}", True), ("accelerator_args: []", False),
    ],
)  # fmt: skip
def test_values_that_it_refuses_are_refused_before(
    skypilot: SkyPilot, tmp_path: Path, extra: str, is_taken: bool
) -> None:
    task = {"run": "true", "resources": yaml.safe_load(f"{{infra: aws, {extra}}}")}
    (tmp_path / "sky.yaml").write_text(yaml.safe_dump(task))
    wanted = files.spec(
        tier={"infra": "aws", "extra": {"resources": yaml.safe_load(f"{{{extra}}}")}}
    )
    if is_taken:
        files.rendered(wanted)
        skypilot.load(tmp_path / "sky.yaml")
        return
    with pytest.raises(SpecInvalidError):
        files.rendered(wanted)
    with pytest.raises(RefusedError):
        skypilot.load(tmp_path / "sky.yaml")


@pytest.mark.parametrize(
    ("target", "source", "is_taken"),
    [
        ("/d", "s3://aaa", True), ("d", "s3://aaa", True), ("/d/", "s3://aaa", False), ("/d", "s3://aaa/", False),
        ("/d/", {"source": "s3://aaa/"}, True), ("s3://aaa", "/etc", False), ("gs://aaa", {"source": "s3://aaa"}, False),
        ("~/sky_workdir", "/etc", False), ("~/sky_workdir", {"source": "s3://aaa"}, False), ("~/sky_workdir/d", "s3://aaa", True),
        ("/d", {"source": "s3://aaa", "store": "minio"}, False), ("/d", {"mode": "MOUNT"}, False), ("/d", {}, False),
        ("/d", {"name": "aaa", "store": "s3"}, True), ("/d", {"name": "aaa", "source": "s3://aaa"}, True),
        ("/d", {"name": "aaa", "source": "/etc"}, True), ("/d", {"name": "aaa", "source": "/etc/"}, False),
        ("/d", {"source": "s3://aaa/b"}, False), ("/d", {"source": "s3://aaa/b", "mode": "COPY"}, True),
        ("/d", {"source": "cw://aaa"}, True), ("/d", {"source": "coreweave://aaa"}, False), ("/d", {"source": "/etc"}, False),
        ("/d", {"source": "hf://me/model"}, True), ("/d", {"source": "cos://us-east/aaa"}, True),
    ],
)  # fmt: skip
def test_mounts_that_it_refuses_are_refused_before(
    skypilot: SkyPilot, tmp_path: Path, target: str, source: object, is_taken: bool
) -> None:
    table = {target: source}
    task = {"run": "true", "workdir": ".", "file_mounts": table}
    (tmp_path / "sky.yaml").write_text(yaml.safe_dump(task))
    wanted = files.spec(tier={"extra": {"file_mounts": table}})
    if is_taken:
        files.rendered(wanted)
        skypilot.load(tmp_path / "sky.yaml", mounts=True)
        return
    with pytest.raises(SpecInvalidError):
        files.rendered(wanted)
    with pytest.raises(RefusedError):
        skypilot.load(tmp_path / "sky.yaml", mounts=True)


@pytest.mark.parametrize("store", mounts.STORES[:-1])  # a volume needs a disk in a cloud
def test_every_recorded_store_is_one_of_skypilot(
    skypilot: SkyPilot, tmp_path: Path, store: str
) -> None:
    mount = {"/d": {"name": "aaa", "store": store}}
    task = {"run": "true", "resources": {"infra": "aws"}, "file_mounts": mount}
    (tmp_path / "sky.yaml").write_text(yaml.safe_dump(task))
    skypilot.load(tmp_path / "sky.yaml")


FEATURES = {
    "multi-node jobs": "MULTI_NODE",
    "spot machines": "SPOT_INSTANCE",
    "disk tiers": "CUSTOM_DISK_TIER",
    "network tiers": "CUSTOM_NETWORK_TIER",
    "container images": "DOCKER_IMAGE",
    "machine images": "IMAGE_ID",
    "mounts of buckets": "STORAGE_MOUNTING",
    "local disks": "LOCAL_DISK",
}
ALIASES = {"digitalocean", "k8s"}
# These lack a feature only on some of their machines, or in some clusters.
SOME_CLUSTERS = {
    "spot machines": {"kubernetes", "ssh"},
    "network tiers": {"kubernetes", "ssh", "nebius"},
    "container images": {"slurm"},
    "mounts of buckets": {"slurm"},
}


@pytest.mark.parametrize("feature", WITHOUT)
def test_the_recorded_clouds_without_a_feature_are_those_of_skypilot(
    skypilot: SkyPilot, feature: str
) -> None:
    found = {*skypilot.without()[FEATURES[feature]]} - SOME_CLUSTERS.get(feature, set())
    assert WITHOUT[feature] - ALIASES == found


GPU = {"use_spot": True}
EXPECTED: dict[str, list[dict[str, Any]]] = {
    "gpus": [{"accelerators": {"A100": 2}, **GPU}],
    "alternatives": [{"accelerators": {"A100": 2}, **GPU}, {"accelerators": {"H100": 2}, **GPU}],
    "in order": [{"accelerators": {"H100": 2}, **GPU}, {"accelerators": {"A100": 2}, **GPU}],
    "places": [{"infra": each, **GPU} for each in ("aws/us-east-1", "gcp", "kubernetes")],
    "places in order": [{"infra": f"aws/{each}", **GPU} for each in ("us-east-1", "us-west-2")],
    "fallback": [{"use_spot": False}, {"use_spot": True}],
    "full price": [{"use_spot": False}],
    "machine": [{"infra": "aws", "instance_type": "m6i.2xlarge", "memory": "32.0", **GPU}],
    "size": [{"cpus": "4+", "memory": "16+", "disk_size": 100, "disk_tier": "high", **GPU}],
    "network": [{"network_tier": "best", **GPU}],
    "image": [{"image_id": {"null": "docker:a/b@sha256:" + "0" * 64}, **GPU}],
    "labels": [
        {"labels": {"team": "no", "cost-centre": "0123", "what/for": "a-b_c.d"}, **GPU},
    ],
    "autostop": [{"autostop": {"idle_minutes": 10, "down": True}, **GPU}],
    "pods": [{"infra": "kubernetes", "accelerators": {"H100": 2}, **GPU}],
}


def asked(task: dict[str, Any]) -> list[dict[str, Any]]:
    """What is asked of the machines, less what every one of ours has and SkyPilot's own marks."""
    found = [
        {k: v for k, v in each.items() if not k.startswith("_") and k != "job_recovery"}
        for each in task["resources"]
    ]
    return found if task["ordered"] else sorted(found, key=str)


def buckets(tier: dict[str, Any]) -> dict[str, Any]:
    bucket = tier.get("bucket", "s3://my-checkpoints")
    if bucket is None:
        return {}
    if isinstance(bucket, str):
        bucket = {"url": bucket}
    mode = {"cached": "MOUNT_CACHED"}.get(bucket.get("mode"), "MOUNT")
    return {
        bucket.get("path", "/checkpoints"): {"source": bucket["url"], "name": None, "mode": mode}
    }


def test_hostile_values_arrive_byte_for_byte_at_the_bash_of_a_machine(
    skypilot: SkyPilot, tmp_path: Path
) -> None:
    path = files.laid_out(tmp_path, files.spec(env=HOSTILE))
    task = skypilot.load(path)
    assert task["envs"] == {"DDPGEN_ARGS": "", **HOSTILE}
    shown = (
        f"cd {tmp_path}\nfor name in {' '.join(HOSTILE)}; do printf '%s\\0' \"${{!name}}\"; done"
    )
    script = tmp_path / "script"
    script.write_text(skypilot.script(shown, task["envs"], "setup"))
    done = subprocess.run(
        ["bash", "-i", str(script)], env={"HOME": str(tmp_path), "PATH": "/usr/bin:/bin"},
        stdin=subprocess.DEVNULL, capture_output=True, timeout=60,
    )  # fmt: skip
    assert done.stdout.decode().split("\0") == [*HOSTILE.values(), ""]
    assert not list(tmp_path.rglob("pwned"))


def test_labels_are_texts_whatever_they_look_like(skypilot: SkyPilot, tmp_path: Path) -> None:
    path = files.laid_out(tmp_path, files.spec(tier={"labels": HOSTILE}))
    assert skypilot.load(path)["resources"][0]["labels"] == HOSTILE


texts = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=40)
odd = st.text(
    st.sampled_from("ab \n\t:#'\"\\$`{}[]&*!|>%@-?,~=0é\u2028\ufeff\x85\x7f"), max_size=12
)


@settings(
    max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None
)
@given(st.lists(texts | odd, min_size=1, max_size=8))
def test_any_text_arrives(skypilot: SkyPilot, tmp_path: Path, values: list[str]) -> None:
    kept = [value for value in values if value.strip() or "\n" not in value]
    env = {f"V{number}": value for number, value in enumerate(kept)}
    task = skypilot.load(files.laid_out(tmp_path, files.spec(env=env)))
    assert task["envs"] == {"DDPGEN_ARGS": "", **env}


names = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}", fullmatch=True)


@settings(
    max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None
)
@given(names | st.sampled_from(["null", "NO", "1e3", "12", "a---b", "a___b", "a-", "a.", "x" * 63]))
def test_a_name_that_we_take_is_taken(skypilot: SkyPilot, tmp_path: Path, name: str) -> None:
    wanted = {**files.spec(), "name": name}
    if re.search(r"[._-]{3}|[._-]$", name):
        with pytest.raises(SpecInvalidError, match="is no name for SkyPilot"):
            files.rendered(wanted)
    else:
        assert skypilot.load(files.laid_out(tmp_path, wanted))["name"] == name


# SkyPilot looks regions, machines and contexts up in catalogs and in a cluster's configuration, which are not here.
UNUSUAL = [
    (name, text)
    for name, text in test_unusual.specs()
    if re.match(
        r"(sky|bucket)(?!.*(infra: .*/|instance_type|runpod|nebius|lambda|image: (?!docker)))", name
    )
]


@pytest.mark.nightly
@pytest.mark.timeout(900)
def test_what_is_unusual_and_right_is_taken(skypilot: SkyPilot, tmp_path: Path) -> None:
    refused = {}
    for name, text in UNUSUAL:
        wanted = yaml.safe_load(text)
        secrets = wanted["targets"]["sky"].get("secrets", [])
        try:
            skypilot.load(files.laid_out(tmp_path, wanted), secrets=dict.fromkeys(secrets, "x"))
        except RefusedError as error:
            refused[name] = str(error)
    assert refused == {}


# PyYAML writes it without the quotes that make it a text to others.
ARGUMENTS = {name: value for name, value in HOSTILE.items() if name != "EXPONENT"}


@pytest.mark.parametrize("value", ARGUMENTS.values(), ids=ARGUMENTS)
def test_an_argument_reaches_the_program_as_it_is(
    skypilot: SkyPilot, tmp_path: Path, value: str
) -> None:
    """Through YAML, SkyPilot and bash."""
    (tmp_path / "python").write_text('#!/bin/sh\nprintf "%s\\0" "$@"\n')
    (tmp_path / "python").chmod(0o755)
    (tmp_path / "train").mkdir()
    (tmp_path / "train" / "__main__.py").touch()
    (tmp_path / "a.py").touch()
    wanted = files.spec(python=str(tmp_path / "python"), code=".")
    wanted["train"] = {"script": "a.py", "args": {"x": value}}
    path = tmp_path / "sky.yaml"
    path.write_text(files.rendered(wanted, tmp_path)["sky.yaml"])
    task = skypilot.load(path)
    done = subprocess.run(
        ["bash", "-c", task["run"]], cwd=tmp_path, env={"DDPGEN_ARGS": "--a=* --b", "HOME": "/h"},
        capture_output=True, text=True, timeout=30,
    )  # fmt: skip
    words = done.stdout.split("\0")
    assert words[-6:] == ["code/a.py", f"--x={value}", "--", "--a=*", "--b", ""], done.stderr


def test_an_unknown_key_is_refused(skypilot: SkyPilot, tmp_path: Path) -> None:
    """As by its server, and not only warned of: what the tests above are worth."""
    (tmp_path / "sky.yaml").write_text(
        "resources:\n  job_recovery: {strategy: FAILOVER, max_restarts: 3}\nrun: a\n"
    )
    with pytest.raises(RefusedError, match="'max_restarts' was unexpected"):
        skypilot.load(tmp_path / "sky.yaml")
