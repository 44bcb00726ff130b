"""What is told of a user's script before the launch."""

from __future__ import annotations

from pathlib import Path

import pytest

from ddpgen.adopt.program import check, outline
from ddpgen.tiers.registry import read
from tests.ddpgen.conftest import ROOT, Run

PARSER = """\
import argparse
parser = argparse.ArgumentParser()
parser.add_argument("config")
parser.add_argument("--learning-rate", "-l", type=float)
parser.add_argument("--data", required=True)
parser.add_argument("--compile", action="store_true")
args = parser.parse_args()
torch.save(torch.load("a.pt"), "a.pt")
"""
# As karpathy/nanoGPT has it, but for the training.
NANOGPT = """\
out_dir = 'out'
init_from = 'scratch' # 'scratch' or 'resume' or 'gpt2*'
batch_size = 12
backend = 'nccl' # 'nccl', 'gloo', etc.
device = 'cuda' # examples: 'cpu', 'cuda', 'cuda:0'
dtype = 'bfloat16' if torch.cuda.is_available() else 'float16'
config_keys = [k for k,v in globals().items() if isinstance(v, (int, float, bool, str))]
exec(open('configurator.py').read()) # overrides from command line or config file
iter_num = 0
init_process_group(backend=backend)
device = f'cuda:{ddp_local_rank}'
if init_from == 'resume':
    checkpoint = torch.load(os.path.join(out_dir, 'ckpt.pt'), map_location=device)
torch.save(checkpoint, os.path.join(out_dir, 'ckpt.pt'))
"""
TORCHVISION = """\
parser = argparse.ArgumentParser()
parser.add_argument("--device", default="cuda", type=str)
args = parser.parse_args()
m.save(m.load())
"""
_NO_SAVE = PARSER.rpartition("torch.save")[0]


def told(tmp_path: Path, text: str, args: str = "{}") -> list[str]:
    spec = f"name: a\nprocs_per_node: 2\ncode: code\ntrain:\n  script: t.py\n  args: {args}\n"
    job = read(spec.encode(), "a.yaml")["local"].job
    (tmp_path / "code").mkdir(exist_ok=True)
    (tmp_path / "code" / "t.py").write_text(text)
    found = list(check(job, tmp_path))
    assert not any(each.fatal for each in found)
    return [f"{each.about[0]}: {each.what}; {each.remedy}" for each in found]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "x = (\n",
            "train.script: t.py:1: this is no Python here: '(' was never closed; correct it",
        ),
        (
            "m.save(m.load())\nm.to('cuda')\n",
            "train.script: t.py:2 asks for cuda, and the job has no GPUs",
        ),
        (
            "m.save(m.load())\nm.cuda()\n",
            "train.script: t.py:2 asks for cuda, and the job has no GPUs",
        ),
        (
            "m.save(m.load())\ndist.init_process_group('nccl')\n",
            "train.script: t.py:2 asks for nccl, and the job has no GPUs",
        ),
        (
            "t = Trainer(devices=4)\n",
            "procs_per_node: t.py:1: devices=4, and procs_per_node is 2; make them equal",
        ),
        (
            "m.train()\nm.save()\n",
            "train.script: t.py:2 saves, and nothing loads that: a start after a kill would be refused",
        ),
        ("train()\n", "train.script: t.py saves nothing: a kill or a stop loses all"),
    ],
)
def test_what_may_surprise(text: str, expected: str, tmp_path: Path) -> None:
    (found,) = told(tmp_path, text)
    assert found.startswith(expected)


@pytest.mark.parametrize(
    "text",
    [
        "if torch.cuda.is_available(): m.to('cuda')\nm.save(m.load())\n",
        "t = Trainer(devices=2)\n",
        "import t2.loop\nt2.loop.run()\n",
        "from . import loop\n",
        "import argparse\np = argparse.ArgumentParser()\np.parse_known_args()\nm.save(m.load())\n",
        "p = ArgumentParser()\np.add_argument('--' + name)\np.parse_args()\nm.save(m.load())\n",
    ],
)
def test_what_is_not_sure_is_not_said(text: str, tmp_path: Path) -> None:
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "t2").mkdir()
    assert told(tmp_path, text, "{what: 1}") == []


