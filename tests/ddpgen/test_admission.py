"""The profile of a site, and the jobs that validate refuses with it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ddpgen import job
from ddpgen.errors import report
from ddpgen.tiers.slurm import admission, profile, survey
from ddpgen.tiers.slurm.fields import SlurmJob
from tests.ddpgen.conftest import GPT as SMALL
from tests.ddpgen.sites import LAB, SITES, UNIVERSITY
from tests.ddpgen.test_profiles import alone, write

NAMES = sorted(SITES)
GPT = SMALL.replace("global_batch_size: 16", "global_batch_size: 65536")


def text_of(name: str) -> str:
    answers, unknown = SITES[name]
    return profile.as_yaml(survey.read(answers), None, unknown)


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    alone(monkeypatch)
    write({f".ddpgen/{name}.yaml": text_of(name) for name in NAMES}, tmp_path)


def findings(site: str, top: str = "", slurm: str = "") -> list[str]:
    """Return the lines about a job at a site. A field of `top` is in line 9."""
    Path("job.yaml").write_text(f"profile: {site}\n{GPT}{top}\ntargets:\n  slurm: {{{slurm}}}\n")
    reading = job.load("job.yaml")["slurm"]
    assert isinstance(reading.job, SlurmJob)
    assert reading.job.limits is not None
    return report("job.yaml", map(reading.locate, admission.check(reading.job, reading.job.limits)))


@pytest.mark.parametrize("name", NAMES)
def test_the_profile_of_a_site(name: str, golden: Any) -> None:
    golden(f"site.{name}.yaml", text_of(name))


# A job that fits: the site, fields of the job, fields of the tier.
FITTING = [
    ("lab", "", ""),
    ("lab", "gpus_per_node: 4", "time: 300h, account: whoever, qos: any"),
    ("lab", "nodes: 2..9", "mem: 0"),
    ("university", "", "time: 72h, account: physics"),
    ("university", "", "account: Physics, qos: NORMAL"),
    ("university", "gpus_per_node: 12", "partition: gpu, qos: long"),
    ("university", "gpus_per_node: 4\nnodes: 4", "partition: gpu, gpu_type: A100, time: 24h"),
    ("university", "gpus_per_node: 4", 'partition: "gpu,gpu-long", account: ml, time: 48h'),
    ("university", "gpus_per_node: 4", "partition: gpu-long, account: ml, qos: long, time: 300h"),
    ("university", "", "constraint: skylake&ib, mem: 190000"),
    ("university", "", "constraint: rome|v100, mem: 976G"),
    ("university", "", 'constraint: "[rome|none]", array: 0-10000%50'),
    ("university", "gpus_per_node: 4\nnodes: 5", "partition: gpu, gpu_request: none"),
    ("centre", "gpus_per_node: 4", "partition: booster, array: 0-100%200"),
    ("centre", "nodes: 200..300", ""),
    ("centre", "nodes: 256", ""),
    ("centre", "nodes: 999", 'partition: x, extra: ["--clusters=other"]'),
]
# A job that never starts, the place of the finding, its problem and its remedy.
REFUSED = [
    ("lab", "nodes: 4", "", "9:8: nodes:", "main has 3 node(s)", "3 or fewer"),
    ("lab", "gpus_per_node: 8", "", "9:16: gpus_per_node:", "no partition has 8 GPUs a node", "4 or fewer"),
    ("lab", "gpus_per_node: 2\nnodes: 3", "", "9:16: gpus_per_node:", "only 2 node(s) with 2 GPUs", "nodes: 2"),
    ("lab", "", "cpus_per_proc: 33", ".cpus_per_proc:", "no partition has 66 CPUs a node", "cpus_per_proc: 32"),
    ("lab", "", "mem: 600G", ".mem:", "no partition has 600G of memory a node", "512000M or less"),
    ("lab", "", "mem: 1T", ".mem:", "no partition has 1T of memory a node", "512000M or less"),
    ("university", "", "mem: 1000001", ".mem:", "no partition has 1000001 of memory", "1000000M or less"),
    ("lab", "", "partition: mian", ".partition:", 'no partition "mian"', "main?"),
    ("lab", "", "array: 0-1001", ".array:", "1001 is above the site's largest, 1000", "split"),
    ("lab", "", "constraint: ib", ".constraint:", "no partition has the features ib", "leave it out"),
    ("university", "", "time: 96h", ".time:", "96h is more than cpu's limit of 72h", "72h or less"),
    (
        "university", "gpus_per_node: 2", "partition: gpu, time: 2-00:00:00", ".time:",
        "48h is more than gpu's limit of 24h", "24h or less, or partition: gpu-long",
    ),
    ("university", "", "account: biology", ".account:", 'no account "biology"', "one of physics, ml"),
    ("university", "", "qos: fast", ".qos:", 'no qos "fast"', "one of normal, short, long"),
    ("university", "", "qos: SHORT, time: 3h", ".time:", "QoS short's limit of 2h", "2h or less"),
    ("university", "", "qos: short, time: 3h", ".time:", "QoS short's limit of 2h", "2h or less"),
    ("university", "", "partition: gpu-long, account: physics", ".account:", "gpu-long does not take", "ml"),
    ("university", "", "partition: gpu-long, qos: short", ".qos:", "gpu-long does not take the qos", "long"),
    ("university", "gpus_per_node: 2", "partition: cpu", "9:16: gpus_per_node:", "no node of cpu has 2 GPUs; write partition: gpu", "gpu"),
    ("university", "nodes: 3", "partition: gpu-long", "9:8: nodes:", "gpu-long's limit of 2 for", "2 or fewer"),
    ("university", "gpus_per_node: 4\nnodes: 5", "partition: gpu", "9:16: gpus_per_node:", "QoS gpu-part's limit of 16", "fewer"),
    ("university", "gpus_per_node: 2", "partition: gpu, gpu_type: h100", ".gpu_type:", "type h100 a node", "one of a100, a100_1g.10gb, v100"),
    ("university", "gpus_per_node: 4", "partition: gpu, gpu_type: v100", "9:16: gpus_per_node:", "0 node(s) with 4 GPUs and", "less"),
    ("university", "", "partition: gpu, constraint: ib&bigmem", ".constraint:", "no node of gpu", "a100, ib, rome"),
    ("centre", "", "array: 0-101", ".array:", "101 is above the site's largest, 100", "split"),
    ("centre", "sweep: {train.seed: 0..101}", "", ": sweep:", "101 is above the site's largest, 100", "split"),
    ("centre", "nodes: 257", "", "9:8: nodes:", "257 nodes are more than standard's limit of 256", "partition: large"),
    ("centre", "gpus_per_node: 4", "partition: booster, gpu_request: gres", "9:16: gpus_per_node:", "no partition has 4 GPUs", "gpu_request: none"),
]  # fmt: skip


@pytest.mark.parametrize(("site", "top", "slurm"), FITTING)
def test_a_job_that_the_site_would_start_is_valid(site: str, top: str, slurm: str) -> None:
    assert findings(site, top, slurm) == []


@pytest.mark.parametrize(("site", "top", "slurm", "place", "problem", "remedy"), REFUSED)
def test_a_job_that_never_starts_is_refused_at_its_field(
    site: str, top: str, slurm: str, place: str, problem: str, remedy: str
) -> None:
    (line,) = findings(site, top, slurm)
    assert line.startswith("job.yaml:")
    assert place in line[: line.index(problem)]
    assert remedy in line[line.index(problem) :]


def test_a_value_of_another_layer_is_refused_at_its_own_line(tmp_path: Path) -> None:
    write({"team.yaml": "targets:\n  slurm:\n    time: 96h\n"}, tmp_path)
    (line,) = findings("university", "extends: team.yaml")
    assert line.startswith("team.yaml:3:11: targets.slurm.time: 96h is more than")


def test_a_site_that_forbids_requeues_gives_a_warning(tmp_path: Path) -> None:
    name = ".ddpgen/lab.yaml"
    Path(name).write_text(text_of("lab").replace("requeue: true", "requeue: false"))
    (line,) = findings("lab")
    assert "warning" in line
    assert "requeues: 0" in line
    assert findings("lab", slurm="requeues: 0") == []


def test_a_site_without_answers_refuses_nothing(tmp_path: Path) -> None:
    only_nodes = survey.Answers(nodes=LAB.nodes)
    write({".ddpgen/lab.yaml": profile.as_yaml(survey.read(only_nodes), None, ["x"])}, tmp_path)
    assert findings("lab", slurm="account: any, qos: any, array: 0-9999, time: 8000h") == []
    assert "8 GPUs" in findings("lab", "gpus_per_node: 8")[0]
    only_partitions = survey.Answers(partitions=UNIVERSITY.partitions)
    text = profile.as_yaml(survey.read(only_partitions), None, ["x"])
    write({".ddpgen/lab.yaml": text}, tmp_path)
    assert "gpu_request: gpus-per-node" in text
    assert findings("lab", "gpus_per_node: 8\nnodes: 99") == []
    assert "72h" in findings("lab", slurm="time: 96h")[0]


def test_accounts_are_free_where_slurm_does_not_enforce_them() -> None:
    config = UNIVERSITY.config.replace("associations,limits,qos,safe", "none")
    free = survey.read(UNIVERSITY._replace(config=config)).limits
    assert (free.accounts, free.qos, free.qos_limits) == ((), (), ())
    unknown = survey.read(UNIVERSITY._replace(config="")).limits
    assert (unknown.accounts, unknown.max_array_size) == (("attic", "physics", "ml"), None)


def test_a_site_without_a_default_partition_names_them_all() -> None:
    partitions = UNIVERSITY.partitions.replace("Default=YES", "Default=NO")
    text = profile.as_yaml(survey.read(UNIVERSITY._replace(partitions=partitions)), None, [])
    assert "    # partition:  # the site has no default; one of cpu, gpu, gpu-long\n" in text


def test_gpus_are_asked_for_in_the_spelling_that_the_site_has() -> None:
    config = LAB.config.replace("cons_tres", "cons_res")
    site = survey.read(LAB._replace(config=config))
    assert "    gpu_request: gres  # select/cons_res" in profile.as_yaml(site, None, [])


def test_a_partition_whose_nodes_are_unknown_may_take_the_job(tmp_path: Path) -> None:
    write({".ddpgen/lab.yaml": f"{text_of('lab')}        - name: other\n"}, tmp_path)
    (line,) = findings("lab", "gpus_per_node: 8", "partition: main")
    assert "no node of main has 8 GPUs; write 4 or fewer, or partition: other" in line
