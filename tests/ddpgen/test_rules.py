"""Combinations that cannot run, each refused where the user can change it."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from ddpgen.lint import lines
from ddpgen.tiers.registry import read
from tests.ci import do_without
from tests.ddpgen.conftest import Fault, faults, findings, named

BASE = """\
name: a
nodes: {nodes}
procs_per_node: {procs}
backend: {backend}
gpus_per_node: {gpus}
{top}
train:
  {what}
  global_batch_size: {batch}
  micro_batch_size: {micro}
  {train}
"""
PLAIN = {
    "nodes": 1,
    "procs": 2,
    "backend": "auto",
    "gpus": "null",
    "top": "restarts: 3",
    "what": "{workload: gpt, steps: 100}",
    "batch": 16,
    "micro": 4,
    "train": "seed: 0",
}


def spec(**changes: object) -> str:
    values = {**PLAIN, **changes}
    values["what"] = str(values["what"]).strip("{}").replace(", ", "\n  ")
    return BASE.format(**values)


CONFLICTS = [
    ({"procs": 5}, "3:17 procs_per_node", "micro-batches"),
    ({"batch": 10**18}, "10:22 train.global_batch_size", "range"),
    ({"micro": 5}, "10:22 train.global_batch_size", "multiple"),
    ({"backend": "nccl"}, "4:10 backend", "GPUs"),
    ({"backend": "nccl", "gpus": 1}, "3:17 procs_per_node", "share 1 GPU;"),
    ({"what": "{workload: gpt, steps: 100, epochs: 2}"}, "10:11 train.epochs", "both"),
    (
        {"what": "{workload: gpt, script: a.py, steps: 1}", "top": "code: ."},
        "9:11 train.script",
        "both",
    ),
    ({"what": "{steps: 1}"}, "8:3 train", "there is no workload"),
    ({"train": "warmup_steps: 100"}, "12:17 train.warmup_steps", "warm-up"),
    ({"train": "precision: fp16"}, "12:14 train.precision", "GPU"),
    ({"train": "comm_hook: fp16"}, "12:14 train.comm_hook", "tree"),
    ({"train": "reduction: allreduce\n  shard: optimizer"}, "13:10 train.shard", "same gradients"),
    ({"train": "reduction: allreduce\n  comm_hook: powersgd"}, "13:14 train.comm_hook", "nccl"),
    ({"train": "early_stop: {patience: 2}"}, "12:15 train.early_stop", "best: loss"),
    ({"train": "best: accuracy\n  eval_every: 5 steps"}, "12:9 train.best", "accuracy"),
    ({"train": "args: {dept: 4, width: 128}"}, "12:16 train.args.dept", "depth?"),
    (
        {"train": "best: {metric: accuracy, mode: max}\n  eval_every: 5 steps"},
        "12:18 train.best.metric",
        "loss, bits_per_byte",
    ),
    ({"top": "env: {TORCH_DISTRIBUTED_DEBUG: FULL}"}, "6:32 env.TORCH_DISTRIBUTED_DEBUG", "DETAIL"),
    ({"train": "profile: 101..110"}, "12:12 train.profile", "last"),
    ({"train": "best: loss"}, "12:9 train.best", "one evaluation"),
    ({"procs": 3, "train": "reduction: allreduce"}, "3:17 procs_per_node", "evenly"),
    ({"what": "{workload: m.py:build, steps: 100}"}, "8:13 train.workload", "code"),
    ({"top": "env: {RANK: 0}"}, "6:13 env.RANK", "torchrun"),
    ({"top": "env: {DDPGEN_X: 0}"}, "6:17 env.DDPGEN_X", "torchrun"),
    ({"top": "env: {PET_NNODES: 2}"}, "6:19 env.PET_NNODES", "torchrun"),
    (
        {"top": "env: {GLOO_SOCKET_IFNAME: '^lo,docker0'}"},
        "6:27 env.GLOO_SOCKET_IFNAME",
        "preflight",
    ),
    ({"top": "env: {NCCL_SOCKET_IFNAME: eth0}"}, "6:27 env.NCCL_SOCKET_IFNAME", "preflight"),
    ({"top": "secrets: [A, A]"}, "6:14 secrets[1]", "twice"),
    ({"top": "secrets: [A, {B: file:/b}]\nenv: {B: x}"}, "6:14 secrets[1]", "B is in env"),
    (
        {"top": "secrets: {LD_PRELOAD: file:/x}"},
        "6:23 secrets.LD_PRELOAD",
        "another name",
    ),
    ({"top": "secrets: MASTER_ADDR"}, "6:10 secrets", "torchrun"),
    ({"top": "nic: 192.168.7.1"}, "6:6 nic", "interface"),
    (
        {"top": "env: {MKL_CBWR: AVX2}", "train": "determinism: portable"},
        "6:17 env.MKL_CBWR",
        "portable",
    ),
    ({"top": "checkpoint: {dir: 's3://'}"}, "6:19 checkpoint.dir", "s3://NAME"),
    (
        {
            "what": "{script: t.py}",
            "batch": "null",
            "micro": "null",
            "top": "code: .\ncheckpoint: {dir: s3://bbb}",
        },
        "7:19 checkpoint.dir",
        "URL",
    ),
    ({"top": "checkpoint: {dir: ~ann/runs}"}, "6:19 checkpoint.dir", "~/path"),
    ({"top": "python: 3.11"}, "6:9 python.interpreter", "python3.11"),
    ({"top": "python: .venv/bin/python"}, "6:9 python.interpreter", "PATH"),
    ({"top": "checkpoint: {dir: $SCRATCH/ck}"}, "6:19 checkpoint.dir", "$SCRATCH "),
    ({"top": "checkpoint: {dir: '/x/${USER}'}"}, "6:19 checkpoint.dir", "${USER} "),
    ({"top": "checkpoint: {dir: a$b/$1}"}, "6:19 checkpoint.dir", "$b "),
    ({"train": "threads: 5000"}, "12:12 train.threads", "4096"),
    ({"train": "data_workers: 5000"}, "12:17 train.data_workers", "4096"),
    ({"top": "python: {activate: [':', 'fi']}"}, "6:26 python.activate[1]", "is no bash"),
    (
        {"top": """python: {activate: [':', 'source "~/v/bin/activate"']}"""},
        "6:26 python.activate[1]",
        "quotes",
    ),
    (
        {"top": "python: {activate: . ~/v/bin/activate.fish}"},
        "6:20 python.activate",
        "another shell",
    ),
    ({"top": "python: torchrun"}, "6:9 python.interpreter", "python3"),
    ({"top": "python: ~/venv/bin/"}, "6:9 python.interpreter", "directory"),
    ({"top": "env: {PYTHONHOME: venv}"}, "6:19 env.PYTHONHOME", "Python at its start"),
    ({"top": "env: {PYTHONHASHSEED: abc}"}, "6:23 env.PYTHONHASHSEED", "Python at its start"),
    (
        {"top": "env: {PYTHONHASHSEED: '4294967296'}"},
        "6:23 env.PYTHONHASHSEED",
        "Python at its start",
    ),
    (
        {"top": "env: {PYTHONIOENCODING: undefined}"},
        "6:25 env.PYTHONIOENCODING",
        "Python at its start",
    ),
    ({"top": "env: {PYTHONIOENCODING: uft-8}"}, "6:25 env.PYTHONIOENCODING", "did you mean utf-8?"),
    (
        {"top": "env: {PYTHONIOENCODING: 'hex:strict'}"},
        "6:25 env.PYTHONIOENCODING",
        "Python at its start",
    ),
]


@pytest.mark.parametrize(("changes", "where", "word"), CONFLICTS)
def test_a_combination_that_cannot_run_is_refused(
    changes: dict[str, object], where: str, word: str
) -> None:
    (fault,) = faults(spec(**changes))
    assert fault.where == where
    assert word in fault.text


def test_a_script_takes_no_settings_of_our_loop() -> None:
    text = "name: a\ncode: .\ntrain: {script: a.py, lr: 0.1, threads: 2, args: {x: 1}}\n"
    (fault,) = faults(text)
    assert fault.where == "3:27 train.lr"
    assert "train.args" in fault.text


UNWISE = [
    ({"top": "python: {activate: conda activate x}"}, "6:20 python.activate", "login shell"),
    ({"procs": 3}, "3:17 procs_per_node", "evenly"),
    ({"gpus": 4}, "5:16 gpus_per_node", "idle"),
    ({"gpus": 2, "backend": "gloo"}, "4:10 backend", "memory of their hosts"),
    ({"top": "env: {DB_PASSWORD: correct-horse-battery}"}, "6:20 env.DB_PASSWORD", "secret"),
    ({"train": "momentum: 0.5"}, "12:13 train.momentum", "adamw"),
    ({"train": "bucket_cap_mb: 26214400"}, "12:18 train.bucket_cap_mb", "nothing overlaps"),
    (
        {"top": "preflight: {enabled: false, ignore: [NIC008]}"},
        "6:37 preflight.ignore",
        "has no effect",
    ),
    (
        {"top": f"python: {{activate: [export WANDB_API_KEY={'0123456789abcdef' * 2}]}}"},
        "6:21 python.activate[0]",
        "secret",
    ),
    (
        {
            "what": "{command: [a,'&&',b], resume: scratch}",
            "batch": "null",
            "micro": "null",
        },
        "8:15 train.command[1]",
        "shell",
    ),
    (
        {"what": "{command: [a,';',b], resume: scratch}", "batch": "null", "micro": "null"},
        "8:15 train.command[1]",
        "shell",
    ),
    (
        {"train": "best: {metric: loss, mode: max}\n  eval_every: 5 steps"},
        "12:30 train.best.mode",
        "worst",
    ),
    (
        {"what": "{workload: mnist, steps: 100}", "train": "args: {url: www.x.org/m}"},
        "12:15 train.args.url",
        "no URL",
    ),
    ({"train": "optimizer: sgd\n  momentum: 1"}, "13:13 train.momentum", "diverges"),
    ({"train": "lr: 11"}, "12:7 train.lr", "every step"),
    ({"train": "weight_decay: 11"}, "12:17 train.weight_decay", "zero"),
    ({"top": "rendezvous: {port: 1023}"}, "6:20 rendezvous.port", "root"),
    ({"top": "rendezvous: {port: 65535}"}, "6:20 rendezvous.port", "last"),
    ({"top": "rendezvous: {timeout: 4s}"}, "6:23 rendezvous.timeout", "over"),
    ({"top": "rendezvous: {collective_timeout: 2d}"}, "6:34 rendezvous.collective_timeout", "days"),
    (
        {"what": "{script: /t.py}", "batch": "null", "micro": "null", "train": "stop: {grace: 2h}"},
        "11:17 train.stop.grace",
        "scheduler",
    ),
    (
        {
            "what": "{script: /t.py}",
            "batch": "null",
            "micro": "null",
            "train": "resume: {exists: /scratch/me/last.ckpt}",
        },
        "11:20 train.resume.exists",
        "another job",
    ),
    (
        {
            "what": "{script: /t.py}",
            "batch": "null",
            "micro": "null",
            "top": "checkpoint: {every: 1h}\ntargets: {slurm: {time: 1h}}",
        },
        "6:21 checkpoint.every",
        "script",
    ),
    (
        {
            "what": "{command: [a], resume: scratch}",
            "batch": "null",
            "micro": "null",
            "top": "checkpoint: {keep: 5}",
        },
        "6:20 checkpoint.keep",
        "saves by itself",
    ),
    ({"train": "best: loss\n  eval_every: 100 steps"}, "13:15 train.eval_every", "choose from"),
    ({"train": "best: loss\n  eval_every: 101 steps"}, "13:15 train.eval_every", "choose from"),
    ({"train": "eval_every: 101 steps"}, "12:15 train.eval_every", "only the end"),
    ({"train": "eval_every: 5 steps\n  args: {holdout: 0}"}, "12:15 train.eval_every", "holdout"),
    (
        {
            "top": "targets: {hosts: {nodes: null, hosts: [{name: a, address: 10.0.0.1}, {name: b, address: 10.0.0.1}]}}"
        },
        "6:89 targets.hosts.hosts[1].address",
        "address of a",
    ),
    ({"top": "env: {OMP_NUM_THREADS: 4}"}, "6:24 env.OMP_NUM_THREADS", "threads"),
    ({"top": "env: {SLURM_NTASKS: 4}"}, "6:21 env.SLURM_NTASKS", "Slurm"),
    ({"top": "env: {TORCHELASTIC_RUN_ID: 4}"}, "6:28 env.TORCHELASTIC_RUN_ID", "torchrun"),
    ({"top": "env: {PYTHONSAFEPATH: 1}"}, "6:23 env.PYTHONSAFEPATH", "hides"),
    (
        {"top": f"python: {{activate: [wandb login {'0123456789' * 4}]}}"},
        "6:21 python.activate[0]",
        "looks like a secret",
    ),
    (
        {"top": f"python: {{activate: [wandb login --relogin {'0123456789' * 4}]}}"},
        "6:21 python.activate[0]",
        "looks like a secret",
    ),
    (
        {"top": "python: {activate: [export T=hf_0123456789]}"},
        "6:21 python.activate[0]",
        "looks like a secret",
    ),
    (
        {"what": "{script: /t.py, args: [hf_0123456789]}", "batch": "null", "micro": "null"},
        "9:10 train.args[0]",
        "looks like a secret",
    ),
    (
        {
            "what": "{workload: mnist, steps: 100}",
            "train": "best: {metric: accuracy, mode: min}\n  eval_every: 5 steps",
        },
        "12:34 train.best.mode",
        "least accuracy",
    ),
    (
        {
            "what": "{workload: mnist, steps: 100}",
            "train": "best: loss\n  eval_every: 5 steps\n  early_stop: {patience: 20}",
        },
        "14:26 train.early_stop.patience",
        "do not fit",
    ),
    (
        {
            "what": "{workload: mnist, steps: 100}",
            "train": "best: {metric: accuracy, mode: max}\n  eval_every: 5 steps\n  early_stop: {patience: 2, min_delta: 1}",
        },
        "14:40 train.early_stop.min_delta",
        "accuracy",
    ),
    ({"top": "checkpoint: {every: 200 steps}"}, "6:21 checkpoint.every", "last of 100 steps"),
    ({"top": "env: {SBATCH_PARTITION: gpu}"}, "6:25 env.SBATCH_PARTITION", "sbatch"),
    ({"top": "env: {PATH: /opt/bin}"}, "6:13 env.PATH", "own programs"),
    (
        {"top": "env: {OMP_NUM_THREADS: 4}\npython: {activate: [export OMP_NUM_THREADS=8]}"},
        "6:24 env.OMP_NUM_THREADS",
        "threads",
    ),
    (
        {"train": "best: loss\n  eval_every: 100 steps\n  early_stop: {patience: 2}"},
        "13:15 train.eval_every",
        "choose from",
    ),
    (
        {"top": "python: {activate: [':', export OMP_NUM_THREADS=8]}"},
        "6:26 python.activate[1]",
        "threads",
    ),
    (
        {"top": "python: {activate: [export NCCL_SOCKET_IFNAME=ib0]}"},
        "6:21 python.activate[0]",
        "nic",
    ),
    (
        {"gpus": 2, "top": "python: {activate: 'export CUDA_VISIBLE_DEVICES=0'}"},
        "6:20 python.activate",
        "hides GPUs",
    ),
    ({"top": "python: {activate: [export A = b]}"}, "6:21 python.activate[0]", "space before ="),
    (
        {"top": "targets: {hosts: {hosts: [{name: b, python: {activate: ~/v/bin/activate}}]}}"},
        "6:56 targets.hosts.hosts[0].python.activate",
        "as a program",
    ),
    *(
        (
            {"top": f"env: {{{name}: '{value}'}}"},
            f"6:{9 + len(name)} env.{name}",
            "looks like a secret",
        )
        for name, value in (
            ("HF_TOKEN", "hf_abcdefghijklmnop"),
            ("MLFLOW_TRACKING_URI", "https://me:hunter22@mlflow.example.com"),
        )
    ),
    ({"top": "nic: mlx5_0:1"}, "6:6 nic", "no network interface"),
    ({"train": "log_every: 500 steps"}, "12:14 train.log_every", "nothing is logged"),
    ({"top": "python: {activate: [setenv A b]}"}, "6:21 python.activate[0]", "csh"),
    ({"top": "python: {activate: [set A=b]}"}, "6:21 python.activate[0]", "csh"),
    (
        {"top": "python: {activate: ['venv\\Scripts\\activate']}"},
        "6:21 python.activate[0]",
        "backslashes",
    ),
    (
        {"gpus": 2, "top": "env: {CUDA_VISIBLE_DEVICES: '-1'}"},
        "6:29 env.CUDA_VISIBLE_DEVICES",
        "hides",
    ),
    (
        {"top": "targets: {hosts: {hosts: [{name: b, python: {activate: exit 0}}]}}"},
        "6:56 targets.hosts.hosts[0].python.activate",
        "no training begins",
    ),
    *(
        (
            {"gpus": 2, "top": f"env: {{CUDA_VISIBLE_DEVICES: '{devices}'}}"},
            "6:29 env.CUDA_VISIBLE_DEVICES",
            "hides",
        )
        for devices in ("0,0", "cuda:0,cuda:1", "0,x,1")
    ),
    (
        {"gpus": 2, "top": "env: {CUDA_VISIBLE_DEVICES: '0,-1,1'}"},
        "6:29 env.CUDA_VISIBLE_DEVICES",
        "hides",
    ),
    *(
        ({"top": f"python: {{activate: ['{line}']}}"}, "6:21 python.activate[0]", word)
        for line, word in (
            ("exit 0", "no training begins"),
            ("exec bash", "no training begins"),
            ("top", "does not end"),
            ("nvidia-smi --query-gpu=name -l 5", "does not end"),
            ("tensorboard --logdir x --port 1", "does not end"),
            ("python -m http.server", "does not end"),
            ("poetry shell", "changes nothing"),
            ("su - me", "changes nothing"),
            ("alias a=b", "at a terminal"),
            ("torchrun t.py", "is a launcher"),
            ("~/v/bin/activate", "as a program"),
            ("bash ~/v/bin/activate", "changes nothing"),
            ("(. ~/v/bin/activate)", "changes nothing"),
            (". ~/v/bin/activate | cat", "changes nothing"),
            ("source ~/v/bin/activate &", "changes nothing"),
            ("source ~/v/", "is a directory"),
            ("call v/x", "Windows"),
            ("v/Scripts/activate.bat", "Windows"),
            ("$env:A = 1", "Windows"),
            ("[ -d ~/v] && . ~/v/bin/activate", "a space and ]"),
            ("unset PATH", "every program"),
            ("export PATH=$HOME/bin", "own programs"),
            (". ~/v/bin/activate; exit 0", "no training begins"),
            ("export MY-CACHE=/c", "MY-CACHE is no name"),
            ("export A=1 3D=/d", "3D is no name"),
            ("export CFLAGS=-O2 -march=native", "-march is no name"),
            ("export PATH=$PATH:/opt/my tools/bin", "tools/bin is no name"),
            ("conda install x", "nobody answers"),
            ("read -p name x", "nobody answers"),
            ("module load cuda/12.4 source /x/activate", "for modules"),
            ("export RANK=0 A=1", "torchrun sets it"),
        )
    ),
    *(
        ({"top": f"env: {{{name}: '{value}'}}"}, f"6:{9 + len(name)} env.{name}", word)
        for name, value, word in (
            ("NCCL_IB_DISABLE", "true", "no number"),
            *(
                ("PYTORCH_CUDA_ALLOC_CONF", value, "torch refuses")
                for value in (
                    "expandable_segments=True",
                    "expandable_segment:True",
                    "max_split_size_mb:20",
                    "a:True,backend:native",
                    "garbage_collection_threshold:80",
                    "expandable_segments:true",
                )
            ),
            ("TORCH_CPP_LOG_LEVEL", "DEBUG", "no level"),
            ("CUDA_DEVICE_ORDER", "PCI", "no order"),
            ("CUDA_LAUNCH_BLOCKING", "1", "wait for each kernel"),
            ("MKL_NUM_THREADS", "all", "no number"),
            ("NCCL_DEBUG", "VERBOSE", "no level"),
            ("PYTHONPATH", "/a;/b", "separates no directories"),
        )
    ),
    (
        {"gpus": 2, "top": "env: {CUDA_VISIBLE_DEVICES: 0}"},
        "6:29 env.CUDA_VISIBLE_DEVICES",
        "hides",
    ),
    (
        {"top": "python: {activate: ['export PATH=\"/opt/bin\"']}"},
        "6:21 python.activate[0]",
        "own programs",
    ),
    *(
        (
            {
                "what": f"{{script: /t.py, workdir: {workdir}}}",
                "batch": "null",
                "micro": "null",
                "train": "args: {lr: 1, seed: 2}",
                "top": top,
            },
            "9:12 train.workdir",
            word,
        )
        for workdir, top, word in (
            ("/scratch/w", "targets: {slurm: {array: 0-3}}", "all tasks"),
            ("/run/user/7/w", "targets: {slurm: {}}", "emptied"),
        )
    ),
]


def test_a_short_job_needs_no_log_of_its_own() -> None:
    assert findings(spec(what="{workload: gpt, steps: 5}")) == []


def test_a_checkpoint_in_the_jobs_own_directory_is_no_other_jobs() -> None:
    text = (
        "name: a\ncheckpoint: {dir: /ck/a}\ntrain: {script: /t.py, resume: {exists: /ck/a/x.pt}}\n"
    )
    assert findings(text) == []


@pytest.mark.parametrize(("changes", "where", "word"), UNWISE)
def test_what_is_only_unwise_is_a_warning(
    changes: dict[str, object], where: str, word: str
) -> None:
    (finding,) = findings(spec(**changes))
    assert not finding.fatal
    assert Fault.of(finding).where == where
    assert word in finding.problem


@pytest.mark.parametrize("name", ["checkpoints", "logs"])
def test_a_job_whose_bundle_would_lie_among_others_is_a_warning(name: str) -> None:
    (finding,) = findings(spec().replace("name: a", f"name: {name}"))
    assert (finding.fatal, finding.path) == (False, "name")


@pytest.mark.parametrize(
    "line",
    [
        "rendezvous: {port: 1024}",
        "rendezvous: {timeout: 5s, collective_timeout: 1d}",
        "env: {TORCH_DISTRIBUTED_DEBUG: detail}",
        "env: {NCCL_DEBUG: INFO, OMP_PROC_BIND: close, MY_SLURM_X: 1}",
        "env: {PATH: '/opt/bin:/usr/bin', PYTHONHASHSEED: random, SBATCHES: 2}",
        "env: {PATH: /bin, PYTHONHASHSEED: 4294967295}",
        "python: {activate: ['export PATH=/opt/bin:$PATH', 'PATH=$A/bin', 'PATH=/opt/bin x', 'X == y']}",
        "python: {activate: ['export OMP_NUM_THREADS=1 CUDA_VISIBLE_DEVICES=0', 'OMP_NUM_THREADS=8 x']}",
        "python: {activate: [\"cat > x <<E\\nA = b\\nE\", 'export CUDA_VISIBLE_DEVICES=$A']}",
        "checkpoint: {every: 200 steps}\ntargets: {local: {train: {steps: 50}}}",
        "python: {activate: ['if true; then', 'echo x', 'fi', 'shopt -s extglob; ls !(a|b)']}",
        "python: {activate: 'a=(1 2); f() { [[ $a =~ x ]]; }'}",
        "python: {activate: ['[ -e /x ] || exit 1', 'exec 2>&1', 'exec 3>x', 'tensorboard --logdir x &']}",
        "python: {activate: ['if a; then', 'exit 1', 'fi', 'read x < y', 'su me -c x', 'sh x.sh', 'source /x/bin/activate']}",
        "python: {activate: ['conda install -y x', 'sudo apt-get -qq install --yes x', 'shopt -s expand_aliases', 'alias a=b']}",
        "python: {activate: ['tail -n 1 f | cut -f 2', 'nvidia-smi -q | xargs -l echo', 'tensorboard --version', 'read-x y']}",
        "python: {activate: ['[ -d /x ] || {', 'exit 3', '}']}",
        "python: {activate: ['command -v x ||', 'exit 3', 'export FOO=1  # not OMP_NUM_THREADS=4']}",
        "python: {activate: ['tensorboard --logdir x > y 2>&1 & echo $! > pid', 'nvidia-smi -l 10 > y & disown']}",
        "python: {activate: ['echo \"[global]', 'TIMEOUT = 60\" > pip.conf', 'apt-get install -qq x']}",
        "env: {HF_HOME: ~/hf, TORCH_HOME: ~/.cache/torch, LD_LIBRARY_PATH: '/a;/b'}",
        "python: {activate: ['su-exec me x', 'dnf install --assumeyes gcc']}",
        "env: {NCCL_BUFFSIZE: '0x400000', NCCL_IB_TIMEOUT: ' 22'}",
        "python: {activate: ['export RANKS=2', 'nvidia-smi', 'sleep 5', 'tail -n 1 f', 'exit_code=0', 'watchman x']}",
        "env: {CUDA_VISIBLE_DEVICES: ''}",
        "env: {PYTHONHASHSEED: '0004294967295', PYTHONIOENCODING: ':replace'}",
        "env: {PYTHONHASHSEED: '', PYTHONIOENCODING: 'UTF8:surrogateescape'}",
        "env: {PYTHONUTF8: '1', PYTHONMALLOC: malloc_debug, PYTHONTRACEMALLOC: 20000, PYTHONINTMAXSTRDIGITS: 2000000000}",
        "env: {NCCL_IB_DISABLE: '1', NCCL_DEBUG: warn, PYTHONPATH: '/a:/b', CUDA_DEVICE_ORDER: PCI_BUS_ID}",
        "env: {PYTORCH_CUDA_ALLOC_CONF: 'expandable_segments:True,max_split_size_mb:512', NCCL_NSOCKS_PERTHREAD: ''}",
        "env: {A: 'https://me:*@h/x', B: 'ssh://me@h:22/x', C: 'https://me:<password>@h', D: 'http://h:80/a@b', E: hf_transfer_x}",
        "nic: ibmlx5_0",
        "env: {PYTORCH_ALLOC_CONF: 'backend:cudaMallocAsync', PYTHONHOME: /opt/python, TORCH_CPP_LOG_LEVEL: '1'}",
        "env: {PYTORCH_HIP_ALLOC_CONF: 'garbage_collection_threshold:0.8, roundup_power2_divisions:[256:1,512:2,>:4],max_split_size_mb: 21'}",
        "python: {activate: ['export -n A', 'export A=\"x y\" B=x\\ y', 'export $X', 'export A+=b', \"export A='it is' C\"]}",
        "python: {activate: ['[ -d ~/v ] && . ~/v/bin/activate', '[ -z \"$A\" ]', '[[ $a =~ [0-9]] ]]', 'callback x', 'unset PATHS']}",
        "python: {activate: ['[ -d ~/v ]&& . ~/v/bin/activate', 'pwsh x.ps1', 'echo a.bat', 'unset A # not PATH', 'export -- A=b']}",
        "python: {activate: ['(. ~/v/bin/activate && python x.py)']}",
        "python: {activate: ['. ~/v/bin/activate || echo no', 'source x && echo y', '(cd /x; make)', 'bash x/activate.sh', 'export PATH=$HOME/bin:$PATH']}",
    ],
)
def test_what_is_usual_is_no_warning(line: str) -> None:
    assert not findings(spec(top=line))
    for shown in ("2,3", "GPU-1a-11,GPU-2b"):
        assert not findings(spec(gpus=2, top=f"env: {{CUDA_VISIBLE_DEVICES: '{shown}'}}"))


def test_a_command_may_use_more_gpus_than_it_has_processes() -> None:
    train = "train: {command: [/opt/run.sh], resume: by-itself}\n"
    assert not findings(f"name: a\ngpus_per_node: 8\n{train}")
    assert not findings(f"name: a\ngpus_per_node: 8\n{train}targets: {{hosts: {{hosts: [a]}}}}\n")


@pytest.mark.parametrize(
    ("train", "top"),
    [
        ("workdir: '/w/{array_index}'", "targets: {slurm: {array: 0-3}}"),
        ("workdir: /tmp/w, args: ['--save={checkpoint_dir}']", "targets: {slurm: {array: 0-3}}"),
        ("workdir: /tmp/w", "targets: {local: {}}"),
    ],
)
def test_a_working_directory_that_no_two_trainings_save_to_is_no_warning(
    train: str, top: str
) -> None:
    assert not findings(f"name: a\ntrain: {{script: /t.py, {train}}}\n{top}\n")


@pytest.mark.parametrize(
    "best",
    [
        "{metric: val_loss, mode: min}",
        "{metric: neg_loss, mode: max}",
        "{metric: top1_error, mode: min}",
        "{metric: test/acc, mode: max}",
    ],
)
def test_a_metric_that_is_unknown_or_goes_the_right_way_is_no_warning(best: str) -> None:
    text = spec(train=f"best: {best}\n  eval_every: 5 steps\n  early_stop: {{patience: 19}}")
    assert not [each for each in findings(text) if not each.fatal]


def test_lines_of_bash_are_read_once_for_all_tiers_and_run_nowhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BASH_ENV", str(tmp_path / "env"))
    (tmp_path / "env").write_text(f"touch {tmp_path}/ran; )")
    lines._fault.cache_clear()
    text = spec(top=f"python: {{activate: ['touch {tmp_path}/ran', 'fi']}}")
    found = faults(f"{text}targets: {{local: {{}}, slurm: {{}}}}\n")
    assert [fault.where for fault in found] == [f"6:{len(str(tmp_path)) + 35} python.activate[1]"]
    assert lines._fault.cache_info().misses == 1
    assert not (tmp_path / "ran").exists()


def test_the_lines_of_one_host_are_read_as_well() -> None:
    host = "{name: a, python: {activate: fi}}"
    (fault,) = faults(f"{spec(nodes=2)}targets: {{hosts: {{hosts: [{host}, b]}}}}\n")
    assert fault.where.endswith(" targets.hosts.hosts[0].python.activate")


def test_a_fault_is_at_the_entry_that_holds_its_line() -> None:
    (fault,) = faults(spec(top='python: {activate: ["if :\\nthen :", "fi", "fi", ":"]}'))
    assert fault.where.endswith(" python.activate[2]")


def test_lines_of_bash_on_a_machine_without_bash(monkeypatch: pytest.MonkeyPatch) -> None:
    lines._fault.cache_clear()
    monkeypatch.setenv("PATH", "")
    assert not findings(spec(top="python: {activate: [done]}"))
    lines._fault.cache_clear()


WORDS = [
    ("-p, '99999'", True, "Bad port '99999'"),
    ("-o, ConnectTimeout=never", True, "time value"),
    ("-o, ProxyJmp=gate", False, "proxyjmp"),
    ("-c, aes999", False, "aes999"),
    ("-o, 'IdentityFile=${NOT_HERE}/x', -v", False, ""),
    ("-y", False, ""),
    ("-J, 'a,b', -i, /not/here, -o, CanonicalizeHostname=yes, -E, /not/here", False, ""),
]


def with_words(words: str) -> str:
    hosts = f"hosts: [a, b], ssh_options: [{words}]"
    return f"{spec(nodes=2)}targets:\n  hosts: {{{hosts}}}\n"


@pytest.mark.parametrize(("words", "fatal", "complaint"), WORDS)
def test_ssh_reads_its_words(words: str, fatal: bool, complaint: str) -> None:
    do_without("ssh", "" if shutil.which("ssh") else "apt install openssh-client")
    told = findings(with_words(words))
    assert [finding.fatal for finding in told] == ([fatal] if complaint else [])
    assert all(complaint in finding.problem for finding in told)


def test_ssh_reads_its_words_once_for_all_tiers_and_runs_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "config").write_text(f"Match exec 'touch {tmp_path}/ran'\n")
    lines._ssh_fault.cache_clear()
    words = f"-F, {tmp_path}/config, -o, 'ProxyCommand=touch {tmp_path}/ran'"
    assert not findings(f"{with_words(words)}  slurm: {{login: h, ssh_options: [{words}]}}\n")
    assert lines._ssh_fault.cache_info().misses == 1
    assert not (tmp_path / "ran").exists()
    lines._ssh_fault.cache_clear()
    monkeypatch.setenv("PATH", "")
    assert not findings(with_words("-p, '99999'"))
    lines._ssh_fault.cache_clear()


BIG = "x" * (128 << 10)
SCRIPT = "name: a\ntrain: {{script: /t.py, {}}}\n"


@pytest.mark.parametrize(
    "text",
    [
        spec(top=f"env: {{A: {BIG}}}"),
        spec(train=f"args: {{text: /{BIG}}}"),
        SCRIPT.format(f"args: {{a: {BIG}}}"),
        SCRIPT.format(f"args: {{a: [1, {BIG}]}}"),
        SCRIPT.format(f"args: {{a: {{b: {BIG}}}}}"),
        SCRIPT.format(f"args: [{BIG}]"),
        f"name: a\ntrain: {{command: [a, {BIG}], resume: scratch}}\n",
    ],
    ids=range(7),
)
def test_a_text_that_no_program_takes_is_refused(text: str) -> None:
    (fault,) = faults(text)
    assert "128 KiB" in fault.text


def test_a_text_of_a_hundred_thousand_is_taken() -> None:
    assert not findings(spec(top=f"env: {{A: {'x' * 100_000}}}"))


def test_a_fault_in_one_field_raises_no_second_complaint_about_it() -> None:
    assert len(faults(spec(micro="four", procs=9))) == 1


@pytest.mark.parametrize(
    ("train", "where", "word"),
    [
        ("precision: fp16", "12:14 train.precision", "b uses none"),
        ("{reduction: allreduce, comm_hook: powersgd}", "13:14 train.comm_hook", "nccl"),
    ],
)
def test_the_gpus_of_each_host_decide_what_needs_one(train: str, where: str, word: str) -> None:
    def text(top: int, a: int, b: int) -> str:
        return spec(procs=1, gpus=top, train=train.strip("{}").replace(", ", "\n  ")) + (
            f"targets: {{hosts: {{hosts: [{{name: a, gpus: {a}}}, {{name: b, gpus: {b}}}]}}}}\n"
        )

    assert set(read(text(0, 1, 1).encode(), "job.yaml")) == {"hosts"}
    (fault,) = faults(text(1, 1, 0))
    assert fault.where == where
    assert word in fault.text


TOO_MANY = spec(nodes=100_000, procs=1024, what="{script: t.py}", batch="null", micro="null")


def test_a_job_of_more_processes_than_a_plan_can_list_is_refused() -> None:
    assert named(faults(TOO_MANY), "2:8 nodes", "1048576")


@pytest.mark.parametrize(
    ("variable", "warned"),
    [
        ("HF_TOKEN: hf_abcdefgh12", True),
        ("X: hf_abcdefgh12", True),
        ("WANDB_API_KEY: 0123456789abcdef", True),
        ("HF_TOKEN_PATH: /run/secrets/hf", False),
        ("TOKEN_LIMIT: 100000", False),
        ("KEY: x", False),
        ("KEY: a-1", False),
        ("TOKENIZERS_PARALLELISM: 'false'", False),
        ("PAD_TOKEN: '<|endoftext|>'", False),
        ("SORT_KEY: timestamp", False),
        ("CACHE_KEY_PATH: data/hf/key.txt", False),
        ("TOKEN_STORE: s3://kept/tokens", False),
        ("AWS_SECRET_ACCESS_KEY: wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY", True),
        ("DB_PASSWORD: correct-horse-battery", True),
        ("MODEL: hf_internal_testing", False),
        ("MODEL: ../hf_llama2_models/7B", False),
    ],
)
def test_a_secret_in_env_is_warned_of_without_its_value(variable: str, warned: bool) -> None:
    told = findings(spec(top=f"env: {{{variable}}}"))
    assert len(told) == warned
    for finding in told:
        assert (finding.path, finding.position.line) == (f"env.{variable.partition(':')[0]}", 6)
        assert "secret" in finding.problem
        assert "hf_a" not in finding.line("job.yaml")


UNFILLED = [
    ({"top": "env: {PATH: '/opt/bin:$PATH'}"}, "6:13 env.PATH", "$PATH"),
    ({"top": "env: {A: $SCRATCH/x}"}, "6:10 env.A", "$SCRATCH"),
    ({"top": "env: {A: 'a ${B} c'}"}, "6:10 env.A", "${B}"),
    ({"top": "env: {A: $(date)}"}, "6:10 env.A", "$(date)"),
    ({"top": "env: {A: ~/tmp}"}, "6:10 env.A", "~"),
    ({"top": "env: {A: '/a:~/b'}"}, "6:10 env.A", "~"),
    ({"top": "env: {A: $1, B: 5$, C: a~/b, D: 'a$$b'}"}, "", ""),
    ({"top": "checkpoint: {dir: /a/$(whoami)/x}"}, "6:19 checkpoint.dir", "$(whoami)"),
    ({"top": "python: /a/`arch`/python3"}, "6:9 python.interpreter", "`arch`"),
    ({"top": "targets: {slurm: {login: h, dir: $(x)/y}}"}, "6:34 targets.slurm.dir", "$(x)"),
    ({"top": "checkpoint: {dir: a$1`b}"}, "", ""),
]


@pytest.mark.parametrize(("changes", "where", "word"), UNFILLED)
def test_a_value_that_only_a_shell_fills_in_is_warned_of(
    changes: dict[str, object], where: str, word: str
) -> None:
    told = findings(spec(**changes))
    assert [Fault.of(finding).where for finding in told] == ([where] if where else [])
    assert not any(finding.fatal or f'"{word}" ' not in finding.problem for finding in told)
