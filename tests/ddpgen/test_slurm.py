"""The tier slurm: what its batch script asks Slurm for, and what it refuses to ask."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from ddpgen.spec.fields import Refused
from ddpgen.text.shell import sections
from ddpgen.tiers.registry import read
from ddpgen.tiers.slurm.directives import directives as slurm_options
from ddpgen.tiers.slurm.fields import DIRECTIVES, SlurmJob
from ddpgen.tiers.slurm.notation import (
    ArrayIndices,
    Constraint,
    Dependency,
    Directive,
    Licenses,
    NodeList,
)
from ddpgen.tiers.slurm.plan import plan
from ddpgen.tiers.tables import as_text, facts
from tests.ddpgen.conftest import GPT as SMALL
from tests.ddpgen.conftest import ROOT, Fault, Run, check_bash, faults, findings, named

GPT = SMALL.replace("micro_batch_size: 4", "micro_batch_size: 1")

SEEN = "{checkpoint_dir}:{checkpoint_dir}"


def job(slurm: str = "", top: str = "") -> SlurmJob:
    text = f"{GPT}{top}\ntargets: {{slurm: {{{slurm}}}}}\n"
    found = read(text.encode(), "j")["slurm"].job
    assert isinstance(found, SlurmJob)
    return found


def on_slurm(slurm: str) -> str:
    return f"{GPT}targets:\n  slurm: {{{slurm}}}\n"


def directives(slurm: str = "", top: str = "") -> list[str]:
    return list(slurm_options(job(slurm, top)))


@pytest.fixture
def script(run: Run, tmp_path: Path) -> Callable[..., str]:
    def script(slurm: str = "", top: str = "", base: str = GPT) -> str:
        (tmp_path / "job.yaml").write_text(f"{base}{top}\ntargets:\n  slurm: {{{slurm}}}\n")
        outcome = run("render", "job.yaml", "--target", "slurm", "--stdout")
        assert outcome.code == 0, outcome.err
        return outcome.out

    return script


def test_the_script_of_an_example(run: Run, golden: Callable[[str, str], None]) -> None:
    outcome = run("render", ROOT / "examples/cluster_gpu.yaml", "--target", "slurm", "--stdout")
    assert (outcome.code, outcome.err) == (0, "")
    golden("cluster_gpu.slurm.sbatch", outcome.out)


def test_what_every_job_asks_for() -> None:
    assert directives() == [
        "--job-name=gpt",
        "--nodes=1",
        "--ntasks-per-node=1",
        "--cpus-per-task=2",
        "--output=%x-%j.log",
        "--open-mode=append",
        "--requeue",
        "--signal=B:USR1@300",
    ]


def test_a_range_of_nodes_goes_without_the_option_that_would_narrow_it(
    script: Callable[..., str],
) -> None:
    text = script("nodes: 2..4")
    assert "#SBATCH --ntasks-per-node" not in text
    assert "# There is no --ntasks-per-node=1" in text


@pytest.mark.parametrize(
    ("slurm", "asked"),
    [
        ("nodes: 3", "--nodes=3"),
        ("nodes: 2..4", "--nodes=2-4"),
        ("cpus_per_proc: 4", "--cpus-per-task=8"),
        ("train: {threads: 3, data_workers: 1}", "--cpus-per-task=8"),
        ("time: 12h", "--time=0-12:00:00"),
        ("time: 2-00:30:00", "--time=2-00:30:00"),
        ("time: 36:00:00", "--time=1-12:00:00"),
        ("time: 90s", "--time=0-00:01:30"),
        ("mem: 16G", "--mem=16G"),
        ("gpus_per_node: 2", "--gpus-per-node=2"),
        ("gpus_per_node: 2, gpu_type: a100", "--gpus-per-node=a100:2"),
        ("gpus_per_node: 2, gpu_request: gres", "--gres=gpu:2"),
        ("gpus_per_node: 2, gpu_request: gres, gpu_type: a100", "--gres=gpu:a100:2"),
        ("gpus_per_node: 2, gpu_request: gpus-per-task", "--gpus-per-task=2"),
        ("gpus_per_node: 2, gpu_request: gpus-per-task, nodes: 3", "--ntasks=3"),
        ("constraint: '[rack1|rack2]&ib*2'", "--constraint=[rack1|rack2]&ib*2"),
        ("exclude: 'node[1-3,7]'", "--exclude=node[1-3,7]"),
        ("nodelist: node4", "--nodelist=node4"),
        (
            "dependency: 'afterok:1?afterany:2'".replace("?", ","),
            "--dependency=afterok:1,afterany:2",
        ),
        ("array: 0-7%2", "--array=0-7%2"),
        ("array: 0-7", "--output=%x-%A_%a.log"),
        ("exclusive: true", "--exclusive"),
        ("comment: two words", "--comment=two words"),
        ("mail_to: a@b.c", "--mail-type=END,FAIL"),
        ("mail_to: a@b.c, mail_on: REQUEUE", "--mail-type=REQUEUE"),
        ("mail_to: 'a@b.c,d'", "--mail-user=a@b.c,d"),
        ("mail_to: o'brien@b.c", "--mail-user=o'brien@b.c"),
        ("mail_to: [a@b.c, d]", "--mail-user=a@b.c,d"),
        ("extra: --mem-per-gpu=4G", "--mem-per-gpu=4G"),
        ("extra: --gres=nvme:1", "--gres=nvme:1"),
        ("gpus_per_node: 2, extra: --gres=nvme:1", "--gpus-per-node=2"),
        ("gpus_per_node: 2, gpu_request: gres, extra: --gres=nvme:1", "--gres=gpu:2,nvme:1"),
        ("gpus_per_node: 2, extra: ['--gres=gpu:2,nvme:1']", "--gres=gpu:2,nvme:1"),
        ("gpus_per_node: 2, extra: ['--gres=gpu:a100:2']", "--gres=gpu:a100:2"),
        ("extra: --output=/logs/%x-%j.out", "--output=/logs/%x-%j.out"),
        ("step_time: 20s, write_time: 40s", "--signal=B:USR1@120"),
        ("warning: 90s", "--signal=B:USR1@90"),
        ("time: 9min", "--signal=B:USR1@180"),
    ],
)
def test_fields_become_directives(slurm: str, asked: str) -> None:
    written = directives(slurm)
    assert asked in written
    assert sum(word.startswith(("--gres", "--gpus")) for word in written) <= (
        2 if slurm == "gpus_per_node: 2, extra: --gres=nvme:1" else 1
    )
    assert sum(word.startswith("--output") for word in written) == 1
    whole_nodes = f"{slurm}, gpus_per_node: 2, gpu_request: none"
    if "gpu" not in slurm:
        assert directives(whole_nodes) == directives(slurm)


SCRIPT = "train: {script: /t.py, workload: null, steps: null, global_batch_size: null, micro_batch_size: null"
STOP = f"{SCRIPT}, stop: {{grace: "
REFUSED = [
    ("partitoin: gpu", "9:11 targets.slurm.partitoin", "partition?"),
    ("profile: site", "9:11 targets.slurm.profile", "at the top"),
    ("partition: a b", "9:22 targets.slurm.partition", "spaces"),
    (
        f"{SCRIPT}, workdir: a/b}}",
        "9:121 targets.slurm.train.workdir",
        "write {checkpoint_dir}/a/b",
    ),
    ("partition: 'a#b'", "9:22 targets.slurm.partition", "spaces"),
    ("partition: 'a\\b'", "9:22 targets.slurm.partition", "spaces"),
    ("partition: --wrap=x", "9:22 targets.slurm.partition", "spaces"),
    ("comment: 'a#b'", "9:20 targets.slurm.comment", "spaces"),
    ("time: banana", "9:17 targets.slurm.time", "length of time"),
    ("time: 2:30", "9:17 targets.slurm.time", "2min30s"),
    ("time: 90", "9:17 targets.slurm.time", "unit"),
    ("mem: lots", "9:16 targets.slurm.mem", "16G"),
    ("mem: 64Gi", "9:16 targets.slurm.mem", "16G"),
    ("gpu_request: please", "9:24 targets.slurm.gpu_request", "gres"),
    ("array: a-b", "9:18 targets.slurm.array", "indices"),
    ("array: 7-0", "9:18 targets.slurm.array", "write 0-7"),
    ("array: '0-7:0'", "9:18 targets.slurm.array", "step"),
    ("array: 4000001", "9:18 targets.slurm.array", "highest index"),
    ("nodelist: 'n[3-1]'", "9:21 targets.slurm.nodelist", "write 1-3"),
    ("nodelist: 'n[1,2],,m'", "9:21 targets.slurm.nodelist", "empty name"),
    ("exclude: 'n[1-3'", "9:20 targets.slurm.exclude", "node[1-3,7]"),
    ("nodelist: 'n[1-2]'", "9:21 targets.slurm.nodelist", "nodes: 2"),
    ("nodelist: n2, exclude: 'n[1-2]'", "9:34 targets.slurm.exclude", "n2"),
    ("mem: 1G, extra: --mem-per-cpu=1G", "9:27 targets.slurm.extra", "not both"),
    ("extra: [--mem-per-cpu=1G, --mem-per-gpu=1G]", "9:18 targets.slurm.extra", "not both"),
    ("dependency: 'afterok:1:2,afternotok:2'", "9:23 targets.slurm.dependency", "never start"),
    *(
        (
            f"environment: {{container: {image}}}",
            f"{where} targets.slurm.environment.container{field}",
            word,
        )
        for image, where, field, word in (
            ("'docker://a/b@sha256:12ab'", "9:36", "", "64 digits"),
            ("{image: a/b@sha256:12ab, runtime: pyxis}", "9:44", ".image", "64 digits"),
        )
    ),
    (
        "environment: {container: ./code/t.sif}",
        "9:36 targets.slurm.environment.container.image",
        "exist",
    ),
    ("extra: --deadline=yesterday", "9:18 targets.slurm.extra", '"yesterday" is no value'),
    ("extra: --begin=2027-13-01", "9:18 targets.slurm.extra", "no value of --begin"),
    ("extra: [--nice=1, --nice=low]", "9:29 targets.slurm.extra[1]", "no value of --nice"),
    ("extra: --time-min=1h", "9:18 targets.slurm.extra", "no value of --time-min"),
    (
        "extra: --time-min=90, time: 1h",
        "9:18 targets.slurm.extra",
        "longer than --time=0-01:00:00",
    ),
    (
        "extra: --time-min=1-0, time: 23h",
        "9:18 targets.slurm.extra",
        "longer than --time=0-23:00:00",
    ),
    (
        "extra: '--time-min=60:01', time: 1h",
        "9:18 targets.slurm.extra",
        "longer than --time=0-01:00:00",
    ),
    (
        "extra: '--time-min=0-1:00:01', time: 1h",
        "9:18 targets.slurm.extra",
        "longer than --time=0-01:00:00",
    ),
    (
        "extra: '--time-min=1:00:01', time: 1h",
        "9:18 targets.slurm.extra",
        "longer than --time=0-01:00:00",
    ),
    (
        "extra: '--time-min=0-1:01', time: 1h",
        "9:18 targets.slurm.extra",
        "longer than --time=0-01:00:00",
    ),
    ("extra: --begin", "9:18 targets.slurm.extra", "--begin has no value"),
    *(
        (f"extra: '--{option}'", "9:18 targets.slurm.extra", "no value of --")
        for option in (
            "propagate=MEMLCK",
            "mem-bind=locals",
            "acctg-freq=gpu=3",
            "no-kill=yes",
            "nice=3000000000",
            "gres=nvme=1",
            "gres=nvme:1:1:1",
        )
    ),
    ("extra: [--core-spec=1, --thread-spec=1]", "9:18 targets.slurm.extra", "not both"),
    ("extra: --mem-per-gpu=9G", "9:18 targets.slurm.extra", "the job has none"),
    ("extra: --batch=login", "9:18 targets.slurm.extra", "names login, which is not in constraint"),
    ("constraint: a&b, extra: '--batch=a&c'", "9:35 targets.slurm.extra", "names c, which is not"),
    ("constraint: '!v100'", "9:23 targets.slurm.constraint", "exclude"),
    ("licenses: matlab=2", "9:21 targets.slurm.licenses", "NAME:NUMBER"),
    ("extra: --hold=yes", "9:18 targets.slurm.extra", "--hold takes no value"),
    ("extra: --hint=fast", "9:18 targets.slurm.extra", "no value of --hint"),
    ("extra: --distribution=diagonal", "9:18 targets.slurm.extra", "no value of --distribution"),
    ("extra: --cpus-per-gpu=4", "9:18 targets.slurm.extra", "cpus_per_proc"),
    (
        "nodes: 2, gpus_per_node: 2, gpu_request: none, extra: --gpus=3",
        "9:65 targets.slurm.extra",
        "which need 4",
    ),
    ("extra: --wait", "9:18 targets.slurm.extra", "end"),
    ("extra: --container=x", "9:18 targets.slurm.extra", "environment"),
    ("environment: {container: 'docker://'}", "9:36 targets.slurm.environment.container", "NAME"),
    ("login: h, ssh_options: [-N]", "9:35 targets.slurm.ssh_options[0]", "no command"),
    (
        "login: h, ssh_options: [-o, StdinNull=yes]",
        "9:39 targets.slurm.ssh_options[1]",
        "no command",
    ),
    (
        "login: h, ssh_options: [-oSessionType=none]",
        "9:35 targets.slurm.ssh_options[0]",
        "no command",
    ),
    (
        "environment: {container: {image: x, mounts: '/a:b'}}",
        "9:55 targets.slurm.environment.container.mounts",
        "/TARGET",
    ),
    (
        "environment: {container: {image: x, options: --bind /a}}",
        "9:56 targets.slurm.environment.container.options",
        '"--bind", "/a"',
    ),
    *(
        (
            f"environment: {{container: {{image: {image}}}}}",
            "9:44 targets.slurm.environment.container.image",
            word,
        )
        for image, word in (
            ("nvcr.io/nvidia/pytorch:24.05-py3", "write docker://nvcr.io/nvidia/pytorch:24.05-py3"),
            ("'nvcr.io#nvidia/pytorch:24'", "write docker://nvcr.io/nvidia/pytorch:24"),
            ("a.sif, runtime: pyxis", "runtime: apptainer"),
            ("torch.sif", "write ~/path or /path"),
            ("images/torch:24.sif", "write ~/path or /path"),
            ("../torch", "write ~/path or /path"),
            ("ghcr.io/you/torch", "write docker://ghcr.io/you/torch"),
            ("pytorch", "write docker://pytorch"),
        )
    ),
    *(
        (
            f"environment: {{container: {{image: x, options: {option}}}}}",
            "9:56 targets.slurm.environment.container.options",
            word,
        )
        for option, word in (
            ("--container-mount-home", "no option"),
            ("nv", "the image"),
            ("--cleanenv", "takes away"),
            ("-e", "takes away"),
            ("--containall", "takes away"),
            ("-C", "takes away"),
        )
    ),
    *(
        (
            f"environment: {{container: {{image: x, runtime: pyxis, options: {option}}}}}",
            "9:72 targets.slurm.environment.container.options",
            word,
        )
        for option, word in (
            ("--export=NONE", "takes away"),
            ("-n4", "decided by ddpgen"),
            ("--ntasks=4", "decided by ddpgen"),
        )
    ),
    *(
        (
            f"environment: {{container: {{image: /x, mounts: '{mount}'}}}}",
            "9:56 targets.slurm.environment.container.mounts",
            "in the bundle",
        )
        for mount in ("./data:/data", "data", "codes/x:/data")
    ),
    (
        "environment: {container: {image: x, mounts: '-v /a:/b'}}",
        "9:55 targets.slurm.environment.container.mounts",
        "/TARGET",
    ),
    ("constraint: '*2'", "9:23 targets.slurm.constraint", "NAME*NODES"),
    ("constraint: 'ib*0'", "9:23 targets.slurm.constraint", "NAME*NODES"),
    ("constraint: '[a*2&*3]'", "9:23 targets.slurm.constraint", "NAME*NODES"),
    ("dependency: 'afterok:12345678901'", "9:23 targets.slurm.dependency", "afterok:JOB"),
    ("extra: --exclusive=nobody", "9:18 targets.slurm.extra", "no value of --exclusive"),
    ("extra: --gpu-bind=all", "9:18 targets.slurm.extra", "no value of --gpu-bind"),
    *(
        (
            f"environment: {{container: '{image}'}}",
            "9:36 targets.slurm.environment.container",
            "no name of an image",
        )
        for image in (
            "docker://ghcr.io/me/t:a b",
            "docker://ghcr.io/me/t:",
            "docker://ghcr.io/me//t",
            "docker://me/t/",
        )
    ),
    (
        "environment: {container: {image: /x.sqsh, runtime: pyxis, mounts: ':/mnt'}}",
        "9:77 targets.slurm.environment.container.mounts",
        "no mount",
    ),
    (
        "environment: {container: {image: /x.sif, options: --env}}",
        "9:61 targets.slurm.environment.container.options",
        "--env has no value",
    ),
    (
        "environment: {container: {image: /x.sif, options: [--env, --nv]}}",
        "9:62 targets.slurm.environment.container.options[0]",
        "no value",
    ),
    (
        "environment: {container: {image: /x.sif, options: [--nv, extra]}}",
        "9:68 targets.slurm.environment.container.options[1]",
        "would be the image",
    ),
    ("constraint: a&&b", "9:23 targets.slurm.constraint", "empty name"),
    ("constraint: '[a'", "9:23 targets.slurm.constraint", "bracket"),
    ("licenses: ':1'", "9:21 targets.slurm.licenses", "NAME:NUMBER"),
    ("dependency: afterok", "9:23 targets.slurm.dependency", "afterok:JOB"),
    ("mail_on: SOMETIMES", "9:20 targets.slurm.mail_on", "REQUEUE"),
    (
        "extra: [--export=NONE], secrets: [{A: file:/a}, B]",
        "9:59 targets.slurm.secrets[1]",
        "B: file:~/PATH",
    ),
    (
        "extra: ['--export=ALL,HF_TOKEN=hf_0123456789']",
        "9:18 targets.slurm.extra",
        "holds the value of HF_TOKEN",
    ),
    ("extra: --gpus=8", "9:18 targets.slurm.extra", "gpus_per_node: N"),
    ("extra: --gpus=a100:8", "9:18 targets.slurm.extra", "gpus_per_node: N"),
    ("extra: [--gpus-per-socket=2]", "9:19 targets.slurm.extra[0]", "gpus_per_node: N"),
    ("extra: '--tres-per-task=gres/nvme=1,gres/gpu:4'", "9:18 targets.slurm.extra", "uses none"),
    ("extra: --gres=gpu:8", "9:18 targets.slurm.extra", "gpus_per_node: 8"),
    (
        "gpus_per_node: 2, extra: --gres=gpu:1",
        "9:36 targets.slurm.extra",
        "gpus_per_node: 1",
    ),
    (
        "gpus_per_node: 2, gpu_type: a100, extra: ['--gres=nvme:1,gpu:h100:2']",
        "9:52 targets.slurm.extra",
        "gpu_type: h100",
    ),
    ("extra: --output=logs/%j.log", "9:18 targets.slurm.extra", "/PATH"),
    ("extra: --error=/x/%j.err", "9:18 targets.slurm.extra", "--output=/PATH"),
    ("extra: [--het-group=0]", "9:19 targets.slurm.extra[0]", "one component"),
    ("extra: [hetjob]", "9:19 targets.slurm.extra[0]", "one component"),
    ("extra: --no-requeue", "9:18 targets.slurm.extra", "requeues: 0"),
    ("extra: mem=4G", "9:18 targets.slurm.extra", "--mem-per-gpu"),
    ("extra: --ntasks-per-gpu=1", "9:18 targets.slurm.extra", "procs_per_node"),
    ("extra: --tasks-per-node=4", "9:18 targets.slurm.extra", "procs_per_node"),
    ("extra: --tasks=4", "9:18 targets.slurm.extra", "procs_per_node"),
    ("extra: --exclusive", "9:18 targets.slurm.extra", "exclusive: true"),
    ("extra: --nodes=3", "9:18 targets.slurm.extra", "--nodes"),
    ("extra: ['--open-mode=truncate']", "9:19 targets.slurm.extra[0]", "--open-mode"),
    (
        "nodes: 1..2, gpus_per_node: 2, gpu_request: gpus-per-task",
        "9:55 targets.slurm.gpu_request",
        "fixed number",
    ),
    ("gpu_type: a100", "9:21 targets.slurm.gpu_type", "asks for none"),
    (
        "qos: a, time: 2h, limits: {qos_limits: [{name: a, time: 1h}]}",
        "9:25 targets.slurm.time",
        "QoS a's limit of 1h",
    ),
    ("time: 5min, warning: 5min", "9:32 targets.slurm.warning", "300 s"),
    ("time: 1min, step_time: 10s", "9:34 targets.slurm.step_time", "70 s"),
    ("environment: {conda: a, venv: ~/b}", "9:41 targets.slurm.environment.venv", "both"),
    ("environment: {venv: b}", "9:31 targets.slurm.environment.venv", "~/path"),
    (
        "environment: {venv: ~/v/bin/activate}",
        "9:31 targets.slurm.environment.venv",
        "write ~/v",
    ),
    (
        "environment: {conda: conda activate x}",
        "9:32 targets.slurm.environment.conda",
        "write x",
    ),
    ("environment: {conda: env.yml}", "9:32 targets.slurm.environment.conda", "lists packages"),
    ("environment: {uv: ~/p/uv.lock}", "9:29 targets.slurm.environment.uv", "write ~/p"),
    ("environment: {venv: ~you/b}", "9:31 targets.slurm.environment.venv", "~/path"),
    (
        "environment: {modules: 'a; rm -rf x'}",
        "9:34 targets.slurm.environment.modules",
        "cuda/12.4",
    ),
    ("checkpoint: {shared: false}", "9:32 targets.slurm.checkpoint.shared", "nodes"),
    ("nodes: 2, nic: lo", "9:26 targets.slurm.nic", "loopback"),
    ("nodes: 1..2, train: {reduction: allreduce}", "9:18 targets.slurm.nodes", "reduction: tree"),
    ("gpus_per_node: 2, gpu_type: a, gpu_request: none", "9:39 targets.slurm.gpu_type", "nowhere"),
]


@pytest.mark.parametrize(("slurm", "where", "word"), REFUSED)
def test_what_slurm_would_refuse_or_misread_is_refused_here(
    slurm: str, where: str, word: str
) -> None:
    found = faults(on_slurm(slurm))
    assert named(found, where, word), found


WARNED = [
    ("mail_to: me@x.org, mail_on: [none, END]", "9:39 targets.slurm.mail_on", "no mail at all"),
    ("mail_to: me@x.org, mail_on: NONE", "", ""),
    ("mail_to: me@x.org, mail_on: [END, array_tasks]", "9:39 targets.slurm.mail_on", "array"),
    ("dependency: aftercorr:12", "9:23 targets.slurm.dependency", "afterok"),
    (f"{SCRIPT}, args: ['{{array_index}}']}}, array: 0-3, dependency: aftercorr:12", "", ""),
    (
        "environment: {container: {image: /x, mounts: ['/a:/d', '/b:/d:ro', '/b:/e']}}",
        "9:66 targets.slurm.environment.container.mounts[1]",
        "same target",
    ),
    ("time: 1h, step_time: 20min, write_time: 15min", "9:32 targets.slurm.step_time", "to train"),
    ("time: 1h, step_time: 10min, write_time: 5min", "", ""),
    ("extra: ['--hint=nomultithread', '--distribution=block:cyclic,NoPack']", "", ""),
    (
        "extra: [--time-min=60, --hold, --nice, --no-kill=off, --wckey=x, --oom-kill-step], time: 1h",
        "",
        "",
    ),
    ("extra: ['--time-min=60:00'], time: 1h", "", ""),
    ("extra: ['--time-min=0-1:00:00', '--deadline=1/31/27-4:30pm'], time: 1h", "", ""),
    ("extra: ['--time-min=1:00:00', '--begin=now+2hours'], time: 1h", "", ""),
    ("extra: [--time-min=UNLIMITED, '--begin=013127'], time: 1h", "", ""),
    ("extra: [--time-min=5], time: 1h", "", ""),
    ("extra: --time-min=5", "", ""),
    ("nodes: 2, gpus_per_node: 2, gpu_request: none, extra: '--gpus=a100:4'", "", ""),
    ("nodes: 2, gpus_per_node: 2, gpu_request: none, extra: --gpus=8", "", ""),
    ("nodes: 2, gpus_per_node: 2, gpu_request: none, extra: ['--gpus=a100:3,v100:1']", "", ""),
    ("extra: ['--hint=compute_bound,nomultithread', --distribution=hostfile]", "", ""),
    (
        "setup: [apptainer pull code/t.sif docker://a/b:1], environment: {container: code/t.sif}",
        "",
        "",
    ),
    ("environment: {container: '/x/t@sha256:12.sif'}", "", ""),
    ("setup: ['set +e', 'false']", "", ""),
    ("setup: ['(', exit 1, ') || true']", "", ""),
    ("nodes: 2..4, gpus_per_node: 2, gpu_request: none, extra: --gpus=4", "", ""),
    ("setup: ['make data', exit 1]", "9:32 targets.slurm.setup[1]", "no training begins"),
    ("setup: ['make data || exit 1', exit 0]", "", ""),
    ("dependency: 'afterok:1?afternotok:1'", "", ""),
    ("dependency: 'afterok:1,afternotok:2'", "", ""),
    (
        "train: {script: /t.py, workdir: /Users/me/run, workload: null, steps: null, global_batch_size: null, micro_batch_size: null}",
        "9:43 targets.slurm.train.workdir",
        "home of a Mac",
    ),
    ("checkpoint: {dir: /Users/me/ck}", "9:29 targets.slurm.checkpoint.dir", "home of a Mac"),
    ("nodes: 2, nic: docker0", "9:26 targets.slurm.nic", "containers of one machine"),
    ("nodes: 2, nic: eth0", "", ""),
    ("nic: docker0", "", ""),
    ("setup: [module load cuda]", "9:19 targets.slurm.setup[0]", "ends with setup"),
    ("setup: [module load cuda, nvcc -o x x.cu]", "", ""),
    ("preflight: {ignore: [NIC008]}", "", ""),
    ("extra: --output=/x/a.log", "9:18 targets.slurm.extra", "%j"),
    ("array: 0-0, extra: --output=/x/%A.log", "9:30 targets.slurm.extra", "%a"),
    ("login: h, dir: /tmp/x", "9:26 targets.slurm.dir", "all nodes see"),
    ("environment: {venv: /tmp/v}", "9:31 targets.slurm.environment.venv", "which is emptied"),
    (
        "environment: {conda: t}, python: /opt/python3",
        "9:44 targets.slurm.python",
        "not that of environment.conda",
    ),
    ("dir: /tmp/x", "9:16 targets.slurm.dir", "without login"),
    ("environment: {venv: ~/v}, python: ~/v/bin/python3", "", ""),
    ("environment: {conda: t}, python: /opt/envs/t/bin/python", "", ""),
    ("setup: torchrun prepare.py", "", ""),
    ("mem: 4", "9:16 targets.slurm.mem", "16G"),
    ("mem: 1000K", "9:16 targets.slurm.mem", "16G"),
    ("mem: 1000kb", "9:16 targets.slurm.mem", "16G"),
    *(
        (
            f"environment: {{container: {{image: '{image}', runtime: {runtime}}}}}",
            "9:44 targets.slurm.environment.container.image",
            word,
        )
        for image, runtime, word in (
            ("dokcer://a/b", "apptainer", "did you mean docker?"),
            ("library://a/b", "pyxis", "one of docker, dockerd"),
            (
                "docker://nvcr.io/nvidia/pytorch:24",
                "pyxis",
                "write docker://nvcr.io#nvidia/pytorch:24",
            ),
        )
    ),
    (
        "environment: {container: {image: x, runtime: pyxis, options: --nv}}",
        "9:72 targets.slurm.environment.container.options",
        "leave it out",
    ),
    (
        "environment: {container: {image: /x.sif, options: [-B, /a, --writeable-tmpfs]}}",
        "9:70 targets.slurm.environment.container.options[2]",
        "did you mean --writable-tmpfs",
    ),
    (
        "environment: {container: {image: /x.sif, options: --new=1}}",
        "9:61 targets.slurm.environment.container.options",
        "apptainer has no --new",
    ),
    (
        "environment: {container: {image: /x.sif, options: [--new, value]}}",
        "9:62 targets.slurm.environment.container.options[0]",
        "apptainer has no --new",
    ),
    (
        "environment: {container: {image: /x.sqsh, runtime: pyxis, options: --container-writeable}}",
        "9:78 targets.slurm.environment.container.options",
        "did you mean --container-writable",
    ),
    (
        "environment: {container: {image: /x.sqsh, runtime: pyxis, options: [--mpi=pmi2, --container-remap-root, --kill-on-bad-exit=1, -W0, --export=ALL]}}",
        "",
        "",
    ),
    *(
        (
            f"environment: {{container: {{image: /x.sqsh, runtime: pyxis, options: [--label, {option}]}}}}",
            "9:88 targets.slurm.environment.container.options[1]",
            word,
        )
        for option, word in (
            (
                "--kil-on-bad-exit",
                "srun has no --kil-on-bad-exit; did you mean --kill-on-bad-exit?",
            ),
            ("--no-requeue", "srun has no --no-requeue; leave it out if your srun has none"),
        )
    ),
    (
        "environment: {container: {image: /x.sif, options: [--home, /a, -B, '/a:/b', --nv, -cw, --env=A=b, --env, -x, --runscript-timeout, 1m]}}",
        "",
        "",
    ),
    ("constraint: 'ib&[a100|h100]', extra: --batch=a100", "", ""),
    (
        "constraint: '[a*2&b*03]', dependency: 'afterok:67108863:134217731'",
        "",
        "",
    ),
    (
        "extra: [--gpu-bind=none, --exclusive=topo, '--cpu-freq=low-high:performance', --profile=All]",
        "",
        "",
    ),
    ("setup: [nvidia-smi, export A=b]", "9:31 targets.slurm.setup[1]", "env"),
    ("setup: [. ~/v/bin/activate, '# then']", "9:19 targets.slurm.setup[0]", "python.activate"),
    ("setup: ['#SBATCH --qos=high', nvidia-smi]", "9:19 targets.slurm.setup[0]", "extra"),
    ("extra: --mpi=pmix", "9:18 targets.slurm.extra", "no plugin"),
    ("extra: --cpu-bind=cores", "9:18 targets.slurm.extra", "one task"),
    *(
        (
            f"gpus_per_node: 2, extra: '--gpu-bind={binding}'",
            "9:36 targets.slurm.extra",
            "--gpu-bind=none",
        )
        for binding in ("single:2", "verbose,per_task:1", "map_gpu:0,1", "mask_gpu:0x2,0x1")
    ),
    ("mem: 500", "9:16 targets.slurm.mem", "250 MiB for each process"),
    ("extra: --mem-per-cpu=4", "9:18 targets.slurm.extra", "--mem-per-cpu=16G"),
    (
        "gpus_per_node: 2, extra: --mem-per-gpu=40",
        "9:36 targets.slurm.extra",
        "40 MiB for each process",
    ),
    *(
        (f"{times}, {STOP}10min}}}}", f"9:{128 + len(times)} targets.slurm.train.stop.grace", word)
        for times, word in (
            ("partition: a", "300 s; write warning: 660s"),
            ("time: 12min", "240 s"),
            ("warning: 8min", "480 s"),
        )
    ),
    ("time: 12h, warning: 11h30min", "9:31 targets.slurm.warning", "1800 s to train"),
    ("time: 45s", "9:17 targets.slurm.time", "longer time"),
    ("time: 2min, step_time: 1s", "9:17 targets.slurm.time", "longer time"),
    ("extra: --contigous", "9:18 targets.slurm.extra", "did you mean --contiguous?"),
    ("extra: --parition=x", "9:18 targets.slurm.extra", "write partition:"),
    ("gpus_per_node: 2, gpu_type: 4", "9:39 targets.slurm.gpu_type", "gpus_per_node: 4"),
    ("time: 1h, checkpoint: {every: 1h}", "9:41 targets.slurm.checkpoint.every", "limit"),
    ("warning: 2d", "9:20 targets.slurm.warning", "65535"),
    ("checkpoint: {dir: /tmp/x}", "9:29 targets.slurm.checkpoint.dir", "all nodes"),
    ("cpus_per_proc: 1, train: {threads: 2}", "9:26 targets.slurm.cpus_per_proc", "2 threads"),
    ("warning: 5min, step_time: 2s", "9:37 targets.slurm.step_time", "no effect"),
    ("mail_on: END", "9:20 targets.slurm.mail_on", "mail_to"),
    ("gpu_request: gres", "9:24 targets.slurm.gpu_request", "gpus_per_node"),
    ("ssh_options: [-v]", "9:24 targets.slurm.ssh_options", "login"),
    ("dir: /x", "9:16 targets.slurm.dir", "login"),
    ("setup: [git clone https://x.org/y]", "9:19 targets.slurm.setup[0]", "next start"),
    ("setup: [nvidia-smi, mkdir /data/x]", "9:31 targets.slurm.setup[1]", "mkdir -p"),
    ("setup: 'ln -s /a b'", "9:18 targets.slurm.setup", "ln -sfn"),
    ("setup: [mkdir -p /a, 'mkdir --parents /b', mkdir -m 700 -p c, mkdir /tmp/d]", "", ""),
    ("setup: ['[ -d y ] || git clone https://x.org/y', ln -sfn a b, ln a c]", "", ""),
    ("setup: [rm -rf y, git clone https://x.org/y]", "", ""),
    ("setup: [cd $TMPDIR, git clone https://x.org/y]", "", ""),
    ("mem: 0", "", ""),
    ("mem: 1GB", "", ""),
    ("setup: [export A=b, '[ $A = b ] && source x']", "", ""),
    ("environment: {modules: m}, python: {activate: conda activate x}", "", ""),
    ("extra: [--exclusive=user, --tres-per-task=gres/nvme=1]", "", ""),
    ("mem: 1G, time: 5min", "", ""),
    ("mem: 512", "", ""),
    ("extra: [--mem-per-cpu=0, --gpus=0, --gpu-bind=single:1]", "", ""),
    ("gpus_per_node: 2, gpu_request: none, extra: [--gpus=2, --mem-per-gpu=4G]", "", ""),
    ("gpus_per_node: 2, extra: --gpu-bind=closest", "", ""),
    ("gpus_per_node: 2, extra: --gpu-bind=per_task:2", "", ""),
    ("gpus_per_node: 2, extra: --gpu-bind=mask_gpu:0x3", "", ""),
    ("time: 4min", "", ""),
    ("time: 12h, warning: 6h", "", ""),
    (f"warning: 11min, {STOP}10min}}}}", "", ""),
    (f"warning: 1min, {STOP}2min}}}}", "", ""),
    *(
        (f"environment: {{container: {container}}}", "", "")
        for container in (
            "code/torch",
            "{image: /x, mounts: ['/a:/d,/b:/e', '/c:/d,/b:/f']}",
            "{image: ./code/t, mounts: ['code/x:/x', './code:/y', ~/z]}",
            "{image: '{checkpoint_dir}/t.sif', mounts: '{bundle}/code:/x'}",
            "{image: /x, options: [--contain, --env=A=b], mounts: ['a,/b:/c']}",
            "{image: a/b, runtime: pyxis, mounts: './x:/x', options: '--export=A,ALL'}",
        )
    ),
    ("mail_on: END, mail_to: me", "", ""),
    (f"{SCRIPT}, workdir: ~/a/b}}", "", ""),
    (f"{SCRIPT}, workdir: '{{checkpoint_dir}}/b'}}", "", ""),
]


@pytest.mark.parametrize(("slurm", "where", "word"), WARNED)
def test_what_is_hardly_meant_is_a_warning(slurm: str, where: str, word: str) -> None:
    told = findings(on_slurm(slurm))
    assert [Fault.of(finding).where for finding in told] == ([where] if where else [])
    assert not any(finding.fatal for finding in told)
    assert all(word in Fault.of(finding).text for finding in told)


def test_an_image_has_one_fault() -> None:
    (finding,) = findings(on_slurm("environment: {container: torch.def}"))
    assert "builds an image from" in finding.problem


NOTATIONS = [
    (ArrayIndices(), "3  0-7  1-1  1,3,5  0-15:4%2  1-3,7-9", "0-  -1  1,,2  1,  1-2-3  0-7%  0-7%0  %2  0:2  0-3%2,5"),
    (
        NodeList(),
        "a  a,b  n_1.x  node[1-3]  node[01-03,07]-ib,x  rack[1-2]node[1-8]  a*4  hosts/four  /tmp/x",
        "n[  n]  n[]  n[a-b]  n[1,,2]  n[1-2-3]  ,a  a,  *2  a[1]]  -a",
    ),
    (Constraint(), "a  a&b  a|b  [a|b]  (a|b)&c  [a*2&b*1]  a,b", "a&&b  &a  a|  [a|b  a]  (a]  [|a]"),
    (Licenses(), "a  a:2  a@s:1,b:3  a:1|b:1", ":1  a:x  a:  a::1  a:1,"),
    (
        Dependency(),
        ("afterok:1  afterok:1:2  afterany:1,afterok:2  afterok:1?afterok:2  after:1+5:2  after:1  aftercorr:3_4"
        "  afternotok:3_*  singleton  singleton,afterok:4  afterburstbuffer:2"),
        ("4711  afterok:  afterok:x  afterok:0  afterok:1:  afterok:1,  afterokay:1  after:1+  afterok:1+5"
        "  singleton:1  afterok:1,,afterok:2  afterok:1?afterok:2,afterok:3"),
    ),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "accepted", "refused"), NOTATIONS)
def test_slurms_notations(kind: Directive, accepted: str, refused: str) -> None:
    assert [kind.parse_text(text) for text in accepted.split()] == accepted.split()
    for text in refused.split():
        with pytest.raises(Refused):
            kind.parse_text(text)


@pytest.mark.parametrize(("option", "field"), DIRECTIVES.items())
def test_a_field_that_is_an_option_is_written_refused_in_extra_and_adopted(
    option: str, field: str, run: Run, tmp_path: Path
) -> None:
    value = "afterok:3" if option == "dependency" else "3"
    assert f"--{option}={value}" in directives(f"{field}: '{value}'")
    found = faults(on_slurm(f"extra: --{option}={value}"))
    assert named(found, "9:18 targets.slurm.extra", f"--{option} "), found
    batch = f"#!/bin/bash\n#SBATCH --{option}={value}\nsrun torchrun train.py\n"
    (tmp_path / "train.sbatch").write_text(batch)
    (tmp_path / "train.py").touch()
    written = f'"{value}"' if value == "3" else value
    assert f"{field}: {written}  # 2" in run("adopt", "train.sbatch").out


def test_directives_stand_before_the_first_command(script: Callable[..., str]) -> None:
    lines = script("comment: two words, time: 1h").splitlines()
    commands = [i for i, line in enumerate(lines) if line and not line.startswith("#")]
    written = [i for i, line in enumerate(lines) if line.startswith("#SBATCH")]
    assert written == list(range(1, 1 + len(written)))
    assert written[-1] < commands[0]
    assert '#SBATCH --comment="two words"' in lines
    assert """#SBATCH --comment='{"a": [1]}'""" in script("comment: '{\"a\": [1]}'").splitlines()


