"""Launch scripts as people write them, and the specs that `ddpgen adopt` makes of them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ddpgen.tiers.registry import read
from tests.ddpgen.conftest import ROOT, Run

HEADER = (
    "#SBATCH --nodes=2\n#SBATCH --gpus-per-node=4\n#SBATCH --requeue\n#SBATCH --signal=B:USR1@120\n"
)
HEAD = "$(scontrol show hostnames $SLURM_JOB_NODELIST | head -n 1)"
TORCHRUN = f"""\
head={HEAD}
srun torchrun \\
  --nnodes $SLURM_NNODES --nproc_per_node 4 --rdzv_backend c10d \\
  --rdzv_endpoint $head:$RANDOM train.py 50 --lr 1e-3
"""
ACCELERATE = """\
GPUS=4
export LAUNCHER="accelerate launch --num_processes $((SLURM_NNODES * GPUS)) --mixed_precision bf16 "
export ARGS="--lr 1e-3"
srun $LAUNCHER train.py 50 $ARGS
"""
INSIDE = """\
ARGS=(
  50            # steps
  --lr 1e-3
)
LAUNCHER="python -u -m torch.distributed.run --nproc_per_node ${GPUS:-4}"
srun bash -c "$LAUNCHER --node_rank \\$SLURM_PROCID train.py ${ARGS[*]}"
"""
LIGHTNING = "#SBATCH --ntasks-per-node=4\nsrun python3 train.py 50 --lr 1e-3\n"


PYTORCH = """\
#!/bin/bash
#SBATCH --job-name=multinode
#SBATCH -N 4
#SBATCH --ntasks=4
#SBATCH --gpus-per-task=1
#SBATCH --cpus-per-task=4
nodes=( $( scontrol show hostnames $SLURM_JOB_NODELIST ) )
head_node_ip=$(srun --nodes=1 --ntasks=1 -w "$head_node" hostname --ip-address)
export LOGLEVEL=INFO
srun torchrun \\
--nnodes 4 --nproc_per_node 1 \\
--rdzv_id $RANDOM --rdzv_backend c10d --rdzv_endpoint $head_node_ip:29500 \\
train.py 50 10
"""
HUGGINGFACE = """\
#!/bin/bash
#SBATCH --nodes=1
#SBATCH --gres=gpu:4
#SBATCH --cpus-per-task=160
#SBATCH --time=01:59:00
#SBATCH -D .
source activateEnvironment.sh
export GPUS_PER_NODE=4
export SCRIPT_ARGS=" \\
    --mixed_precision fp16 \\
    "
accelerate launch --num_processes $GPUS_PER_NODE train.py $SCRIPT_ARGS
"""
PL = """\
#!/bin/bash -l
#SBATCH --nodes=4             # This needs to match Trainer(num_nodes=...)
#SBATCH --gres=gpu:8
#SBATCH --ntasks-per-node=8
#SBATCH --mem=0
#SBATCH --signal=SIGUSR1@90
source activate $1
srun python3 train.py --accelerator 'gpu' --devices 8
"""
NANOGPT = """\
set -euo pipefail
python data/prepare.py
OMP_NUM_THREADS=1 torchrun --standalone --nproc_per_node=8 train.py config/gpt2.py --compile=False 2>&1 | tee log.txt
"""
TUTORIAL = """\
python -m torch.distributed.launch --nproc_per_node=2 --nnodes=2 --node_rank=$1 \\
  --master_addr="192.168.1.1" --master_port=1234 train.py --lr "0.1" --data $DATA > out.log
"""
SPOT = """\
name: minGPT-ddp
resources: {cpus: 4+, accelerators: L4:4, cloud: aws, region: us-east-1, use_spot: true}
num_nodes: 2
workdir: .
envs:
  WANDB_API_KEY:
  EPOCHS: 3
file_mounts:
  /checkpoint: {name: my-bkt, store: s3, mode: MOUNT}
setup: |
  uv pip install -r requirements.txt
run: |
  MASTER_ADDR=`echo "$SKYPILOT_NODE_IPS" | head -n1`
  torchrun --nnodes=$SKYPILOT_NUM_NODES --nproc_per_node=$SKYPILOT_NUM_GPUS_PER_NODE \\
    --master_addr=$MASTER_ADDR --node_rank=${SKYPILOT_NODE_RANK} --master_port=8008 train.py --epochs $EPOCHS
"""
ARRAY = """\
#!/bin/bash
#SBATCH --array=0-7%2 --gpus=2
#SBATCH -p gpu
#SBATCH --mail-type=END,FAIL --mail-user=me@there.org
module load cuda/12.4
conda activate torch
cd experiments
torchrun --nproc-per-node=gpu ../train.py --seed=$SLURM_ARRAY_TASK_ID >log 2>&1
"""
IDIOMS = {
    "pytorch.sbatch": (PYTORCH, "slurm", (4, 1, 1), ["50", "10"], ["port 29500 is fixed", "no --signal"]),
    "huggingface.slurm": (
        HUGGINGFACE, "slurm", (1, 4, 4), ["--mixed_precision", "fp16"], ["no longer needed: --chdir=."],
    ),
    "lightning.sh": (
        PL, "slurm", (4, 8, 8), ["--accelerator", "gpu", "--devices", "8"], ["source activate $1; "],
    ),
    "nanogpt.sh": (
        NANOGPT, "local", (1, 8, None), ["config/gpt2.py", "--compile=False"],
        ["python data/prepare.py; ", "tee log.txt"],
    ),
    "tutorial.sh": (
        TUTORIAL, "local", (1, 2, None), ["--lr", "0.1", "--data", "$DATA"],
        ["2 machines, ", "$DATA, "],
    ),
    "spot.yaml": (
        SPOT, "sky", (2, 4, 4), ["--epochs", "3"], ["WANDB_API_KEY; "],
    ),
    "array.sbatch": (
        ARRAY, "slurm", (1, 2, 2), ["--seed={array_index}"], ["no --requeue"],
    ),
}  # fmt: skip


def spec_of(run: Run, tmp_path: Path, text: str, name: str = "old.sbatch") -> tuple[str, str]:
    (tmp_path / "train.py").touch()
    (tmp_path / name).write_text(text)
    outcome = run("adopt", name)
    assert outcome.code == 0, outcome.err
    return outcome.out, outcome.err


@pytest.mark.parametrize("body", [TORCHRUN, ACCELERATE, INSIDE, LIGHTNING])
def test_slurm_idioms_become_the_same_job(body: str, run: Run, tmp_path: Path) -> None:
    out, _ = spec_of(run, tmp_path, f"#!/bin/bash\n{HEADER}{body}")
    job = read(out.encode(), "a")["slurm"].job
    assert (int(job.nodes), job.procs_per_node, job.gpus_per_node) == (2, 4, 4)
    assert (job.train.script, job.train.args) == ("train.py", ("50", "--lr", "1e-3"))


def test_bash_and_skypilot(run: Run, tmp_path: Path) -> None:
    out, err = spec_of(
        run, tmp_path, "OMP_NUM_THREADS=8 torchrun --nproc-per-node=2 -m pkg.train x=1\n", "a.sh"
    )
    job = read(out.encode(), "a")["local"].job
    assert (job.train.script, job.train.args, job.procs_per_node) == (
        "module:pkg.train",
        ("x=1",),
        2,
    )
    assert job.env == {"OMP_NUM_THREADS": "8"}
    assert "a.sh:1: not carried over: whether " in err
    assert "GPUs" in err
    task = """\
num_nodes: 2
resources: {accelerators: 'A100:8', use_spot: true}
envs: {MODEL: gpt2, HF_TOKEN: hf_abcdefghijkl}
run: |
  torchrun --nnodes=$SKYPILOT_NUM_NODES --nproc_per_node=$SKYPILOT_NUM_GPUS_PER_NODE \\
    --node_rank=$SKYPILOT_NODE_RANK train.py --model $MODEL
