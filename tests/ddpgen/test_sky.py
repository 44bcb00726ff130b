"""The tier sky: what its task asks SkyPilot for, and what it refuses to ask. The real loader: tests/sky."""

from __future__ import annotations

import json
import os
import posixpath
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from ddpgen.spec.fields import Refused, Text
from ddpgen.spec.groups import Group
from ddpgen.spec.job import JobSpec
from ddpgen.text import yamltext
from ddpgen.text.shell import quote
from ddpgen.tiers import plan as plans
from ddpgen.tiers.command import SupervisorCommand
from ddpgen.tiers.registry import read
from ddpgen.tiers.sky.fields import SkyJob
from ddpgen.tiers.sky.plan import plan
from ddpgen.tiers.sky.requirement import Requirement, floats
from tests.ddpgen.conftest import GPT, ROOT, Fault, Run, check_bash, faults, findings, named

BUCKET = "bucket: s3://bbb"
_SIZES = ("workload", "steps", "global_batch_size", "micro_batch_size")
SCRIPT_INSTEAD = f"{{script: /t.py, {', '.join(f'{name}: null' for name in _SIZES)}}}"
HOME = posixpath.join("/home", "sky")  # of a machine of SkyPilot's
Rendered = Callable[..., dict[str, Any]]


def job(sky: str = BUCKET, top: str = "") -> JobSpec:
    return read(f"{GPT}{top}\ntargets: {{sky: {{{sky}}}}}\n".encode(), "j")["sky"].job


def on_sky(sky: str, top: str = "") -> str:
    top = top or "python: /opt/python"  # nothing else need bring torch
    return f"{GPT}{top}\ntargets:\n  sky: {{{sky}}}\n"


def told(sky: str = BUCKET) -> SupervisorCommand:
    """What the supervisor of a machine is told."""
    return plan(job(sky)).command


@pytest.fixture
def bundle(run: Run, tmp_path: Path) -> Callable[..., Path]:
    def bundle(sky: str = BUCKET, top: str = "", base: str = GPT) -> Path:
        (tmp_path / "job.yaml").write_text(f"{base}{top}\ntargets:\n  sky: {{{sky}}}\n")
        outcome = run("render", "job.yaml", "--target", "sky", "-o", "b", "--force")
        assert outcome.code == 0, outcome.err
        return tmp_path / "b"

    return bundle


@pytest.fixture
def task(bundle: Callable[..., Path]) -> Rendered:
    def task(*args: str, **kwargs: str) -> dict[str, Any]:
        loaded: dict[str, Any] = yaml.safe_load((bundle(*args, **kwargs) / "sky.yaml").read_text())
        return loaded

    return task


def test_the_files_of_an_example(run: Run, golden: Callable[[str, str], None]) -> None:
    place = Path("b")
    assert run("render", ROOT / "examples/spot.yaml", "--target", "sky", "-o", place).code == 0
    text = (place / "sky.yaml").read_text()
    golden("spot.sky.yaml", text)
    assert len(text.splitlines()) <= 50
    assert max(map(len, text.splitlines())) <= 110
    assert not [*place.glob("sky*.sh"), *place.glob("sky/*")]


def test_it_is_as_long_for_many_machines_as_for_two(bundle: Callable[..., Path]) -> None:
    base = GPT.replace("global_batch_size: 16", "global_batch_size: 1600")
    two, many = (
        (bundle(base=base, top=f"nodes: {nodes}\n") / "sky.yaml").read_text() for nodes in (2, 200)
    )
    assert many.splitlines() == [
        line.replace("2 machine(s)", "200 machine(s)").replace("nodes: 2", "nodes: 200")
        .replace("--nodes=2", "--nodes=200")
        for line in two.splitlines()
    ]  # fmt: skip


def test_what_every_task_says(task: Rendered) -> None:
    found = task()
    assert found.pop("run").startswith("( # SkyPilot waits for the bucket")
    assert found == {
        "name": "gpt",
        "num_nodes": 1,
        "resources": {
            "use_spot": True,
            "job_recovery": {
                "strategy": "EAGER_NEXT_REGION",
                "max_restarts_on_errors": 0,
                "recover_on_exit_codes": [175],
            },
        },
        "workdir": ".",
        "file_mounts": {"/checkpoints": {"source": "s3://bbb", "mode": "MOUNT"}},
        "envs": {"DDPGEN_ARGS": ""},
    }


def test_a_cached_bucket_uploads_one_file_after_the_other(task: Rendered) -> None:
    cached = "bucket: {url: gs://bbb, mode: cached, prefix: a/b, path: /mnt/ck/}"
    assert task(cached)["file_mounts"] == {
        "/mnt/ck": {
            "source": "gs://bbb",
            "mode": "MOUNT_CACHED",
            "config": {"mount_cached": {"transfers": 1}},
        }
    }
    assert "--store=/mnt/ck/a/b" in told(cached).options
    assert ": create the object gs://bbb/a/b/stop\n" in Path("b/sky.yaml").read_text()


def test_a_machine_at_full_price_is_the_second_choice(task: Rendered) -> None:
    asked = task(f"{BUCKET}, infra: aws/us-east-1, cpus: 4+, on_demand_fallback: true")
    assert asked["resources"]["cpus"] == "4+"
    assert asked["resources"]["any_of"] == [
        {"infra": "aws/us-east-1", "use_spot": True},
        {"infra": "aws/us-east-1", "use_spot": False},
    ]


def test_checkpoints_by_url_need_no_mount(task: Rendered) -> None:
    by_url = "checkpoint: {dir: s3://bbb/place}"
    assert "file_mounts" not in task(by_url)
    said = told(by_url)
    assert "--store=s3://bbb/place" in said.options
    assert "--checkpoint-store={store}" in said.program
    assert not [word for word in said.options if word.startswith("--mount")]


def test_a_url_leaves_the_other_tiers_their_directory() -> None:
    local = read(f"{GPT}checkpoint: {{dir: s3://bbb/place}}\n".encode(), "j")["local"].job
    assert quote(plans.build_plan(local).checkpoint_dir) == '"$beside"/checkpoints/gpt'
    assert "--store=s3://bbb/place" in plans.build_plan(local).command.options


def test_the_interval_is_found_from_how_long_machines_last() -> None:
    every = "--checkpoint-every="
    assert not [word for word in told().program if word.startswith(every)]
    often = told(f"{BUCKET}, preempted_every: 2h").program
    assert f"{every}auto:7200s" in often


def test_secrets_are_names_alone(task: Rendered) -> None:
    assert task(f"{BUCKET}, secrets: [WANDB_API_KEY]")["secrets"] == {"WANDB_API_KEY": None}
    assert " --secret WANDB_API_KEY " in Path("b/sky.yaml").read_text()
    assert "--secrets=WANDB_API_KEY" in told(f"{BUCKET}, secrets: [WANDB_API_KEY]").options


