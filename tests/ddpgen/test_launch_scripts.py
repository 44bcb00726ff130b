"""Launch scripts in the forms of published ones: adopted, rendered, and compared with the rendered artefact.

The scripts are in tests/data/launch_scripts. For each, tests/golden/adopted has the spec and all remarks.
"""

from __future__ import annotations

import argparse
import re
import shlex
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
import yaml

from tests.ddpgen.conftest import ROOT, Run

SCRIPTS = ROOT / "tests" / "data" / "launch_scripts"
# The files that the scripts start, where they expect them.
FILES = (
    "train.py", "project/train.py", "pretrain_gpt.py", "imagenet.py", "mnist-distributed.py", "mnist_DDP.py",
    "open_instruct/finetune.py", "recipes/full_finetune.py",
)  # fmt: skip


ARTEFACTS = {"local": "local.sh", "slurm": "slurm.sbatch", "sky": "sky.yaml"}
# Commands of a script that set its environment, without the variables that hold the launch itself.
SETTING = re.compile(r"\s*(export (?!LAUNCHER|CMD)\w+=|(?:module|source|\.|conda) .*)")
# Commands that become another field of the spec: the text, and the field.
FIELDS = {
    "lumi.sbatch": ("nic: hsn0", "- LUMI/23.09"),
    "apptainer.sbatch": ("- apptainer/1.3", "image: /projects/containers/pytorch.sif"),
    "enroot.sbatch": ("image: /fsx/images/llama.sqsh", "- /fsx/data:/fsx/data", "- \"--no-container-mount-home\""),
    "venv_resume.sbatch": ("code: project", "exists: out/last.pt", '- "--resume"'),
    "sky_finetune.yaml": ("code: recipes", "exists: /ckpts/last", "url: gs://finetune-ckpts", "mode: cached"),
    "bigscience.slurm": ('- "--hint=nomultithread"',),
    "axolotl.sbatch": ("requeues: 0", "gpu_type: h100", "  - HF_TOKEN"),
    "lightning.sh": ('warning: "90s"', 'array: "0-3%2"'),
}  # fmt: skip


class Expected(NamedTuple):
    """The job that a script starts. `program`: the script or module and its arguments. `named`: in the remarks."""

    tier: str
    nodes: str
    procs: int
    gpus: int
    program: str
    named: tuple[str, ...] = ()