"""
    out, err = spec_of(run, tmp_path, task, "b.yaml")
    assert read(out.encode(), "b")["sky"].job.train.args == ("--model", "gpt2")
    assert "secrets:  # 3\n  - HF_TOKEN\n" in out
    assert "hf_abc" not in out + err
    assert "b.yaml:2: trap: no bucket " in err
    both = task.replace("run: |", "secrets: {HF_TOKEN: null, WANDB_API_KEY: null}\nrun: |")
    out, _ = spec_of(run, tmp_path, both, "c.yaml")
    names = [secret.name for secret in read(out.encode(), "c")["sky"].job.secrets]
    assert names == ["HF_TOKEN", "WANDB_API_KEY"]


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ("export MASTER_PORT=29500", ":6: trap: port 29500 "),
        ("export NCCL_IB_DISABLE=1", ":6: trap: NCCL_IB_DISABLE=1 keeps NCCL"),
        ("export NCCL_SOCKET_IFNAME=lo", ":6: trap: NCCL_SOCKET_IFNAME=lo keeps NCCL"),
        ("export NCCL_SOCKET_IFNAME=^lo,docker0", ":6: not carried over: NCCL_SOCKET_IFNAME=^lo,docker0; ddpgen"),
        ("export NCCL_SOCKET_IFNAME=ib", ":6: not carried over: NCCL_SOCKET_IFNAME=ib; "),
        ("export GLOO_SOCKET_IFNAME=10.0.0.1", ":6: not carried over: GLOO_SOCKET_IFNAME=10.0.0.1; ddpgen"),
        ("export GLOO_SOCKET_IFNAME=eth0 NCCL_SOCKET_IFNAME=ib0", ":6: not carried over: NCCL_SOCKET_IFNAME=ib0"),
        ("export WANDB_API_KEY=abcdef123456", ":6: trap: WANDB_API_KEY is a secret"),
        ("#SBATCH --ntasks-per-node=4", ":7: trap: 4 tasks on a node"),
        ("#SBATCH --output=a.log", ":6: trap: --output=a.log has no %j"),
        ("#SBATCH --time=10:00", ":6: trap: --time=10:00 is minutes"),
        ("echo a\n#SBATCH --mem=4G", ":7: trap: #SBATCH --mem=4G stands below line 6"),
        ("f() {\nexport A=1\n}\nA=()", ":7: not carried over: export A=1; "),
        ("if true; then\nexport A=1\nfi", ":7: not carried over: export A=1; "),
        ("#SBATCH --export=NONE", ":6: not carried over: --export=NONE; "),
        ("#SBATCH --signal=USR1@120", ":6: not carried over: --signal=USR1@120; if the script handles"),
        ("#SBATCH --mail-type=END", ":6: not carried over: --mail-type=END; write targets.slurm.mail_to"),
        ("#PBS -q gpu\n#PBS -P x", ":6: not carried over: the #PBS lines; "),
        ("cp -r data /scratch", ":6: not carried over: cp -r data /scratch"),
    ],
)  # fmt: skip
def test_what_is_told_of_a_line(lines: str, expected: str, run: Run, tmp_path: Path) -> None:
    text = f"#!/bin/bash\n{HEADER}{lines}\nsrun torchrun --nnodes=2 --nproc-per-node=4 train.py\n"
    out, err = spec_of(run, tmp_path, text)
    assert f"old.sbatch{expected}" in err
    assert "abcdef123456" not in out + err


@pytest.mark.parametrize(
    "line",
    [
        "export GLOO_SOCKET_IFNAME=enp5s0 NCCL_SOCKET_IFNAME==enp5s0",
        "export NCCL_SOCKET_IFNAME=enp5s0",
        "export GLOO_SOCKET_IFNAME=nordlynx",
    ],
)
def test_the_interface_of_a_script_becomes_nic(line: str, run: Run, tmp_path: Path) -> None:
    text = f"#!/bin/bash\n{HEADER}{line}\nsrun torchrun --nproc-per-node=4 train.py\n"
    out, err = spec_of(run, tmp_path, text)
    job = read(out.encode(), "a")["slurm"].job
    assert (job.nic, dict(job.env)) == (line.rpartition("=")[2], {})
    assert "IFNAME" not in err


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        (
            "torchrun --nnodes=2 --nproc-per-node=4 train.py",
            "no srun ",
        ),
        (
            "srun torchrun --nnodes=3 --nproc-per-node=4 train.py",
            "waits for 3 nodes",
        ),
        (
            "srun torchrun --rdzv-endpoint=localhost:0 train.py",
            "--rdzv-endpoint=localhost:0 ",
        ),
        (
            "srun bash -c 'torchrun --rdzv-endpoint=$(hostname):0 train.py'",
            "--rdzv-endpoint=$(hostname):0 ",
        ),
        ("torchrun train.py || exit 0", " || after the training"),
        ("cd . || exit 1\ntorchrun train.py || echo failed", " || after the training"),
        ("./other & wait $!\ntorchrun train.py &", " & after the training"),
        ("x=PIPESTATUS\ntorchrun train.py | tee log", " | after the training"),
        ("torchrun train.py &\nwait", " & after the training"),
        ("srun torchrun --node-rank=$SLURM_NODEID train.py", "filled in once"),
        ("srun torchrun --max-restarts=0 train.py", "--max-restarts=0: the first crash"),
        ("srun torchrun train.py --out /tmp/x", "/tmp/x "),
        ("srun torchrun train.py || true", " || after the training"),
        ("srun torchrun train.py | tee log", " | after the training"),
    ],
)
def test_traps_of_a_command(command: str, expected: str, run: Run, tmp_path: Path) -> None:
    _, err = spec_of(run, tmp_path, f"#!/bin/bash\n{HEADER}{command}\n")
    assert any(": trap: " in line and expected in line for line in err.splitlines()), err


@pytest.mark.parametrize(
    ("lines", "told"),
    [
        ("#SBATCH --nodes=2\nsrun --nodes=\u00b2 torchrun train.py", "srun --nodes=\u00b2"),
        ("#SBATCH --nodes=2\nsrun --nodes=1-2 torchrun train.py", "srun --nodes=1-2"),
        ("#SBATCH --gres=gpu:\u00b2\nsrun torchrun train.py", "targets.slurm.gpu_type: "),
        ("#SBATCH --gpus=a100:2,v100:2\nsrun torchrun train.py", "--gpus=a100:2,v100:2"),
        ("#SBATCH --export=FOO,BAR=1\nsrun torchrun train.py", "--export=FOO"),
        ("#SBATCH --nodes=2\nsrun --nodes=$N torchrun train.py", ""),
        ("#SBATCH -n 10\n#SBATCH --ntasks-per-node=4\nsrun python train.py", "--ntasks=10"),
    ],
)
def test_sizes_and_variables_that_are_not_carried_over(
    lines: str, told: str, run: Run, tmp_path: Path
) -> None:
    _, err = spec_of(run, tmp_path, f"#!/bin/bash\n{lines}\n")
    found = [line for line in err.splitlines() if "not carried over: " in line]
    assert (
        any(f"not carried over: {told}" in line for line in found)
        if told
        else "srun --nodes" not in err
    )


@pytest.mark.parametrize(
    ("launch", "what"),
    [
        ("torchrun --nproc_per_node=gpu train.py", "--nproc-per-node=gpu"),
        ("torchrun --nproc-per-node auto train.py", "--nproc-per-node=auto"),
        ("torchrun --nproc-per-node=cpu train.py", "--nproc-per-node=cpu"),
        ("accelerate launch train.py", "a launch without --num-processes"),
    ],
)
def test_a_number_that_the_launcher_counts_is_told_of(
    launch: str, what: str, run: Run, tmp_path: Path
) -> None:
    out, err = spec_of(run, tmp_path, f"{launch}\n")
    assert read(out.encode(), "a")["local"].job.procs_per_node == 1
    counted = f": not carried over: {what}, "
    (told,) = [line for line in err.splitlines() if f":1{counted}" in line]
    assert "procs_per_node" in told
    out, err = spec_of(run, tmp_path, f"#!/bin/bash\n{HEADER}srun {launch}\n", "b.sbatch")
    assert (counted in err) is ("=cpu" in launch)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("echo hello\n", "old.sh:1:1: no line "),
        ("#SBATCH -N 1\n#SBATCH hetjob\nsrun python a.py\n", "old.sh:2:1: #SBATCH hetjob: "),
        ("torchrun a.py\ntorchrun b.py\n", "old.sh:1:1: lines 1, 2 "),
        ("echo 'a\ntorchrun b.py\n", "old.sh:1:1: from 'a on, "),
        (
            "x=1\nsrun ./inner.sh\n",
            "old.sh:2:1: no line starts a training with torchrun, accelerate launch, deepspeed or python FILE.py: reading stopped at ./inner.sh;",
        ),
        (
            '\nCMD=$(get)\nsrun bash -c "$CMD train.py"\n',
            "old.sh:3:1: no line starts a training with torchrun, accelerate launch, deepspeed or python FILE.py: reading stopped at $(get);",
        ),
        (
            "for i in 1 2; do\n  torchrun a.py\ndone\n",
            "old.sh:2:1: no line starts a training with torchrun, accelerate launch, deepspeed or python FILE.py: torchrun stands in a condition, a loop",
        ),
        (
            "\ncolossalai run --nproc_per_node=8 train.py\n",
            "old.sh:2:1: no line starts a training with torchrun, accelerate launch, deepspeed or python FILE.py: reading stopped at colossalai;",
        ),
        (
            "for i in 1 2; do\n  torchrun a.py\ndone\nsbatch next.sh\n",
            "old.sh:2:1: no line starts a training with torchrun, accelerate launch, deepspeed or python FILE.py: torchrun stands in a condition",
        ),
        (
            "# sbatch old.sh\nJOB=$(sbatch -p gpu --parsable jobs/train.sbatch)\nsqueue",
            "old.sh:2:1: no line starts a training with torchrun, accelerate launch, deepspeed or python FILE.py: sbatch gets jobs/train.sbatch: adopt jobs/train.sbatch in its place;",
        ),
        *(
            (
                text,
                f"old.sh:{line}:1: no line starts a training with torchrun, accelerate launch, deepspeed or python FILE.py: {words};",
            )
            for text, line, words in (
                (
                    "\nfor h in a b; do\n  ssh $h 'cd x && torchrun train.py' &\ndone\nwait\n",
                    3,
                    "ssh stands in a condition, a loop or a function",
                ),
                ("\nssh a 'cd x && torchrun train.py'\nmkdir x\n", 2, "reading stopped at ssh"),
                (
                    "N=a\nsbatch <<EOT\n#!/bin/bash\ntorchrun train.py $N\nEOT\n",
                    2,
                    "reading stopped at sbatch",
                ),
                ("module load x\njupyter lab --no-browser\n", 2, "reading stopped at jupyter"),
                (
                    "\nsrun bash inner.sh\n",
                    2,
                    "reading stopped at bash inner.sh: adopt inner.sh in its place",
                ),
            )
        ),
        ("S=$(pick)\ntorchrun $S\n", "old.sh:2:1: the script's name is not known: $(pick);"),
    ],
)
def test_what_cannot_be_adopted(text: str, expected: str, run: Run, tmp_path: Path) -> None:
    (tmp_path / "old.sh").write_text(text)
    outcome = run("adopt", "old.sh", "-o", "job.yaml")
    assert (outcome.code, outcome.out) == (65, "")
    assert outcome.err.startswith(expected)
    assert not (tmp_path / "job.yaml").exists()


@pytest.mark.parametrize(
    "lines",
    [
        'if [ -f "$OUT/c.pt" ]; then\n  MORE="--resume $OUT/c.pt"\nfi',
        "if [[ -e out/c.pt ]]\nthen\n  MORE=(--resume out/c.pt)\nelse\n  MORE=()\nfi",
        '[ -f out/c.pt ] && MORE="--resume out/c.pt"',
        'MORE=""\nif test -s out/c.pt; then MORE="--resume out/c.pt"; fi',
    ],
)
def test_how_it_goes_on_is_carried_over(lines: str, run: Run, tmp_path: Path) -> None:
    out, err = spec_of(run, tmp_path, f"OUT=out\n{lines}\ntorchrun train.py --lr 1 $MORE $OUT\n")
    train = read(out.encode(), "a")["local"].job.train
    assert (train.resume.exists, train.resume.args) == (("out/c.pt",), ("--resume", "out/c.pt"))
    assert train.args == ("--lr", "1", "out")
    assert "condition" not in err


def test_what_is_said_where_no_checkpoint_is_there_is_told_of(run: Run, tmp_path: Path) -> None:
    lines = "if [ -f a ]; then\nMORE=--resume=a\nelse\nMORE=--init=b\nfi\n"
    out, err = spec_of(run, tmp_path, f"{lines}torchrun train.py $MORE\n")
    assert read(out.encode(), "a")["local"].job.train.resume.args == ("--resume=a",)
    assert ":4: not carried over: MORE=--init=b; " in err


def test_a_quote_in_the_words_is_a_letter_as_to_bash(run: Run, tmp_path: Path) -> None:
    lines = """[ -f a ] && MORE="--note it's"\n"""
    out, _ = spec_of(run, tmp_path, f"{lines}torchrun train.py $MORE\n")
    assert read(out.encode(), "a")["local"].job.train.resume.args == ("--note", "it's")


def test_of_two_such_conditions_one_is_told_of(run: Run, tmp_path: Path) -> None:
    lines = "[ -f a ] && A=--a\n[ -f b ] && B=--b\n[ -f c ] || exit 1\n"
    out, err = spec_of(run, tmp_path, f"{lines}torchrun train.py $A $B\n")
    assert read(out.encode(), "a")["local"].job.train.resume.args == ("--a",)
    assert ":2: not carried over: --b, " in err
    assert ":3: not carried over: [ -f c ]" in err


def test_it_validates_and_is_never_written_over(run: Run, tmp_path: Path) -> None:
    (tmp_path / "train.py").touch()
    (tmp_path / "old.sbatch").write_text(f"#!/bin/bash\n{HEADER}{TORCHRUN}")
    assert run("adopt", "old.sbatch", "-o", "job.yaml").code == 0
    assert run("validate", "job.yaml").code == 0
    assert run("adopt", "old.sbatch", "-o", "job.yaml").code == 73


@pytest.mark.parametrize("name", IDIOMS)
def test_what_people_write_becomes_a_valid_spec(name: str, run: Run, tmp_path: Path) -> None:
    text, tier, size, arguments, told = IDIOMS[name]
    (tmp_path / "experiments").mkdir()
    (tmp_path / "train.py").write_text("torch.save(x, 'y')\n")
    (tmp_path / name).write_text(text)
    done = run("adopt", name, "-o", "job.yaml")
    assert done.code == 0, done
    for line in told:
        assert line in done.err
    assert run("validate", "job.yaml").code == 0, (tmp_path / "job.yaml").read_text()
    job = read((tmp_path / "job.yaml").read_bytes(), "a")[tier].job
    assert (int(job.nodes), job.procs_per_node, job.gpus_per_node) == size
    assert list(job.train.args) == arguments


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ('#SBATCH --comment="a\nsrun torchrun train.py\n', ":1: not carried over: #SBATCH --comment="),
        ("#SBATCH --nodes=0\nsrun torchrun train.py\n", ":1: not carried over: --nodes=0; write"),
        ("#SBATCH -N 4 -n 2\nsrun python train.py\n", "no --requeue"),
        ("#SBATCH -N 4 -c 4\naccelerate launch --num_processes 2 train.py\n", "no --requeue"),
        ('#SBATCH --partition="a b"\nsrun torchrun train.py\n', ":1: not carried over: targets.slurm.partition"),
    ],
)  # fmt: skip
def test_odd_directives_are_told_and_the_rest_is_valid(
    text: str, told: str, run: Run, tmp_path: Path
) -> None:
    out, err = spec_of(run, tmp_path, text)
    assert told in err
    assert "slurm" in read(out.encode(), "a")
    assert read(out.encode(), "a")["slurm"].job.procs_per_node >= 1


def test_of_a_line_with_several_commands_each_is_taken_once(run: Run, tmp_path: Path) -> None:
    out, _ = spec_of(run, tmp_path, "module load a && source b && torchrun train.py\n", "a.sh")
    job = read(out.encode(), "a")["local"].job
    assert job.python.activate == ("module load a", "source b")


def test_no_secret_gets_into_the_spec_or_what_is_said(run: Run, tmp_path: Path) -> None:
    text = """\