def test_a_bundle_is_not_made_inside_a_bundle(
    run: Run, bundle: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    place = bundle()
    monkeypatch.chdir(place)
    outcome = run("render", "../job.yaml", "--target", "sky")
    assert outcome.code == 74
    assert "inside the bundle" in outcome.err


def test_another_list_of_requirements_is_another_environment(bundle: Callable[..., Path]) -> None:
    first = job(f"{BUCKET}, requirements: [torch==2.13.0]")
    other = job(f"{BUCKET}, requirements: [torch==2.12.0]")
    assert plan(first).interpreter != plan(other).interpreter
    place = bundle(f"{BUCKET}, requirements: [torch==2.13.0], setup: ['echo \"it''s\"']")
    setup = yaml.safe_load((place / "sky.yaml").read_text())["setup"]
    made = quote(plan(first).interpreter).removesuffix("/bin/python")
    assert f"-m train install {made} -- torch==2.13.0" in setup


def test_kubernetes_tells_by_a_hook(task: Rendered) -> None:
    assert "config" not in task(f"{BUCKET}, infra: aws")
    assert "config" not in task(f"{BUCKET}, infra: k8s, notices: false")
    (hook,) = task(f"{BUCKET}, infra: k8s/here")["config"]["hooks"]
    assert hook["events"] == ["preemption"]
    assert "-m train notice --stop-file=" in hook["run"]
    assert "--hook=~/.ddpgen/gpt/hook" in told(f"{BUCKET}, infra: k8s").options


def test_the_hook_of_a_pod_finds_the_job_and_asks_it_to_stop(
    bundle: Callable[..., Path], tmp_path: Path
) -> None:
    place = bundle(f"{BUCKET}, infra: k8s")
    job = tmp_path / "it's here"
    job.mkdir()
    told = tmp_path / "home/.ddpgen/gpt/hook"
    told.parent.mkdir(parents=True)
    (tmp_path / "home/sky_workdir").symlink_to(place)

    def taken_away() -> int:
        # As SkyPilot runs it: by sh, without a word about the task.
        hook = yaml.safe_load((place / "sky.yaml").read_text())["config"]["hooks"][0]["run"]
        environment = {"HOME": str(tmp_path / "home"), "PATH": os.environ["PATH"]}
        return subprocess.run(["sh", "-c", hook], cwd="/", env=environment, timeout=60).returncode

    assert taken_away() == 0  # nothing has begun
    assert not (job / "stop").exists()
    told.write_text(f"{sys.executable}\n{job}\n")
    assert taken_away() == 0
    assert (job / "stop").read_text().startswith("preempted: ")


EXTRA = (
    "file_mounts: {/data: s3://ddd, ~/x: {source: ~/y, name: yyy, mode: COPY}}, volumes: {/mnt/v: v}, "
    'event_callback: "echo $JOB_ID", config: {kubernetes: {pod_config: {a: [1.10, "007", {b: ~}]}}}, '
    "resources: {ports: [8080, 10052-10100], max_hourly_cost: 20.50, priority: 0x10}"
)


def test_extra_keys_stand_in_the_task_as_they_are_written(task: Rendered) -> None:
    found = task(f"{BUCKET}, infra: k8s, extra: {{{EXTRA}}}")
    assert found["file_mounts"] == {
        "/checkpoints": {"source": "s3://bbb", "mode": "MOUNT"},
        "/data": "s3://ddd",
        "~/x": {"source": "~/y", "name": "yyy", "mode": "COPY"},
    }
    resources = found["resources"]
    assert resources["ports"] == [8080, "10052-10100"]
    assert (resources["max_hourly_cost"], resources["infra"]) == (20.5, "k8s")
    assert found["volumes"] == {"/mnt/v": "v"}
    assert found["event_callback"] == "echo $JOB_ID"
    assert found["config"]["hooks"][0]["events"] == ["preemption"]
    pod = found["config"]["kubernetes"]["pod_config"]
    assert pod == {"a": [1.1, "007", {"b": None}]}
    text = Path("b/sky.yaml").read_text()
    assert all(word in text for word in ("1.10", '"007"', "20.50", "0x10"))


def test_extra_mounts_and_settings_need_none_of_ours(task: Rendered) -> None:
    by_url = "checkpoint: {dir: s3://bbb/place}"
    extra = "file_mounts: {/data: /data}, config: {docker: {run_options: [--ipc=host]}}"
    found = task(f"{by_url}, extra: {{{extra}}}")
    assert found["file_mounts"] == {"/data": "/data"}
    assert found["config"] == {"docker": {"run_options": ["--ipc=host"]}}


def test_a_long_extra_value_is_a_block_of_lines(task: Rendered) -> None:
    pod = {"spec": {"tolerations": [{"key": f"k{i}", "operator": "Exists"} for i in range(5)]}}
    extra = f"{{kubernetes: {{pod_config: {json.dumps(pod)}}}}}"
    assert task(f"{BUCKET}, extra: {{config: {extra}}}")["config"] == {
        "kubernetes": {"pod_config": pod}
    }
    assert max(map(len, Path("b/sky.yaml").read_text().splitlines())) <= 110


def test_a_bundle_keeps_the_extra_keys(bundle: Callable[..., Path]) -> None:
    stored = json.loads((bundle(f"{BUCKET}, extra: {{{EXTRA}}}") / "bundle.json").read_text())
    kind = JOB["extra"]
    value = job(f"{BUCKET}, extra: {{{EXTRA}}}")
    assert isinstance(value, SkyJob)
    assert yamltext.flow(
        kind.load(json.loads(json.dumps(kind.dump(value.extra))))
    ) == yamltext.flow(value.extra)
    assert "20.50" in json.dumps(stored)


REFUSED = [
    *(
        (f"{BUCKET}, image: 'docker:{image}'", "", "10:34 targets.sky.image", "no image")
        for image in ("//a/b", "PyTorch/pytorch:2", "a//b", "a/B")
    ),
    *(
        (f"{BUCKET}, requirements: ['{line}']", "", "10:42 targets.sky.requirements[0]", word)
        for line, word in (
            ("./x-1-py3-none-macosx_11_0_arm64.whl", "run Linux"),
            ("a==1 --hash=md5:00", 'no "md5" as'),
            ("a==1 --hash=sha1:00", 'no "sha1" as'),
            ("-r conda.yml", "setup: "),
        )
    ),
    (f"{BUCKET}, requirements: [./mine.whl]", "", "10:42 targets.sky.requirements[0]", "a wheel"),
    (
        f"{BUCKET}, requirements: ['a==1; python_version > 3.9']",
        "",
        "10:42 targets.sky.requirements[0]",
        "no quotes",
    ),
    ("bucket: gs://my-google-data", "", "10:17 targets.sky.bucket", "cannot be the name"),
    (f"bucket: 'https://{'a' * 25}.blob.core.windows.net/c'", "", "10:17 targets.sky.bucket", "24"),
    ("bucket: 'https://ab.blob.core.windows.net/c-1'", "", "10:17 targets.sky.bucket", "account"),
    ("bucket: s3://bbb, image: ami-01", "", "10:34 targets.sky.image", "infra"),
    (
        "bucket: s3://bbb, image: a/b:2, infra: [aws, '*']",
        "",
        "10:34 targets.sky.image",
        "docker:a/b:2",
    ),
    (
        f"{BUCKET}, image: ami-01, infra: [aws/r-1, aws]",
        "",
        "10:49 targets.sky.infra",
        "aws/REGION",
    ),
    (f"{BUCKET}, image: ami-01, infra: gcp", "", "10:34 targets.sky.image", "infra: aws/REGION"),
    (
        f"{BUCKET}, infra: aws/r-1, image: ami-01, network_tier: best",
        "",
        "10:72 targets.sky.network_tier",
        "docker:NAME",
    ),
    (f"{BUCKET}, infra: aws, labels: {{a: b c}}", "", "10:51 targets.sky.labels.a", "spaces"),
    (f"{BUCKET}, infra: gcp, labels: {{A: b}}", "", "10:51 targets.sky.labels.A", "small letters"),
    (f"{BUCKET}, infra: K8s, labels: {{a: b c}}", "", "10:51 targets.sky.labels.a", "63 letters"),
    (f"{BUCKET}, extra: [1]", "", "10:34 targets.sky.extra", "mapping"),
    (f"{BUCKET}, requirements: [-e ./x]", "", "10:42 targets.sky.requirements[0]", "code: ./x"),
    (
        f"{BUCKET}, requirements: [a_b==1, A.b==2]",
        "",
        "10:50 targets.sky.requirements[1]",
        "a-b==1",
    ),
    (f"{BUCKET}, extra: {{num_nodes: 2}}", "", "10:35 targets.sky.extra.num_nodes", "nodes"),
    (f"{BUCKET}, extra: {{volume: {{}}}}", "", "10:35 targets.sky.extra.volume", "volumes"),
    (f"{BUCKET}, extra: {{volumes: [a]}}", "", "10:44 targets.sky.extra.volumes", "a list"),
    *(
        (
            f"{BUCKET}, extra: {{resources: {{{key}: {value}}}}}",
            "",
            f"10:{47 + len(key) + 2} targets.sky.extra.resources.{key}",
            words,
        )
        for key, value, words in (
            ("ports", "0", "8080"),
            ("ports", "65536", "8080"),
            ("ports", "80-", "8080"),
            ("ports", "{}", "a mapping"),
            ("ports", "true", "8080"),
            ("priority", "1001", "from -1000"),
            ("priority", "'5'", "from -1000"),
            ("priority", "high", "from -1000"),
            ("max_hourly_cost", "0.0", "above 0"),
            ("max_hourly_cost", "-1", "above 0"),
            ("max_hourly_cost", "cheap", "above 0"),
            ("ephemeral_storage", "100+", "100GB"),
            ("local_disk", "hdd", "nvme"),
            ("priority_class", "[a]", "a list"),
            ("volumes", "a", "write a list"),
            ("accelerator_args", "[]", "write a mapping"),
        )
    ),
    (
        f"{BUCKET}, extra: {{resources: {{ports: [80, x]}}}}",
        "",
        "10:59 targets.sky.extra.resources.ports[1]",
        "8080",
    ),
    (
        f"{BUCKET}, extra: {{event_callback: 5}}",
        "",
        "10:51 targets.sky.extra.event_callback",
        "text",
    ),
    (
        f"{BUCKET}, extra: {{api_server_access: 'yes'}}",
        "",
        "10:54 targets.sky.extra.api_server_access",
        "true or false",
    ),
    (f"{BUCKET}, extra: {{inputs: [s3://a]}}", "", "10:43 targets.sky.extra.inputs", "a list"),
    (f"{BUCKET}, extra: {{ports: 80}}", "", "10:35 targets.sky.extra.ports", "below resources"),
    (f"{BUCKET}, extra: {{service: {{}}}}", "", "10:35 targets.sky.extra.service", "a service"),
    (
        f"{BUCKET}, extra: {{resources: {{labels: {{a: b}}}}}}",
        "",
        "10:47 targets.sky.extra.resources.labels",
        "targets.sky.labels",
    ),
    (
        f"{BUCKET}, extra: {{resources: {{priorty: 1}}}}",
        "",
        "10:47 targets.sky.extra.resources.priorty",
        "priority",
    ),
    (
        f"{BUCKET}, extra: {{file_mounts: {{/checkpoints/a: s3://d}}}}",
        "",
        "10:65 targets.sky.extra.file_mounts./checkpoints/a",
        "bucket.path",
    ),
    (
        f"{BUCKET}, extra: {{file_mounts: {{/data: ./data}}}}",
        "",
        "10:56 targets.sky.extra.file_mounts./data",
        "code",
    ),
    (
        f"{BUCKET}, infra: k8s, extra: {{config: {{hooks: []}}}}",
        "",
        "10:63 targets.sky.extra.config.hooks",
        "notices: false",
    ),
    ("", "", "1:1 bucket", "disk"),
    ("checkpoint: {dir: /data}, bucket: s3://b", "", "10:27 targets.sky.checkpoint.dir", "disk"),
    ("checkpoint: {dir: s3://bbb/x}, bucket: s3://ccc", "", "10:48 targets.sky.bucket", "s3://ccc"),
    ("bucket: s3://bbb/x/y", "", "10:17 targets.sky.bucket", "prefix: x/y"),
    ("bucket: b", "", "10:17 targets.sky.bucket", "s3://NAME"),
    ("bucket: {url: s3://bbb, mode: copy}", "", "10:39 targets.sky.bucket.mode", "cached"),
    (
        f"{BUCKET}, nodes: 2..4, train: {{micro_batch_size: 1}}",
        "",
        "10:34 targets.sky.nodes",
        "2..4",
    ),
    (
        f"{BUCKET}, accelerators: 'A100:8', gpus_per_node: 4",
        "",
        "10:41 targets.sky.accelerators",
        "gpus_per_node: 8",
    ),
    (f"{BUCKET}, accelerators: A100x8", "", "10:41 targets.sky.accelerators", "write A100:8"),
    (f"{BUCKET}, accelerators: L40SX8", "", "10:41 targets.sky.accelerators", "write L40S:8"),
    (
        f"{BUCKET}, accelerators: A100-80GBx8",
        "",
        "10:41 targets.sky.accelerators",
        "write A100-80GB:8",
    ),
    (f"{BUCKET}, gpus_per_node: 2", "", "10:42 targets.sky.gpus_per_node", "A100:2"),
    (
        f"{BUCKET}, accelerators: [A100, 'A100:2']",
        "",
        "10:41 targets.sky.accelerators",
        "gpus_per_node: 2",
    ),
    (
        f"{BUCKET}, requirements: torch=2.13.0",
        "",
        "10:41 targets.sky.requirements",
        "torch==2.13.0",
    ),
    (f"{BUCKET}, requirements: --user", "", "10:41 targets.sky.requirements", "--user"),
    (f"{BUCKET}, requirements: torch==2.x", "", "10:41 targets.sky.requirements", "==2.*"),
    (f"{BUCKET}, requirements: git+git@h:x", "", "10:41 targets.sky.requirements", "git+ssh://"),
    (
        f"{BUCKET}, requirements: [-f ./wheels]",
        "",
        "10:42 targets.sky.requirements[0]",
        "code: ./wheels",
    ),
    (
        f"{BUCKET}, requirements: ['a==1 --hash=sha256:0', b==1]",
        "",
        "10:66 targets.sky.requirements[1]",
        "hash",
    ),
    (f"{BUCKET}, requirements: pip install torch", "", "10:41 targets.sky.requirements", "command"),
    (f"{BUCKET}, requirements: 'a==1,==2'", "", "10:41 targets.sky.requirements", "1 and 2"),
    *(
        (
            f"{BUCKET}, accelerators: '{kind}', gpus_per_node: 2",
            "",
            "10:41 targets.sky.accelerators",
            "A100",
        )
        for kind in ("tpu-v4-8:2", "Trainium2:2", "Inferentia:2")
    ),
    (f"{BUCKET}, requirements: a b", "", "10:41 targets.sky.requirements", "one line"),
    (f"{BUCKET}, requirements: -r no.txt", "", "10:41 targets.sky.requirements", "no.txt"),
    (f"{BUCKET}, requirements: -r ../no.txt", "", "10:41 targets.sky.requirements", "out of"),
    (f"{BUCKET}, instance_type: p4d.24xlarge", "", "10:42 targets.sky.instance_type", "infra"),
    (f"{BUCKET}, secrets: [X]", "env: {X: '1'}", "10:37 targets.sky.secrets[0]", "X is in env"),
    *(
        (f"{BUCKET}, secrets: [{name}]", "", "10:37 targets.sky.secrets[0]", name)
        for name in ("SKYPILOT_NODE_IPS", "SKYPILOT_DOCKER_SERVERS", "PET_NNODES", "SLURM_JOB_ID")
    ),
    *(
        (f"{BUCKET}, secrets: [{given}]", "", "10:36 targets.sky.secrets", f"add {missing}")
        for given, missing in (
            ("SKYPILOT_DOCKER_USERNAME, SKYPILOT_DOCKER_PASSWORD", "SKYPILOT_DOCKER_SERVER"),
            ("SKYPILOT_DOCKER_SERVER", "SKYPILOT_DOCKER_PASSWORD, SKYPILOT_DOCKER_USERNAME"),
        )
    ),
    (f"{BUCKET}, secrets: [RANK]", "", "10:37 targets.sky.secrets[0]", "RANK"),
    (
        f"{BUCKET}, env: {{SKYPILOT_NODE_IPS: '1'}}",
        "",
        "10:52 targets.sky.env.SKYPILOT_NODE_IPS",
        "SkyPilot",
    ),
    (f"{BUCKET}, recovery: spot_recovery", "", "10:37 targets.sky.recovery", "eager_next_region"),
    (f"{BUCKET}, spot_recovery: auto", "", "10:27 targets.sky.spot_recovery", "unknown"),
    ("checkpoint: {dir: 'file:///tmp/x'}", "", "10:27 targets.sky.checkpoint.dir", "lost"),
    ("checkpoint: {dir: 's3:/b/x'}", "", "10:27 targets.sky.checkpoint.dir", "s3://b/x"),
    ("checkpoint: {dir: 'foo://b/x'}", "", "10:27 targets.sky.checkpoint.dir", "fsspec"),
    ("checkpoint: {dir: 's3://Not_Legal/x'}", "", "10:27 targets.sky.checkpoint.dir", "S3"),
    ("bucket: s3://Not_Legal", "", "10:17 targets.sky.bucket", "S3"),
    ("bucket: {url: s3://bbb, path: /var/x}", "", "10:39 targets.sky.bucket.path", "/checkpoints"),
    ("bucket: {url: s3://bbb, path: /opt/}", "", "10:39 targets.sky.bucket.path", "/checkpoints"),
    ("bucket: {url: s3://bbb, path: /..}", "", "10:39 targets.sky.bucket.path", "/checkpoints"),
    (
        "checkpoint: {dir: 's3://KEY:SECRET@bbb/x'}",
        "",
        "10:27 targets.sky.checkpoint.dir",
        "credentials",
    ),
    (f"{BUCKET}, secrets: [LD_PRELOAD]", "", "10:37 targets.sky.secrets[0]", "LD_PRELOAD"),
    (
        f"{BUCKET}, checkpoint: {{shared: true}}",
        "",
        "10:48 targets.sky.checkpoint.shared",
        "bucket",
    ),
    (f"{BUCKET}, name: a_", "", "10:33 targets.sky.name", "SkyPilot"),
    *(
        (
            f"{BUCKET}, extra: {{file_mounts: {{/d: {value}}}}}",
            "",
            "10:53 targets.sky.extra.file_mounts./d",
            words,
        )
        for value, words in (
            ("[s3://a]", "a list"),
            ("{source: s3://a, mode: write}", "no mode"),
            ("{source: s3://a, stor: s3}", '"stor" is no key'),
            ("{source: s3://aaa, store: minio}", '"minio" is no store'),
            ("{mode: MOUNT}", "neither a source nor a name"),
            ("{source: ~/y, mode: COPY}", "write the path alone: ~/y"),
            ("{source: 'coreweave://aaa'}", "SkyPilot has no coreweave"),
            ("{}", "neither a source nor a name"),
            ("{source: s3://aaa/b, mode: mount_cached}", "write s3://aaa, or mode: COPY"),
            ("{source: s3://My_Data}", "bucket in S3"),
            ("{source: gs://My-Data, mode: COPY}", "Google"),
            ("{source: /w/, name: aaa}", "ends with a slash"),
            ("{source: ./w, name: aaa}", "is relative"),
            ("s3://aaa/", "ends with a slash"),
            ("'/w/'", "ends with a slash"),
        )
    ),
    *(
        (
            f"{BUCKET}, extra: {{file_mounts: {{{target}: {source}}}}}",
            "",
            f"10:{51 + len(target)} targets.sky.extra.file_mounts.{target}",
            words,
        )
        for target, source, words in (
            ("/d/", "s3://aaa", "ends with a slash"),
            ("s3://aaa", "/d", "the path first"),
            ("gs://aaa", "{source: s3://aaa}", "the path first"),
            ("~/sky_workdir", "/home/me/src", "place of the job itself"),
            ("~/sky_workdir", "{source: s3://aaa}", "place of the job itself"),
        )
    ),
    (
        f"{BUCKET}, extra: {{resources: {{ports: [80, 82-81]}}}}",
        "",
        "10:59 targets.sky.extra.resources.ports[1]",
        "8080",
    ),
    (
        f"{BUCKET}, requirements: [torch==2.13.0, 'a==1,!=1']",
        "",
        "10:57 targets.sky.requirements[1]",
        "excludes it",
    ),
    (
        f"{BUCKET}, requirements: [\"torch==2.13.0; (python_version > '3'\"]",
        "",
        "10:42 targets.sky.requirements[0]",
        "bracket",
    ),
    (
        f"{BUCKET}, environment: locked, requirements: [torch==2.13.0]",
        "",
        "10:62 targets.sky.requirements",
        "locked",
    ),
]


JOB = {field.name: field.metadata["kind"] for field in Group(SkyJob).fields}
VALUES = [
    (
        Requirement(),
        ("torch==2.13.0|numpy[a,b]>=2,<3|numpy~=2.0,!=2.1|numpy (==2.0)|numpy == 2.*|numpy===2|t @ https://x/y.whl"
        '|numpy==2.0 ; python_version < "3.12"|a==1 --hash=sha256:ab --hash=sha256:cd|a==1 # why|a==1  # why|a==1  --hash=sha256:ab|a[]|a==1+cu126'
        "|git+https://github.com/a/b@abc#egg=b|https://x/y.whl|file:///x/y.whl|-r FILE|-c FILE|--requirement=F"
        "|-i https://x|--extra-index-url https://x/y|--no-index|--find-links=x|--only-binary=:all:|--pre"
        "|--pre --no-index|-i https://x --extra-index-url https://y # why|-r FILE # why|# why|-rF -c G|./x-1-py3-none-any.whl|x-1-py3-none-any.whl[a]"
        "|wheels/x-1-2-py3-none-any.whl|.|/opt/x|../pkg[dev]|-e ./pkg|--editable ./pkg|--editable=git+https://x/y#egg=z|x.tar.gz ; os_name < '3'"
        '|a==1 --config-settings="--a=b c" --global-option=x # why|a --no-binary :all:|--new-option|--new-option=1'
        "|--new-option x --pre|a; python_version < '3.13' # why|git+ssh://git@h/x.git|x @ ${URL}/x.whl|y @ file:x|a==1.0-rc.1|a==V2!1.0.POST1.dev0+Cu_1.a|a===2.x|--user-x"
        '|a;(python_version<"3.13" or os_name == "nt") and "linux" in sys_platform|a; "x" not in extra'),
        ("torch==2 numpy==1|torch=2.13|pip install torch|python -m pip install x|a==1 2|a==1==2|a==|a 2.0|a>2,<"
        "|-r|--index-url|a==1,b|a=>2|a[|-x foo|--pre torch|--editable|-e|-r a b|$FOO|a==1,==2|a==1, == 2|;|a'b"
        "|a; python_version >|a; python_version|a; x == 'y' and|a; python_version => '3'|git+https://|git+ssh:// ; a < 3"
        "|--user|a --upgrade|--target=/x|--proxy x|a@1.0|a @ ./x|a==1# why|a; python < '3'|a; os_name == linux|a>=2.*|a;|git+git@h:x/y.git|-e git+git@h:x/y.git|x @ git+git@h:x/y|a==2.x"),
    ),
    (JOB["memory"], "64|64+|0.5|64GB|1TB|512mb|64Gi+", "0|0GB|-1|GB|64 GB|64G|+"),
    (JOB["cpus"], "8|8+|0.5", "0|0.0|8GB|x"),
    (JOB["accelerators"].leaf, "L4|RTX_4090|A100-80GB:8|tpu-v4-8", "A100:0|A100:|:8|8|A 1"),
    (
        JOB["infra"].leaf,
        ("aws|aws/us-east-1/us-east-1a|gcp/*/us-central1-a|k8s|k8s/arn:aws:eks:us-east-1:123:cluster/my"
        "|kubernetes/gke_p_us-central1_c|slurm/cluster/part|ssh/pool"),
        "Asw|aws/|aws/a/b/c|k8s/|k8s/a b|aws/a:b|asw|awss/us-east-1",
    ),
    (
        JOB["image"],
        f"docker:ubuntu|docker:a/b:2|docker:ghcr.io:443/a/b:2@sha256:{'0' * 64}|ami-01|skypilot:gpu|/CommunityGalleries/a/Images/b",
        f"docker:|docker:a:b:c|docker:a@sha256:abc|docker:A/B|docker:a@sha256:{'x' * 64}",
    ),
    (JOB["instance_type"], "p4d.24xlarge|VM.GPU.A10.1$_4_64|Standard_NC24ads_A100_v4", "a b|$x|a;b"),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "accepted", "refused"), VALUES)