NO_GPUS = "not carried over: whether it trains on GPUs"
SLURM = {
    "pytorch_multinode.sbatch": Expected("slurm", "4", 1, 1, "/shared/examples/multinode.py 50 10", (":17: trap: port 29500",)),
    "megatron_pyxis.sbatch": Expected(
        "slurm", "16", 8, 0,
        "code/pretrain_gpt.py --tensor-model-parallel-size 1 --seq-length 2048 --lr 6.0e-5 --clip-grad 1.0",
        (":4: not carried over: --overcommit", f":21: {NO_GPUS}", ":11: not carried over: mkdir"),
    ),
    "accelerate_multinode.slurm": Expected(
        "slurm", "4", 4, 4,
        "/accelerate/examples/complete_nlp_example.py --mixed_precision fp16 --output_dir /accelerate/examples/output",
    ),
    "bigscience.slurm": Expected(
        "slurm", "8", 4, 4,
        "/gpfsdswork/projects/tr1/Megatron/pretrain_gpt.py --optimizer adam --lr 1e-4 --save-interval 1500 "
        "--distributed-backend nccl",
        (":18: not carried over: cd /gpfsdswork/projects/tr1/Megatron", ":46: trap: | after the training"),
    ),
    "jean_zay.slurm": Expected(
        "slurm", "2", 8, 8, "code/mnist-distributed.py --epochs 8 --batch-size 128",
        (":19: not carried over: srun --cpu-bind=cores",),
    ),
    "perlmutter.sbatch": Expected(
        "slurm", "2", 4, 4, "code/train.py --config base --yaml ./config/ViT.yaml --data=/pscratch/sd/m/data",
        (":20: no longer needed: MASTER_ADDR",),
    ),
    "juwels.sbatch": Expected(
        "slurm", "2", 4, 4, "code/imagenet.py --epochs 90",
        (":25: not carried over: srun --cpu-bind=none", ":14: no longer needed: SRUN_CPUS_PER_TASK=96"),
    ),
    "axolotl.sbatch": Expected(
        "slurm", "2", 8, 8, "module:axolotl.cli.train config.yaml", (":13: trap: HF_TOKEN is a secret",),
    ),
    "lightning.sh": Expected(
        "slurm", "4", 8, 8, "code/train.py --accelerator gpu --devices 8 --seed {array_index}",
        (":14: not carried over: source activate $1",),
    ),
    "deepspeed_torchrun.sbatch": Expected(
        "slurm", "2-4", 8, 8, "code/train.py --deepspeed ds_config.json --blocks 16",
        (":23: not carried over: srun --gpu-bind=none", ":23: trap: --max-restarts=0", ":23: not carried over: --tee=3"),
    ),
    "enroot.sbatch": Expected(
        "slurm", "2", 8, 0, "code/train.py --max_steps=100 --data_dir=/fsx/data",
        (f":24: {NO_GPUS}",),
    ),
    "apptainer.sbatch": Expected(
        "slurm", "1", 4, 4, "code/train.py --lr 3e-4 --note 'a $5 bet'", (":11: no longer needed: cd",),
    ),
    "lumi.sbatch": Expected(
        "slurm", "2", 8, 8, "code/mnist_DDP.py --gpu --modelpath model",
        (":17: not carried over: cd /workdir", ":17: not carried over: srun --cpu-bind=mask_cpu", "only a machine knows $(whoami)"),
    ),
    "uv.sbatch": Expected(
        "slurm", "2", 8, 8, "code/train.py --name first --tag='two words'", (":13: not carried over: uv run --no-sync",),
    ),
    "venv_resume.sbatch": Expected(
        "slurm", "1", 2, 2, "code/train.py --data data --epochs 90",
        (":7: trap: --time=12:30", ":21: not carried over: rsync", ":23: not carried over: ./env/bin/torchrun", ":24: not carried over: mv"),
    ),
}  # fmt: skip
OTHERS = {
    "nanogpt_two_nodes.sh": Expected(
        "local", "1", 8, 0, "code/train.py config/train_gpt2.py --batch_size=8 --compile=False",
        (":3: not carried over: 2 machines", f":3: {NO_GPUS}", ":2: trap: NCCL_IB_DISABLE"),
    ),
    "megatron_arrays.sh": Expected(
        "local", "1", 8, 0,
        "code/pretrain_gpt.py --num-layers 24 --hidden-size 1024 --max-position-embeddings 2048 --micro-batch-size 4 "
        "--global-batch-size 32 --bf16 --data-path '$2' --vocab-file gpt2-vocab.json --split 949,50,1 --save '$1'",
        (":43: not carried over: the argument $1", ":43: not carried over: the argument $2"),
    ),
    "open_instruct.sh": Expected(
        "local", "1", 4, 0,
        "code/open_instruct/finetune.py --model_name_or_path ../llama2_models/7B --gradient_accumulation_steps 16 "
        "--learning_rate 1e-4 --output_dir output/tulu_v2_7B_lora/",
        (":11: not carried over: --use-deepspeed", ":11: not carried over: --deepspeed-config-file=ds_configs/", "; do it after the job"),
    ),
    "sky_mingpt.yaml": Expected(
        "sky", "2", 4, 4, "code/train.py --dataset '$DATASET' --epochs 3 --suffix ''",
        (":14: not carried over: the variable DATASET", ":15: not carried over: WANDB_API_KEY", ":23: not carried over: file_mounts /data"),
    ),
    "sky_finetune.yaml": Expected(
        "sky", "1", 8, 8, "code/full_finetune.py --config ./configs/8B-lora.yaml output_dir=/ckpts",
        (":7: not carried over: resources.ports",),
    ),
}  # fmt: skip
TABLE = SLURM | OTHERS