export HF_TOKEN=hf_abcdefghijk
export HUB=hf_lmnopqrstuv
API_KEY=very-secret-1
wandb login very-secret-1
torchrun train.py --hub_token $HF_TOKEN --k $API_KEY --api-key=very-secret-2 --password very-secret-3 --x hf_12345678
"""
    out, err = spec_of(run, tmp_path, text, "a.sh")
    assert "secret-" not in out + err
    assert "hf_" not in out + err
    job = read(out.encode(), "a")["local"].job
    assert {"HF_TOKEN", "HUB"} <= set(dict(job.secrets))
    assert job.train.args == (
        "--hub_token", "$HF_TOKEN", "--k", "$API_KEY", "--api-key=***", "--password", "***", "--x", "***",
    )  # fmt: skip
    for name in ("$HF_TOKEN", "$API_KEY", "--api-key, a secret", "--password, a secret"):
        assert name in err


OWN_DIRECTORY = [
    'cd "$(dirname "$0")/.."',
    "cd $(dirname -- ${BASH_SOURCE[0]})/.. || exit 1",
    'cd "${0%/*}/.."',
    'HERE=$( cd -- "$( dirname -- "${BASH_SOURCE[0]}" )" &> /dev/null && pwd )\ncd "$HERE/.."',
    'HERE="$(dirname "$(readlink -f "$0")")"\nROOT=$(cd "$HERE/.." && pwd -P)\ncd $ROOT',
    'HERE=$(dirname "$0")',  # and goes nowhere
]


@pytest.mark.parametrize("home", [".", "project", "project/scripts"])
@pytest.mark.parametrize("lines", OWN_DIRECTORY)
def test_a_script_that_goes_to_its_own_directory(
    lines: str, home: str, run: Run, tmp_path: Path
) -> None:
    (tmp_path / "project" / "scripts").mkdir(parents=True)
    train = tmp_path / "project" / "train.py"
    train.write_text("torch.save(x, 'y')\n")
    script = "train.py" if "cd " in lines else '"$HERE/../train.py"'
    text = (
        f'#!/bin/bash\n{lines}\ntorchrun --nproc-per-node=2 {script} --lr 1 --config $HERE/x "$@"\n'
    )
    (tmp_path / "project" / "scripts" / "run.sh").write_text(text)
    outcome = run("adopt", "project/scripts/run.sh", "-o", f"{home}/job.yaml")
    if home == "project/scripts" and "cd " in lines:
        assert outcome.code == 65
        assert "train.py is in project, " in outcome.err
        assert "-o project/job.yaml" in outcome.err
        return
    assert outcome.code == 0, outcome
    assert run("validate", f"{home}/job.yaml").code == 0
    job = read((tmp_path / home / "job.yaml").read_bytes(), "a")["local"].job
    assert (tmp_path / home / (job.code or [""])[0] / job.train.script).resolve() == train.resolve()
    assert job.train.args[:3] == ("--lr", "1", "--config")
    assert job.train.args[4:] == ()
    assert "run.sh:2: not" not in outcome.err
    assert 'no longer needed: "$@"' in outcome.err


def test_a_task_whose_workdir_is_elsewhere(run: Run, tmp_path: Path) -> None:
    (tmp_path / "x").mkdir()
    (tmp_path / "tasks").mkdir()
    (tmp_path / "x" / "train.py").write_text("torch.save(x, 'y')\n")
    task = "workdir: ../x\nfile_mounts:\n  /ckpt: {source: 's3://my-bkt', mode: MOUNT}\nrun: torchrun train.py\n"
    (tmp_path / "tasks" / "a.yaml").write_text(task)
    outcome = run("adopt", "tasks/a.yaml", "-o", "tasks/job.yaml")
    assert outcome.code == 65
    assert "train.py is in x, " in outcome.err
    assert "-o x/job.yaml" in outcome.err
    assert run("adopt", "tasks/a.yaml", "-o", "x/job.yaml").code == 0
    assert run("validate", "x/job.yaml").code == 0


def test_a_fixed_port_is_told_of_once(run: Run, tmp_path: Path) -> None:
    body = "export MASTER_PORT=29500\nsrun torchrun --master_port=$MASTER_PORT train.py\n"
    _, err = spec_of(run, tmp_path, f"#!/bin/bash\n{HEADER}{body}")
    assert err.count("port 29500 is fixed") == 1


def test_in_a_batch_script_the_own_directory_is_slurms(run: Run, tmp_path: Path) -> None:
    out, err = spec_of(
        run, tmp_path, f'#!/bin/bash\n{HEADER}cd "$(dirname "$0")"\nsrun torchrun train.py\n'
    )
    assert 'code: "."' in out
    assert "old.sbatch:6: trap: $0 " in err


@pytest.mark.parametrize(
    ("lines", "code"),
    [
        ("cd a\ncd b\ntorchrun train.py", "a/b"),
        ("cd b\ntorchrun train.py\ncd ..", "b"),
        ("R=$PWD\ncd a\ntorchrun $R/b/train.py\ncd $R", "."),
        ("(cd a; make)\ncd b; torchrun train.py", "b"),
        ("cd b\ncd ../a/b\ntorchrun train.py", "a/b"),
        ("cd a\ntorchrun -m pkg.main", "a"),
        ("cd a\npython -m torch.distributed.run -m pkg", "a"),
        ("torchrun -m installed.main", "."),
    ],
)
def test_the_code_is_where_the_training_starts(
    lines: str, code: str, run: Run, tmp_path: Path
) -> None:
    for name in ("a/b/train.py", "b/train.py", "a/pkg/main.py", "a/pkg/__main__.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("torch.save(x, 'y')\n")
    out, _ = spec_of(run, tmp_path, f"{lines}\n", "a.sh")
    assert read(out.encode(), "a")["local"].job.code == (code,)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("source venv/bin/activate\ntorchrun train.py", ":1: not carried over: the directory of source venv/bin/activate, "),
        (". .env\ntorchrun train.py", ":1: not carried over: the directory of . .env, "),
        ("cd src\nsource ../.venv/bin/activate\ntorchrun ../train.py", ":2: not carried over: the directory of source ../.venv"),
        ('export PYTHONPATH="$PWD/src:$PYTHONPATH"\ntorchrun train.py', ":1: not carried over: the directory of export PYTHONPATH="),
        ("cd src\nsource venv/bin/activate\nsrun torchrun ../train.py", ":2: not carried over: the directory of source venv"),
        ("cd src\ntorchrun sub.py --c=../c.yaml", ":2: not carried over: the place of the argument --c=../c.yaml; "),
        ("cd src\ntorchrun ../train.py d.yaml", ":2: not carried over: the place of the argument d.yaml; "),
        ("source venv/bin/activate\nsrun torchrun train.py", ""),
        ('export PYTHONPATH="$PWD/src:$PYTHONPATH"\nsrun torchrun train.py', ""),
        ("source /v/bin/activate\nsource ~/e\nsource $HOME/e\nsource activate e\ntorchrun train.py", ""),
        ("torchrun train.py c.yaml src/d.yaml e.yaml", ""),
        ("cd src\ntorchrun sub.py d.yaml " + "a" * 5000, ""),
    ],
)  # fmt: skip
def test_a_path_that_begins_elsewhere_in_the_job_is_named(
    text: str, told: str, run: Run, tmp_path: Path
) -> None:
    (tmp_path / "src").mkdir()
    for name in ("c.yaml", "src/d.yaml", "src/sub.py"):
        (tmp_path / name).touch()
    _, err = spec_of(run, tmp_path, f"{text}\n", "a.sh")
    assert told in err
    assert ("the directory of" in err or "the place of" in err) == bool(told)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("torchrun train.py --files src/*.yaml", ":1: not carried over: the argument src/*.yaml, for which bash "),
        ("cd src\ntorchrun sub.py ?.yaml", ":2: not carried over: the argument ?.yaml, for which bash "),
        ('F="src/*.y"\ntorchrun train.py ${F}aml', ":2: not carried over: the argument src/*.yaml, for which bash "),
        ("A=(src/*.yaml)\ntorchrun train.py \"${A[@]}\"", ":2: not carried over: the argument src/*.yaml, for which bash "),
        ("torchrun train.py /data/x-?.tar", ":1: not carried over: the argument /data/x-?.tar, for which bash "),
        ("torchrun train.py --files=/data/*.tar '/data/*.tar'", ""),
        ("torchrun train.py 'src/*.yaml'", ""),
        ('F="src/*.yaml"\ntorchrun train.py "$F"', ""),
        ("torchrun train.py src/*.txt a[0].b=1 --files=src/*.yaml", ""),
    ],
)  # fmt: skip
def test_a_pattern_of_files_is_named(text: str, told: str, run: Run, tmp_path: Path) -> None:
    (tmp_path / "src").mkdir()
    for name in ("src/d.yaml", "src/sub.py"):
        (tmp_path / name).touch()
    _, err = spec_of(run, tmp_path, f"{text}\n", "a.sh")
    assert told in err
    assert ("for which bash" in err) == bool(told)


def test_a_module_of_a_task_is_in_its_workdir(run: Run, tmp_path: Path) -> None:
    (tmp_path / "sub" / "pkg").mkdir(parents=True)
    (tmp_path / "sub" / "pkg" / "main.py").write_text("")
    task = "workdir: sub\nfile_mounts:\n  /ckpt: {source: 's3://my-bkt', mode: MOUNT}\nrun: torchrun -m pkg.main\n"
    out, _ = spec_of(run, tmp_path, task, "a.yaml")
    assert read(out.encode(), "a")["sky"].job.code == ("sub",)


# Ways to start train.py with 50 and --lr 1e-3, by which scripts were refused or read wrong.
FORMS = {
    "a command in a variable": 'LAUNCHER="torchrun --nproc_per_node=4"\nCMD="$LAUNCHER train.py 50 --lr 1e-3"\nsrun bash -c "$CMD"',
    "a command of eval": 'CMD="torchrun --nproc_per_node=4 train.py 50 --lr 1e-3"\neval "$(conda shell.bash hook)"\neval $CMD',
    "a command of eval that may fail": "P=train.py\nCMD='srun --ntasks-per-node=4 python -u $P 50 --lr \"1e-3\"'\neval $CMD || { echo; exit 1; }",
    "deepspeed": "srun deepspeed --no_local_rank --num_gpus 4 --num_nodes=2 --master_port 1 train.py 50 --lr 1e-3",
    "deepspeed that counts": "deepspeed --hostfile=h train.py 50 --lr 1e-3",
    "torchrun of a site": "srun torchrun_jsc --nproc_per_node=gpu --rdzv_conf=is_host=0 train.py 50 --lr 1e-3",
    "a comment between backquotes": "srun torchrun `# the nodes` --nproc_per_node=4 \\\n  train.py `#a`\\\n  50 --lr 1e-3 `# ok`",
    "a function that shifts": "run() {\n  local n=$1 f=$2; shift 2\n  srun torchrun --nproc_per_node=$n $f \"$@\"\n}\nmain() {\n  run 4 \"$1\" 50 --lr \"$2\"\n}\nmain train.py 1e-3",
    "a function behind another": "set_n() {\n  N=$1\n}\nrun() {\n  set_n 4\n  srun torchrun --nproc_per_node=$N $1 50 --lr \"$2\"\n}\nrun train.py 1e-3",
    "a command in pieces": "L=torchrun\nL+=' --nproc_per_node=4'\nA=(50)\nA+=(--lr\n  1e-3 # why\n)\nsrun $L train.py \"${A[@]}\"",
    "an address that only a machine knows": 'L="torchrun --nproc_per_node 4 --rdzv_endpoint $MASTER_ADDR:$PORT"\nsrun $L train.py 50 --lr 1e-3',
    "an option of srun without a value": "srun -K -l --kill-on-bad-exit torchrun --nproc_per_node=4 train.py 50 --lr 1e-3",
    "uv": "srun uv run --with wandb --no-sync torchrun --nproc_per_node=4 train.py 50 --lr 1e-3",
    "which": 'srun python "$(which torchrun)" --nproc_per_node=4 train.py 50 --lr 1e-3',
    "a dash dash": "srun torchrun --nproc_per_node=4 -- train.py 50 --lr 1e-3",
    "a function": "run() {\n  srun torchrun --nproc_per_node=4 \"$@\"\n}\nrun train.py 50 --lr 1e-3",
    "a subshell": "(export A=1; srun torchrun --nproc_per_node=$((2 << 1)) train.py 50 --lr 1e-3)",
    "a group": "{ srun torchrun --nproc_per_node=$((16 / SLURM_NNODES / 2)) train.py 50 --lr 1e-3; }",
    "numactl": "srun numactl --interleave=all env A=1 nice -n 5 torchrun --nproc_per_node=4 train.py 50 --lr 1e-3",
    "a word with two variables": "D=../x/..\nF=train\nsrun torchrun --nproc_per_node=4 $D/../x/../$F.py 50 --lr 1e-3",
    "variables on lines of a text": 'A="--lr 1e-3"\nN=50\nARGS=" \\\n    $N \\\n    $A \\\n    "\nsrun torchrun --nproc_per_node=4 train.py $ARGS',
    "options of Python": "srun --ntasks-per-node=4 python3 -uB -W ignore -Xfaulthandler -X dev -O train.py 50 --lr 1e-3",
    "options of Python and -m": "srun python -Wignore -u -m torch.distributed.run --nproc_per_node=4 train.py 50 --lr 1e-3",
    "values that are cut": "F=configs/a.b/train.py\nN=(1 2 3 4)\nE=${F##*/}\nsrun torchrun --nproc_per_node=${#N[@]} ${E%.*}.py 50 --lr 1e-3",
    "the shortest and the longest cut": "F=a.train.py.x\nG=${F#*.}\nH=y/z/50\nsrun torchrun --nproc_per_node=4 ${G%.*} ${H##*/} --lr ${NO-${LR-1e-3}}",
    "a number of lines": "srun torchrun --nproc_per_node=$(nvidia-smi -L | wc -l) train.py 50 --lr 1e-3",
    "a default": ': "${N:=4}"\nsrun torchrun --nproc_per_node=$N train.py ${STEPS:-50} --lr ${LR-1e-3}',
    "tools before it": "python -m venv env\npython3 -m pip install -r a.txt\npython -m torch.utils.collect_env\nsrun torchrun --nproc_per_node=4 train.py 50 --lr 1e-3",
    "tools before Python": "python -m pip list\n#\nsrun --ntasks-per-node=4 python train.py 50 --lr 1e-3",
    "pixi": "srun pixi run -e cuda torchrun --nproc_per_node=4 train.py 50 --lr 1e-3",
    "flags of accelerate": "srun accelerate launch --debug -q --enable_cpu_affinity --use_megatron_lm --num_processes 8 --tpu train.py 50 --lr 1e-3",
    "a flag of torchrun": "srun torchrun --nproc_per_node=4 --virtual-local-rank train.py 50 --lr 1e-3",
    "numactl with blanks": "srun numactl --cpunodebind 0 --membind 0 torchrun --nproc_per_node=4 train.py 50 --lr 1e-3",
    "$PWD": "srun torchrun --nproc_per_node=4 $(pwd)/train.py 50 --lr 1e-3",
    "timeout": "timeout -k 5 23h srun torchrun --nproc_per_node=4 train.py 50 --lr 1e-3",
    "words that only a machine knows": "srun $MORE torchrun $OPTIONS --nproc_per_node=4 train.py 50 --lr 1e-3",
    "a text that is read": "N=4\nread -r -d '' CMD <<EOF\ntrue \\\n&& torchrun --nproc_per_node=$N train.py 50 --lr 1e-3\nEOF\nsrun bash -c \"$CMD\"",
    "a here-document": "cat <<EOF && srun torchrun --nproc_per_node=4 train.py 50 --lr 1e-3\ntorchrun\nEOF",
}  # fmt: skip


@pytest.mark.parametrize("form", FORMS)
def test_a_form_of_the_launch_is_the_same_job(form: str, run: Run, tmp_path: Path) -> None:
    out, err = spec_of(run, tmp_path, f"#!/bin/bash\n{HEADER}{FORMS[form]}\n")
    job = read(out.encode(), "a")["slurm"].job
    assert (job.train.script, job.train.args) == ("train.py", ("50", "--lr", "1e-3"))
    assert (job.procs_per_node, job.gpus_per_node) == (4, 4)
    for words, forms in {
        ":6: not carried over: uv run --with wandb --no-sync;": ["uv"],
        ":6: not carried over: timeout -k 5 23h;": ["timeout"],
        ":6: not carried over: -O; write PYTHONOPTIMIZE": ["options of Python"],
        ":6: not carried over: -X faulthandler": ["options of Python"],
        ":6: not carried over: -W ignore; write PYTHONWARNINGS": [
            "options of Python",
            "options of Python and -m",
        ],
        ":6: not carried over: numactl --interleave=all\n": ["numactl"],
        ":6: not carried over: $MORE;": ["words that only a machine knows"],
        ":6: not carried over: $OPTIONS;": ["words that only a machine knows"],
    }.items():
        assert (words in err) == (form in forms)


def test_braces_in_quotes_stay_as_they_are(run: Run, tmp_path: Path) -> None:
    text = 'torchrun train.py \'{1,2}\' "{3..4}" ${A:-5,6} "{\\"a\\":{\\"b\\":1,\\"c\\":2}}"\n'
    out, err = spec_of(run, tmp_path, text, "a.sh")
    assert read(out.encode(), "a")["local"].job.train.args == (
        "{1,2}",
        "{3..4}",
        "5,6",
        '{"a":{"b":1,"c":2}}',
    )
    assert "whose value" not in err


def test_the_directory_of_a_container_may_be_that_of_the_script(run: Run, tmp_path: Path) -> None:
    launch = "srun apptainer exec --pwd $PWD a.sif torchrun train.py\n"
    assert "--pwd" not in spec_of(run, tmp_path, launch)[1]


def test_a_set_of_accelerators(run: Run, tmp_path: Path) -> None:
    task = "resources: {accelerators: {L4:4, A10G:4}}\nrun: torchrun --nproc_per_node=4 train.py\n"
    job = read(spec_of(run, tmp_path, task, "a.yaml")[0].encode(), "a")["sky"].job
    assert (job.gpus_per_node, job.accelerators) == (4, ("L4:4", "A10G:4"))  # type: ignore[attr-defined]


@pytest.mark.parametrize("more", ["", "--use_env "])
def test_the_launcher_that_adds_the_local_rank(more: str, run: Run, tmp_path: Path) -> None:
    _, err = spec_of(run, tmp_path, f"python -m torch.distributed.launch {more}train.py\n", "a.sh")
    assert (":1: not carried over: --local-rank=N, which" in err) == (not more)
    assert ('os.environ["LOCAL_RANK"]' in err) == (not more)


def test_torchrun_without_python_is_a_command(run: Run, tmp_path: Path) -> None:
    launch = "torchrun --nproc_per_node=4 --no-python ./run.sh --lr 3"
    out, err = spec_of(run, tmp_path, f"cd /x\n{launch}\n", "a.sh")
    assert '  command:  # 2\n    - "./run.sh"\n    - "--lr"\n    - "3"\n' in out
    told = [line for line in err.splitlines() if "cd /x" not in line and "GPUs" not in line]
    assert len(told) == 1
    assert "train.command: " in told[0]
    assert "write resume: " in told[0]


@pytest.mark.parametrize(
    ("line", "activate"),
    [
        ("export PATH=/a/b:$PATH", 'export PATH="/a/b:$PATH"'),
        ("export PATH=/c:${PATH}", 'export PATH="/c:${PATH}"'),
        ("export LD_LIBRARY_PATH=/a:${LD_LIBRARY_PATH:-}", 'export LD_LIBRARY_PATH="/a:${LD_LIBRARY_PATH:-}"'),
        ("export PATH=/a:${PATH:-/usr/bin}", 'export PATH="/a:${PATH:-/usr/bin}"'),
        ("export PYTHONPATH=/a${PYTHONPATH:+:$PYTHONPATH}", 'export PYTHONPATH="/a${PYTHONPATH:+:$PYTHONPATH}"'),
        ("export PATH=$HOME/bin:$PATH", 'export PATH="$HOME/bin:$PATH"'),
        ("export HF_HOME=$HOME/hf", 'export HF_HOME="$HOME/hf"'),
        ("export LD_LIBRARY_PATH=$CUDA_HOME/lib64:$LD_LIBRARY_PATH", 'export LD_LIBRARY_PATH="$CUDA_HOME/lib64:$LD_LIBRARY_PATH"'),
        ("export API_KEY=$API_KEY", ""),
        ("export LD=/d:$WHERE", ""),
    ],
)  # fmt: skip
def test_a_variable_that_goes_on_from_the_machines_is_set_on_the_hosts(
    line: str, activate: str, run: Run, tmp_path: Path
) -> None:
    out, err = spec_of(run, tmp_path, f"{line}\ntorchrun train.py\n", "a.sh")
    job = read(out.encode(), "a")["local"].job
    assert (job.python.activate, dict(job.env)) == ((activate,) if activate else (), {})
    assert ("only a machine knows" in err) == ("$WHERE" in line)
    assert ("API_KEY; it stays out of every file" in err) == ("API_KEY" in line)


@pytest.mark.parametrize(
    ("command", "container"),
    [
        (
            "srun --container-image=nvcr.io#nvidia/pytorch:24.05-py3 --container-mounts=/a:/b,/c --container-writable torchrun train.py",
            ("nvcr.io#nvidia/pytorch:24.05-py3", "pyxis", ("/a:/b", "/c"), ("--container-writable",)),
        ),
        (
            "srun singularity exec --nv -B /a:/b --bind /c --contain ~/img.sif python -m torch.distributed.run train.py",
            ("~/img.sif", "apptainer", ("/a:/b", "/c"), ("--contain",)),
        ),
        ("srun apptainer run ~/img.sif bash -c 'torchrun train.py'", ("~/img.sif", "apptainer", (), ())),
    ],
)  # fmt: skip
def test_a_container_of_the_script_is_the_jobs(
    command: str, container: tuple[object, ...], run: Run, tmp_path: Path
) -> None:
    out, _ = spec_of(run, tmp_path, f"#!/bin/bash\n{HEADER}{command}\n")
    job = read(out.encode(), "a")["slurm"].job
    assert job.train.script == "train.py"
    found = job.environment.container  # type: ignore[attr-defined]
    assert (found.image, found.runtime, found.mounts, found.options) == container


def test_a_refused_item_of_a_list_leaves_the_others(run: Run, tmp_path: Path) -> None:
    command = (
        "srun --container-image=a/b:1 --container-mounts=$PWD:/w,/a:/b,$PWD/x:/x torchrun t.py"
    )
    out, err = spec_of(run, tmp_path, f"#!/bin/bash\n{HEADER}{command}\n")
    job = read(out.encode(), "a")["slurm"].job
    assert job.environment.container.mounts == ("/a:/b",)  # type: ignore[attr-defined]
    assert "mounts[0]: $PWD:/w: " in err
    assert "mounts[2]: $PWD/x:/x: " in err


def test_modules_are_loaded_outside_of_the_container(run: Run, tmp_path: Path) -> None:
    body = "module load a b\nmodule use /m ~/n\nsource out\nsrun apptainer exec /i.sif bash -c 'source in && torchrun train.py'"
    out, err = spec_of(run, tmp_path, f"#!/bin/bash\n{HEADER}{body}\n")
    job = read(out.encode(), "a")["slurm"].job
    assert (job.environment.modules, job.python.activate) == (
        ("a", "b", "use /m", "use ~/n"),
        ("source in",),
    )  # type: ignore[attr-defined]
    assert ":8: not carried over: source out; " in err


@pytest.mark.parametrize(
    ("program", "interpreter"),
    [("/opt/env/bin/torchrun", "/opt/env/bin/python"), ("$HOME/e/bin/python3.11 -m torch.distributed.run", "~/e/bin/python3.11"),
     ("./env/bin/torchrun", "python3")],
)  # fmt: skip
def test_a_launcher_named_by_its_path(
    program: str, interpreter: str, run: Run, tmp_path: Path
) -> None:
    out, err = spec_of(run, tmp_path, f"{program} train.py\n", "a.sh")
    job = read(out.encode(), "a")["local"].job
    assert (job.python.interpreter, job.train.script) == (interpreter, "train.py")
    assert (":1: not carried over: ./env/bin/torchrun; " in err) == (interpreter == "python3")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("cd /elsewhere\nsrun torchrun train.py", ":6: not carried over: cd /elsewhere; "),
        ("cd $WORK/x\nsrun torchrun train.py", ":6: not carried over: cd $WORK/x; "),
        ("cd ~/x\nsrun torchrun train.py", ":6: not carried over: cd ~/x; "),
        ("cd /elsewhere\nsrun torchrun -m installed.pkg", ":6: not carried over: cd /elsewhere; "),
        ("#SBATCH --chdir=/elsewhere\nsrun torchrun train.py", ":6: not carried over: --chdir=/elsewhere; "),
        ("srun --cpu-bind=none torchrun train.py", ":6: not carried over: srun --cpu-bind=none; "),
        ("srun --cpus-per-gpu 8 -m block torchrun train.py", ":6: not carried over: srun --distribution=block; "),
        ("srun --export=A=1,B torchrun train.py", ":6: not carried over: srun --export=A=1,B; the job gets all variables"),
        ("srun deepspeed train.py", ":6: not carried over: --local_rank=N, which deepspeed adds to the arguments of each process; "),
        ("srun deepspeed --hostfile h train.py", ":6: not carried over: --hostfile=h"),
        ('export PYTHONPATH="$(dirname "$0")/..:$PYTHONPATH"\nsrun torchrun train.py', ":6: not carried over: the directory of export PYTHONPATH="),
        ('f() {\n  shift\n  srun torchrun train.py "$@"\n}\nf "$1" b', ":7: not carried over: shift"),
        ("trap 'again' SIGUSR1\nsrun torchrun train.py", ":6: no longer needed: trap 'again' SIGUSR1"),
        ("again() {\n  scontrol requeue $SLURM_JOB_ID\n}\nsrun torchrun train.py", ":7: no longer needed: scontrol requeue"),
        ("trap 'rm -r x' EXIT\nsrun torchrun train.py", ":6: not carried over: trap 'rm -r x' EXIT"),
        ("srun python -W ignore train.py", ":6: not carried over: -W ignore; write PYTHONWARNINGS in env"),
        ("srun --container-workdir=/w torchrun train.py", ":6: not carried over: srun --container-workdir=/w; the job works"),
        ("srun --multi-prog torchrun train.py", ":6: not carried over: srun --multi-prog"),
        ("#SBATCH --ntasks-per-socket=2\nsrun torchrun train.py", ":6: not carried over: --ntasks-per-socket=2; "),
        ('X=$(a)\nsrun bash -c "torchrun --node_rank=$SLURM_NODEID train.py"', ":7: trap: the node's rank is filled in once"),
        ("I=scratch\n[ -f a ] && I=resume\nsrun torchrun train.py --init=$I", ":7: not carried over: I=resume; "),
        ("[ -f a ] && I=resume\nsrun torchrun train.py --init=$I", ":7: not carried over: --init= resume, where a is there; "),
        ("[ -f a ] && I=resume\nsrun torchrun train.py --init $I", ":7: not carried over: --init resume, where a is there; "),
        ("srun torchrun train.py\nif x; then\n  y", ":9: not carried over: missing fi and what follows, which is no bash"),
        ("srun torchrun train.py\necho ) x", ":7: not carried over: ) and what follows, which is no bash"),
        ("srun torchrun --nnodes=1:$N train.py", ":6: not carried over: --nnodes=1:$N; the spec's job has 2 nodes"),
        ("A[0]=1\nsrun torchrun train.py", ":6: not carried over: A[0]=1"),
        ("exec > log 2>&1\nsrun torchrun train.py", ":6: not carried over: exec > log 2>&1"),
        ("srun torchrun train.py > log 2>&1", ":6: not carried over: > log"),
        ("(srun torchrun train.py) &>> log", ":6: not carried over: &>> log"),
        ("srun bash -c 'torchrun train.py < in'", ":6: not carried over: < in"),
        ("srun torchrun train.py {1,2}", ":6: not carried over: the argument {1,2}, whose value adopt does not know"),
        ("srun torchrun train.py --n=x{1..3}", ":6: not carried over: the argument --n=x{1..3}, whose value"),
        ("srun apptainer run --pwd /w a.sif torchrun train.py", ":6: not carried over: apptainer --pwd=/w; the job works"),
        ("srun numactl -N 0 torchrun train.py", ":6: not carried over: numactl -N 0"),
        ("taskset -c 0-7 timeout 3h srun torchrun train.py", ":6: not carried over: taskset -c 0-7"),
        ("srun nsys profile -o x uv run torchrun train.py", ":6: not carried over: nsys profile -o x\n"),
        ("A=($(hosts))\nsrun torchrun train.py ${#A[@]}", ":7: not carried over: the argument ${#A[@]}, whose value adopt"),
        ("A=(*.tar)\nsrun torchrun train.py ${#A[@]}", ":7: not carried over: the argument ${#A[@]}, whose value adopt"),
        ("> log srun torchrun train.py", ":6: not carried over: > log"),
        ("srun apptainer exec --pwd $PWD/src a.sif torchrun train.py", ":6: not carried over: apptainer --pwd=$PWD/src"),
        ("A=xx\nsrun torchrun train.py ${#A[@]}", ":7: not carried over: the argument ${#A[@]}, whose value adopt"),
        ("X=$TMPDIR/a.b\nsrun torchrun train.py ${X%.*}", ":7: not carried over: the argument ${X%.*}, whose value adopt"),
    ],
)  # fmt: skip
def test_what_is_dropped_is_named(text: str, told: str, run: Run, tmp_path: Path) -> None:
    _, err = spec_of(run, tmp_path, f"#!/bin/bash\n{HEADER}{text}\n")
    assert told in err


@pytest.mark.parametrize(
    ("directives", "gpus"), [("--exclusive", 0), ("--gres=gpu", 1), ("--gres=gpu:a100", 1), ("--gpus=a100:8", 4)]
)  # fmt: skip
def test_a_script_without_a_number_of_gpus_is_asked_for_it(
    directives: str, gpus: int, run: Run, tmp_path: Path
) -> None:
    text = f"#SBATCH -N 2 {directives}\nsrun torchrun --nproc-per-node=8 train.py\n"
    out, err = spec_of(run, tmp_path, text)
    assert (read(out.encode(), "a")["slurm"].job.gpus_per_node or 0) == gpus
    assert (":2: not carried over: whether it trains on GPUs" in err) == (gpus == 0)


# Directives, options of srun with the command → nodes, processes and GPUs of a node, CPUs of a process, other fields.
STEPS = [
    ("-N 2 --gpus-per-node=4", "--ntasks-per-node=4 --cpus-per-task=16 python", (2, 4, 4, 16), {}),
    ("-N 2 --exclusive", "-N 2 --ntasks-per-node=1 --gres=gpu:4 --cpus-per-task=48 torchrun --nproc-per-node=4", (2, 4, 4, 12),
     {"gpu_request": "gres", "exclusive": True}),
    ("-N 2 --ntasks-per-node=4 -c 8 --gres=gpu:a100:4", "-N 2 -n 2 --ntasks-per-node=1 -c 32 --gpus=8 torchrun --nproc-per-node=4",
     (2, 4, 4, 8), {"gpu_request": "gres", "gpu_type": "a100"}),
    ("-N 2-4 --ntasks-per-node=2 -c 8 -G 8 --mem-per-gpu=9G -t 60", "--mem=0 -w n1 --exclusive -t 9 -N $SLURM_NNODES -n 4 torchrun --nproc-per-node=2",
     (4, 2, 2, 8), {"time": 3600.0, "exclusive": False, "nodelist": None, "mem": None}),
    ("", "-A proj -p gpu -t 2:00:00 -N 1 --gres=gpu:4 --ntasks-per-node=4 -c 8 --mem=100G --constraint=x -J job python", (1, 4, 4, 8),
     {"account": "proj", "partition": "gpu", "time": 7200.0, "mem": "100G", "constraint": "x", "name": "job"}),
    ("", "-p gpu --gres=gpu:8 --ntasks=16 --ntasks-per-node=8 --cpus-per-task=5 python -u", (2, 8, 8, 5), {}),
    ("--tasks-per-node=4 -N 2 --gpus-per-node=3090:4 -c 8", "python", (2, 4, 4, 8), {"gpu_type": "3090", "extra": ()}),
    ("-N 2 --gpus-per-node=4", "--export=ALL,A=1 --ntasks-per-node=4 -c 2 python", (2, 4, 4, 2), {"env": {"A": "1"}}),
    ("--tasks=4 --gres=gpu:3090:4 -c 8", "python", (1, 4, 4, 8), {"gpu_type": "3090", "gpu_request": "gres", "extra": ()}),
    ("--gres=nvme:100,gpu:a100:4,ssd -c 40", "torchrun --nproc-per-node=4", (1, 4, 4, 10), {"gpu_type": "a100", "extra": ("--gres=nvme:100", "--gres=ssd")}),
]  # fmt: skip


@pytest.mark.parametrize(("directives", "command", "size", "others"), STEPS)
def test_sizes_of_directives_and_of_srun_are_the_jobs(
    directives: str,
    command: str,
    size: tuple[int, ...],
    others: dict[str, object],
    run: Run,
    tmp_path: Path,
) -> None:
    head = f"#SBATCH {directives}\n" if directives else ""
    out, err = spec_of(run, tmp_path, f"{head}srun {command} train.py\n")
    job: Any = read(out.encode(), "a")["slurm"].job
    assert (int(job.nodes), job.procs_per_node, job.gpus_per_node, job.cpus_per_proc) == size
    assert {name: getattr(job, name) for name in others} == others
    for untrue in ("whether it trains on GPUs", "--cpus-per-task", "tasks on a node", "gres"):
        assert untrue not in err


@pytest.mark.parametrize(
    ("directives", "option", "told"),
    [
        ("--gpus-per-node=4", "-p $P", ":2: not carried over: srun --partition=$P"),
        ("-N 2 --gpus-per-node=4", "-N 1", ":2: not carried over: srun --nodes=1; the spec's job has 2 nodes"),
        ("--gres=gpu:a100:2,gpu:v100:2", "-n 1", ":1: not carried over: --gres=gpu:a100:2,gpu:v100:2; write gpus_per_node"),
    ],
)  # fmt: skip
def test_an_option_of_srun_that_is_dropped_is_named(
    directives: str, option: str, told: str, run: Run, tmp_path: Path
) -> None:
    _, err = spec_of(run, tmp_path, f"#SBATCH {directives}\nsrun {option} torchrun train.py\n")
    assert f"old.sbatch{told}" in err


@pytest.mark.parametrize(
    "lines",
    [
        "srun torchrun train.py 2>&1 >/dev/null",
        "exec 2>&1\nsrun torchrun train.py",
        "set -euo pipefail\nsrun torchrun train.py | tee log",
        "srun torchrun train.py |& tee log\nexit ${PIPESTATUS[0]}",
        "srun torchrun train.py || exit 1",
        "deepspeed --hostfile h train.py",
        "srun torchrun train.py || { echo failed; exit 3; }",
        "srun torchrun train.py &\nPID=$!\nwait $PID",
        "srun torchrun --rdzv_endpoint=$(hostname):$PORT train.py",
        'srun bash -c "torchrun --rdzv_endpoint=$HOSTNAME:0 train.py"',
        "#SBATCH --exclusive\nexport MASTER_PORT=29500\nsrun torchrun --master_port=29500 train.py",
    ],
)
def test_what_is_no_trap(lines: str, run: Run, tmp_path: Path) -> None:
    _, err = spec_of(run, tmp_path, f"#!/bin/bash\n{HEADER}{lines}\n")
    told = [line for line in err.splitlines() if ": trap: " in line and "CPU" not in line]
    assert told == []
    assert "/dev/null" not in err
    assert "2>&1" not in err


PARTS = [
    ("--export=ALL,OFFLINE=1,DATA=/c4", {"env": {"OFFLINE": "1", "DATA": "/c4"}}, "export"),
    ("--mail-type=begin\n#SBATCH --mail-type=end,fail --mail-user=a@b.org", {"mail_on": ("BEGIN", "END", "FAIL")}, "mail"),
    ("--threads-per-core=1", {"extra": ("--threads-per-core=1",)}, "threads"),
    ("-S 0", {"extra": ("--core-spec=0",)}, "core-spec"),
    ("--job-name=resnet50_v1.5", {"name": "resnet50_v1.5"}, "name"),
    ("-n 1\nset -e\nset -a; source .env; set +a", {"python": ("set -a", "source .env", "set +a")}, "set"),
    ("-n 1\nulimit -n 65536", {"python": ("ulimit -n 65536 || true",)}, "ulimit"),
    ("-n 1\nspack load cuda", {"python": ("spack load cuda",)}, "spack"),
    ("-n 6", {"cpus_per_proc": 6}, "cpus-per-task"),
    ("-n 1", {"cpus_per_proc": None}, "cpus-per-task"),
    ("--err=x-%j --exclus", {"exclusive": True, "extra": ()}, "not carried over: --e"),
]  # fmt: skip


@pytest.mark.parametrize(("lines", "expected", "untrue"), PARTS)
def test_a_part_of_a_directive_is_kept(
    lines: str, expected: dict[str, object], untrue: str, run: Run, tmp_path: Path
) -> None:
    out, err = spec_of(run, tmp_path, f"#SBATCH {lines}\ntorchrun train.py --data $DATA\n")
    job: Any = read(out.encode(), "a")["slurm"].job
    found = {name: getattr(job, name) for name in expected}
    assert {**found, "python": job.python.activate} == {"python": (), **expected}
    assert untrue not in err


def test_tasks_without_a_number_of_nodes_are_named(run: Run, tmp_path: Path) -> None:
    text = "#SBATCH --ntasks=16 --gpus-per-task=1\nsrun python train.py\n"
    assert (
        ":1: not carried over: --ntasks=16, which Slurm may divide otherwise"
        in spec_of(run, tmp_path, text)[1]
    )


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("HF_HOME=$HOME/hf torchrun train.py", ('export HF_HOME="$HOME/hf"',)),
        ("export A=$HOME/a\nexport B=$A/b\ntorchrun train.py", ('export A="$HOME/a"', 'export B="$A/b"')),
    ],
)  # fmt: skip
def test_a_variable_of_the_machine_is_kept(
    text: str, kept: tuple[str, ...], run: Run, tmp_path: Path
) -> None:
    out, err = spec_of(run, tmp_path, f"{text}\n")
    assert read(out.encode(), "a")["local"].job.python.activate == kept
    assert "only a machine knows" not in err


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("#SBATCH -n 8 --gpus-per-task=1\nsrun -N 2 python train.py\n", (2, 4)),
        ("echo hi; srun -N 2 --ntasks-per-node=4 --gres=gpu:4 python train.py\n", (2, 4)),
        ("#SBATCH -N 2\nsrun -p debug --ntasks-per-node=4 python train.py\n", (2, 4)),
        ("#SBATCH -N 2-4 -n 4 --ntasks-per-node=2\nsrun python train.py\n", (4, 2)),
        ("#SBATCH -N 2 --ntasks-per-node=2\nsrun -N 2 python train.py\n", (2, 2)),
    ],
)
def test_sizes_of_a_job_and_its_step(
    text: str, size: tuple[int, int], run: Run, tmp_path: Path
) -> None:
    out, err = spec_of(run, tmp_path, text)
    job: Any = read(out.encode(), "a")["slurm"].job
    assert (int(job.nodes), job.procs_per_node) == size
    assert job.partition is None
    assert not any(f"not carried over: {each}" in err for each in ("--ntasks", "srun --nodes"))


def test_options_without_a_field_go_into_extra(run: Run, tmp_path: Path) -> None:
    text = "#SBATCH -N 2-4 --hint=nomultithread --mem-per-gpu=4G\n#SBATCH --gpus-per-node=4 --cpus-per-gpu=3\n"
    out, err = spec_of(run, tmp_path, f"{text}srun torchrun --nproc-per-node=2 train.py\n")
    job = read(out.encode(), "a")["slurm"].job
    assert job.extra == ("--hint=nomultithread", "--mem-per-gpu=4G")  # type: ignore[attr-defined]
    assert (job.nodes.minimum, int(job.nodes), job.cpus_per_proc) == (2, 4, 6)  # type: ignore[attr-defined]
    assert "--cpus-per-task" not in err


@pytest.mark.parametrize(
    ("mount", "where", "url"),
    [
        ("{name: b-1, mode: MOUNT}", "cloud: gcp", "gs://b-1"),
        ("{name: b-1, mode: MOUNT}", "infra: aws/us-east-1", "s3://b-1"),
        ("{name: b-1, store: gcs}", "cloud: aws", "gs://b-1"),
        ("{name: b-1, store: R2}", "cloud: aws", "r2://b-1"),
        ("{name: b-1}", "cpus: 4", None),
        ("{name: b-1}", "cloud: azure", None),
    ],
)
def test_a_bucket_is_one_of_its_cloud(
    mount: str, where: str, url: str | None, run: Run, tmp_path: Path
) -> None:
    task = f"resources: {{{where}}}\nfile_mounts: {{/c: {mount}}}\nenvs: {{A: , B: ''}}\nrun: torchrun train.py $A $B\n"
    out, err = spec_of(run, tmp_path, task, "a.yaml")
    job = read(out.encode(), "a")["sky"].job
    bucket = job.bucket  # type: ignore[attr-defined]
    assert (bucket and bucket.url) == url
    assert ("file_mounts /c, whose kind of bucket" in err) == (url is None)
    assert dict(job.env) == {"B": ""}
    assert ":3: not carried over: the variable A, " in err


@pytest.mark.parametrize(
    ("lines", "told"),
    [
        ("resources: {labels: {a: b}}", ":1: not carried over: resources.labels; write targets.sky.labels"),
        ("resources: {job_recovery: none}", ":1: not carried over: resources.job_recovery; write targets.sky.recovery"),
        ("resources: {ports: 80}", ":1: not carried over: resources.ports; write it in targets.sky.extra"),
        ("resources: {any_of: [{accelerators: L4}]}", ":1: not carried over: resources.any_of; write targets.sky.accel"),
        ("file_mounts: {/data: 's3://my-data'}", ":1: not carried over: file_mounts /data; write it in targets.sky.extra"),
        ("file_mounts: {/data: ./data}", ":1: not carried over: file_mounts /data; put small files below code"),
        ("service: {replicas: 2}", ":1: not carried over: service: makes a service, and not a job"),
    ],
)  # fmt: skip
def test_a_key_of_skypilot_has_its_remedy(lines: str, told: str, run: Run, tmp_path: Path) -> None:
    _, err = spec_of(run, tmp_path, f"{lines}\nrun: torchrun train.py\n", "a.yaml")
    assert told in err


@pytest.mark.parametrize(
    ("name", "text", "told"),
    [
        ("a.csh", "#!/bin/csh\ntorchrun train.py\n", "is a script for csh; give one for bash"),
        ("a.yaml", "name: a\n---\nrun: torchrun train.py\n", "has several YAML documents, and the first"),
    ],
)  # fmt: skip
def test_a_file_of_another_kind_is_refused(
    name: str, text: str, told: str, run: Run, tmp_path: Path
) -> None:
    (tmp_path / name).write_text(text)
    outcome = run("adopt", name)
    assert outcome.code != 0
    assert told in outcome.err


def test_srun_in_an_echo_makes_no_batch_script(run: Run, tmp_path: Path) -> None:
    out, _ = spec_of(run, tmp_path, 'echo "use srun x"\ntorchrun train.py\n', "a.sh")
    assert "slurm" not in read(out.encode(), "a") or "requeues" not in out


def test_without_tree_sitter_the_extra_is_named(tmp_path: Path) -> None:
    program = (
        "import sys; sys.modules['tree_sitter'] = None; from ddpgen import cli; sys.exit(cli.run())"
    )
    (tmp_path / "a.sh").write_text("torchrun train.py\n")
    done = subprocess.run(
        [sys.executable, "-c", program, "adopt", "a.sh"],
        cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == 69
    assert "pip install 'ddpgen[adopt]'" in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_job_that_may_not_be_requeued_is_not(run: Run, tmp_path: Path) -> None:
    out, err = spec_of(run, tmp_path, "#SBATCH --no-requeue\nsrun torchrun train.py\n")
    assert read(out.encode(), "a")["slurm"].job.requeues == 0  # type: ignore[attr-defined]
    assert "requeue" not in err


@pytest.mark.parametrize(
    "line",
    [
        'read -r A <<< "yes"',
        "BATCH=$((1 << N))",
        "echo a # see cat <<EOF",
        "cat > x <<EOF\ntorchrun other.py\nEOF",
        "cat <<EOF>x\ntorchrun other.py\nEOF",
        "X=$(cat <<EOF\ntorchrun other.py\nEOF\n)",
        "cat <<-'END' > x # torchrun\ntorchrun other.py\n\tEND",
        "cat << END\ntorchrun other.py\nEND",
        "echo ${#A[@]} $# a#b; A=1",
    ],
)
def test_no_line_swallows_the_training(line: str, run: Run, tmp_path: Path) -> None:
    out, _ = spec_of(run, tmp_path, f"{line}\ntorchrun train.py --x=a#b # and why\n", "a.sh")
    train = read(out.encode(), "a")["local"].job.train
    assert (train.script, train.args) == ("train.py", ("--x=a#b",))


def test_an_image_of_pyxis_begins_no_comment(run: Run, tmp_path: Path) -> None:
    text = f"#!/bin/bash\n{HEADER}srun --container-image=nvcr.io#nvidia/pytorch:24.05-py3 torchrun train.py\n"
    out, _ = spec_of(run, tmp_path, text)
    assert read(out.encode(), "a")["slurm"].job.train.script == "train.py"