def test_values_as_pip_and_skypilot_take_them(kind: Text, accepted: str, refused: str) -> None:
    assert [kind.parse_text(text) for text in accepted.split("|")] == accepted.split("|")
    for text in refused.split("|"):
        with pytest.raises(Refused):
            kind.parse_text(text)


def test_a_file_of_requirements_travels_in_the_bundle(run: Run, tmp_path: Path) -> None:
    (tmp_path / "own.txt").write_text("torch==2.13.0\n")
    (tmp_path / "job.yaml").write_text(on_sky(f"{BUCKET}, requirements: [-r ./own.txt]"))
    outcome = run("render", "job.yaml", "--target", "sky")
    assert (outcome.code, "requirements" in outcome.err) == (0, False)
    assert (tmp_path / "build/gpt/code/own.txt").read_text() == "torch==2.13.0\n"


def test_a_file_of_requirements_that_stays_behind_is_a_fault_of_the_spec(
    run: Run, tmp_path: Path
) -> None:
    (tmp_path / "src").mkdir()
    for name, text in (("own.txt", "torch==2.13.0\n"), (".ddpgenignore", "own.txt\n")):
        (tmp_path / "src" / name).write_text(text)
    sky = on_sky(f"{BUCKET}, requirements: [-r own.txt]", "code: src")
    (tmp_path / "job.yaml").write_text(sky)
    outcome = run("validate", "job.yaml")
    assert (outcome.code, ".ddpgenignore" in outcome.err) == (65, True)