def test_options_that_the_script_does_not_have(tmp_path: Path) -> None:
    args = "{learning_rate: 1, learning-rate: 2, data: x, comp: true}"
    assert told(tmp_path, PARSER, args) == [
        "train.args.learning_rate: t.py has no option --learning_rate; did you mean learning-rate?",
        "train.args: t.py wants config; add it; a list of words can say positional ones",
    ]
    assert told(tmp_path, PARSER, "{}") == [
        "train.args: t.py wants config; add it; a list of words can say positional ones",
        "train.args: t.py wants data; add it; a list of words can say positional ones",
    ]
    assert told(tmp_path, PARSER, "[a.json, --data, x]") == []


@pytest.mark.parametrize(
    ("text", "args", "expected"),
    [
        (
            NANOGPT,
            "{}",
            ["t.py:4 asks for nccl, and the job has no GPUs; write gpus_per_node: 2, or "],
        ),
        (NANOGPT, "{backend: gloo}", ["t.py:5 asks for cuda, and the job has no GPUs; write"]),
        (NANOGPT, "{backend: gloo, device: cpu}", []),
        (NANOGPT, "[--backend=gloo, --device=cpu]", []),
        (NANOGPT, "[config/on_cpu.py, --compile=False]", []),
        (NANOGPT.replace("iter_num", "device = 'cpu'; backend = 'gloo'#"), "{}", []),
        (TORCHVISION, "{}", ["t.py:2 asks for cuda, and the job has no GPUs; write gpus_per"]),
        (TORCHVISION, "{device: cuda:0}", ["t.py:2 asks for cuda, and the job has no GPUs"]),
        (TORCHVISION, "{device: cpu}", []),
        (TORCHVISION, "[--device, cpu]", []),
    ],
)
def test_a_device_that_the_arguments_choose(
    text: str, args: str, expected: list[str], tmp_path: Path
) -> None:
    found = told(tmp_path, text, args)
    assert [each[: len("train.script: " + e)] for each, e in zip(found, expected, strict=True)] == [
        f"train.script: {each}" for each in expected
    ]


@pytest.mark.parametrize(("gpus", "told"), [("0", 1), ("1", 0)])
def test_of_hosts_one_with_a_gpu_is_enough_to_ask_for_it(
    gpus: str, told: int, tmp_path: Path
) -> None:
    (tmp_path / "t.py").write_text(TORCHVISION)
    hosts = f"{{hosts: {{hosts: [a, {{name: b, gpus: {gpus}}}]}}}}"
    text = f"name: a\ncode: .\ntrain: {{script: t.py}}\ntargets: {hosts}\n"
    found = [*check(read(text.encode(), "a.yaml")["hosts"].job, tmp_path)]
    assert [each.what.endswith("and the job has no GPUs") for each in found] == [True] * told


def test_globals_that_the_arguments_replace_are_options(tmp_path: Path) -> None:
    no_gpus = "backend: gloo, device: cpu"
    misspelt, other = told(tmp_path, NANOGPT, f"{{{no_gpus}, batch_siz: 2, iter_num: 3}}")
    assert misspelt == (
        "train.args.batch_siz: t.py has no option --batch_siz; did you mean batch_size?"
    )
    assert other.endswith(" write one of out_dir, init_from, batch_size, backend, device, dtype")
    example = ROOT / "examples" / "code" / "nanogpt" / "train.py"
    assert outline(example).resume == "--init_from=resume"