class Adopted(NamedTuple):
    """A script's spec, the remarks, and the directory with the rendered artefacts."""

    spec: str
    remarks: str
    bundle: Path


@pytest.fixture
def adopt(run: Run, tmp_path: Path) -> Callable[[str], Adopted]:
    """Adopt a script, validate its spec, and render it."""

    def adopt(name: str) -> Adopted:
        for file in FILES:
            (tmp_path / file).parent.mkdir(exist_ok=True)
            (tmp_path / file).write_text("torch.save(torch.load('x'), 'x')\n")
        (tmp_path / name).write_text((SCRIPTS / name).read_text())
        done = run("adopt", name, "-o", "job.yaml")
        assert done.code == 0, done.err
        checked = run("validate", "job.yaml")
        assert checked.code == 0, checked.err
        rendered = run("render", "job.yaml", "--target", TABLE[name].tier, "-o", "bundle")
        assert rendered.code == 0, rendered.err
        return Adopted((tmp_path / "job.yaml").read_text(), done.err, tmp_path / "bundle")

    return adopt


def test_every_script_is_in_the_table() -> None:
    assert {path.name for path in SCRIPTS.iterdir()} == set(TABLE)
    assert len(TABLE) >= 20


@pytest.mark.parametrize("name", TABLE)
def test_a_published_form_becomes_the_job_that_it_starts(
    name: str, adopt: Callable[[str], Adopted], golden: Callable[[str, str], None]
) -> None:
    job, adopted = TABLE[name], adopt(name)
    golden(f"adopted/{name}.txt", f"{adopted.spec}\n{adopted.remarks}")
    for words in job.named:
        assert words in adopted.remarks
    artefact = (adopted.bundle / ARTEFACTS[job.tier]).read_text()
    launch = " ".join(artefact.replace("\\\n", " ").split())
    assert f"--nproc-per-node={job.procs} " in launch
    assert (f"--gpus={job.gpus} " in launch) == bool(job.gpus)
    program = re.search(r" -- script (.*?) -- (\"\$@\"|\$DDPGEN_ARGS)", launch)
    assert program
    words = shlex.split(program[1])
    assert [
        word for word in words if not word.startswith(("--resume-", "--script="))
    ] == shlex.split(job.program)


@pytest.mark.parametrize("name", SLURM)
def test_each_directive_is_kept_or_named(name: str, adopt: Callable[[str], Adopted]) -> None:
    job, adopted = SLURM[name], adopt(name)
    artefact = (adopted.bundle / "slurm.sbatch").read_text()
    rendered = {option: value for _, option, value in directives(artefact)}
    assert rendered["nodes"] == job.nodes
    written = {option: value for _, option, value in directives((SCRIPTS / name).read_text())}
    for line, option, value in directives((SCRIPTS / name).read_text()):
        named = re.search(rf"^{name}:{line}: [a-z ]+: --{option}\b", adopted.remarks, re.MULTILINE)
        assert named or is_kept(option, value, rendered, written, job, artefact), (option, value)


def is_kept(
    option: str,
    value: str,
    rendered: dict[str, str],
    written: dict[str, str],
    job: Expected,
    artefact: str,
) -> bool:
    """True if the rendered script asks Slurm for the same."""
    nodes = int(job.nodes.rpartition("-")[2])
    tasks = int(written.get("ntasks-per-node", 0)) or int(written.get("ntasks", nodes)) // nodes
    match option:
        case (
            "ntasks" | "ntasks-per-node"
        ):  # as many processes; a launcher's task is our one task on a node
            return tasks in (1, job.procs)
        case "cpus-per-task":
            return int(rendered[option]) == int(value) * tasks
        case "gres" | "gpus" | "gpus-per-node" | "gpus-per-task":
            (kept,) = (rendered[name] for name in ("gres", "gpus-per-node") if name in rendered)
            per_node = {"gpus": 1 / nodes, "gpus-per-task": tasks}.get(option, 1)
            numbers = [float(re.findall(r"\d+$", text)[0]) for text in (kept, value)]
            kinds = [re.findall(r"[ah]100", text) for text in (kept, value)]
            return numbers[0] == numbers[1] * per_node and kinds[0] == kinds[1]
        case "time":
            return seconds(rendered[option]) == seconds(value)
        case "signal":
            return rendered[option].partition("@")[2] == value.partition("@")[2]
        case "mail-type":
            return rendered[option] == value.upper()
        case "no-requeue":
            return "--requeues=0" in artefact
    return rendered.get(option) == value