@pytest.mark.parametrize(
    "lines",
    [
        "extra: [--gpus=2, --mem-per-gpu=9G]",
        "environment: {container: {image: /x.sif, options: '--bnd /a'}}",
    ],
)
def test_one_mistake_is_told_once(lines: str) -> None:
    assert len(findings(f"{SMALL}targets: {{slurm: {{{lines}}}}}\n")) == 1


SPECS = {
    "plain": "",
    "range": "nodes: 1..3, array: 0-3",
    "venv": "environment: {modules: [use ~/m, a/1, b], venv: ~/v}",
    "uv": 'environment: {uv: "/it\'s/here"}',
    "apptainer": "environment: {container: ~/i.sif}, gpus_per_node: 2",
    "pyxis": "environment: {container: {image: a/b:1, runtime: pyxis, mounts: [/data, '~/x:/x']}}",
    "setup": "setup: ['a \"b\" $c', \"a 'b'\"], preflight: off",
    "static": "nodes: 2, rendezvous: {launcher: torchrun-static}",
    "env": "nodes: 2, rendezvous: {launcher: env}, nic: ib0",
    "hostile": "checkpoint: {dir: '/$(touch x)/`y`'}, python: \"/it's here/python\"",
    "script": "",
}


@pytest.mark.parametrize("name", SPECS)
def test_scripts_are_clean_bash(name: str, script: Callable[..., str], tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("")
    base = "name: s\ntrain: {script: a.py}\n" if name == "script" else GPT
    text = script(SPECS[name], "code: .\n", base)
    check_bash(text)
    assert max(map(len, text.splitlines())) <= 110


def words(slurm: str = "", top: str = "") -> list[str]:
    """What the batch script becomes, as bash reads it."""
    said = sections(plan(job(slurm, top)).command)
    done = subprocess.run(
        ["bash", "-c", f'HOME=/home/me; printf "%s\\0" {said}'],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    return done.stdout.split("\0")[:-1]


def test_what_equals_the_runtimes_default_is_left_out() -> None:
    assert words() == [
        "--job=gpt", "--checkpoint-dir=../checkpoints/gpt", "--procs=2", "--ports=29500-30499",
        "--requeues=20", "--warning=300", "--",
        "torchrun", "--nnodes={nodes}", "--rdzv-backend=c10d", "--rdzv-endpoint={head}:{port}",
        "--rdzv-id={launch}", "--rdzv-conf=is_host={is_head},join_timeout=120",
        "--local-addr={address}", "--nproc-per-node=2", "--max-restarts=3", "--monitor-interval=0.1",
        "--signals-to-handle=SIGINT,SIGQUIT", "--",
        "run", "--workload=gpt", "--steps=300", "--global-batch-size=16", "--micro-batch-size=1",
        "--backend=gloo", "--world-size={world_size}", "--checkpoint-dir={checkpoint_dir}",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("slurm", "said"),
    [
        ("requeues: 5", ["--requeues=5"]),
        ("exclude_bad_nodes: false", ["--keep-bad-nodes"]),
        ("restarts: 1", ["--restarts=1", "--max-restarts=1"]),
        ("array: 0-3", ["--array"]),
        ("rendezvous: {timeout: 60s, port: 65000}", ["--timeout=60s", "--ports=65000-65535"]),
        ("setup: [a]", ["--setup=slurm.setup.sh"]),
        ("rendezvous: {launcher: env}", ["spawn", "--first-rank={first_rank}", "--procs=2"]),
        (
            "rendezvous: {launcher: torchrun-static}",
            ["--master-addr={head}", "--master-port={port}", "--max-restarts=0"],
        ),
        (
            "gpus_per_node: 2, environment: {container: {image: ~/i.sif, mounts: /data}}",
            [
                 "--in=apptainer", "--in=exec", "--in=--nv", "--in=--bind={bundle}",
                "--in=--bind={checkpoint_dir}", "--in=--bind=/data", "--in=--pwd={bundle}",
                "--in=/home/me/i.sif",
            ],
        ),
        ("extra: [--mem-per-gpu=4G, --hint=nomultithread]", ["--srun=--hint=nomultithread"]),
        (
            "environment: {container: {image: a/b:1, runtime: pyxis, mounts: ['~/x:/x']}}",
            [
                "--srun=--container-image=a/b:1",
                "--srun=--container-mounts={bundle}:{bundle}," + SEEN + ",/home/me/x:/x",
                "--srun=--container-workdir={bundle}",
            ],
        ),
    ],
)  # fmt: skip
def test_what_the_supervisor_and_the_launcher_are_told(slurm: str, said: list[str]) -> None:
    told = words(slurm)
    assert [word for word in said if word not in told] == []


def test_the_lines_of_an_environment_have_files_of_their_own(run: Run, tmp_path: Path) -> None:
    def files(slurm: str, top: str = "") -> dict[str, str]:
        (tmp_path / "job.yaml").write_text(f"{GPT}{top}\ntargets:\n  slurm: {{{slurm}}}\n")
        outcome = run("render", "job.yaml", "--target", "slurm")
        assert outcome.code == 0, outcome.err
        found = (tmp_path / "build/gpt").glob("slurm.*.sh")
        return {path.name: path.read_text() for path in sorted(found)}

    assert files("") == {}
    plain = files("environment: {modules: m, venv: ~/v}, setup: [b]", "python: {activate: a}\n")
    assert list(plain) == ["slurm.activate.sh", "slurm.setup.sh"]
    lines = plain["slurm.activate.sh"].splitlines()[-3:]
    assert lines == ["module load m", '. "$HOME"/v/bin/activate', "a"]
    assert plain["slurm.setup.sh"].splitlines()[-1] == "b"
    # In a container the modules are the node's, and the rest is the container's.
    inside = files(
        "environment: {modules: [use /m, m], conda: c, container: /i.sif}", "env: {A: b}\n"
    )
    assert inside["slurm.activate.sh"].splitlines()[-2:] == ["module use /m", "module load m"]
    assert inside["slurm.container.activate.sh"].splitlines()[-1] == "conda activate c"
    assert "export A=b\n" in inside["slurm.container.sh"]
    assert "source slurm.container.activate.sh </dev/null\n" in inside["slurm.container.sh"]


def test_logs_in_the_bundle_survive_a_render(run: Run, tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text(GPT + "targets: {slurm: {}}\n")
    assert run("render", "job.yaml", "--target", "slurm").code == 0
    log = tmp_path / "build/gpt/gpt-17.log"
    with log.open("w") as log_file:  # which goes on writing
        log_file.write("before\n")
        (tmp_path / "job.yaml").write_text(GPT + "targets: {slurm: {time: 1h}}\n")
        assert run("render", "job.yaml", "--target", "slurm").code == 0
        log_file.write("after\n")
    assert log.read_text() == "before\nafter\n"


def test_each_task_of_an_array_keeps_its_checkpoints_in_a_store_of_its_own() -> None:
    made = job("array: 0-3", "checkpoint: {dir: 's3://kept'}")
    assert "kept in      s3://kept/<task>\n" in as_text(made, "slurm")
    assert facts(made, "slurm")["store"] == "s3://kept/<task>"