def test_a_list_of_words_that_is_meant_otherwise(tmp_path: Path) -> None:
    script = "m.save(m.load())\n"
    assert told(
        tmp_path, script, "['--lr 0.1', '-x  1', 'a b', '--text=a b']\n  args_style: flags"
    ) == [
        "train.args_style: is for a mapping, and train.args is a list, which is passed word for word; leave it out",
        'train.args: "--lr 0.1" is one word with a space in it; write two: "--lr", "0.1"',
        'train.args: "-x  1" is one word with a space in it; write two: "-x", "1"',
    ]


def test_braces_that_are_filled_in_nowhere(tmp_path: Path) -> None:
    script = "m.save(m.load())\n"
    assert told(tmp_path, script, "['{checkpointdir}/a', '{epoch}.pt', '{{jobs}}', '${jobs}']") == [
        "train.args: {checkpointdir} stays as it is; did you mean checkpoint_dir?"
    ]
    (only,) = told(tmp_path, script, "{a: '{newest}'}")
    assert only.startswith("train.args: {newest} is filled in in train.resume.args alone")
    text = "name: a\ntrain:\n  command: [a.sh]\n  resume: {exists: 'c-*', args: '--go={newest}'}\n"
    assert [*check(read(text.encode(), "a.yaml")["local"].job, tmp_path)] == []


def test_the_warnings_are_shown_where_the_spec_can_be_changed(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "t.py").write_text(PARSER)
    spec = "name: a\ncode: code\ntrain:\n  script: t.py\n  args: {dta: 1, data: 2, config: x}\n"
    (tmp_path / "a.yaml").write_text(spec)
    done = run("validate", "a.yaml")
    assert done.code == 0
    assert (
        "a.yaml:5:15: warning: train.args.dta: t.py has no option --dta; did you mean data?"
        in done.err
    )


def test_init_writes_a_spec_for_a_script(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my code").mkdir()
    (tmp_path / "my code" / "train it.py").write_text(PARSER)
    made = run("init", "--script", "my code/train it.py", "--procs", "3", "-o", "a.yaml")
    assert made == (0, "a.yaml\n", "next: ddpgen validate a.yaml\n")
    text = (tmp_path / "a.yaml").read_text()
    assert "# its options: learning-rate, data, compile\n" in text
    job = read(text.encode(), "a.yaml")["local"].job
    assert (job.name, job.procs_per_node, job.code) == ("train-it", 3, ("my code",))
    assert job.train.script == "train it.py"
    assert run("init", "--script", "none.py", "-o", "b.yaml").err.startswith(
        "--script: none.py is not"
    )
    Path("other").mkdir()
    elsewhere = run("init", "--script", "my code/train it.py", "-o", "other/b.yaml")
    assert "does not lie below" in elsewhere.err
    both = run("init", "--script", "my code/train it.py", "--steps", "3", "-o", "c.yaml")
    assert "--steps is not for a script" in both.err
    assert not (tmp_path / "b.yaml").exists()


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("", '{exists: "CHECKPOINT", args: "--OPTION=CHECKPOINT"}'),
        (PARSER, '{exists: "a.pt", args: "--OPTION=a.pt"}'),
        (
            f"{_NO_SAVE}p.add_argument('--resume', action='store_true')\ntorch.save({{}}, 'ckpt.pt')\n",
            '{exists: "ckpt.pt", args: "--resume"}',
        ),
        (
            f"{_NO_SAVE}p.add_argument('--resume-from')\ntorch.save({{}}, 'ckpt.pt')\n",
            '{exists: "ckpt.pt", args: "--resume-from=ckpt.pt"}',
        ),
        (
            f"{_NO_SAVE}p.add_argument('--resume')\ntorch.save(a, b)\ntorch.save({{}}, f'out/{{step}}.pt')\n",
            '{exists: "out/*.pt", args: "--resume={newest}"}',
        ),
        (
            NANOGPT,
            '{exists: "out/ckpt.pt", args: "--init_from=resume"}',
        ),
    ],
)
def test_init_suggests_how_the_script_goes_on(
    text: str, line: str, run: Run, tmp_path: Path
) -> None:
    (tmp_path / "t.py").write_text(text)
    assert run("init", "--script", "t.py", "-o", "a.yaml").code == 0
    spec = (tmp_path / "a.yaml").read_text()
    assert f"  # resume: {line}\n" in spec
    job = read(spec.replace("  # resume: ", "  resume: ").encode(), "a.yaml")["local"].job
    assert job.train.resume.exists