@pytest.mark.parametrize(
    "line", ["-e ./pkg", "--editable=./pkg", "./pkg", "-r https://x/y.txt", "https://x/torch.whl"]
)
def test_a_requirement_that_may_bring_torch_is_no_warning(line: str) -> None:
    sky = f"{BUCKET}, requirements: ['{line}', '--pre # torch', numpy==2.2.6]"
    assert not any("torch" in finding.problem for finding in findings(on_sky(sky)))


def test_every_file_that_requirements_name_travels(run: Run, tmp_path: Path) -> None:
    for name in ("own.txt", "more.txt", "x-1-py3-none-any.whl"):
        (tmp_path / name).touch()
    lines = "['-rown.txt -c ./more.txt -r https://x/y.txt # why', './x-1-py3-none-any.whl ; python_version > \"3\"', '# -r no.txt']"
    (tmp_path / "job.yaml").write_text(on_sky(f"{BUCKET}, requirements: {lines}"))
    outcome = run("render", "job.yaml", "--target", "sky")
    assert (outcome.code, "requirements" in outcome.err) == (0, False)
    assert sorted(path.name for path in (tmp_path / "build/gpt/code").iterdir()) == [
        "more.txt", "own.txt", "x-1-py3-none-any.whl",
    ]  # fmt: skip


