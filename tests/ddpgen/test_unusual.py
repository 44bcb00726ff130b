"""Unusual specs that are right: none is refused, and each renders on its tiers.

Each line of a table is one spec: the line stands in a field's place in the spec of its table. The lines are from the
grammars of sbatch, SkyPilot, pip, ssh and YAML, and from what people write.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from ddpgen import job
from ddpgen.errors import SpecInvalidError
from ddpgen.tiers.registry import read
from tests.ddpgen.conftest import GPT

ENOUGH, SAMPLE = 400, 150
BASE = GPT.replace("procs_per_node: 2\n", "").replace("micro_batch_size: 4", "micro_batch_size: 1")
HEAD = "name: a\ncode: [., 'my code']\ntrain:\n"
LOOP = "  steps: 300\n  global_batch_size: 16\n  micro_batch_size: 4\n"
SKY = f"{BASE}targets:\n  sky:\n    bucket: s3://my-bucket\n"
SPECS = {
    "job": BASE + "@\n",
    "train": f"{HEAD}  workload: gpt\n{LOOP}  @\n",
    "workload": f"{HEAD}{LOOP}  @\n",
    "name": BASE.replace("name: gpt", "name: @"),
    "script": f"{HEAD}  script: train.py\n  @\n",
    "program": f"{HEAD}  @\n",
    "slurm": f"{BASE}targets:\n  slurm:\n    @\n",
    "slurm with a GPU": f"{BASE}gpus_per_node: 1\ntargets:\n  slurm:\n    @\n",
    "sky": f"{SKY}    @\n",
    "sky with a GPU": f"gpus_per_node: 1\n{SKY}    @\n",
    "bucket": f"{BASE}targets:\n  sky:\n    @\n",
    "requirements": f"code: sub\n{SKY}    requirements:\n    - @\n",
    "hosts": f"{BASE}targets:\n  hosts:\n    @\n",
    "host": f"{BASE}targets:\n  hosts:\n    hosts:\n    - first\n    - name: second\n      @\n",
    "line of bash": f"{SKY}    setup:\n    - @\npython:\n  activate: [source x]\n",
    "activation": f"{BASE}python:\n  activate:\n  - @\n",
}
# A line with ` ;; ` in it gives several fields.
LINES = {
    "name": r"""
007
1e3
0x1f
2026-11-26
1.10
"on"
'null'
a
A.b-c_d
0
llama-3.1-8b-instruct.v2
abcdefghijklmnopqrstuvwxyz-abcdefghijklmnopqrstuvwxyz-012345678
""",
    "job": r"""