def directives(text: str) -> Iterator[tuple[int, str, str]]:
    """Yield line, option and value of each #SBATCH directive."""
    parser = argparse.ArgumentParser(allow_abbrev=False)
    for names in (
        "job-name -J", "nodes -N", "ntasks -n", "ntasks-per-node", "cpus-per-task -c", "gpus -G", "gpus-per-task", "gpus-per-node",
        "gres", "time -t", "partition -p", "account -A", "qos -q", "output -o", "error -e", "constraint -C", "exclude -x", "mem",
        "array -a", "chdir -D", "dependency -d", "hint", "signal", "mail-user", "mail-type", "open-mode", "wait-all-nodes",
    ):  # fmt: skip
        long, *short = names.split()
        parser.add_argument(f"--{long}", *short)
    for flag in ("exclusive", "requeue", "no-requeue", "overcommit"):
        parser.add_argument(f"--{flag}", action="store_const", const="")
    for number, line in enumerate(text.splitlines(), 1):
        if line.startswith("#SBATCH"):
            given = parser.parse_args(shlex.split(line.removeprefix("#SBATCH"), comments=True))
            for name, value in vars(given).items():
                if value is not None:
                    yield number, name.replace("_", "-"), value


def seconds(time: str) -> int:
    """Return the seconds of [D-]HH[:MM[:SS]] or MM:SS."""
    days, dash, clock = time.rpartition("-")
    parts = [int(part) for part in clock.split(":")]
    parts = [*parts, 0, 0][:3] if dash or len(parts) == 3 else [0, *parts]
    return int(days or 0) * 86400 + parts[0] * 3600 + parts[1] * 60 + parts[2]


@pytest.mark.parametrize("name", TABLE)
def test_each_setting_of_the_environment_is_kept_or_named(
    name: str, adopt: Callable[[str], Adopted]
) -> None:
    adopted = adopt(name)
    rendered = "".join(
        path.read_text() for path in adopted.bundle.glob("*.*") if path.suffix != ".json"
    )
    for line, text in enumerate((SCRIPTS / name).read_text().splitlines(), 1):
        if setting := SETTING.match(text.replace("NCCL_SOCKET_IFNAME", "CMD")):
            named = re.search(rf"^{name}:{line}: ", adopted.remarks, re.MULTILINE)
            assert named or setting[1].strip() in rendered, text
    for field in FIELDS.get(name, ()):
        assert f"{field}  #" in adopted.spec or f"{field}\n" in adopted.spec


def test_a_task_for_skypilot_is_compared_key_by_key(adopt: Callable[[str], Adopted]) -> None:
    bundle = adopt("sky_mingpt.yaml").bundle
    task = yaml.safe_load((bundle / "sky.yaml").read_text())
    written = yaml.safe_load((SCRIPTS / "sky_mingpt.yaml").read_text())
    assert (task["name"], task["num_nodes"]) == (written["name"], written["num_nodes"])
    resources, asked = task["resources"], written["resources"]
    assert resources["accelerators"] == asked["accelerators"]
    assert (resources["infra"], str(resources["cpus"])) == (asked["cloud"], str(asked["cpus"]))
    assert task["file_mounts"]["/checkpoint"] == {
        "source": "gs://mingpt-checkpoints",
        "mode": "MOUNT",
    }
    assert {name: task["envs"].get(name) for name in ("EPOCHS", "SUFFIX", "DATASET")} == {
        "EPOCHS": "3",
        "SUFFIX": "",
        "DATASET": None,
    }
    assert list(task["secrets"]) == ["WANDB_API_KEY"]
    assert written["setup"] in (bundle / "sky.setup.sh").read_text()