def test_a_cloud_may_have_capital_letters() -> None:
    named_in_capitals = job(f"{BUCKET}, infra: [AWS/us-east-1, K8s/My:context]")
    assert isinstance(named_in_capitals, SkyJob)
    assert named_in_capitals.infra == ("aws/us-east-1", "k8s/My:context")


@pytest.mark.parametrize(("sky", "top", "where", "word"), REFUSED)
def test_what_skypilot_would_take_for_something_else(
    sky: str, top: str, where: str, word: str
) -> None:
    found = faults(on_sky(sky, top))
    assert named(found, where, word), found


WARNED = [
    (f"{BUCKET}, requirements: [--no-index, a==1]", "10:41 targets.sky.requirements", "--no-index"),
    (f"{BUCKET}, disk_size: 5", "10:38 targets.sky.disk_size", "hold no image"),
    (f"{BUCKET}, nic: enp5s0", "10:32 targets.sky.nic", "may get any"),
    (
        f"{BUCKET}, instance_type: m6i.large, infra: aws, accelerators: A100:2",
        "10:42 targets.sky.instance_type",
        "has no GPUs",
    ),
    (f"{BUCKET}, autostop: 500ms", "10:37 targets.sky.autostop", "write minutes"),
    (f"{BUCKET}, preempted_every: 5s", "10:44 targets.sky.preempted_every", "write hours"),
    (f"{BUCKET}, accelerators: 'H10O:2'", "10:41 targets.sky.accelerators", "the digit 0"),
    (
        f"{BUCKET}, accelerators: 'V100:2', train: {{precision: bf16}}",
        "10:70 targets.sky.train.precision",
        "no units for bf16",
    ),
    (
        f"{BUCKET}, infra: gcp/us-east-1, requirements: [torch==2.13.0]",
        "10:34 targets.sky.infra",
        "a region of aws",
    ),
    (
        f"{BUCKET}, infra: azure/us-east1, requirements: [torch==2.13.0]",
        "10:34 targets.sky.infra",
        "a region of gcp",
    ),
    (
        f"{BUCKET}, infra: gcp, instance_type: m5.large, requirements: [torch==2.13.0]",
        "10:54 targets.sky.instance_type",
        "a machine of aws",
    ),
    (
        f"{BUCKET}, memory: 65536, requirements: [torch==2.13.0]",
        "10:35 targets.sky.memory",
        "any machine",
    ),
    (
        f"{BUCKET}, train: {{trackers: wandb}}, requirements: [torch==2.13.0, wandb==0.20.0]",
        "10:45 targets.sky.train.trackers",
        "no login",
    ),
    (
        f"{BUCKET}, train: {{args: {{depth: 2, text: /home/me/x.txt}}}}, requirements: [torch==2.13.0]",
        "10:58 targets.sky.train.args.text",
        "no new machine",
    ),
    (
        f"{BUCKET}, train: {SCRIPT_INSTEAD.replace('/t.py', 'module:m, args: [--out=/Users/me/out]')}, requirements: [torch==2.13.0]",
        "10:60 targets.sky.train.args[0]",
        "no new machine",
    ),
    (
        f"{BUCKET}, instance_type: p4d.24xlarge, infra: aws",
        "10:42 targets.sky.instance_type",
        "the job uses none",
    ),
    (
        f"{BUCKET}, instance_type: c3-standard-4, infra: gcp, gpus_per_node: 2",
        "10:42 targets.sky.instance_type",
        "has no GPUs",
    ),
    (
        f"{BUCKET}, train: {{trackers: wandb}}, requirements: [torch==2.13.0]",
        "10:45 targets.sky.train.trackers",
        "wandb==VERSION",
    ),
    (
        f"{BUCKET}, gpus_per_node: 2, accelerators: A100:2, requirements: [torch==2.13.0+rocm6.2, -f x]",
        "10:82 targets.sky.requirements[0]",
        "without CUDA",
    ),
    (
        f"{BUCKET}, train: {{args: {{text: ~/x.txt}}}}, requirements: [torch==2.13.0]",
        "10:48 targets.sky.train.args.text",
        "no new machine",
    ),
    (
        f"{BUCKET}, train: {SCRIPT_INSTEAD.replace('script: /t.py', 'command: [~/t.sh], resume: scratch')}, requirements: [torch==2.13.0]",
        "10:44 targets.sky.train.command",
        "no new machine",
    ),
    (
        f"{BUCKET}, extra: {{config: {{key: hf_0123456789abcdef}}}}",
        "10:34 targets.sky.extra",
        "managed_secrets",
    ),
    (
        f"{BUCKET}, extra: {{config: {{api_key: x7Kq0-nvidia/9}}}}",
        "10:34 targets.sky.extra",
        "managed_secrets",
    ),
    (
        f"{BUCKET}, extra: {{event_callback: 'curl -H hf_0123456789'}}",
        "10:34 targets.sky.extra",
        "managed_secrets",
    ),
    (f"{BUCKET}, requirements: [torch]", "10:42 targets.sky.requirements[0]", "NAME==VERSION"),
    *(
        (
            f"{BUCKET}, {sky}requirements: [{line}, torch==2.13.0]",
            f"10:{42 + len(sky)} targets.sky.requirements[0]",
            f"{path} is looked for on the new machine",
        )
        for sky, line, path in (
            ("", "/w/a.zip", "/w/a.zip"),
            ("", "'-e /w/a[all]'", "/w/a"),
            ("", "--editable=~/a", "~/a"),
            ("", "a @ file:///w/a", "/w/a"),
            ("", "'a[b] @ file://localhost/w/a#b=c'", "/w/a"),
            (
                "setup: ls, ",
                "a @ file:///home/me/feedstock_root/a/work",
                "/home/me/feedstock_root/a/work",
            ),
        )
    ),
    (f"{BUCKET}, requirements: [numpy==2.2.6]", "10:41 targets.sky.requirements", "torch==VERSION"),
    (f"{BUCKET}, requirements: [own.txt]", "10:42 targets.sky.requirements[0]", "-r own.txt"),
    (
        f"{BUCKET}, requirements: [torch==2+cpu]",
        "10:42 targets.sky.requirements[0]",
        "--extra-index",
    ),
    (
        f"{BUCKET}, requirements: ['torch==2 --pre']",
        "10:42 targets.sky.requirements[0]",
        "line of its own",
    ),
    (
        f"{BUCKET}, image: 'pytorch/pytorch:2.5', infra: aws",
        "10:34 targets.sky.image",
        "docker:pytorch/pytorch:2.5",
    ),
    (
        "bucket: null, checkpoint: {dir: s3://bbb/x}, requirements: [torch==2.13.0]",
        "10:68 targets.sky.requirements",
        "s3fs==VERSION",
    ),
    (f"{BUCKET}, image: 'docker:x/y:latest'", "10:34 targets.sky.image", "digest"),
    (
        f"{BUCKET}, spot: false, on_demand_fallback: true",
        "10:60 targets.sky.on_demand_fallback",
        "no effect",
    ),
    (
        f"{BUCKET}, cpus: 1",
        "10:33 targets.sky.cpus",
        "2 processes",
    ),
    (
        f"{BUCKET}, infra: [aws, aws/us-east-1a]",
        "10:40 targets.sky.infra[1]",
        "aws/us-east-1/us-east-1a",
    ),
    (
        f"{BUCKET}, infra: gcp/us-central1-a",
        "10:34 targets.sky.infra",
        "gcp/us-central1/us-central1-a",
    ),
    (
        f"{BUCKET}, infra: gcp/us-central1/us-west1-a",
        "10:34 targets.sky.infra",
        "gcp/us-west1/us-west1-a",
    ),
    (
        f"{BUCKET}, spot: false, preempted_every: 2h",
        "10:57 targets.sky.preempted_every",
        "spot",
    ),
    (f"{BUCKET}, infra: lambda", "10:34 targets.sky.infra", "spot: false"),
    (f"{BUCKET}, infra: vast, nodes: 2", "10:47 targets.sky.nodes", "write nodes: 1"),
    (f"{BUCKET}, infra: [k8s/x], disk_tier: high", "10:54 targets.sky.disk_tier", "leave it out"),
    (
        f"{BUCKET}, infra: azure, network_tier: best",
        "10:55 targets.sky.network_tier",
        "network tiers",
    ),
    (
        f"{BUCKET}, infra: oci, image: 'docker:a/b'",
        "10:46 targets.sky.image",
        "container images on oci",
    ),
    *(
        (f"{BUCKET}, infra: aws, setup: ['{line}', ls]", "10:47 targets.sky.setup[0]", words)
        for line, words in (
            ("apt-get install -y libsndfile1", "write sudo apt-get install -y libsndfile1"),
            ("apt -qq update", "lacks sudo"),
            ("DEBIAN_FRONTEND=noninteractive apt-get install -y git", "lacks sudo"),
            ("sudo reboot", "ends the machine"),
            ("shutdown -h now", "ends the machine"),
            ("RUN sudo apt-get install -y git", "a line of a Dockerfile"),
            ("COPY a b", "a line of a Dockerfile"),
            ("FROM pytorch/pytorch:2.5", "a line of a Dockerfile"),
        )
    ),
    (
        f"{BUCKET}, python: {{activate: [ENV A=b]}}",
        "10:47 targets.sky.python.activate[0]",
        "a Dockerfile",
    ),
    *(
        (
            f"{BUCKET}, infra: {cloud}, spot: false, requirements: [torch==2.13.0]",
            "10:17 targets.sky.bucket",
            f"no mounts of buckets on {cloud}",
        )
        for cloud in ("runpod", "vast")
    ),
    *(
        (
            f"{BUCKET}, infra: [{cloud}], extra: {{resources: {{local_disk: nvme}}}}",
            f"10:{70 + len(cloud)} targets.sky.extra.resources.local_disk",
            f"no local disks on {cloud}",
        )
        for cloud in ("k8s", "gcp")
    ),
    (f"{BUCKET}, infra: mithril, image: my-image", "10:50 targets.sky.image", "machine images"),
    (
        f"{BUCKET}, preempted_every: 2h, train: {SCRIPT_INSTEAD}",
        "10:44 targets.sky.preempted_every",
        "saves by itself",
    ),
    (
        f"{BUCKET}, requirements: [torch==2.13.0, --extra-index-ulr=x]",
        "10:57 targets.sky.requirements[1]",
        "pip 26 has no --extra-index-ulr",
    ),
    (f"{BUCKET}, python: python3", "1:1 requirements", "torch==VERSION"),
    (f"{BUCKET}, infra: [aws, gcp], python: python3", "1:1 requirements", "torch==VERSION"),
    (f"{BUCKET}, python: ~/venv/bin/python", "10:35 targets.sky.python", "setup: LINE"),
    *(
        (
            f"{BUCKET}, python: {{activate: [a, '{line}']}}",
            "10:50 targets.sky.python.activate[1]",
            "setup: LINE",
        )
        for line in ("source ~/venv/bin/activate", "module load cuda/12", ". $HOME/v/activate")
    ),
    (
        f"{BUCKET}, requirements: [torch==2.13.0], setup: [ls, sudo pip install x]",
        "10:70 targets.sky.setup[1]",
        "requirements",
    ),
    (
        f"{BUCKET}, requirements: [torch==1.13.1]",
        "10:42 targets.sky.requirements[0]",
        "older than 2.4",
    ),
    (f"{BUCKET}, memory: 64MB", "10:35 targets.sky.memory", "MiB"),
    (f"{BUCKET}, memory: 0.1+", "10:35 targets.sky.memory", "MiB"),
    (f"{BUCKET}, ordered: true", "10:36 targets.sky.ordered", "no effect"),
    (
        f"{BUCKET}, preempted_every: 1h, checkpoint: {{every: 5min}}",
        "10:68 targets.sky.checkpoint.every",
        "preempted_every",
    ),
]