nodes: 1
procs_per_node: 0x2
procs_per_node: +2
backend: "gloo"
backend: 'auto'
nic: enp0s31f6
nic: ib0
nic: bond0.100
nic: eth0:1
nic: br-lan
nic: enx00e04c680001
nic: wlp2s0
nic: ens1f0np0
nic: "0eth"
nic: null
gpus_per_node: 0
gpus_per_node: ~
checkpoint: {}
checkpoint: {dir: /data/ck}
checkpoint: {dir: ~/ck}
checkpoint: {dir: ./ck}
checkpoint: {dir: ../ck}
checkpoint: {dir: a b/c}
checkpoint: {dir: /dev/shm/ck}
checkpoint: {dir: /data/é/漢字}
checkpoint: {dir: /data/100%/x}
checkpoint: {dir: '/data/#1'}
checkpoint: {dir: '/data/a:b'}
checkpoint: {dir: "/data/it's"}
checkpoint: {dir: '/data/a,b'}
checkpoint: {dir: '/data/{x}'}
checkpoint: {dir: //nas/share/ck}
checkpoint: {dir: 2026}
checkpoint: {dir: null}
checkpoint: {dir: s3://my-bucket/prefix}
checkpoint: {dir: s3://my-bucket}
checkpoint: {dir: s3://my-bucket/a/b/c/}
checkpoint: {dir: 's3://arn:aws:s3:eu-west-1:123456789012:accesspoint/runs/gpt'}
checkpoint: {dir: s3a://my-bucket/x}
checkpoint: {dir: gs://my_bucket/x}
checkpoint: {dir: gcs://my-bucket/x}
checkpoint: {dir: az://container/x}
checkpoint: {dir: abfs://container@account.dfs.core.windows.net/x}
checkpoint: {dir: abfss://container@account.dfs.core.windows.net/x}
checkpoint: {dir: hf://datasets/me/runs}
checkpoint: {dir: hdfs://namenode:8020/user/me}
checkpoint: {dir: sftp://me@host:2222/data}
checkpoint: {dir: file:///data/ck}
checkpoint: {dir: oci://bucket@namespace/x}
checkpoint: {every: 1 step}
checkpoint: {every: 1_000 steps}
checkpoint: {dir: oss://my-bucket/x}
checkpoint: {dir: root://eos.lab.org//eos/user/me}
checkpoint: {dir: lakefs://repo/main/x}
checkpoint: {dir: webdav://host/x}
checkpoint: {every: 1step}
checkpoint: {every: 200steps}
checkpoint: {every: 90s}
checkpoint: {every: 1.5h}
checkpoint: {every: 1h30min}
checkpoint: {every: 1h 30min}
checkpoint: {every: 10 min}
checkpoint: {every: 500ms}
checkpoint: {every: "1d"}
checkpoint: {every: 0.5 h}
checkpoint: {keep: 1_000}
checkpoint: {keep: 0x10}
checkpoint: {shared: yes}
checkpoint: {shared: off}
checkpoint: {shared: True}
checkpoint: {shared: FALSE}
checkpoint: {shared: ~}
rendezvous: {port: 1024}
rendezvous: {port: 29_500}
rendezvous: {port: 0x7000}
rendezvous: {timeout: 1h}
rendezvous: {timeout: 0.5s}
rendezvous: {collective_timeout: 2h 30min 10s}
rendezvous: {launcher: env}
rendezvous: {launcher: torchrun-static}
preflight: off
preflight: No
preflight: {enabled: on}
preflight: {ignore: NIC008}
preflight: {ignore: []}
preflight: {ignore: [NIC008, NIC008]}
restarts: 0
restarts: 1_000
env: {}
env: null
env:
env: {A: ''}
env: {A: " "}
env: {A: 007}
env: {A: 1.10}
env: {A: .5}
env: {A: 1_000}
env: {A: 0x1F}
env: {A: 0b101}
env: {A: 12:30:45}
env: {A: 2026-01-01}
env: {A: 2026-01-01T10:00:00Z}
env: {A: .inf}
env: {A: '=', B: "~"}
env: {_a: x, __a1: y}
env: {A: "a\nb\tc"}
env: {A: "\e[31m"}
env: {A: '$(touch x) `touch x` $A1'}
env: {A: "it's \"quoted\""}
env: {A: '!important', B: '#1', C: '%d', D: '@x', E: '*', F: '&x'}
env: {A: éñ漢字}
env: {A: '{"a": [1, 2]}'}
env: {A: "yes", B: 'null', C: "1e3"}
env: {http_proxy: "http://proxy.lab:3128", no_proxy: "localhost,127.0.0.1,.lab"}
env: {LD_LIBRARY_PATH: /opt/a:/opt/b, PYTORCH_CUDA_ALLOC_CONF: expandable_segments:True}
env: {XLA_FLAGS: --xla_a=b --xla_c}
env: {NCCL_DEBUG: INFO, NCCL_IB_HCA: "=mlx5_0:1,mlx5_1:1", NCCL_IB_DISABLE: 1}
env: {TZ: Europe/Berlin, LC_ALL: C.UTF-8, TERM: xterm-256color}
env: {A: ~/data}
env: {A: $HOME/x, B: "$(date)"}
env: {TORCH_DISTRIBUTED_DEBUG: detail}
checkpoint: {dir: '/data/{job}/%j'}
env: {A: -n, B: --x, C: "- a"}
secrets: [HF_TOKEN]
secrets: []
secrets: [HF_TOKEN, WANDB_API_KEY: file:~/.wandb]
secrets: [_X1: file:/run/secrets/x]
python: python3.12
python: ~/venv/bin/python
python: /opt/conda/envs/my env/bin/python3
python: pypy3.10
python: {interpreter: python3, activate: []}
python: {activate: null}
python: {activate: source ~/venv/bin/activate}
python: {activate: "conda activate base || true"}
python: {activate: [source ~/miniconda3/etc/profile.d/conda.sh, conda activate x]}
python: {activate: 'source "$HOME/v/bin/activate"'}
environment: installed
environment: {packages: installed}
code: []
code: null
targets:
targets: {local: }
targets: {local: {}}
targets: {local: {name: b, train: {steps: 20}}}
targets: {local: {train: {epochs: 1}}, slurm: {}, sky: {bucket: s3://my-bucket}, hosts: {hosts: [x]}}
targets: {slurm: {train: {args: {depth: 2}}}}
targets: {local: {env: {A: b}}, slurm: {env: null}}
targets: {local: {procs_per_node: 1}, slurm: {nodes: 1..2}}
""",
    "train": r"""
lr: 1e-3
lr: 1E-3
lr: 3e-4
lr: .001
lr: 1.
lr: +0.1
lr: 0.000_1
lr: 1
lr: 1.0e-3
epochs: null
seed: 0
seed: 9223372036854775807
seed: 0xdeadbeef
seed: 1_234_567
optimizer: "sgd"
optimizer: sgd
optimizer: adam
weight_decay: 0
weight_decay: 0.0
weight_decay: -0.0
weight_decay: 1e-2
momentum: 0.99
schedule: cosine
schedule: linear
warmup_steps: 0
warmup_steps: 1_0
grad_clip: null
grad_clip: ~
grad_clip:
grad_clip: .5
grad_clip: 1e9
precision: bf16
reduction: allreduce
bucket_cap_mb: 0.5
bucket_cap_mb: 1_000
find_unused_parameters: on
threads: 8
determinism: portable
data_workers: 4
eval_every: 10steps
eval_every: 1_000 steps
eval_every: 0 steps
eval_every: 1 step
eval_every: "10 steps"
log_every: 1 step
log_every: 1000000 steps
profile: 20..25
profile: 20 .. 25
profile: "1..1"
profile: {steps: 1..300}
trackers: wandb
trackers: []
trackers: [tensorboard, wandb, mlflow]
trackers: null
args: {}
args: null
args: {depth: 0x2}
args: {depth: 1, width: 64, heads: 1}
args: {text: ~/corpus.txt}
args: {text: /data/my corpus.txt}
args: {text: corpus.txt}
args: {text: null}
args: {seq_len: 1_6}
best: null
""",
    "workload": r"""
workload: toy
workload: mnist
workload: "gpt"
workload: work.py:build
workload: work.py:_private
workload: ./work.py:build
workload: sub/dir/work.py:Build2
workload: my work.py:build
""",
    "script": r"""
args: {}
args: []
args: null
args: [--lr, 1e-4, --version, 1.10]
args: [train, +experiment=a, ++x=1, ~y, --]
args: ["", " ", "a b", "it's", '"', "$HOME", "`x`", "\n"]
args: [007, 0x10, .5, 1_000, 2:00, 2026-01-01, .inf]
args: {version: 1.10, lr: 1e-4, x: 1_000, y: 0x10, z: 007, t: 2:00}
args: {a.b.c: 1, d-e: 2, f_g: 3}
args: {n: 99999999999999999999999999}
args: {list: [1, 2.50, a b]}
args: {list: []}
args: {nested: {a: {b: [1.10, {c: null}]}}}
args: {text: "", space: " ", quote: "it's", unicode: éñ漢字}
args: {flag: true, Flag2: True}
args: {out: "{checkpoint_dir}/x", json: '{"a": 1}', fmt: "{:.2f}", set: "{}"}
args: {date: 2026-01-01, time: 12:30:45, exp: 1E5, plus: +1, tilde: "~"}
args_style: flags
args_style: equals
args: {a: false, b: null} ;; args_style: no-prefix
args: {a: [false, true, null, 1]} ;; args_style: equals
workdir: null
workdir: work
workdir: ~/runs/a b
workdir: /scratch/me/x
workdir: ../x
resume: auto
resume: scratch
resume: {exists: ckpt.pt, args: --resume}
resume: {exists: [a.pt, "b-*.pt", "c/d?/[0-9].pt"], args: [--init_from=resume, "--path={newest}"]}
resume: {exists: "{checkpoint_dir}/*.pt", args: ["--resume", "{newest}"]}
resume: {begin: auto}
guard: ckpt-*/DONE
guard: [ckpt-*/DONE, "{checkpoint_dir}/b/.done"]
stop: USR1
stop: {signal: INT, grace: 10min}
stop: {grace: 1.5h}
""",
    "program": r"""
script: ./train.py
script: sub/dir/train.py
script: "my train.py"
script: /opt/app/train.py
script: ~/app/train.py
script: module:torchtitan.train
script: module:_pkg.__main__
script: module:a
command: ./run.sh ;; resume: by-itself
command: [./run.sh] ;; resume: scratch
command: [bash, run.sh, --lr, 1e-4] ;; resume: by-itself
command: [bash, -c, "python3 x.py && echo done"] ;; resume: by-itself
command: [python3, -m, pkg.train, --n, 007] ;; resume: by-itself
command: [python3, -u, train.py] ;; resume: by-itself
command: [python3, -c, "print('x')"] ;; resume: by-itself
command: [uv, run, --frozen, train.py] ;; resume: by-itself
command: [env, A=b, ./run.sh] ;; resume: by-itself
command: [nice, -n, 10, ./run.sh] ;; resume: {exists: x.pt, args: --resume}
command: [/opt/bin/trainer, "{checkpoint_dir}", "a b", "", "--"] ;; resume: by-itself
command: [julia, --project, train.jl] ;; resume: by-itself
command: [accelerate, launch, --num_processes=1, train.py] ;; resume: by-itself
command: [python3, train.py] ;; workdir: /data/app ;; resume: by-itself
""",
    "slurm": r"""
time: 2h
time: 90min
time: 12:00:00
time: 2-00:00:00
time: 1-0
time: 1-12
time: 1-12:30
time: 0-00:30:00
time: 24:00:00
time: 100:00:00
time: 1d12h
time: 1.5h
time: 365d
time: 00:10:00
partition: gpu
partition: gpu,gpu-long
partition: 2080ti
partition: gpu_4xA100
account: 1234
account: def-prof_gpu
account: user@cluster
account: p.x+y
qos: high
qos: 0
cpus_per_proc: 1
cpus_per_proc: 0x4
mem: 16G
mem: 4000
mem: 0
mem: 1T
mem: 500000M
mem: 16g
mem: 64GB
mem: 500000mb
mem: "64G"
gpu_request: none
constraint: a100
constraint: a&b
constraint: a|b
constraint: "[a|b]"
constraint: "[rack1|rack2|rack3]"
constraint: "(a|b)&c"
constraint: "rack1*2&rack2*4"
constraint: "[rack1*2&rack2*4]"
nodelist: n1
nodelist: 17
nodelist: n1,n2 ;; nodes: 2
nodelist: n[1-3] ;; nodes: 3
nodelist: n[01-08,20] ;; nodes: 9
nodelist: n[1-3],login1 ;; nodes: 4
nodelist: node[001-005,020-030]-ib ;; nodes: 16
nodelist: n[1-3]*2 ;; nodes: 3
nodelist: rack[1-2]n[1-4] ;; nodes: 8
nodelist: node-a.cluster.lab
nodelist: ./nodes.txt
nodelist: /home/me/nodes.txt
exclude: n[7]
exclude: n1,n[3-4],x
reservation: maint_1
reservation: root_6
reservation: a,b
licenses: matlab:2
licenses: matlab@server:2,comsol
licenses: a:1|b:1
dependency: afterok:1
dependency: afterok:1:2:3
dependency: afterok:1,afterany:2
dependency: afterok:1?afterok:2
dependency: after:1+10
dependency: after:1
dependency: afternotok:12_3
dependency: aftercorr:12
dependency: afterany:12_*
dependency: singleton
dependency: afterburstbuffer:3
dependency: singleton,afterok:5
array: 0
array: 0-7
array: 0-7%2
array: 1,3,5
array: 1,3,8-16:4
array: 0-15:4%2
array: 10-10
array: 1-1000%1
exclusive: true
exclusive: on
mail_to: me@lab.org
mail_to: me
mail_to: [me@lab.org, you@lab.org]
mail_to: me@lab.org,you@lab.org
mail_to: o'brien@lab.org
mail_to: first.last+tag@sub.lab.org
mail_to: me@lab.org ;; mail_on: ALL
mail_to: me@lab.org ;; mail_on: [BEGIN, TIME_LIMIT_80, ARRAY_TASKS]
mail_to: me@lab.org ;; mail_on: NONE
mail_to: me@lab.org ;; mail_on: [Begin, fail, Time_Limit_80]
comment: text with spaces
comment: '{"team": "a", "n": 1}'
comment: a=b,c:d
comment: 007
extra: --nice=100
extra: [--nice=-5, --no-kill=off, '--propagate=STACK,NPROC', '--acctg-freq=task=10,network=30']
extra: [--mem-bind=local, '--gres=nvme:1,ssd,fs:1G']
extra: [--time-min=30, '--deadline=now+3days', --hold, --mincpus=8]
extra: ['--begin=tomorrow', '--delay-boot=5', --priority=TOP, --wait-all-nodes=1, --get-user-env]
extra: --nice
extra: --exclusive=user
extra: [--bell, --container-image=nvcr.io/nvidia/pytorch]
extra: [--wckey=x, --no-kill, --tmp=10G]
extra: --hint=nomultithread
extra: --switches=1@1:00:00
extra: --core-spec=2
extra: --distribution=block:cyclic
extra: --gpu-bind=none
extra: --mem-bind=local
extra: --begin=2026-12-01T10:00:00
extra: --begin=now+1hour
extra: --profile=task
extra: --deadline=2027-01-01
extra: --cpu-freq=high
extra: --propagate=NOFILE
extra: []
requeues: 0
requeues: 10_000
warning: 5min
warning: 90s
step_time: 10min
write_time: 2.5min
step_time: 1h ;; write_time: 10min
environment: installed
environment: {modules: cuda/12.4}
environment: {modules: [use /appl/modulefiles, use ~/modules, user/1.0, useful, use]}
environment: {modules: [gcc@12.3, openmpi/4.1.5-gcc, python/3.11, cuDNN/8.9.2.26-CUDA-12.1.1]}
environment: {modules: [2023, StdEnv/2023, nvhpc-hpcx-cuda12]}
environment: {modules: [/apps/modulefiles/x/1.0, ~/modules/y, ./z, .hidden/1, _a/2]}
environment: {conda: base}
environment: {conda: ~/miniconda3/envs/my-env}
environment: {conda: my env}
environment: {conda: torch.v2}
environment: {venv: ~/venvs/torch}
environment: {venv: /scratch/me/venv}
environment: {venv: ~/activate}
environment: {uv: ~/project}
environment: {container: /images/torch.sif}
environment: {container: ~/torch.sif}
environment: {container: {image: "docker://nvcr.io/nvidia/pytorch:24.05-py3"}}
environment: {container: {image: "nvcr.io#nvidia/pytorch:24.05-py3", runtime: pyxis}}
environment: {container: {image: "library://me/torch:2", options: [--nv, "--env=A=b c"]}}
environment: {container: {image: /t.sif, mounts: ["/data:/data:ro", /scratch, "~/x:/x"]}}
environment: {container: {image: "oras://ghcr.io/me/t@sha256:0123012301230123012301230123012301230123012301230123012301230123"}}
environment: {container: /images/my torch.sif}
environment: {container: "/images/torch:24.sif"}
environment: {container: "/images/torch:24"}
environment: {container: "docker-archive:torch.tar"}
environment: {container: "docker-daemon:torch:24"}
environment: {container: "docker-archive:/images/torch.tar"}
environment: {container: "instance://torch"}
environment: {container: "docker://localhost:5000/torch:24"}
environment: {container: "docker://ghcr.io/me/t@sha256:0123012301230123012301230123012301230123012301230123012301230123"}
environment: {container: {image: "me/torch:24", runtime: pyxis}}
environment: {container: {image: "docker://me@localhost:5000#torch:24", runtime: pyxis}}
environment: {container: {image: "localhost:5000/torch:24", runtime: pyxis}}
environment: {container: {image: ./code/torch.sqsh, runtime: pyxis}}
environment: {venv: ~/v} ;; python: ~/v/bin/python3
environment: {container: {image: /a.b/torch.sqsh, runtime: pyxis, options: [--container-mount-home, --mpi=pmix]}}
environment: {container: {image: "dockerd://a.b/torch:1", runtime: pyxis}}
environment: {container: {image: /t.sif, options: [--env, A=b, --overlay=/x.img]}}
environment: {container: {image: "docker://Ghcr.io/me/t:V1"}}
environment: {container: {image: "docker://me/t:24.05-Py3"}}
environment: {container: {image: /x.sqsh, runtime: pyxis, options: [--cpu-bind=none, --mpi=pmix, --overlap]}}
login: cluster
login: me@login1.lab.org
login: ssh://me@login.lab.org:2222
login: me@10.0.0.5
login: "me@fe80::1%eth0"
login: DOMAIN\\me@host
login: "2"
dir: ~/ddpgen jobs
dir: /scratch/me/x
dir: jobs
ssh_options: [-J, jump]
ssh_options: [-o, "ProxyCommand=ssh -W %h:%p jump"]
ssh_options: [-i, ~/.ssh/id_lab, -p, 2222]
ssh_options: -4
nodes: 2..4
nodes: 1 .. 2
nodes: "2..3"
nodes: "2..2"
nodes: 4
nodes: 2 ;; procs_per_node: 2 ;; rendezvous: {launcher: env}
limits: null
setup: ["export A=b", "module purge"]
dir: /tmp/x
name: other ;; train: {steps: 10} ;; env: {A: 1.10}
""",
    "slurm with a GPU": r"""
gpu_request: gres
gpu_request: gpus-per-task
gpu_request: none
gpu_type: a100
gpu_type: a100-sxm4-80gb
gpu_type: nvidia_h100_80gb_hbm3_1g.10gb
gpu_type: 2080ti
gpu_type: 1080
gpu_type: v100 ;; gpu_request: gres
backend: nccl
backend: gloo
nic: ib0
train: {precision: fp16}
train: {comm_hook: bf16, reduction: allreduce}
train: {comm_hook: powersgd, reduction: allreduce}
gpus_per_node: 4
""",
    "sky": r"""
infra: aws
infra: aws/us-east-1
infra: aws/us-east-1/us-east-1a
infra: gcp/us-central1
infra: gcp/us-central1/us-central1-a
infra: azure/eastus
infra: lambda
infra: runpod
infra: nebius
infra: oci/us-sanjose-1
infra: k8s
infra: kubernetes
infra: AWS/us-east-1
infra: aws/us-west-2/us-west-2-lax-1a
infra: aws/*/*
infra: [GCP, K8s/arn:aws:eks:us-east-1:1:cluster/c]
infra: k8s/my-context
infra: k8s/arn:aws:eks:us-east-1:123456789012:cluster/my-cluster
infra: k8s/gke_my-project_us-central1-c_my-cluster
infra: k8s/kind-a.b@c
infra: slurm/my-cluster
infra: slurm/my-cluster/gpu
infra: aws/*/us-east-1a
infra: "*"
infra: "*/us-east-1"
infra: ssh/my-pool
infra: [aws/us-east-1, gcp, k8s]
infra: [aws, gcp] ;; ordered: true
cpus: 4
cpus: 4+
cpus: "8"
cpus: 2.5
memory: 16
memory: 16+
memory: 64GB
memory: 64GB+
memory: 0.5
memory: 1TB
memory: 512MB
memory: 64gb
instance_type: m6i.2xlarge ;; infra: aws
instance_type: VM.GPU.A10.1$_4_64 ;; infra: oci
instance_type: Standard_D8s_v5 ;; infra: azure
instance_type: n2-standard-8 ;; infra: gcp/us-central1
instance_type: gpu_1x_a100_sxm4 ;; infra: lambda
disk_size: 100
disk_size: 1_000
disk_size: 256GB
disk_size: 2TB
disk_size: 500Gi
disk_tier: best
network_tier: best
network_tier: standard
image: ami-0123456789abcdef0 ;; infra: aws/us-east-1
image: ami-0123456789abcdef0 ;; infra: [aws/us-east-1, aws/*/us-west-2a]
image: /CommunityGalleries/g-0/Images/i ;; infra: azure
image: skypilot:gpu-ubuntu-2204 ;; infra: aws
image: projects/p/global/images/i ;; infra: gcp ;; network_tier: best
image: skypilot:gpu-ubuntu-2204 ;; infra: [aws/us-east-1, gcp]
image: projects/deeplearning-platform-release/global/images/family/pytorch ;; infra: gcp
image: docker:nvcr.io/nvidia/pytorch:24.05-py3
image: docker:a/b@sha256:0000000000000000000000000000000000000000000000000000000000000000
image: docker:ubuntu
image: ocid1.image.oc1.us-sanjose-1.aaaa ;; infra: oci
spot: no
spot: true
on_demand_fallback: yes
labels: {}
labels: {team: "no", cost-centre: "0123", what/for: a-b_c.d}
labels: {a: 1.10, b: 007, c: ''}
labels: {kubernetes.io/x: y}
labels: {Owner: a/b@c, "x": ""} ;; infra: aws
labels: {owner: first_last} ;; infra: gcp
labels: {owner: First.Last, a.b/c: ""} ;; infra: k8s
labels: {Owner: "First Last"} ;; infra: azure
autostop: 10min
autostop: 1h
autostop: 90s
recovery: failover
recovery: {strategy: eager_next_region}
recovery: {restarts_on_errors: 3}
preempted_every: 2h
preempted_every: 1d
preempted_every: 1d ;; spot: false ;; infra: k8s
notices: off
secrets: [HF_TOKEN]
nodes: 2
nodes: 3 ;; nic: ens5
setup: []
setup: "sudo apt-get install -y x"
requirements: []
env: {A: "$(x) ${HOME} 'y'"}
""",
    "sky with a GPU": r"""
accelerators: A100
accelerators: A100:1
accelerators: A100-80GB
accelerators: L4
accelerators: L40S:1
accelerators: RTX_4090
accelerators: RTX4090:1
accelerators: RTX6000-Ada
accelerators: H200-SXM
accelerators: GH200
accelerators: MI300X
accelerators: B200
accelerators: A10G
accelerators: V100-32GB
accelerators: [A100, H100:1]
accelerators: [A100, H100] ;; ordered: true
accelerators: T4 ;; infra: [aws, gcp]
instance_type: g5.xlarge ;; infra: aws
instance_type: 4CPU--16GB--H100:1 ;; infra: k8s
accelerators: A100 ;; spot: off ;; on_demand_fallback: off
""",
    "bucket": r"""
bucket: s3://my-bucket
bucket: s3://my.bucket.name
bucket: s3://my-bucket/
bucket: gs://my_bucket
bucket: r2://my-bucket
bucket: cos://us-east/my-bucket
bucket: oci://my-bucket
bucket: nebius://my-bucket
bucket: cw://my-bucket
bucket: vastdata://my-bucket
bucket: https://account.blob.core.windows.net/container
bucket: {url: s3://my-bucket}
bucket: {url: s3://my-bucket, mode: cached}
bucket: {url: s3://my-bucket, prefix: a/b.c/d_e}
bucket: {url: s3://my-bucket, prefix: 007}
bucket: {url: s3://my-bucket, path: /data/ck}
bucket: {url: s3://my-bucket, path: /mnt/my.ck-1}
bucket: {url: s3://my-bucket, path: /opt/ck}
bucket: {url: s3://my-bucket, path: /checkpoints/}
checkpoint: {dir: s3://my-bucket/x}
checkpoint: {dir: gs://my-bucket/x}
bucket: null ;; checkpoint: {dir: az://container/x}
checkpoint: {dir: box://folder/x}
checkpoint: {dir: tosfs://my-bucket/x}
""",
    "requirements": r"""
torch==2.13.0
torch
torch>=2.4,<3
torch >= 2.4, < 3
torch~=2.4
torch!=2.5.0
torch===2.13.0
torch==2.*
torch (>=2.4)
torch==2.13.0+cu124
torch[opt-einsum]==2.13.0
"torch [a , b] >= 2"
torch==2.4.0rc1
torch==2!1.0.post1.dev0
"torch; python_version >= '3.10'"
'torch; python_version >= "3.10"'
'torch==2.13.0 ; sys_platform == "linux" and python_version < "3.14"'
"torch @ https://download.pytorch.org/whl/torch-2.13.0-cp311-cp311-linux_x86_64.whl"
"pkg @ git+https://github.com/o/r@v1.0"
"pkg @ git+ssh://git@github.com/o/r.git@main#subdirectory=a"
git+https://github.com/o/r
"git+https://github.com/o/r.git@abc123#egg=r"
https://host/a/b-1.0-py3-none-any.whl
"--index-url https://download.pytorch.org/whl/cu124"
"--extra-index-url=https://download.pytorch.org/whl/cu124"
"-i https://pypi.org/simple"
"-f https://host/wheels"
--find-links=https://host/wheels
--no-index
--pre
--prefer-binary
"--no-binary :all:"
"--only-binary=:all:"
"torch==2.*,!=2.3.*"
"torch;python_version<'3.13'"
pkg@https://host/pkg-1.0-py3-none-any.whl
"https://host/x-1-py3-none-any.whl#sha256=00"
"--index-url https://${TOKEN}@host/simple"
"--trusted-host host"
"torch==2.13.0 --hash=sha256:0000000000000000000000000000000000000000000000000000000000000000"
-r requirements.txt
-rrequirements.txt
--requirement=requirements.txt
"-c requirements.txt"
"-r https://host/requirements.txt"
"# a comment"
"torch==2.13.0  # pinned"
./wheels/x-1.0-py3-none-any.whl
"-e ."
a.b_c-d==1
A==1
zope.interface==7.0
bs4==0.0.2
pyyaml-env-tag==1
"yaml @ https://host/yaml-1-py3-none-any.whl"
"--use-feature fast-deps"
""",
    "hosts": r"""
hosts: [desk]
hosts: [desk, laptop]
hosts: [{name: "1", address: h1}, {name: 2, address: h2}]
hosts: [a.b.c, d-e_f]
hosts: [10.0.0.1, 10.0.0.2]
hosts: [desk] ;; dir: ~/my jobs
hosts: [desk] ;; dir: /data/jobs
hosts: [desk] ;; dir: jobs
hosts: [a, b] ;; head: b
hosts: [a, b, c] ;; nodes: 2..3
hosts: [a, b, c] ;; nodes: 3..3
hosts: [a, b] ;; nodes: 1..2
hosts: [a, b] ;; ssh_options: [-J, "jump1,jump2"]
hosts: [a, b] ;; ssh_options: [-o, StrictHostKeyChecking=accept-new, -i, ~/.ssh/k]
hosts: [a] ;; ssh_options: -4
hosts: [a, b] ;; rendezvous: {launcher: env}
hosts: [a, b] ;; rendezvous: {launcher: torchrun-static}
hosts: [a, b] ;; train: {reduction: allreduce}
hosts: [a, b] ;; preflight: off
hosts: [a, b] ;; nic: enp5s0
hosts: [{name: a}, {name: b}]
hosts: [a, {name: b}]
hosts: [{name: a, address: 192.168.7.1}, {name: b, address: 192.168.7.2}]
hosts: [{name: a, procs: 1}, {name: b, procs: 3}]
hosts: [{name: a, share: 3}, {name: b, share: 1}]
hosts: [{name: a, share: 0.75}, {name: b, share: .25}]
hosts: [{name: a, ssh: localhost, address: h1}, {name: b, ssh: me@h2}]
hosts: [a, b] ;; secrets: [HF_TOKEN]
hosts: [a, b] ;; python: ~/venv/bin/python
hosts: [a, b] ;; checkpoint: {dir: /nfs/ck, shared: yes}
hosts: [a, b] ;; checkpoint: {dir: s3://my-bucket/x}
""",
    "host": r"""
ssh: me@h1
ssh: h1
ssh: ssh://me@h1:2222
ssh: ssh://h1
ssh: me@10.0.0.1
ssh: first.last@h1.lab.org
ssh: "me@fe80::1" ;; address: h2
ssh: "fe80::1%eth0" ;; address: h2
ssh: "[::1]" ;; address: h2
ssh: ssh://me@[::1]:22 ;; address: h2
ssh: DOMAIN\\me@h1
ssh: a_b.c-d
ssh: me+x@h1
ssh: "2" ;; address: h2
ssh: user@host@gateway
address: 10.0.0.1
address: 100.64.0.1
address: h1
address: h1.lab.org
address: h1.lab.org.
address: my_host
address: 1host
nic: tailscale0
nic: wg0
procs: 4
gpus: 0
share: 0.5
share: 1e-1
share: 2
dir: ~/x y
dir: /data/x
dir: x/y
python: python3.12
python: {interpreter: ~/v/bin/python, activate: source ~/x}
env: {A: "b c", NCCL_SOCKET_NTHREADS: 4}
env: null
""",
    "line of bash": r"""
source ~/venv/bin/activate
. ./venv/bin/activate
'eval "$(conda shell.bash hook)"'
"conda activate my-env || true"
"set +u; source /etc/profile; set -u"
'[[ -d ~/v ]] && source ~/v/bin/activate'
"if [ -f x ]; then . x; fi"
"for f in a b; do . $f; done"
"f() { echo x; }"
"ulimit -n 65536"
'export A="b c" B=$(hostname) C=`date`'
"# a comment"
"echo {a,b} | xargs -n1 echo > /dev/null 2>&1"
"case $HOSTNAME in n1) A=1;; *) A=2;; esac"
"A=(1 2 3); echo ${A[@]}"
"cat <<< x"
"echo 'a: b' # c"
"umask 077"
"(cd /tmp && ls)"
"trap - EXIT"
":"
""",
}
WHOLE = {
    "JSON": '{"name": "a", "train": {"workload": "gpt", "steps": 3, "global_batch_size": 8, "micro_batch_size": 4}}',
    "JSON with tabs": '{\n\t"name": "a",\n\t"train": {"workload": "gpt", "steps": 3, "global_batch_size": 8, "micro_batch_size": 4}\n}',
    "a document with its marks": f"---\n{GPT}...\n",
    "a YAML directive": f"%YAML 1.1\n---\n{GPT}",
    "a byte order mark": f"\ufeff{GPT}",
    "Windows' line ends": GPT.replace("\n", "\r\n"),
    "old Macs' line ends": GPT.replace("\n", "\r"),
    "no line end": GPT.rstrip("\n"),
    "comments": GPT.replace("\n", "  # it's a comment: {[\n"),
    "keys in quotes": GPT.replace("name:", '"name":').replace("workload:", "'workload':"),
    "a key of its own line": GPT.replace("name: gpt", "? name\n: gpt"),
    "deep indentation": GPT.replace("  ", "         "),
    "blank lines": GPT.replace("\n", "\n\n\n"),
    "flow over lines": "{name: a,\n train: {workload: gpt, steps: 3,\n   global_batch_size: 8, micro_batch_size: 4,},}",
    "a folded text": f"{GPT}env:\n  A: >\n    a b\n    c\n  B: |-\n    d\n    e\n  C: \"f\n    g\"\n",
    "lists of both forms": f"{GPT}code:\ntargets:\n  hosts:\n    hosts:\n    - a\n    - name: b\n      procs: 1\n",
    "lines of bash as a block": f"{GPT}python:\n  activate: |\n    source a\n    if x; then\n      y\n    fi\n",
    "all in overlays": "targets:\n  local:\n    name: a\n    train: {workload: gpt, steps: 3, global_batch_size: 8, micro_batch_size: 4}\n",
    "a program for each tier": (
        "name: a\ncode: [.]\ntrain: {args: {n: 007}}\ntargets: {local: {train: {script: train.py}}, "
        "slurm: {train: {command: [./run.sh], args: null, resume: by-itself}}}\n"
    ),
    "null in an overlay": f"{GPT}nic: eth0\ntargets: {{local: {{nic: null}}}}\n",
}  # fmt: skip


def specs() -> Iterator[tuple[str, str]]:
    """Yield each spec with its name."""
    for table, lines in LINES.items():
        template = SPECS[table]
        indentation = template.partition("@")[0].rpartition("\n")[2]
        for line in lines.strip("\n").splitlines():
            yield (
                f"{table}: {line}",
                template.replace("@", line.replace(" ;; ", f"\n{indentation}")),
            )
    yield from WHOLE.items()


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A directory with the files that the specs name."""
    for name in ("train.py", "sub/dir/train.py", "my code/my train.py", "sub/dir/__init__.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("")
    for name in ("work.py", "sub/dir/work.py", "my code/my work.py"):
        (tmp_path / name).write_text("def build(context): ...\n_private = Build2 = build\n")
    texts = (
        "run.sh",
        "corpus.txt",
        "requirements.txt",
        "torch.sqsh",
        "wheels/x-1.0-py3-none-any.whl",
    )
    for name in texts:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("x" * 10_000)
    return tmp_path


def refusal(text: str, home: Path) -> str:
    """Return the errors of a spec; "" for one that renders on its tiers."""
    try:
        readings = read(text.encode(), str(home / "job.yaml"))
        job.check([*readings.values()], home)
    except SpecInvalidError as error:
        return str(error)
    job.artefacts(readings, job.resolve("all", readings), None)
    return ""


def test_of_a_sample_nothing_is_refused(home: Path) -> None:
    every = list(specs())
    assert len(dict(every)) >= ENOUGH
    assert refused(random.Random(0).sample(every, SAMPLE), home) == {}


@pytest.mark.nightly
@pytest.mark.timeout(600)
def test_nothing_is_refused(home: Path) -> None:
    assert refused(specs(), home) == {}


def refused(texts: Iterable[tuple[str, str]], home: Path) -> dict[str, str]:
    """Return the errors of those specs that have some, by the spec's name."""
    return {name: errors for name, text in texts if (errors := refusal(text, home))}