def test_init_names_the_jobs_of_two_train_py_apart(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for folder in ("gpt", "my resnet"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "train.py").write_text(PARSER)
        assert run("init", "--script", f"{folder}/train.py", "-o", f"{folder}.yaml").code == 0
    names = [
        read((tmp_path / f).read_bytes(), f)["local"].job.name
        for f in ("gpt.yaml", "my resnet.yaml")
    ]
    assert names == ["gpt", "my-resnet"]


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("[torchrun, t.py]", "is a launcher, and each process of the job would start it"),
        ("[srun, --ntasks=4, ./t.sh]", "is a launcher, and each process of the job would start it"),
        ("[/opt/bin/mpirun, -n, 4, ./t.sh]", "is a launcher, and each process"),
        ("[accelerate, launch, t.py]", "is a launcher, and each process of the job would start it"),
        ("[python3, -m, torch.distributed.run, t.py]", "is a launcher, and each process"),
        ("[python3.11, t.py, --lr=1]", "is Python, of which more is known as a script"),
        ("[accelerate, launch, --num_processes, 1, t.py]", ""),
        ("[my-trainer, python]", ""),
    ],
)
def test_of_a_command(command: str, expected: str, tmp_path: Path) -> None:
    spec = f"name: a\ntrain:\n  command: {command}\n  resume: by-itself\n"
    found = [each.what for each in check(read(spec.encode(), "a.yaml")["local"].job, tmp_path)]
    assert [each[: len(expected)] for each in found] == ([expected] if expected else [])


SKY = """\
name: a
code: .
targets: {{sky: {{bucket: s3://a-bucket}}}}
train: {{script: t.py{train}}}
"""
LOST = "working directory, which goes with the machine"


@pytest.mark.parametrize(
    ("train", "saves", "expected"),
    [
        (
            ", resume: {exists: out/last.pt, args: --resume}", "'last.pt'",
            f"out/last.pt lies in the {LOST}; write {{checkpoint_dir}}/out/last.pt, and let the script save to {{checkpoint_dir}}/out",
        ),
        (
            ", resume: {exists: last.pt, args: --resume}", "path",
            f"last.pt lies in the {LOST}; write {{checkpoint_dir}}/last.pt, and let the script save to {{checkpoint_dir}}",
        ),
        (", guard: ckpt-*/DONE", "path", f"ckpt-*/DONE lies in the {LOST}; write"),
        ("", "'out/last.pt'", f"t.py:1 saves out/last.pt into the {LOST}; save below"),
        ("", "f'{out}/last.pt'", ""),
        ("", "'/ckpt/last.pt'", ""),
        (", resume: {exists: '{checkpoint_dir}/x.pt', args: --resume}", "'x.pt'", ""),
        (", workdir: /checkpoints/work", "'x.pt'", ""),
    ],
)  # fmt: skip
def test_on_sky_saves_that_go_with_the_machine_are_told(
    train: str, saves: str, expected: str, tmp_path: Path
) -> None:
    (tmp_path / "t.py").write_text(f"torch.save(a, {saves}); torch.load(a)\n")
    spec = SKY.format(train=train)
    reading = read(spec.encode(), "a.yaml")["sky"]
    found = [f"{each.what}; {each.remedy}" for each in check(reading.job, tmp_path)]
    assert [each[: len(expected)] for each in found] == ([expected] if expected else [])