@pytest.mark.parametrize(("sky", "where", "word"), WARNED)
def test_what_is_doubtful_is_a_warning(sky: str, where: str, word: str) -> None:
    told = findings(on_sky(sky))
    assert not any(finding.fatal for finding in told)
    assert named(map(Fault.of, told), where, word), told


@pytest.mark.parametrize(
    "sky",
    [
        "secrets: [SKYPILOT_DOCKER_USERNAME, SKYPILOT_DOCKER_PASSWORD, SKYPILOT_DOCKER_SERVER]",
        "infra: k8s, extra: {config: {kubernetes: {pod_config: {spec: {tolerations: [{key: nvidia.com/gpu0}]}}}}}",
        "requirements: [torch==2.13.0, 'a==1,!=1.5', '--only-final=:all:', '--all-releases=:all:']",
        "extra: {file_mounts: {/d: {source: s3://aaa, mode: copy}}, resources: {ports: 80-80}}",
        *(
            f"extra: {{file_mounts: {{{mount}}}}}"
            for mount in (
                "d: s3://aaa",
                "d/e: {source: s3://aaa}",
                "~/d: https://h.org/d.tar",
                "/d/: {source: s3://aaa/, mode: mount}",
                "/d: {source: s3://aaa/b, mode: COPY}",
                "/d: {source: hf://me/model/part}",
                "/d: {source: cos://us-east/aaa}",
                "/d: {source: 'https://account.blob.core.windows.net/aaa', store: azure}",
                "/d: {name: new-one, store: S3, persistent: false}",
                "/d: {name: new-one, source: [/a, /b]}",
                "/d: s3://My_Data/old",
                "~/sky_workdir/d: {name: new-one, source: ~/d}",
                "/home/me/sky_workdir: s3://aaa",
            )
        ),
    ],
)
def test_what_is_right_is_told_of_nowhere(sky: str) -> None:
    assert findings(on_sky(f"{BUCKET}, {sky}")) == []


@pytest.mark.parametrize(
    ("requirements", "word"),
    [
        ("-rown.txt", "name of a package"),
        ("'a==1 --hash=sha256:0', b==1, -c /own.txt", "hash"),
        ("torch==2.13.0+cu126, '--extra-index-url https://x/y'", "PyPI"),
    ],
)
def test_another_line_may_make_a_requirement_right(requirements: str, word: str) -> None:
    told = findings(on_sky(f"{BUCKET}, requirements: [{requirements}]"))
    assert not any(word in finding.problem for finding in told)


@pytest.mark.parametrize(
    "sky",
    [
        "requirements: [torch==2.4.1, -r /x.txt], setup: [pip install uv, uv --version]",
        "requirements: [torch==2.13.0], setup: pip install -t /x y",
        "setup: pip install torch",
        "image: docker:a/b@sha256:" + "0" * 64,
        "infra: k8s",
        "infra: lambda, spot: false",
        *(
            f"infra: {infra}, setup: ['{line}', ls]"
            for infra, line in (
                ("aws", "sudo apt-get install -y git"),
                ("aws", "which git || apt-get install -y git"),
                ("aws", "apt list --installed"),
                ("aws", "apt-get download git"),
                ("aws", "sudo -s; apt-get install -y git"),
                ("aws", "sudo shutdown-guard on"),
                ("aws", "RUN=1 ./setup.sh"),
                ("aws", "./RUN a"),
                ("aws", 'COPY () { cp "$@"; }; COPY a b'),
                ("k8s", "apt-get install -y git"),
                ("[aws, k8s]", "apt-get install -y git"),
                ("aws, image: docker:a/b@sha256:" + "0" * 64, "apt-get install -y git"),
            )
        ),
        "infra: [vast, aws], requirements: [torch==2.13.0]",
        "infra: slurm, spot: false",
        "infra: aws, extra: {resources: {local_disk: nvme}}",
        "infra: [gcp, aws], extra: {resources: {local_disk: nvme}}",
        "extra: {resources: {local_disk: nvme}}",
        "infra: lambda, on_demand_fallback: true",
        "infra: [lambda, aws], requirements: [torch==2.13.0]",
        "infra: k8s, disk_tier: best",
        "infra: mithril, image: docker:a/b@sha256:" + "0" * 64,
        "requirements: [torch==2.13.0, --no-index, -f /wheels]",
        "requirements: [torch==2.13.0, --no-index], env: {PIP_FIND_LINKS: /wheels}",
        "requirements: ['torch @ https://h.org/torch-2.13.0-cp312-cp312-linux_x86_64.whl', --no-index]",
        "infra: nebius, network_tier: best",
        "infra: slurm, spot: false, image: docker:a/b@sha256:" + "0" * 64,
        "requirements: [torch==2.13.0, torch==2.13, a==1.0+b, a==1, '-i https://x.org']",
        "requirements: [--no-index, /w/torch-2.13.0-cp312-cp312-linux_x86_64.whl], setup: sudo mount x /w",
        "requirements: [torch==2.13.0, 'a @ file:///w/a.whl', -e /w/b], image: docker:a/b@sha256:"
        + "0" * 64,
        "requirements: [torch==2.13.0, -e /w/b], extra: {file_mounts: {/w: s3://www}}",
        "requirements: [torch==2.13.0, -e /w/b], infra: k8s",
        "requirements: [torch==2.13.0, -e ./b], setup: git clone https://x/b code/b, code: .",
        "requirements: [torch==2.13.0, 'a @ https://x/croot/a.whl', -f /w, '--extra-index-url=https://x/w']",
        "extra: {file_mounts: {~/venv: s3://vvv}}, python: ~/venv/bin/python",
        "setup: python3 -m venv ~/venv, python: ~/venv/bin/python",
        "python: ~/miniconda3/bin/python",
        "python: {activate: [source ~/.bashrc, module load x || true]}",
        "rendezvous: {launcher: env}",
        "requirements: [torch==2.13.0], setup: mkdir /data",
        "python: {activate: [python3 -m venv ~/v, source ~/v/bin/activate]}",
        "requirements: ['torch==2.13.0+rocm6.2', -i https://x/whl/rocm6.2], gpus_per_node: 2, accelerators: 'MI300X:2'",
        "requirements: [torch==2.13.0], gpus_per_node: 2, accelerators: 'V100:2', instance_type: n1-standard-8, infra: gcp",
        "requirements: ['torch==2.13.0', 'mmcv @ https://x.org/whl/cpu/mmcv.whl'], gpus_per_node: 2, accelerators: 'A100:2'",
        "requirements: [torch==2.13.0, wandb==0.20.0], train: {trackers: wandb}, secrets: [WANDB_API_KEY]",
        "requirements: [torch==2.13.0, wandb==0.20.0], train: {trackers: wandb}, env: {WANDB_MODE: offline}",
        "requirements: [torch==2.13.0], infra: aws/us-gov-west-1",
        "requirements: [torch==2.13.0], infra: gcp/northamerica-northeast1",
        "requirements: [torch==2.13.0], infra: azure/eastus2",
        "requirements: [torch==2.13.0], infra: azure, instance_type: Standard_D8s_v5",
        "requirements: [torch==2.13.0], memory: 24576",
        f"requirements: [torch==2.13.0], train: {SCRIPT_INSTEAD.replace('/t.py', 'module:m, args: [--out=' + HOME + ']')}",
        "requirements: [torch==2.13.0], infra: nebius/eu-north1, spot: false",
        f"requirements: [torch==2.13.0], train: {SCRIPT_INSTEAD.replace('script: /t.py', 'command: [~/miniconda3/bin/mine], resume: scratch')}",
        "requirements: [torch==2.13.0, wandb==0.20.0], train: {trackers: wandb}, python: {activate: wandb login}",
        "requirements: [torch==2.13.0], train: {args: {text: /checkpoints/x.txt}}",
    ],
)
def test_what_a_new_machine_may_have_is_no_warning(sky: str) -> None:
    assert not findings(on_sky(f"{BUCKET}, {sky}", "python: python3"))


def test_an_extra_of_fsspec_brings_the_package_of_a_bucket() -> None:
    sky = "requirements: [torch==2.13.0, 'fsspec[s3]==2025.9.0'], checkpoint: {dir: s3://bbb/c}, infra: runpod"
    assert not findings(on_sky(sky))


def test_a_lock_brings_torch() -> None:
    told = findings(on_sky(f"{BUCKET}, environment: {{packages: locked}}", "python: python3"))
    assert [finding.path for finding in told] == ["targets.sky.environment.packages"]


def test_a_package_at_an_address_is_no_other_one_next_month() -> None:
    assert floats("torch>=2")
    assert not floats("mine @ https://host/mine-1.whl")


@pytest.mark.parametrize(
    "sky",
    [
        BUCKET,
        f"{BUCKET}, infra: k8s, rendezvous: {{launcher: env}}, preflight: off",
        f"{BUCKET}, rendezvous: {{launcher: torchrun-static}}, nic: eth0, notices: false",
        f"{BUCKET}, setup: ['echo \"it''s\"', 'echo $(x)'], requirements: ['torch==2.13.0']",
        'checkpoint: {dir: "s3://bbb/it\'s $(here)"}, python: {activate: ["a \'b\'", c]}',
        f"{BUCKET}, python: \"/it's here/python\", secrets: [WANDB_API_KEY], env: {{A: '$(touch x)'}}",
        "bucket: {url: s3://bbb, mode: cached, path: /a.b/c-d}",
    ],
)
def test_its_bash_is_clean(sky: str, bundle: Callable[..., Path]) -> None:
    loaded = yaml.safe_load((bundle(sky) / "sky.yaml").read_text())
    check_bash(loaded["run"])
    check_bash(loaded.get("setup", ""))
    for hook in loaded.get("config", {}).get("hooks", []):
        check_bash(hook["run"], "sh")


SAID = {"SKYPILOT_NODE_IPS": "10.0.0.1", "SKYPILOT_NODE_RANK": "0", "SKYPILOT_TASK_ID": "t"}


def runs(place: Path, part: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """What SkyPilot's bash makes of `setup` or `run`, in the bundle."""
    text = yaml.safe_load((place / "sky.yaml").read_text())[part]
    env = {"PATH": os.environ["PATH"], "HOME": str(place), "DDPGEN_ARGS": "", **SAID, **variables}
    return subprocess.run(
        ["bash", "-c", f"{text}\necho ended with $?"],
        cwd=place, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, text=True, timeout=60,
    )  # fmt: skip


def test_a_secret_that_skypilot_was_not_given_is_named_on_the_machine(
    bundle: Callable[..., Path],
) -> None:
    """SkyPilot drops it without a word."""
    done = runs(bundle(f"{BUCKET}, secrets: [X_Y]"), "run")
    assert "--secret X_Y" in done.stdout
    assert done.stdout.endswith("ended with 69\n")


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("exit 0", "sky.activate.sh (python.activate) failed"),
        ("false", "sky.activate.sh (python.activate) failed at line 2: false"),
        ("eval 'echo \"open'", "unexpected EOF"),
        ("head=1 port=2 python=3 DDPGEN_JOB=4; cd /", "--secret X_Y"),
    ],
)
def test_activation_lines_are_contained(line: str, said: str, bundle: Callable[..., Path]) -> None:
    quoted = line.replace("'", "''")
    place = bundle(f"{BUCKET}, secrets: [X_Y], python: {{activate: ['{quoted}']}}")
    done = runs(place, "run")
    assert said in done.stdout
    assert done.stdout.endswith("ended with 69\n")


def test_a_signal_while_the_environment_is_set_up_brings_the_job_back(
    bundle: Callable[..., Path],
) -> None:
    done = runs(bundle(f"{BUCKET}, python: {{activate: ['kill -TERM $BASHPID']}}"), "run")
    assert "ddpgen: node0: stopped before " in done.stdout
    assert done.stdout.endswith("ended with 175\n")


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("exit 3", "sky.setup.sh (setup of the spec)"),
        ("false", " failed at line 5: false"),
        ("eval 'echo \"open'", "unexpected EOF"),
    ],
)
def test_setup_lines_are_contained(line: str, said: str, bundle: Callable[..., Path]) -> None:
    quoted = line.replace("'", "''")
    done = runs(bundle(f"{BUCKET}, setup: ['{quoted}']"), "setup")
    assert said in done.stdout
    assert done.stdout.endswith("ended with 69\n")


def test_outside_of_the_bundle_it_says_so(bundle: Callable[..., Path]) -> None:
    place = bundle(f"{BUCKET}, setup: ['true']")
    (place / "train" / "__main__.py").unlink()
    for part in ("setup", "run"):
        done = runs(place, part)
        said, ended = done.stdout.splitlines()
        assert "inside the bundle" in said
        assert ended == "ended with 69"


def test_a_python_that_is_not_there_is_named(bundle: Callable[..., Path]) -> None:
    done = runs(bundle(f"{BUCKET}, python: ~/no/python"), "run")
    assert done.stdout.startswith(f"ddpgen: no {Path('b').absolute()}/no/python: ")
    assert done.stdout.endswith("(PY001)\nended with 69\n")
