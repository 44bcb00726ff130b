"""What is told of a user's script before the launch."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from ddpgen.lint import lines
from ddpgen.lint.own_script import outline
from ddpgen.lint.program import check
from ddpgen.spec.job import PointProgram
from ddpgen.spec.rules import Conflict
from ddpgen.tiers.registry import read
from tests.ddpgen.conftest import ROOT, Fault, Run, findings

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


def with_args(args: str) -> str:
    return f"name: a\nprocs_per_node: 2\ncode: code\ntrain:\n  script: t.py\n  args: {args}\n"


def told(tmp_path: Path, text: str, args: str = "{}") -> list[Fault]:
    """The warnings about a script: the field of each, and its text."""
    job = read(with_args(args).encode(), "a.yaml")["local"].job
    (tmp_path / "code").mkdir(exist_ok=True)
    (tmp_path / "code" / "t.py").write_text(text)
    found = list(check(job, tmp_path))
    assert not any(each.fatal for each in found)
    return [Fault(each.fields[0], f"{each.problem}; {each.remedy}") for each in found]


WORKLOAD = """\
name: a
procs_per_node: 2
code: code
train: {workload: 't.py:build', steps: 1, global_batch_size: 4, micro_batch_size: 1}
"""


def with_width(value: str) -> str:
    return WORKLOAD.replace("steps: 1", f"steps: 1, args: {{width: {value}}}")


WITH_ARGUMENT = with_width("48")
NOT_THERE = [
    (WORKLOAD, "def biuld(context):\n    build = 1\n", "train.workload", "t.py has no build; did you mean biuld?"),
    ("name: a\ncode: code\ntrain: {script: 'module:t.x'}\n", "", "train.script", "there is no module t.x in code"),
    ("name: a\ncode: code\ntrain: {script: 'module:t.py'}\n", "", "train.script", "there is no module t.py in code (code); write script: t.py"),
    (WORKLOAD, "import build\n", "train.workload", "build is a module"),
    (WITH_ARGUMENT, "def build(context, *, with_b=1): ...\n", "train.args.width", "build() in t.py:1 has no argument width; did you mean with_b?"),
    (WITH_ARGUMENT, "\ndef build(context): ...\n", "train.args.width", "build() in t.py:2 has no argument width; leave it out"),
    (WITH_ARGUMENT, "def build(width, *, lr=1): ...\n", "train.args.width", "build() in t.py:1 has no argument width; write one of lr"),
    (WITH_ARGUMENT, "def build(context, width, depth): ...\n", "train.args", "build() in t.py:1 needs depth"),
    (WORKLOAD, "def build(context, *, depth): ...\n", "train.args", "build() in t.py:1 needs depth"),
    (WORKLOAD, "build = 10\n", "train.workload", "build is a constant of t.py"),
    (WORKLOAD, "build: int = 10\n", "train.workload", "build is a constant of t.py"),
]  # fmt: skip


def with_annotation(annotation: str) -> str:
    return f"def build(context, *, width: {annotation} = 3): ...\n"


# A value, the annotation of its parameter, and the remedy; "" for a value that fits.
ANNOTATED = [
    ("'48'", "int", "write a whole number"),
    ("48.0", "int", "write a whole number"),
    ("true", "int", "write a whole number"),
    ("[48]", "int", "write a whole number"),
    ("null", "int", "write a whole number"),
    ("'0.1'", "float", "write a number"),
    ("'false'", "bool", "write true or false"),
    ("5", "str", "write a text"),
    ("1.5", "int | None", "write a whole number"),
    ("48", "int", ""),
    ("1", "float", ""),
    ("0", "bool", ""),
    ("x", "str", ""),
    ("null", "int | None", ""),
    ("[48]", "int | list[int]", ""),
    ("'48'", "Width", ""),
    ("'48'", "Optional[int]", ""),
]


@pytest.mark.parametrize(("value", "annotation", "remedy"), ANNOTATED)
def test_a_value_that_does_not_fit_its_annotation(
    value: str, annotation: str, remedy: str, tmp_path: Path
) -> None:
    found = conflicts(tmp_path, with_width(value), with_annotation(annotation))
    assert [(each.fields[0], each.remedy) for each in found] == (
        [("train.args.width", remedy)] if remedy else []
    )
    assert not any(each.fatal for each in found)
    assert conflicts(tmp_path, with_width("null"), "def build(c, width: int = None): ...\n") == []


# Not even the newest Python knows some of them, but no Python knows the syntax of a later one.
NO_PYTHON = [
    (with_args("{}"), "x = (\n", "train.script"),
    (with_args("{}"), "x = 1\0\n", "train.script"),
    (WORKLOAD, "def build[T](x: T ->): ...\n", "train.workload"),
    (WORKLOAD, "def build(x):\n    y = lazy import z\n", "train.workload"),
    # The compiler finds these, and not the parser.
    (with_args("{}"), "import os\nfrom __future__ import annotations\n", "train.script"),
    (with_args("{}"), "def main(): ...\nreturn main()\n", "train.script"),
    (with_args("{}"), "def main():\n    await f()\n", "train.script"),
    (with_args("{}"), "yield 1\n", "train.script"),
    (with_args("{}"), "for x in y: ...\nbreak\n", "train.script"),
    (with_args("{}"), "def f(a, a): ...\n", "train.script"),
    (with_args("{}"), "def f():\n    print(x)\n    global x\n", "train.script"),
    (WORKLOAD, "def build(x, *, lr=1, lr=2): ...\n", "train.workload"),
]


def conflicts(place: Path, spec: str, text: str) -> list[Conflict]:
    """Return the conflicts about code/t.py with this text."""
    (place / "code").mkdir(exist_ok=True)
    (place / "code" / "t.py").write_text(text)
    return list(check(read(spec.encode(), "a.yaml")["local"].job, place))


@pytest.mark.parametrize(("spec", "text", "field", "word"), NOT_THERE)
def test_what_the_job_names_has_to_be_there(
    spec: str, text: str, field: str, word: str, tmp_path: Path
) -> None:
    (conflict,) = conflicts(tmp_path, spec, text)
    assert conflict.fatal
    assert conflict.fields[0] == field
    assert f"{conflict.problem}; {conflict.remedy}".startswith(word)


@pytest.mark.parametrize(
    "text",
    [
        "def build(context): ...",
        "@run\nasync def build(context): ...",
        "from models import make as build",
        "if True:\n    build = 1",
        "from models import *",
        "globals()['build'] = 1",
        "def f():\n    global build\n    build = 1",
        "class build(Made): ...",
        "match x:\n    case {'a': build}: ...",
        "[build := x for x in y]",
        "def __getattr__(name): ...",
        "locals()['build'] = 1",
        "import sys\nsys.modules[__name__].build = 1",
        "here.__dict__['build'] = 1",
        "from models import \\\n    *",
    ],
)
def test_a_function_that_may_be_there_is_not_missed(text: str, tmp_path: Path) -> None:
    assert conflicts(tmp_path, WORKLOAD, text) == []


@pytest.mark.parametrize(
    "text",
    [
        "def build(context, width): ...",
        "def build(context, *, width=3, **others): ...",
        "def build(context, **args): ...",
        "def build(*args, width): ...",
        "def build(context, width: int): ...",
        "@wrapped\ndef build(context): ...",
        "def build(context): ...\nbuild = other",
        "if x:\n    def build(context): ...\nelse:\n    from m import build",
        "def build(context): ...\nfrom m import *",
        "class build(Made):\n    def __init__(self, context, width): ...",
        "from m import build",
    ],
)
def test_an_argument_that_a_function_may_take_is_not_refused(text: str, tmp_path: Path) -> None:
    assert conflicts(tmp_path, WITH_ARGUMENT, text) == []


# A workload whose function cannot be called, or gives nothing; "" for one that may do.
SIGNATURES = [
    ("from .tools import x\ndef build(context): return x\n", "t.py:1: from .tools import x fails"),
    ("def build(context):\n  from .tools import x\n  return x\n", ""),
    ("from tools import x\ndef build(context): return x\n", ""),
    ("def build(): return 1\n", "build() in t.py:1 takes no argument"),
    ("def build(context):\n    model = 1\n", "build() in t.py:1 returns nothing"),
    ("def build(*args): return 1\n", ""),
    ("def build(context): raise ValueError\n", ""),
    ("@wrapped\ndef build(): pass\n", ""),
]


@pytest.mark.parametrize(("text", "words"), SIGNATURES)
def test_a_function_that_makes_no_workload(text: str, words: str, tmp_path: Path) -> None:
    found = [each.problem for each in conflicts(tmp_path, WORKLOAD, text)]
    assert len(found) == bool(words)
    assert all(each.startswith(words) for each in found)


@pytest.mark.parametrize(("spec", "text", "field"), NO_PYTHON)
def test_syntax_that_python_does_not_know_here_is_a_warning(
    spec: str, text: str, field: str, tmp_path: Path
) -> None:
    (conflict,) = conflicts(tmp_path, spec, text)
    assert (conflict.fields[0], conflict.fatal) == (field, False)
    assert "t.py:" in conflict.problem
    for interpreter in (
        "python3.99",
        "/opt/python3.99/bin/python3",
        "~/cpython-3.99.1-linux/bin/python",
    ):
        assert conflicts(tmp_path, f"{spec}python: {interpreter}\n", text) == []
    for interpreter in ("python3.10", "/opt/v33.99/bin/python", "/opt/x-1.3.99/bin/python"):
        assert len(conflicts(tmp_path, f"{spec}python: {interpreter}\n", text)) == 1


@pytest.mark.parametrize(
    "text",
    [
        '"""A script."""\nfrom __future__ import annotations\nx: Later = 1\n',
        "async def main():\n    await f()\n    return [x async for x in g()]\n",
        "if x is 1: pass\nassert (x, 'always')\ny = '\\d'\n",
        f"x = y{'.f()' * 700}\n",
    ],
)
def test_python_of_any_form(
    text: str, tmp_path: Path, recwarn: pytest.WarningsRecorder, capfd: pytest.CaptureFixture[str]
) -> None:
    assert conflicts(tmp_path, with_args("{}"), f"{text}m.save(m.load())\n") == []
    assert (len(recwarn), capfd.readouterr().err) == (0, "")


@pytest.mark.parametrize(
    ("script", "line", "remedy"),
    [
        ("pkg/run.py", "from .paths import x", "write script: module:pkg.run"),
        ("./pkg/run.py", "from .paths import x", "write script: module:pkg.run"),
        ("pkg/sub/run.py", "from ..paths import x", "write script: module:pkg.sub.run"),
        ("pkg/run.py", "from ..paths import x", "leave out the dots"),
        ("my-pkg/run.py", "from .paths import x", "leave out the dots"),
        ("module:pkg.run", "from .paths import x", ""),
    ],
)
def test_a_relative_import_of_a_file_in_a_package(
    script: str, line: str, remedy: str, tmp_path: Path
) -> None:
    for name in ("pkg/run.py", "pkg/sub/run.py", "my-pkg/run.py"):
        (tmp_path / "code" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "code" / name).write_text(f"{line}\n")
    found = conflicts(tmp_path, f"name: a\ncode: code\ntrain: {{script: '{script}'}}\n", "")
    assert [each.remedy[: len(remedy)] for each in found] == [remedy] * bool(remedy)


@pytest.mark.parametrize(
    ("module", "refused"),
    [
        ("pkg.m", False),
        ("pkg", True),
        ("pkg.sub", False),
        ("pkg.no", True),
        ("pkg.sub.no", True),
        ("t", False),
        ("installed.there", False),
        ("parts.m", False),
    ],
)
def test_a_module_of_a_package_in_code(module: str, refused: bool, tmp_path: Path) -> None:
    (tmp_path / "code/pkg/sub").mkdir(parents=True)
    (tmp_path / "code/parts").mkdir()
    for name in ("pkg/__init__.py", "pkg/m.py", "pkg/sub/__main__.py", "parts/m.py"):
        (tmp_path / "code" / name).touch()
    spec = f"name: a\ncode: code\ntrain: {{script: 'module:{module}'}}\n"
    assert bool(conflicts(tmp_path, spec, "")) == refused


def test_an_installed_package_may_have_the_module_that_code_lacks(tmp_path: Path) -> None:
    (tmp_path / "code/pkg").mkdir(parents=True)
    (tmp_path / "code/pkg/m.py").touch()
    spec = "name: a\ncode: code\ntrain: {script: 'module:pkg.no'}\n"
    (warning,) = conflicts(tmp_path, spec, "")
    assert (warning.fields, warning.fatal) == (("train.script",), False)


@pytest.mark.parametrize(
    ("files", "code"),
    [
        ({"n1/pkg/__init__.py": "", "n2/pkg/m.py": ""}, "[n1, n2]"),
        ({"n1/pkg/__init__.py": "", "n1/pkg/m.cpython-311-x86_64-linux-gnu.so": ""}, "n1"),
        ({"n1/pkg/__init__.py": "__path__ += ['x']"}, "n1"),
        ({"n1/pkg/__init__.py": "", "n1/.ddpgenignore": "pkg"}, "n1"),
    ],
)
def test_a_package_is_looked_at_as_it_travels(
    files: dict[str, str], code: str, tmp_path: Path
) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    spec = f"name: a\ncode: {code}\ntrain: {{script: 'module:pkg.m'}}\n"
    assert conflicts(tmp_path, spec, "") == []


def test_a_module_of_another_entry_of_code_may_save(tmp_path: Path) -> None:
    (tmp_path / "n1").mkdir()
    (tmp_path / "n1/loop.py").touch()
    spec = with_args("{}").replace("code: code", "code: [n1, code]")
    assert conflicts(tmp_path, spec, "import loop\nloop.run()\n") == []


def test_the_script_that_travels_is_the_one_that_is_read(tmp_path: Path) -> None:
    (tmp_path / "n1").mkdir()
    (tmp_path / "n1/t.py").write_text("class other: ...")
    (tmp_path / "n1/.ddpgenignore").write_text("t.py\n")
    spec = WORKLOAD.replace("code: code", "code: [n1, code]")
    assert conflicts(tmp_path, spec, "def build(context): ...") == []


SURPRISES = [
    ("m.save(m.load())\nm.to('cuda')\n", "train.script", "t.py:2 asks for cuda"),
    ("m.save(m.load())\nm.cuda()\n", "train.script", "t.py:2 asks for cuda"),
    ("m.save(m.load())\ndist.init_process_group('nccl')\n", "train.script", "t.py:2 asks for nccl"),
    ("t = Trainer(devices=4)\n", "procs_per_node", "t.py:1: devices=4"),
    ("m.train()\nm.save()\n", "train.script", "t.py:2 saves"),
    ("train()\n", "train.script", "t.py saves nothing"),
    ("import os\nfrom . import loop\n", "train.script", "t.py:2: from . import loop fails"),
    ("from .nets import Net\n", "train.script", "t.py:1: from .nets import Net fails"),
    (
        "from .nets import f\nif __name__ == '__main__':\n  f()\n",
        "train.script",
        "t.py:1: from .nets import f",
    ),
    ("from ..nets import *\n", "train.script", "t.py:1: from ..nets import * fails"),
    (
        "t = Trainer(m, TrainingArguments(save_strategy='no'))\n",
        "train.script",
        "t.py:1: save_strategy='no'",
    ),
    (
        "t = Trainer(enable_checkpointing=False)\n",
        "train.script",
        "t.py:1: enable_checkpointing=False",
    ),
]
PARSED = "from trl import *\na, b = HfArgumentParser((Mine, TrainingArguments)).parse_args_into_dataclasses()\n"  # fmt: skip


SWITCHED_OFF = [
    (PARSED, "[--output_dir, o, --save_strategy, 'no']", "train.args[2]"),
    (PARSED, "{save-strategy: 'no'}", "train.args.save-strategy"),
    (PARSED.replace("TrainingArguments", "SFTConfig"), "{save_strategy: 'no'}", "train.args.save_strategy"),
    (PARSED, "{save_strategy: steps}", ""),
    (PARSED, "[--save_strategy, 'no', --do_eval]", ""),
    (PARSED, "[--save_strategy, 'no', --do_eval, --do_train]", "train.args[0]"),
    (f"{PARSED}t.save_model()\n", "{save_strategy: 'no'}", ""),
    (PARSED.replace("TrainingArguments", "Others"), "{save_strategy: 'no'}", ""),
    (PARSED.replace("HfArgumentParser", "Parser"), "{save_strategy: 'no'}", ""),
]  # fmt: skip


@pytest.mark.parametrize(("text", "args", "field"), SWITCHED_OFF)
def test_saves_that_an_argument_of_transformers_switches_off(
    text: str, args: str, field: str, tmp_path: Path
) -> None:
    found = told(tmp_path, text, args)
    assert [each.where for each in found] == ([field] if field else [])
    assert all("has t.py save nothing" in each.text for each in found)


@pytest.mark.parametrize(("text", "field", "word"), SURPRISES)
def test_what_may_surprise(text: str, field: str, word: str, tmp_path: Path) -> None:
    (warning,) = told(tmp_path, text)
    assert warning.where == field
    assert warning.text.startswith(word)


@pytest.mark.parametrize(
    "text",
    [
        "p = ArgumentParser()\np = deepspeed.add_config_arguments(p)\np.parse_args()\nm.save(m.load())\n",
        "p = ArgumentParser()\np.add_class_arguments(Net)\np.parse_args()\nm.save(m.load())\n",
        "import configargparse\np = configargparse.ArgumentParser()\np.add('x')\np.parse_args()\nm.save(m.load())\n",
        "globals()[sys.argv[1]](*sys.argv[2:])\nLR = 1\nm.save(m.load())\n",
        "if args.gpu:\n  m.cuda()\nm.save(m.load())\n",
        "s = GradScaler('cuda', enabled=args.amp)\nx = d.startswith('cuda')\nm.save(m.load())\n",
        "Trainer(devices=2).fit(m)\nTrainer(devices=2, enable_checkpointing=False).test(m)\n",
        "from trl import SFTTrainer\nSFTTrainer(m).train()\n",
        "picture.save('x.png')\nImage.save(f'{i}.png', 'PNG')\nm.save(m.load())\n",
        "torch.save(m, p)\nsafe_open(p)\n",
        "mp.spawn(actor, nprocs=4, join=False)\nm.save(m.load())\n",
        "if dist.is_torchelastic_launched():\n  f()\nelse:\n  mp.spawn(f, nprocs=2)\nm.save(m.load())\n",
        "if torch.cuda.is_available(): m.to('cuda')\nm.save(m.load())\n",
        "t = Trainer(devices=2)\n",
        "t = Trainer(enable_checkpointing=False)\nm.save_checkpoint(x)\nm.load()\n",
        "t = Trainer(m, TrainingArguments(save_strategy='steps'))\n",
        "t = Trainer(enable_checkpointing=save)\n",
        "import t2.loop\nt2.loop.run()\n",
        "try:\n  from . import loop\nexcept ImportError:\n  import loop\n",
        "if __package__:\n  from . import loop\n",
        "if not __package__:\n  __package__ = 'x'\nfrom . import loop\n",
        "__name__ = 'x.t'\nfrom . import loop\n",
        "globals()['__name__'] = 'x.t'\nfrom . import loop\n",
        "__path__ = ['.']\nfrom . import loop\n",
        "if TYPE_CHECKING:\n  from . import loop\n",
        "def f():\n  from .nets import Net\n",
        "import argparse\np = argparse.ArgumentParser()\np.parse_known_args()\nm.save(m.load())\n",
        "p = ArgumentParser()\np.add_argument('--' + name)\np.parse_args()\nm.save(m.load())\n",
        "p = ArgumentParser()\np.add_argument('x', nargs=REMAINDER)\np.parse_args()\nm.save(m.load())\n",
        "p = ArgumentParser(parents=[base])\np.parse_args()\nm.save(m.load())\n",
    ],
)
def test_what_is_not_sure_is_not_said(text: str, tmp_path: Path) -> None:
    (tmp_path / "code" / "t2").mkdir(parents=True)
    (tmp_path / "code" / "t2" / "loop.py").touch()
    assert told(tmp_path, text, "{what: 1}") == []


SAVES = """\
torch.load(path)
torch.save(model, f"{out}/ckpt-{epoch:04}.pt")
torch.save(model, os.path.join(out, "last.pt"))
"""


PATTERNS = [
    ("out/chkpt-*.pt", "ckpt-*.pt"),
    ("[out/ckpt-*.pth, first.pt]", "ckpt-*.pt"),
    ("'out/ckpt-[0-9]*.pt'", ""),
    ("'out/ckpt-[0-9][0-9][0-9][0-9][0-9].pt'", ""),
    ("out/ckpt-?????.pt", ""),
    ("'out/[c]kpt-*.pt'", ""),
    ("'out/{job}.pt'", ""),
    ("out/ckpt-12*.pt", ""),
    ("out/*.pt", ""),
    ("out/ckpt-7.pt", ""),
    ("out/ckpt-7.pth", "ckpt-*.pt"),
    ("[x.pt, out/last.pt]", ""),
    ("runs/*", ""),
]


@pytest.mark.parametrize(("patterns", "told_of"), PATTERNS)
def test_a_pattern_that_matches_no_file_of_the_script(
    patterns: str, told_of: str, tmp_path: Path
) -> None:
    args = f"{{}}\n  resume: {{exists: {patterns}, args: --go}}"
    found = told(tmp_path, SAVES, args)
    assert [each.where for each in found] == ["train.resume.exists"] * bool(told_of)
    assert all(told_of in each.text for each in found)


SAVES_TO = "p.add_argument('--dir', default='runs')\ntorch.load(path)\n{}torch.save(m, path)\n"
PATTERN_PLACES = [
    ("{}", "ckpt-*.pt", "path = os.path.join(args.dir, f'ckpt-{n}.pt')\n", "write runs/ckpt-*.pt"),
    ("{dir: out}", "runs/ckpt-*.pt", "path = f'{args.dir}/ckpt-{n}.pt'\n", "write out/ckpt-*.pt"),
    ("{dir: out}", "last.pt", "path = 'new/last.pt'\n", "write new/last.pt"),
    ("{dir: out}", "./out/ckpt-*.pt", "path = f'{args.dir}/ckpt-{n}.pt'\n", ""),
    ("{dir: /out}", "ckpt-*.pt", "path = f'{args.dir}/ckpt-{n}.pt'\n", ""),
    ("{}", "ckpt-*.pt", "args.dir = f()\npath = f'{args.dir}/ckpt-{n}.pt'\n", ""),
    ("{}", "ckpt-*.pt", "os.chdir('runs')\npath = 'runs/ckpt-1.pt'\n", ""),
    ("{}", "out/*.pt", "path = f'{args.dir}/ckpt-{n}.pth'\n", "write runs/ckpt-*.pth"),
    ("{}", "runs", "path = f'{args.dir}/ckpt-{n}.pt'\n", ""),
    ("{}", "runs/done", "path = 'out/ckpt.pt'\n", ""),
    ("{}", "runs/last.pt", "path = args.dir + '/last.pt'\n", ""),
    ("{}", "last.pt", "path = args.dir + '/last.pt'\n", "write runs/last.pt"),
    ("{}", "out/last.pt", "path = f'{args.dir}-{args.run}/last.pt'\n", ""),
    ("{}", "out/last.pt", "path = f'{cfg.dir}/last.pt'\n", ""),
    ("{}", "'*/ckpt-*.pt'", "path = f'{args.dir}/ckpt-{n}.pt'\n", ""),
]


@pytest.mark.parametrize(("args", "pattern", "text", "remedy"), PATTERN_PLACES)
def test_a_pattern_in_another_directory_than_that_of_the_saves(
    args: str, pattern: str, text: str, remedy: str, tmp_path: Path
) -> None:
    args = f"{args}\n  resume: {{exists: {pattern}, args: --go}}"
    found = told(tmp_path, SAVES_TO.format(text), args)
    assert [each.where for each in found] == ["train.resume.exists"] * bool(remedy)
    assert all(remedy in each.text for each in found)


def test_a_file_that_gets_another_name_may_match_any_pattern(tmp_path: Path) -> None:
    args = "{}\n  resume: {exists: out/x.pt, args: --go}"
    assert told(tmp_path, f"{SAVES}os.replace(a, b)\n", args) == []


def test_a_save_whose_name_does_not_show_may_match_any_pattern(tmp_path: Path) -> None:
    args = "{}\n  resume: {exists: out/x.pt, args: --go}"
    assert told(tmp_path, f"{SAVES}torch.save(model, name())\n", args) == []


CHOICES = """\
import argparse
parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float)
parser.add_argument("--size", choices=["small", "large"], type=str.lower)
parser.add_argument("--model", choices=["small", "large"])
parser.add_argument("--bits", choices=(8, 16), type=int)
parser.add_argument("--amp", action="store_true")
parser.add_argument("--log", action=argparse.BooleanOptionalAction)
parser.add_argument("--verbosity", nargs="?")
parser.add_argument("--layers", nargs="+", type=int)
parser.add_argument("--betas", nargs=2, type=float)
parser.add_argument("--shuffle", type=bool)
parser.add_argument("--fused", action=argparse.BooleanOptionalAction, default=True)
parser.add_argument("--tag", action="append")
parser.add_argument("files", nargs="*")
args = parser.parse_args()
m.save(m.load())
"""
WITH_POSITIONALS = """\
import argparse
parser = argparse.ArgumentParser()
parser.add_argument("data", choices=["squares", "circles"])
parser.add_argument("size", type=int)
parser.add_argument("--lr", type=float)
parser.add_argument("-b", "--batch", type=int)
parser.add_argument("--out", required=True)
parser.add_argument("--layers", nargs="+")
parser.add_argument("--log", action=argparse.BooleanOptionalAction)
args = parser.parse_args()
m.save(m.load())
"""
# The arguments, the field of their fault, and words of it.
UNREADABLE = [
    ("{lr: abc}", "train.args.lr", '"abc" is no float'),
    ("{lr: '1,5'}", "train.args.lr", '"1,5" is no float'),
    ("[a, --lr, abc]", "train.args[1]", '"abc" is no float'),
    ("{model: medium}", "train.args.model", "small, large"),
    ("[--model=smal]", "train.args[0]", "did you mean small?"),
    ("{bits: 4}", "train.args.bits", "8, 16"),
    ("{amp: 1}", "train.args.amp", "takes no value"),
    ("{amp: true}\n  args_style: equals", "train.args.amp", '"True"'),
    ("{amp: false}\n  args_style: no-prefix", "train.args.amp", "no option --no-amp"),
    ("[--no-amp]", "train.args[0]", "no option --no-amp"),
    ("[--lrr=0.1]", "train.args[0]", "lr?"),
    ("{help: true}", "train.args.help", "train nothing"),
    ("[--lr]", "train.args[0]", "reads a value"),
    ("[--lr, --amp]", "train.args[0]", "reads a value"),
    ("[--l=1]", "train.args[0]", "no option --l"),
    ("[]\n  resume: {exists: x, args: [--lr, abc]}", "train.resume.args[0]", "no float"),
    ("{amp: false}\n  args_style: equals", "train.args.amp", "leave it out"),
    ("{fused: false}\n  args_style: equals", "train.args.fused", "no-prefix"),
    ("{fused: false}\n  args_style: flags", "train.args.fused", "has --fused on"),
    ("{shuffle: false}\n  args_style: equals", "train.args.shuffle", "becomes True"),
    ("[--shuffle, 'no']", "train.args[0]", "becomes True"),
    ("{layers: [64, 32]}", "train.args.layers", "list of words"),
    ("{betas: [0.9, 0.99]}", "train.args.betas", "list of words"),
    ("{betas: 0.9}", "train.args.betas", "list of words"),
    ("{lr: [0.1, 0.2]}", "train.args.lr", "gets 2"),
    ("[a, -h]", "train.args[1]", "train nothing"),
    ("[--betas, '1', --amp]", "train.args", "expected 2 arguments"),
    ("[--layers, '64', 32x]", "train.args", '"32x" is no int'),
]
UNREADABLE_WORDS = [
    ("[squares, '1']", "train.args", "wants --out"),
    ("[squares, '1', -z]", "train.args[2]", "no option -z"),
    ("[squares, --out, x]", "train.args", "wants size"),
    ("[squares, '1', --out, x, more]", "train.args[4]", 'no argument for "more"'),
    ("[python, t.py, squares, '1', --out=x]", "train.args[2]", 'no argument for "squares"'),
    ("[sqares, '1', --out=x]", "train.args[0]", "did you mean squares?"),
    ("[squares, many, --out=x]", "train.args[1]", '"many" is no int'),
    ("[squares, '1', -z, '3', --out=x]", "train.args[2]", "no option -z"),
    ("[squares, '1', -lr, '0.1', --out=x]", "train.args[2]", "did you mean --lr?"),
    ("[squares, '1', —lr, '0.1', --out=x]", "train.args[2]", "write --lr"),
    ("[squares, '1', -b, --out=x]", "train.args", "expected one argument"),
    ("[squares, '1', -b, few, --out=x]", "train.args", '"few" is no int'),
    ("[squares, '1', -b3x, --out=x]", "train.args", "reads -b as one"),
]
READABLE_WORDS = [
    "[squares, '-1', --out, x, -b3, --layers, a, b]",
    "[-b, '3', --log, squares, --no-log, --ou=x, '2', --layers, c]",
    "['{job}', '{port}', --out=x, -b, '{port}']",
    "[--out=x, --, squares, '1']",
]
READABLE = [
    "[--verbosity]",
    "{lr: 1e-3, model: small, bits: 8, amp: true, log: false}\n  args_style: no-prefix",
    "{lr: '{job}', model: '{job}', files: x}",
    "[--lr, '1', --mod=small, --bits, '8', --log, --no-log, --amp, --files=a, --size=LARGE]",
    "{fused: false, tag: [a, b], layers: 64, shuffle: ''}\n  args_style: no-prefix",
    "{amp: false, log: false, shuffle: false, layers: [64]}\n  args_style: flags",
    "[--layers, '64', '32', --betas, '0.9', '0.99', --shuffle, 'True', --lr=1, --lr=2]",
    "[--lr, '-1', --amp, '1', '{job}', --, --lrr, --model=x]",
]


@pytest.mark.parametrize(("args", "field", "words"), UNREADABLE)
def test_an_argument_that_the_script_cannot_read(
    args: str, field: str, words: str, tmp_path: Path
) -> None:
    (fault,) = told(tmp_path, CHOICES, args)
    assert fault.where == field
    assert words in fault.text


@pytest.mark.parametrize(("args", "field", "words"), UNREADABLE_WORDS)
def test_a_list_of_words_that_the_script_cannot_divide(
    args: str, field: str, words: str, tmp_path: Path
) -> None:
    (fault,) = told(tmp_path, WITH_POSITIONALS, args)
    assert fault.where == field
    assert words in fault.text


@pytest.mark.parametrize("args", READABLE_WORDS)
def test_a_list_of_words_that_the_script_can_divide(args: str, tmp_path: Path) -> None:
    assert told(tmp_path, WITH_POSITIONALS, args) == []


@pytest.mark.parametrize(
    "line",
    [
        "mode = sys.argv.pop(1)",
        "parser.add_argument('--more', action=Own)",
        "parser.add_argument('--more', nargs=COUNT)",
        "parser.add_argument('--more', **keywords)",
        "parser.add_argument('others', nargs='*')",
    ],
)
def test_words_are_not_divided_if_the_source_does_not_show_how(line: str, tmp_path: Path) -> None:
    text = WITH_POSITIONALS.replace("args = ", f"{line}\nargs = ")
    assert told(tmp_path, text, "[train, '1', x, --out=x]") == []


@pytest.mark.parametrize("args", READABLE)
def test_an_argument_that_the_script_can_read(args: str, tmp_path: Path) -> None:
    assert told(tmp_path, CHOICES.replace('"files"', '"--files"'), args) == []


ALIASES = """\
import argparse
p = argparse.ArgumentParser()
p.add_argument("--data-path", "--data_path", required=True)
p.parse_args()
m.save(m.load())
"""


@pytest.mark.parametrize(
    ("text", "args"),
    [
        (ALIASES, "{data_path: /d}"),
        ("LR = 1\nglobals()[sys.argv[1]](*sys.argv[2:])\nm.save(m.load())\n", "[main, --lr, '1']"),
        (
            "@option('--where', default=('cuda'))\ndef f(): m.to('cuda')\nm.save(m.load())\n",
            "{where: cpu}",
        ),
    ],
)
def test_arguments_that_the_script_reads_in_its_own_way(
    text: str, args: str, tmp_path: Path
) -> None:
    assert told(tmp_path, text, args) == []


MISSPELT = "{learning_rate: 1, learning-rate: 2, data: x, comp: true}"


def test_options_that_the_script_does_not_have(tmp_path: Path) -> None:
    misspelt, missing = told(tmp_path, PARSER, MISSPELT)
    assert misspelt.where == "train.args.learning_rate"
    assert "learning-rate?" in misspelt.text
    assert missing.where == "train.args"
    assert "wants config;" in missing.text
    both = told(tmp_path, PARSER, "{}")
    assert [each.where for each in both] == ["train.args"] * 2
    assert [each.text.split(";")[0] for each in both] == ["t.py wants config", "t.py wants data"]
    assert told(tmp_path, PARSER, "[a.json, --data, x]") == []
    option = "parser.add_argument('--local_rank', required=True)\nargs ="
    rank = PARSER.replace("args =", option)
    (local,) = told(tmp_path, rank, "[a.json, --data, x]")
    assert (
        'wants --local_rank; no value is right for all processes: have it read int(os.environ["LOCAL_RANK"])'
        in local.text
    )
    found = told(tmp_path, rank, "{config: a.json, data: x}")
    assert any("wants local_rank; no value is right" in each.text for each in found)
    (of_resume,) = told(tmp_path, PARSER, "[a.json]\n  resume: {exists: x, args: [y, --dta=1]}")
    assert of_resume.where == "train.resume.args[1]"
    assert "data?" in of_resume.text


@pytest.mark.parametrize(
    ("text", "args", "expected"),
    [
        (NANOGPT, "{}", ["t.py:4 asks for nccl"]),
        (NANOGPT, "{backend: gloo}", ["t.py:5 asks for cuda"]),
        (NANOGPT, "{backend: gloo, device: cpu}", []),
        (NANOGPT, "[--backend=gloo, --device=cpu]", []),
        (NANOGPT, "[config/on_cpu.py, --compile=False]", []),
        (NANOGPT.replace("iter_num", "device = 'cpu'; backend = 'gloo'#"), "{}", []),
        (TORCHVISION, "{}", ["t.py:2 asks for cuda"]),
        (TORCHVISION, "{device: cuda:0}", ["t.py:2 asks for cuda"]),
        (TORCHVISION, "{device: cpu}", []),
        (TORCHVISION, "[--device, cpu]", []),
    ],
)
def test_a_device_that_the_arguments_choose(
    text: str, args: str, expected: list[str], tmp_path: Path
) -> None:
    found = told(tmp_path, text, args)
    assert [each.where for each in found] == ["train.script"] * len(expected)
    assert [each.text.partition(", ")[0] for each in found] == expected


@pytest.mark.parametrize(("gpus", "told"), [("0", 1), ("1", 0)])
def test_of_hosts_one_with_a_gpu_is_enough_to_ask_for_it(
    gpus: str, told: int, tmp_path: Path
) -> None:
    (tmp_path / "t.py").write_text(TORCHVISION)
    hosts = f"{{hosts: {{hosts: [a, {{name: b, gpus: {gpus}}}]}}}}"
    text = f"name: a\ncode: .\ntrain: {{script: t.py}}\ntargets: {hosts}\n"
    found = [*check(read(text.encode(), "a.yaml")["hosts"].job, tmp_path)]
    assert ["cuda" in each.problem for each in found] == [True] * told


def test_globals_that_the_arguments_replace_are_options(tmp_path: Path) -> None:
    no_gpus = "backend: gloo, device: cpu"
    misspelt, other = told(tmp_path, NANOGPT, f"{{{no_gpus}, batch_siz: 2, iter_num: 3}}")
    assert misspelt.where == "train.args.batch_siz"
    assert "batch_size?" in misspelt.text
    assert other.where == "train.args.iter_num"
    assert other.text.endswith(" out_dir, init_from, batch_size, backend, device, dtype")
    example = ROOT / "examples" / "code" / "nanogpt" / "train.py"
    assert outline(example).resume == "--init_from=resume"


# As karpathy/nanoGPT's configurator.py takes the words. The arguments, and words of the fault.
OF_CONFIGURATOR = [
    ("[--batch_size, '4']", "--batch_size=VALUE as one word"),
    ("{batch_size: 4e2}", '"4e2" is no int'),
    ("{batch_size: '{job}', out_dir: x}", ""),
    ("[--batch_size=4, --init_from=resume]", ""),
]


@pytest.mark.parametrize(("args", "words"), OF_CONFIGURATOR)
def test_a_word_that_the_configurator_asserts_on(args: str, words: str, tmp_path: Path) -> None:
    text = NANOGPT.replace("nccl", "gloo").replace("cuda", "cpu")
    found = told(tmp_path, text, args)
    assert [words in each.text for each in found] == ([True] if words else [])


WORDS = "['--lr 0.1', '-x  1', 'a b', '--text=a b']\n  args_style: flags"


def test_a_list_of_words_that_is_meant_otherwise(tmp_path: Path) -> None:
    script = "m.save(m.load())\n"
    style, long, short = told(tmp_path, script, WORDS)
    assert style.where == "train.args_style"
    assert "mapping" in style.text
    assert long.where == short.where == "train.args"
    assert '"--lr", "0.1"' in long.text
    assert '"-x", "1"' in short.text


# A line of a spec, the field of its fault, and words of it.
UNFILLED = [
    ("train: {script: /t.py, guard: '{checkpointdir}/x'}", "train.guard", "checkpoint_dir?"),
    ("train: {script: /t.py, resume: {exists: '{jobb}.pt'}}", "train.resume.exists", "job?"),
    ("train: {script: /t.py, args: ['{local_rank}']}", "train.args", "variable LOCAL_RANK"),
    ("train: {script: /t.py, args: ['{checkpoint_dir/x']}", "train.args", "closing brace"),
    ("train: {script: /t.py, workdir: '/x/{jobs}'}", "train.workdir", "job?"),
    (
        "train: {script: /t.py, resume: {exists: x, args: '--go={latest}'}}",
        "train.resume.args",
        "{latest} stays as it is; write {newest} for the newest file, or {{latest}}",
    ),
    ("train: {script: /t.py}\ncheckpoint: {dir: '/ck/{job}'}", "checkpoint.dir", "name itself"),
    ("train: {script: /t.py}\ncheckpoint: {dir: /ck/x-%j}", "checkpoint.dir", "Slurm"),
    (
        "train: {workload: toy, steps: 9, global_batch_size: 8, micro_batch_size: 8}\ncheckpoint: {dir: 's3://bbb/{job}'}",
        "checkpoint.dir",
        "name itself",
    ),
    (
        "train: {script: /t.py, args: ['{array_index}']}\ntargets: {slurm: {}}",
        "train.args",
        "array is not given",
    ),
    (
        "train: {script: /t.py, resume: {exists: 'c-{epoch}.pt', args: --go}}",
        "train.resume.exists",
        "write * for any text",
    ),
]
FILLED = [
    "train: {script: /t.py, args: ['{array_index}', '{jobs', '{port: 1}', '{job}}']}",
    "train: {script: /t.py, args: ['{array_index}']}\ntargets: {slurm: {array: 0-3}}",
    "train: {script: /t.py, guard: '{checkpoint_dir}/*/x', resume: {exists: '{job}/{{x}}'}}",
    "train: {script: /t.py}\ncheckpoint: {dir: '/ck/{x}/100%/%j2'}",
    "train: {script: /t.py, resume: {exists: x, args: '--go={newest} --x={{latest}} ${dir}'}}",
]


@pytest.mark.parametrize(("text", "field", "word"), UNFILLED)
def test_a_placeholder_that_stays_as_it_is(
    text: str, field: str, word: str, tmp_path: Path
) -> None:
    *_, reading = read(f"name: a\n{text}\n".encode(), "a.yaml").values()
    (warning,) = check(reading.job, tmp_path)
    assert (warning.fields[0], warning.fatal) == (field, False)
    assert word in f"{warning.problem}; {warning.remedy}"


@pytest.mark.parametrize("text", FILLED)
def test_a_placeholder_that_is_filled_in_or_none(text: str, tmp_path: Path) -> None:
    *_, reading = read(f"name: a\n{text}\n".encode(), "a.yaml").values()
    assert list(check(reading.job, tmp_path)) == []


_LAUNCHED = "name: a\ntrain: {{script: 'module:{}', args: {}}}\n"
LAUNCHERS = [
    _LAUNCHED.format("torch.distributed.run", "[t.py]"),
    _LAUNCHED.format("accelerate.commands.launch", "{num_processes: 2}"),
]
NO_LAUNCHERS = [
    _LAUNCHED.format("accelerate.commands.launch", "{num_processes: 1}"),
    _LAUNCHED.format("torch.distributed.runner", "[t.py]"),
]
_ARRAY = "targets: {slurm: {array: 0-3}}\n"
_GPT = "name: a\ntrain: {workload: gpt, steps: 1, global_batch_size: 4, micro_batch_size: 1}\n"
_SCRIPT = with_args("['--lr=1']") + _ARRAY
_SEEDED = "torch.manual_seed(1)\nm.save(m.load())\n"
# A spec, and the text of its script or workload. All tasks of the array are the same.
SAME = [
    (f"{_GPT}{_ARRAY}", ""),
    (f"{WORKLOAD}{_ARRAY}", "import torch\ndef build(context): ...\n"),
    (_SCRIPT, f"import torch\n{_SEEDED}"),
]
APART = [
    (f"{_GPT}targets: {{slurm: {{array: 3-3}}}}\n", ""),
    (f"{_GPT}env: {{A: '{{array_index}}'}}\n{_ARRAY}", ""),
    (f"{WORKLOAD}{_ARRAY}", "import data\ndef build(context): ...\n"),
    (_SCRIPT.replace("--lr=1", "--lr={array_index}"), _SEEDED),
    (_SCRIPT.replace("0-3", "0-3%1"), _SEEDED),
    (_SCRIPT, "m.save(m.load())\n"),
    (_SCRIPT, f"i = os.environ['SLURM_ARRAY_TASK_ID']\n{_SEEDED}"),
    (_SCRIPT, f"import optuna\n{_SEEDED}"),
]
# Arguments of a script that imports os and torch alone, and the remedy.
NO_SHELL = [
    ("[--data=$DATA/x]", "write the value itself"),
    ("{data: ~/x}", "write the value itself"),
    ("[--data=/x/$SLURM_ARRAY_TASK_ID]", "write {array_index}"),
]
PLAIN = "import os, torch\nm.save(m.load())\n"


@pytest.mark.parametrize("spec", LAUNCHERS)
def test_a_module_that_is_a_launcher(spec: str, tmp_path: Path) -> None:
    (warning,) = check(read(spec.encode(), "a.yaml")["local"].job, tmp_path)
    assert (warning.fields[0], warning.fatal) == ("train.script", False)
    assert warning.problem.startswith("is a launcher")


@pytest.mark.parametrize("spec", NO_LAUNCHERS)
def test_a_module_that_starts_a_single_process(spec: str, tmp_path: Path) -> None:
    assert list(check(read(spec.encode(), "a.yaml")["local"].job, tmp_path)) == []


@pytest.mark.parametrize(
    ("spec", "text", "same"), [*((*e, True) for e in SAME), *((*e, False) for e in APART)]
)
def test_tasks_of_an_array_that_are_all_the_same(
    spec: str, text: str, same: bool, tmp_path: Path
) -> None:
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "t.py").write_text(text)
    found = list(check(read(spec.encode(), "a.yaml")["slurm"].job, tmp_path))
    assert [each.problem[:31] for each in found] == ["all tasks of the array train th"] * same
    job = replace(read(spec.encode(), "a.yaml")["slurm"].job, points={"a": PointProgram()})
    assert list(check(job, tmp_path)) == []


_INDEX = "seed: '{array_index}'"
_OUT_OR_OURS = "p.add_argument('--out', default=os.environ['DDPGEN_CHECKPOINT_DIR']"
# Arguments of an array's tasks, the place that the script saves to, and the field of the warning.
PLACES = [
    (f"args: {{out: /s/out, {_INDEX}}}", 'os.path.join(args.out, "ckpt.pt")', "train.args.out"),
    (f"args: {{to: '/ck/%a', {_INDEX}}}", 'f"{args.to}/ckpt.pt"', "train.args.to"),
    (f"args: {{to: '/x/{{job}}', {_INDEX}}}", 'Path(args.to) / "ckpt.pt"', "train.args.to"),
    (
        f"args: {{out: /s, {_INDEX}}}",
        "path)\npath = os.path.join(args.out, 'x.pt'",
        "train.args.out",
    ),
    (
        f"args: {{out: /s, {_INDEX}}}",
        f"path)\npath = f'{{args.out}}/x.pt'\n{_OUT_OR_OURS}",
        "train.args.out",
    ),
    (
        f"args: {{out: /s, {_INDEX}}}",
        "path)\npath = f'{args.out}/x.pt'\np.add_argument('--out', default=('x'\n'y'))\nq = f('DDPGEN'",
        "",
    ),
    (
        f"args: {{out: /s, {_INDEX}}}",
        "path)\npath = f'{args.out}/x.pt'\np.add_argument('--id', default=os.environ['SLURM_JOB_ID']",
        "",
    ),
    (f"args: {{{_INDEX}}}", f"path)\npath = f'{{args.out}}/x.pt'\n{_OUT_OR_OURS}", ""),
    (f"args: {{output_dir: /s/out, {_INDEX}}}", "", ""),
    (f"workdir: /w, args: {{out: x, {_INDEX}}}", "", "train.workdir"),
    (f"workdir: '/w/{{job}}', args: {{{_INDEX}}}", "", "train.workdir"),
    (f"workdir: /w, args: {{out: 'x/{{array_index}}', {_INDEX}}}", "", ""),
    ("args: {out: '/s/{array_index}'}", 'os.path.join(args.out, "ckpt.pt")', ""),
    (f"args: {{out: /s/out, {_INDEX}}}", 'os.path.join(args.out, str(args.seed), "ckpt.pt")', ""),
    (f"args: {{out: /s/out, {_INDEX}}}", 'f"{args.out}/{args.seed}.pt"', ""),
    (f"args: {{out: /s/out, {_INDEX}}}", 'f"{args.out}/ckpt.pt"); os.getpid(', ""),
    (f"args: {{out: /s, {_INDEX}}}", 'os.path.join(args.out, "x.pt")); args.out = f(args', ""),
    (f"args: {{data: /s, {_INDEX}}}", 'os.path.join(args.out, "ckpt.pt")', ""),
]


def array_script(saves: str) -> str:
    return saving(saves) if saves else "trainer.fit(m)\n"


def in_array(train: str) -> str:
    return f"name: a\ncode: code\ntrain: {{script: t.py, {train}}}\n{_ARRAY}"


@pytest.mark.parametrize(("train", "saves", "field"), PLACES)
def test_a_place_that_all_tasks_of_an_array_save_to(
    train: str, saves: str, field: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "code").mkdir()
    (tmp_path / "code/t.py").write_text(array_script(saves))
    monkeypatch.chdir(tmp_path)
    assert [each.path for each in findings(in_array(train))] == ([field] if field else [])


_STATE = "import torch\nm.save(m.load())\n"
_TRAINS = f"{_STATE}loss.backward()\n"
_PARSES = f"import argparse\n{_STATE}p = argparse.ArgumentParser()\np.add_argument('--local_rank', type=int, default=0)\n"
_GROUP = f"{_STATE}dist.init_process_group('gloo')\n"
_ADDRESS = "os.environ['MASTER_ADDR'] = 'localhost'\n"
_ON_GPUS = "nodes: 2\nprocs_per_node: 2\ngpus_per_node: 2"
_ON_ONE = "procs_per_node: 2\ngpus_per_node: 2"
_WRAPS = f"{_STATE}from torch.nn.parallel import DistributedDataParallel as DDP\nloss.backward()\n"
_DEVICE = f"import os\n{_STATE}gpu = torch.cuda.is_available()\n"
_IN_TIME = f"{_STATE}dist.init_process_group('gloo', timeout="
_BACKEND = (
    f"{_STATE}b = 'nccl' if torch.cuda.is_available() else 'gloo'\ndist.init_process_group(b)\n"
)
# Fields of a job, its script, and the warning's field and words.
PROCESSES = [
    ("", f"{_IN_TIME}120)\n", "train.script", "t.py:3: the timeout 120 is a number"),
    ("", f"{_IN_TIME}60 * 30.0)\n", "train.script", "t.py:3: the timeout 60 * 30.0 is a number"),
    ("", f"T = 60\n{_IN_TIME}T)\n", "train.script", "t.py:4: the timeout T is a number"),
    ("", f"{_STATE}dist.init_process_group('gloo', 'env://', 60)\n", "train.script", "t.py:3: the timeout 60"),
    ("", f"{_STATE}if ranks > 1: dist.init_process_group('gloo', timeout=60)\n", "train.script", "t.py:3: the timeout 60"),
    ("", "from torch.distributed import init_process_group\nm.save(m.load())\ninit_process_group(timeout=60)\n", "train.script", "t.py:3: the timeout 60"),
    ("", f"{_IN_TIME}timedelta(seconds=120))\n", "", ""),
    ("", f"{_IN_TIME}60 * minute)\n", "", ""),
    ("", f"{_IN_TIME}None)\n", "", ""),
    ("", f"T = timedelta(0, 120)\n{_IN_TIME}T)\n", "", ""),
    ("", f"def main(T=60):\n  T = timedelta(T)\nT = 60\n{_IN_TIME}T)\n", "", ""),
    ("", f"def init_process_group(*args, timeout): ...\n{_IN_TIME}120)\n", "", ""),
    ("", f"{_IN_TIME}120)\n".replace("torch", "mpi"), "", ""),
    ("", f"{_STATE}try: dist.init_process_group('gloo', timeout=60)\nexcept TypeError: f()\n", "", ""),
    ("", _BACKEND.replace("gloo", "glo"), "train.script", "t.py:4: torch has no backend glo"),
    ("", _BACKEND.replace("nccl", "ncl"), "train.script", "t.py:4: torch has no backend ncl"),
    ("", f"{_STATE}dist.init_process_group(backend='cpu:gloo,cuda:ncll')\n", "train.script", "t.py:3: torch has no backend ncll"),
    ("", f"{_STATE}dist.init_process_group('ddp')\n", "train.script", "t.py:3: torch has no backend ddp"),
    ("", _BACKEND, "", ""),
    ("", f"{_STATE}dist.init_process_group('cpu:gloo,xpu:ccl')\n", "", ""),
    ("", f"{_STATE}dist.init_process_group('GLOO')\n", "", ""),
    ("", f"{_STATE}dist.init_process_group('')\n", "", ""),
    ("", f"{_STATE}dist.init_process_group('hccl')\n", "", ""),
    ("", f"import maker_of_chips\n{_STATE}dist.init_process_group('chip')\n", "", ""),
    ("", f"{_STATE}dist.Backend.register_backend('mock', f)\ndist.init_process_group('mock')\n", "", ""),
    ("", f"{_STATE}b = 'glo'\nb = pick(b)\ndist.init_process_group(b)\n", "", ""),
    ("", f"{_STATE}try: dist.init_process_group('ucx')\nexcept ValueError: f()\n", "", ""),
    ("procs_per_node: 8", _TRAINS, "train.script", "t.py uses no torch.distributed"),
    ("procs_per_node: 2\ngpus_per_node: 2", f"{_STATE}a = torch.device('cuda:0')\nnet.to(int(n))\n", "", ""),
    ("nodes: 2\nprocs_per_node: 2\ngpus_per_node: 2", f"{_STATE}local_rank = int(os.environ['RANK'])\n", "train.script", "t.py:3: local_rank is int("),
    ("procs_per_node: 2\ngpus_per_node: 2", f"{_STATE}local_rank = int(os.environ['RANK'])\n", "", ""),
    (
        "procs_per_node: 2\ngpus_per_node: 2",
        f"{_STATE}def pick(n):\n  torch.cuda.set_device(0)\n  return torch.device('cuda', 0)\ndevice = pick(int(os.environ['LOCAL_RANK']))\nnet.to(device)\n",
        "train.script", "t.py:4: all 2 processes",
    ),
    (
        "procs_per_node: 2\ngpus_per_node: 2",
        f"{_STATE}def pick(n):\n  torch.cuda.set_device(0)\n  return torch.device('cuda', n)\ndevice = pick(int(os.environ['LOCAL_RANK']))\nnet.to(device)\n",
        "", "",
    ),
    ("nodes: 2", _TRAINS, "train.script", "each of 2 processes trains alone"),
    ("procs_per_node: 4", f"{_STATE}mp.spawn(main, nprocs=4)\n", "train.script", "t.py:3 starts 4 processes"),
    ("procs_per_node: 4", f"{_STATE}notebook_launcher(main, num_processes=4)\n", "train.script", "t.py:3 starts 4 processes"),
    ("procs_per_node: 4", f"{_STATE}if __name__ == '__main__':\n  mp.spawn(main, nprocs=4)\n", "train.script", "t.py:4 starts"),
    ("procs_per_node: 4", f"{_STATE}N = 2\nmp.spawn(main, nprocs=N)\n", "train.script", "t.py:4 starts 2 processes"),
    ("nodes: 4", f"{_GROUP}{_ADDRESS}", "train.script", "t.py:4: localhost"),
    ("nodes: 2", f"{_STATE}dist.init_process_group('gloo', init_method='tcp://localhost:23456')\n", "train.script", "t.py:3: tcp:"),
    ("procs_per_node: 2\ngpus_per_node: 2", f"{_STATE}torch.cuda.set_device(0)\n", "train.script", "t.py:3: all 2"),
    (
        "procs_per_node: 2\ngpus_per_node: 2",
        f"{_PARSES}args = p.parse_args()\ntorch.cuda.set_device(args.local_rank)\n",
        "train.script", "t.py:7: all 2 processes",
    ),
    ("nodes: 2", "t = Trainer(devices=1)\n", "nodes", "t.py:1: num_nodes=1, and nodes is 2"),
    ("nodes: 2", "t = Trainer(devices=1, num_nodes=4)\n", "nodes", "num_nodes=4, and nodes is 2"),
    ("nodes: 2", f"{_STATE}dist.init_process_group('gloo', world_size=8, rank=r)\n", "train.script", "t.py:3 waits for 8 processes, and the job has 2"),
    ("procs_per_node: 2", "t = Trainer(devices=2, strategy='ddp_spawn')\n", "train.script", "t.py:1: ddp_spawn starts"),
    (_ON_GPUS, f"{_STATE}torch.cuda.set_device(dist.get_rank())\n", "train.script", "t.py:3 takes GPU dist.get_rank(), and only"),
    (_ON_GPUS, f"{_STATE}r = int(os.environ['RANK'])\ntorch.cuda.set_device(r)\n", "train.script", "t.py:4 takes GPU int(os.environ['RANK'])"),
    (_ON_GPUS, f"{_STATE}m = nn.DataParallel(m)\n", "train.script", "t.py:3: each of 4 processes trains alone on all"),
    (_ON_GPUS, "t = Trainer(accelerator='cpu', num_nodes=2)\n", "train.script", "t.py:1: accelerator='cpu', and the job's GPUs stay idle"),
    (_ON_GPUS, f"{_STATE}a = Accelerator(cpu=True)\n", "train.script", "t.py:3: cpu=True, and the job's GPUs"),
    ("", f"{_STATE}a = Accelerator(mixed_precision='fp16')\n", "train.script", "t.py:3: mixed_precision='fp16', and the job has no GPUs"),
    ("", "t = Trainer(args=TrainingArguments(fp16=True))\n", "train.script", "t.py:1: fp16=True, and the job has no GPUs"),
    ("", "t = Trainer(precision='16-mixed')\n", "train.script", "precision='16-mixed', and the job has no GPUs"),
    ("", f"{_STATE}t = Fabric(precision='16-true')\n", "train.script", "precision='16-true', and the job has no GPUs"),
    ("", "t = Trainer(precision=16)\n", "train.script", "precision=16, and the job has no GPUs"),
    ("", "t = Trainer(precision='bf16-mixed')\n", "", ""),
    ("", "t = Trainer(accelerator='gpu')\n", "train.script", "t.py:1: accelerator='gpu', and the job has no GPUs"),
    ("", f"{_STATE}if torch.cuda.is_available(): f()\ndist.init_process_group('nccl')\n", "train.script", "t.py:4 asks for nccl"),
    ("nodes: 2", f"{_STATE}dist.init_process_group('gloo', world_size=2, rank=0)\n", "train.script", "t.py:3 gives all 2 processes the rank 0"),
    ("nodes: 2", "t = Trainer(devices=count(), num_nodes=1)\n", "nodes", "t.py:1: num_nodes=1, and nodes is 2"),
    ("procs_per_node: 2", f"{_WRAPS}m = DDP(m)\n", "train.script", "t.py:5 needs the group of processes"),
    (_ON_ONE, f"{_DEVICE}d = torch.device('cuda:0') if gpu else torch.device('cpu')\nm.to(d)\n", "train.script", "t.py:5: all 2 processes"),
    (_ON_ONE, f"{_DEVICE}m.cuda(0)\n", "train.script", "t.py:5: all 2 processes"),
    (_ON_GPUS, f"{_DEVICE}r = dist.get_rank()\nl = r\nm.to(f'cuda:{{l}}' if gpu else 'cpu')\n", "train.script", "t.py:7 takes GPU dist.get_rank()"),
    (_ON_GPUS, f"{_DEVICE}r = dist.get_rank()\nd = torch.device('cuda', r) if gpu else torch.device('cpu')\n", "train.script", "t.py:6 takes GPU dist.get_rank()"),
    ("", f"{_DEVICE}d = torch.device('cuda')\nm.to(d)\n", "train.script", "t.py:6 asks for cuda"),
    ("nodes: 2", "t = Trainer(devices=int(os.environ['WORLD_SIZE']), num_nodes=1)\n", "", ""),
    ("procs_per_node: 2", f"{_WRAPS}if dist.is_initialized(): m = DDP(m)\n", "", ""),
    ("procs_per_node: 2", f"{_WRAPS}import mine\nm = DDP(m)\n", "", ""),
    (_ON_ONE, f"{_DEVICE}d = torch.device('cuda:0')\nm.to(d)\nx.to(rank)\n", "", ""),
    (_ON_ONE, f"{_DEVICE}if alone: d = torch.device('cuda:0')\n", "", ""),
    (_ON_ONE, f"{_DEVICE}os.environ['CUDA_VISIBLE_DEVICES'] = r\nm.cuda(0)\n", "", ""),
    (_ON_ONE, f"{_DEVICE}m.cuda(1)\nm.cuda(0)\n", "", ""),
    (_ON_GPUS, f"{_DEVICE}if nodes == 1: torch.cuda.set_device(dist.get_rank())\n", "", ""),
    ("", f"{_DEVICE}d = torch.device('cuda')\nif not gpu: d = torch.device('cpu')\nm.to(d)\n", "", ""),
    ("", f"{_DEVICE}d = torch.device('cuda')\nif gpu: m.to(d)\n", "", ""),
    ("", f"{_DEVICE}def f():\n  if not gpu: return\n  m.to(d)\nd = torch.device('cuda')\nf()\n", "", ""),
    ("", f"{_DEVICE}d = torch.device('cuda')\nif not torch.cuda.is_available(): raise SystemExit\nm.to(d)\n", "", ""),
    ("nodes: 2", f"{_STATE}dist.init_process_group('gloo', world_size=2, rank=r)\n", "", ""),
    ("nodes: 2", f"{_STATE}dist.init_process_group('gloo', world_size=-1)\ndist.init_process_group('gloo', world_size=n)\n", "", ""),
    ("nodes: 2..4", f"{_STATE}dist.init_process_group('gloo', world_size=8, rank=r)\n", "", ""),
    ("nodes: 2", f"{_STATE}if alone: dist.init_process_group('gloo', world_size=1)\n", "", ""),
    ("procs_per_node: 2", "t = Trainer(devices=2, strategy='ddp')\n", "", ""),
    ("", "t = Trainer(strategy='ddp_spawn')\n", "", ""),
    ("gpus_per_node: 1", f"{_STATE}m = nn.DataParallel(m)\n", "", ""),
    ("procs_per_node: 2", f"{_STATE}m = nn.DataParallel(m)\n", "", ""),
    (_ON_GPUS, f"{_STATE}if single: m = nn.DataParallel(m)\n", "", ""),
    (_ON_GPUS, f"from x import DistributedDataParallel as Native\n{_STATE}a = nn.DataParallel(m)\n", "", ""),
    ("nodes: 2\nprocs_per_node: 1\ngpus_per_node: 8", f"{_STATE}torch.cuda.set_device(dist.get_rank())\n", "", ""),
    (_ON_GPUS, "t = Trainer(num_nodes=2)\nt = Trainer(accelerator='cpu', num_nodes=2)\n", "", ""),
    ("", f"{_STATE}if torch.cuda.is_available(): f()\nelse: init_process_group('gloo')\ninit_process_group('nccl')\n", "", ""),
    ("", f"{_STATE}def a(): m.cuda()\ndef b(): a()\nif gpu: b()\n", "", ""),
    ("nodes: 2", f"{_STATE}dist.init_process_group(world_size=8)\ndist.init_process_group('gloo')\n", "", ""),
    (_ON_GPUS, f"{_STATE}torch.cuda.set_device(dist.get_rank() % 2)\n", "", ""),
    (_ON_GPUS, f"{_STATE}r = dist.get_rank()\nr = r % 2\ntorch.cuda.set_device(r)\n", "", ""),
    ("procs_per_node: 2\ngpus_per_node: 2", f"{_STATE}torch.cuda.set_device(dist.get_rank())\n", "", ""),
    (_ON_GPUS, "t = Trainer(accelerator='gpu', num_nodes=2)\n", "", ""),
    (_ON_GPUS, f"{_STATE}a = Accelerator(cpu=False, mixed_precision='fp16')\n", "", ""),
    ("", "t = Trainer(accelerator='auto')\nif gpu: t = Trainer(accelerator='gpu')\n", "", ""),
    ("", f"{_STATE}a = Accelerator(cpu=True)\n", "", ""),
    ("", "t = Trainer(accelerator=gpu)\n", "", ""),
    ("", f"{_STATE}dist.init_process_group('nccl' if torch.cuda.is_available() else 'gloo')\n", "", ""),
    ("", _TRAINS, "", ""),
    ("procs_per_node: 8", f"{_TRAINS}from torch.nn.parallel import DistributedDataParallel\n", "", ""),
    ("procs_per_node: 8", f"{_TRAINS}import accelerate\n", "", ""),
    ("procs_per_node: 8", f"{_TRAINS}os.environ['LOCAL_RANK']\n", "", ""),
    ("procs_per_node: 8", f"{_STATE}parts = splits.split('a')\n", "", ""),
    ("", f"{_STATE}mp.spawn(main, nprocs=4)\n", "", ""),
    ("procs_per_node: 4", f"{_STATE}if 'RANK' not in os.environ: mp.spawn(main, nprocs=4)\n", "", ""),
    ("procs_per_node: 4", f"{_GROUP}{_ADDRESS}", "", ""),
    ("nodes: 4", f"{_GROUP}if 'RANK' not in os.environ:\n  {_ADDRESS}", "", ""),
    ("nodes: 4", f"{_GROUP}def alone():\n  {_ADDRESS}if '--debug' in sys.argv:\n  alone()\n", "", ""),
    ("procs_per_node: 2\ngpus_per_node: 2", f"{_STATE}if alone:\n  torch.cuda.set_device(0)\n", "", ""),
    (
        "procs_per_node: 2\ngpus_per_node: 2",
        f"{_PARSES}args = p.parse_args()\nargs.local_rank = rank()\ntorch.cuda.set_device(args.local_rank)\n",
        "", "",
    ),
    ("nodes: 4", f"{_GROUP}os.environ.setdefault('MASTER_ADDR', 'localhost')\n", "", ""),
    ("procs_per_node: 1\ngpus_per_node: 2", f"{_STATE}torch.cuda.set_device(0)\n", "", ""),
    ("procs_per_node: 2\ngpus_per_node: 2", f"import os\n{_STATE}os.environ['CUDA_VISIBLE_DEVICES'] = x\ntorch.cuda.set_device(0)\n", "", ""),
    ("nodes: 2", "t = Trainer(devices=1, num_nodes=2)\n", "", ""),
    ("nodes: 2", "t = Trainer(devices=1, **more)\n", "", ""),
    ("nodes: 2", "t = Trainer(args=a)\n", "", ""),
]  # fmt: skip


RESUMES = """\
p = argparse.ArgumentParser()
p.add_argument("--resume", default="")
args = p.parse_args()
if args.resume:
    model.load_state_dict(torch.load(args.resume))
torch.save(model, "ckpt.pt")
"""


@pytest.mark.parametrize(
    "text", [
        RESUMES,
        RESUMES.replace('default=""', 'action="store_true"').replace("args.resume))", "'ckpt.pt'))"),
        RESUMES.replace("if args.resume:", "if args.resume is not None and exists(args.resume):"),
        "def go_on():\n  torch.load(a)\n" + RESUMES.replace("torch.load(args.resume)", "go_on()"),
    ],
)  # fmt: skip
def test_a_script_that_goes_on_only_by_an_option(text: str, tmp_path: Path) -> None:
    (warning,) = told(tmp_path, text)
    assert warning.where == "train.resume"
    assert "loads a checkpoint only with --resume, which the job does not give" in warning.text
    assert 'write resume: {exists: ckpt.pt, args: "--resume' in warning.text
    for place in ("place", "os.path.join(out, 'ckpt.pt')"):
        (warning,) = told(tmp_path, text.replace('"ckpt.pt"', place))
        assert 'write resume: {exists: CHECKPOINT, args: "--resume' in warning.text


@pytest.mark.parametrize(
    ("text", "args"),
    [
        (RESUMES, "{resume: ckpt.pt}"),
        (RESUMES, "{}\n  resume: {exists: ckpt.pt, args: --resume=ckpt.pt}"),
        (RESUMES, "{}\n  resume: scratch"),
        (f"{RESUMES}torch.load(x)\n", "{}"),
        (RESUMES.replace("if args.resume", "if not args.resume"), "{}"),
        (RESUMES.replace("if args.resume", "if args.resume or exists(last)"), "{}"),
        (
            RESUMES.replace("torch.save", "elif exists(last):\n    torch.load(last)\ntorch.save"),
            "{}",
        ),
        (RESUMES.replace("args.resume", "resume"), "{}"),
        (RESUMES.replace('default=""', "default=find()"), "{}"),
        (RESUMES.replace("resume", "no_resume").replace('default=""', "action='store_true'"), "{}"),
        (RESUMES.replace('"--resume"', '"-r", "--resume"'), "[-r, ckpt.pt]"),
        (RESUMES.replace('"--resume"', '"--resume", "--resume-from"'), "[--resume-from, ckpt.pt]"),
        (RESUMES, "[--res, ckpt.pt]"),
        (f"{RESUMES}p.set_defaults(resume=x)\n", "{}"),
        (RESUMES.replace('default=""', 'default="ckpt.pt"'), "{}"),
        (RESUMES.replace("if args.resume", "if args.other"), "{}"),
        (f"{RESUMES}t = Trainer()\n", "{}"),
        (RESUMES.replace('default=""', "action=BooleanOptionalAction, default=True"), "{}"),
        (RESUMES.replace("torch.load(args.resume)", "json.load(args.resume)"), "{}"),
        (f"if x: args.resume = 1\n{RESUMES}", "{}"),
    ],
)
def test_a_script_that_may_go_on_by_itself(text: str, args: str, tmp_path: Path) -> None:
    assert not any("only with" in each.text for each in told(tmp_path, text, args))


def on_nodes(top: str) -> str:
    return f"name: a\ncode: code\ntrain: {{script: t.py}}\n{top}\ntargets: {{slurm: {{}}}}\n"


@pytest.mark.parametrize(("top", "text", "field", "words"), PROCESSES)
def test_a_script_that_counts_on_other_processes(
    top: str, text: str, field: str, words: str, tmp_path: Path
) -> None:
    (tmp_path / "code").mkdir()
    (tmp_path / "code/t.py").write_text(text)
    found = [*check(read(on_nodes(top).encode(), "a.yaml")["slurm"].job, tmp_path)]
    assert [each.fields[0] for each in found] == ([field] if field else [])
    assert all(words in each.problem for each in found)


@pytest.mark.parametrize(("args", "remedy"), NO_SHELL)
def test_an_argument_that_only_a_shell_would_fill_in(
    args: str, remedy: str, tmp_path: Path
) -> None:
    (warning,) = told(tmp_path, PLAIN, args)
    assert warning.text.endswith(remedy)
    assert told(tmp_path, f"{PLAIN}rank = os.environ['RANK'], os.getenv('RANK')\n", args)
    for more in (
        "import torchvision",
        "if __package__: from . import data",
        "os.path.expandvars(a)",
        "f(os.environ)",
    ):
        assert told(tmp_path, f"{PLAIN}{more}\n", args) == []


def test_a_path_that_a_workload_fills_in(tmp_path: Path) -> None:
    spec = _GPT.replace("steps: 1", "steps: 1, args: {text: ~/x.txt}")
    assert conflicts(tmp_path, spec, "") == []


BRACES = "['{checkpointdir}/a', '{epoch}.pt', '{{jobs}}', '${jobs}']"


def test_braces_that_are_filled_in_nowhere(tmp_path: Path) -> None:
    script = "m.save(m.load())\n"
    (misspelt,) = told(tmp_path, script, BRACES)
    assert misspelt.where == "train.args"
    assert "checkpoint_dir?" in misspelt.text
    (elsewhere,) = told(tmp_path, script, "{a: '{newest}'}")
    assert elsewhere.where == "train.args"
    assert "train.resume.args" in elsewhere.text
    text = "name: a\ntrain:\n  command: [a.sh]\n  resume: {exists: 'c-*', args: '--go={newest}'}\n"
    assert [*check(read(text.encode(), "a.yaml")["local"].job, tmp_path)] == []
    text = text.replace("newest", "newst")
    (misspelt_newest,) = check(read(text.encode(), "a.yaml")["local"].job, tmp_path)
    assert "newest?" in misspelt_newest.remedy


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
    assert "a.yaml:5:15: warning: train.args.dta: " in done.err


def test_init_writes_a_spec_for_a_script(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my code").mkdir()
    (tmp_path / "my code" / "train it.py").write_text(PARSER)
    made = run("init", "--script", "my code/train it.py", "--procs", "3", "-o", "a.yaml")
    assert made == (0, "a.yaml\n", "next: ddpgen validate a.yaml\n")
    text = (tmp_path / "a.yaml").read_text()
    assert " learning-rate, data, compile\n" in text
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
    assert "--steps" in both.err
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
        (NANOGPT, '{exists: "out/ckpt.pt", args: "--init_from=resume"}'),
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


COMMANDS = [
    ("[torchrun, t.py]", "is a launcher"),
    ("[srun, --ntasks=4, ./t.sh]", "is a launcher"),
    ("[/opt/bin/mpirun, -n, 4, ./t.sh]", "is a launcher"),
    ("[accelerate, launch, t.py]", "is a launcher"),
    ("[python3, -m, torch.distributed.run, t.py]", "is a launcher"),
    ("[python3.11, /t.py, --lr=1]", "is Python"),
    ("[tmux, new, -d, ./t.sh]", "tmux ends before what it starts"),
    ("[/usr/bin/sbatch, t.sh]", "/usr/bin/sbatch ends before what it starts"),
    ("[sudo, ./t.sh]", "sudo takes the job's variables away"),
    ("[salloc, ./t.sh]", "is a launcher"),
    ("[python3, -m, accelerate.commands.launch, t.py]", "is a launcher"),
    ("[qsub, t.sh]", "qsub ends before what it starts"),
    ("[docker, run, image, ./t.sh]", "docker run does not hand on the job's variables"),
    ("[ssh, host, ./t.sh]", "ssh does not hand on the job's variables"),
    (
        "[bash, -ec, ./t.sh, --lr, 1]",
        "no program gets --lr 1: the text of -ec reads no word that follows",
    ),
    (
        "[/bin/sh, -c, python t.py, --lr=1]",
        "no program gets --lr=1: the text of -c reads no word that follows",
    ),
    *(
        (f"[{starter}, torchrun, t.py]", "is a launcher")
        for starter in (
            "uv, run",
            "poetry, run",
            "conda, run, -n, t",
            "env, A=1",
            "nice",
            "nice, -n, '5'",
            "/usr/bin/timeout, 1h",
            "apptainer, exec, --nv, x.sif",
            "uv, run, env, A=1",
        )
    ),
    ("[uv, run, accelerate, launch, t.py]", "is a launcher"),
    ("[bash, -c, 'cd x && torchrun --nproc-per-node=4 t.py']", "its text starts torchrun"),
    ("[env, A=1, bash, -ec, srun python3 t.py]", "its text starts srun"),
    ("[/opt/app/bin/, --lr, '0.1']", "/opt/app/bin/ is no program"),
    ("[/dev/null]", "/dev/null is no program"),
    ("[~/bin/]", "~/bin/ is no program"),
    ("[/opt/my.app]", ""),
    ("[bash, x.sh, -c, torchrun t.py]", ""),
    ("[/opt/app/bin/x, ./, /dev/null]", ""),
    ("[uv, run, accelerate, launch, --num_processes=1, t.py]", ""),
    ("[uv, run, ./torchrun.sh]", ""),
    ("[bash, -c, 'python t.py --launcher torchrun']", ""),
    ("[bash, -c, 'torchrun --node-rank=$RANK t.py']", ""),
    ("[bash, -c, torchrun t.py]\nprocs_per_node: 1", ""),
    ("[bash, -c, srun --version]", ""),
    ("[~/t, --lr 1]", '"--lr 1" is one word with a space in it'),
    ("[accelerate, launch, --num_processes, 1, t.py]", ""),
    ("[my-trainer, python]", ""),
    ("[sudoku, tmux]", ""),
    ("[bash, -c, '~/t $HOME ~/x']", ""),
    ("[~/t, 'a~/b', 'x=${paths.root}', '\\$HOME', '$$HOME']", ""),
    ("[~/t.sh]", ""),
    ("[~/t, ~/data, $DATA]", ""),
    ("[env, A=1, bash, -c, 'cd $HOME && ./t.sh']", ""),
    ("[conda, run, -n, x, bash, -c, ./t.sh $HOME/x]", ""),
    ("[~/batch, x]", ""),
    ("[sbatch, --wait, t.sh]", ""),
    ("[screen, -D, -m, ./t.sh]", ""),
    ("[systemd-run, --scope, ./t.sh]", ""),
    ("[~/srun-less.sh, x]", ""),
    ("[docker, run, -e, RANK, -e, WORLD_SIZE, image, ./t.sh]", ""),
    ("[bash, -c, './t.sh \"$@\"', x, --lr, 1]", ""),
    ("[bash, -c, '. ./t.sh', x, --lr, 1]", ""),
    ("[bash, -c, ./t.sh, training]", ""),
    ("[~/t, --more, --lr 1]", ""),
    ("[ssh, host, ./t.sh]\nprocs_per_node: 1", ""),
]
# A command with the files of write_programs().
FILES = [
    ("[a.sh]", "a.sh is looked for on the PATH, and not in code"),
    ("[./b.sh]", "./b.sh cannot be started: its owner may not execute it"),
    ("[bash, -e, c.sh]", "c.sh is not in code (code)"),
    ("[./no-line.sh]", "./no-line.sh cannot be started: its first line does not begin with #!"),
    ("[./crlf.sh]", "./crlf.sh cannot be started: its lines end as on Windows"),
    (
        "[bash, ./crlf.sh]",
        "./crlf.sh ends its lines as on Windows, and the shell takes that for a part of each last word",
    ),
    ("[./a.sh, ~/x, '${DATA}/x']", "is passed as it is written: no shell fills in ${DATA}"),
    ("[bash, -e, a.sh, $DATA]", "is passed as it is written: no shell fills in $DATA"),
    ("[bash, e.sh, $DATA]", ""),
    ("[./a.sh, bash, -c, ./x $DATA]", ""),
    ("[bash, /opt/c.sh, $DATA]", ""),
    ("[bash, no-line.sh]", ""),
    ("[./program]", ""),
    ("[bash, a.sh]", ""),
    ("[sh, b.sh]", ""),
    ("[bash, -c, c.sh]", ""),
    ("[bash, /opt/c.sh]", ""),
    ("[./a.sh, c.sh]", ""),
    ("[./b.sh]\n  workdir: /opt/x", ""),
    ("[./launch.sh]", "./launch.sh starts torchrun, and each process of the job would do so"),
    ("[bash, launch.sh]", "launch.sh starts torchrun, and each process of the job would do so"),
    (
        "[./accelerate.sh]",
        "./accelerate.sh starts accelerate, and each process of the job would do so",
    ),
    ("[./exec.sh]", "./exec.sh starts torchrun, and each process of the job would do so"),
    ("[./one.sh]", ""),
    ("[./at-times.sh]", ""),
    ("[./says.sh]", ""),
]


def with_command(command: str) -> str:
    command, _, procs = command.partition("\nprocs_per_node: ")
    return f"name: a\ntrain:\n  command: {command}\n  resume: by-itself\nprocs_per_node: {procs or 2}\n"


@pytest.mark.parametrize(("command", "expected"), COMMANDS)
def test_of_a_command(command: str, expected: str, tmp_path: Path) -> None:
    job = read(with_command(command).encode(), "a.yaml")["local"].job
    found = [each.problem.partition(",")[0] for each in check(job, tmp_path)]
    assert found == ([expected] if expected else [])


# A command, the text of t.sh, and bash's words on its fault; "" without one.
BASH = [
    ("[bash, -c, 'for i in 1 2; ./x; done']", "", "train.command[2]", "is no bash: syntax error near unexpected token `./x'"),
    ("[bash, -ec, './x \"a']", "", "train.command[2]", "is no bash: unexpected EOF while looking for"),
    ("[/bin/sh, -c, './x (']", "", "train.command[2]", "is no bash: syntax error"),
    ("[env, A=1, bash, -c, './x )']", "", "train.command[4]", "is no bash: syntax error"),
    ("[apptainer, exec, /x.sif, bash, -c, './x )']", "", "train.command[5]", "is no bash: syntax error"),
    ("[bash, t.sh]", "if true; then\n  ./x\n", "train.command", "t.sh:3 is no bash: syntax error: unexpected end of file"),
    ("[bash, t.sh]", "if true; then\n  ./x\nendif\n", "train.command", "t.sh:4 is no bash"),
    ("[bash, -e, ./t.sh, --lr=1]", "import os\nprint(os.environ['A'])\n", "train.command", "./t.sh:2 is no bash: syntax error near"),
    ("[./t.sh]", "#!/usr/bin/env bash\nif true; then\n", "train.command", "./t.sh:3 is no bash"),
    ("[./t.sh]", "#!/bin/sh -eu\n./x (\n", "train.command", "./t.sh:2 is no bash"),
    ("[./t.sh]", "#!/bin/bash\nexec ./x (\n", "train.command", "./t.sh:2 is no bash"),
    ("[bash, -c, 'for i in 1 2; do ./x; done']", "", "", ""),
    ("[bash, -c, 'shopt -s extglob; ./x !(a|b)']", "", "", ""),
    ("[bash, -c, './x \"$@\" <(y) {job} [[ ']", "", "", ""),
    ("[bash, -c]", "", "", ""),
    ("[bash, ./x.sh, -c, 'a (b']", "", "", ""),
    ("[zsh, -c, 'for i (1 2) ./x']", "", "", ""),
    ("[fish, -c, 'for i in 1 2; ./x; end']", "", "", ""),
    ("[docker, run, -e, RANK, image, bash, -c, 'a (b']", "", "", ""),
    ("[./x, -c, 'a (b']", "", "", ""),
    ("[bash, t.sh]", "./x\n", "", ""),
    ("[bash, t.sh]", "", "", ""),
    ("[bash, /opt/t.sh]", "if\n", "", ""),
    ("[zsh, t.sh]", "for i (1 2) ./x\n", "", ""),
    ("[./t.sh]", "#!/bin/zsh\nfor i (1 2) ./x\n", "", ""),
    ("[./t.sh]", "#!/usr/bin/env python3\nprint('a')\n", "", ""),
    ("[./t.sh]", "#!/opt/sh-env/bin/python3\nif (1): print('a')\n", "", ""),
    ("[./t.sh]", "#!/usr/bin/perl\nprint(\"a\") if (1);\n", "", ""),
    ("[bash, t.sh]\n  workdir: /opt/x", "if\n", "", ""),
    ("[bash, t.sh]", "tail -n +3 $0 | tar x\nexit 0\n(((\n", "", ""),
    ("[bash, t.sh]", "tail -n +2 $0 | tar x; exec ./x\n(\0(\n", "", ""),
    ("[bash, t.sh]", "if true; then\r\n  ./x\r\nfi\r\n", "", ""),
    ("[bash, t.sh]", "cat <<EOF\n(\n", "", ""),
]  # fmt: skip


@pytest.mark.parametrize(("command", "text", "field", "words"), BASH)
def test_what_a_command_gives_to_bash_is_bash(
    command: str, text: str, field: str, words: str, tmp_path: Path
) -> None:
    (tmp_path / "code").mkdir()
    (tmp_path / "code/t.sh").write_text(text, newline="")
    job = read(f"code: code\n{with_command(command)}".encode(), "a.yaml")["local"].job
    found = list(lines.check(job, tmp_path))
    assert [each.fields[0] for each in found] == ([field] if field else [])
    assert all(each.problem.startswith(words) for each in found)
    assert all(each.fatal == ("[" in field) for each in found)


def write_programs(place: Path) -> None:
    (place / "code").mkdir(exist_ok=True)
    for name, mode, text in (
        (
            "exec.sh",
            0o755,
            '#!/bin/bash\nexec torchrun --standalone --nproc-per-node=2 t.py "$@"\n',
        ),
        ("a.sh", 0o755, "#!/bin/sh\n./train --data $1\n"),
        ("b.sh", 0o644, ""),
        ("no-line.sh", 0o755, "./train\n"),
        ("crlf.sh", 0o755, "#!/bin/sh\r\n./train\r\n"),
        ("launch.sh", 0o755, "#!/bin/bash\nset -e\ntorchrun \\\n  --nproc-per-node=4 \\\n  t.py\n"),
        ("accelerate.sh", 0o755, "#!/bin/bash\naccelerate launch --num_processes 4 t.py\n"),
        (
            "one.sh",
            0o755,
            "#!/bin/bash\naccelerate launch --num_processes 1 t.py\n# torchrun t.py\n",
        ),
        ("at-times.sh", 0o755, "#!/bin/bash\nif [ $A ]; then\n  torchrun t.py\nfi\n"),
        ("says.sh", 0o755, "#!/bin/bash\necho 'use; torchrun t.py'\npython3 t.py\necho 'open\n'\n"),
        ("program", 0o755, "\x7fELF\0"),
    ):
        (place / "code" / name).write_text(text, newline="")
        (place / "code" / name).chmod(mode)


@pytest.mark.parametrize(("command", "expected"), FILES)
def test_of_the_file_that_a_command_starts(command: str, expected: str, tmp_path: Path) -> None:
    write_programs(tmp_path)
    if "e.sh" in command:
        (tmp_path / "code/e.sh").write_text('eval "$@"\n')
    text = f"code: code\n{with_command(command)}"
    job = read(text.encode(), "a.yaml")["local"].job
    assert [each.problem for each in check(job, tmp_path)] == ([expected] if expected else [])


@pytest.mark.parametrize(
    ("command", "script"),
    [
        ("[python3, -m, pkg.mod, --lr=1]", "module:pkg.mod,"),
        ("[python3, -u, /t.py, -m, x]", "/t.py,"),
        ("[python3, -u, -m, pkg.mod]", "module:pkg.mod,"),
        (
            "[python3, -m, accelerate.commands.launch, --num_processes=1, t.py]",
            "module:accelerate.commands.launch,",
        ),
    ],
)
def test_python_as_a_command_is_better_a_script(command: str, script: str, tmp_path: Path) -> None:
    job = read(with_command(command).encode(), "a.yaml")["local"].job
    assert any(f"write script: {script}" in each.remedy for each in check(job, tmp_path))


SKY = """\
name: a
code: .
targets: {{sky: {{bucket: s3://a-bucket}}}}
train: {{script: t.py{train}}}
"""
LOST = [
    (
        ", resume: {exists: out/last.pt, args: --resume}",
        "'out/last.pt'",
        "train.resume.exists",
        "to {checkpoint_dir}/out",
    ),
    (
        ", resume: {exists: last.pt, args: --resume}",
        "path",
        "train.resume.exists",
        "to {checkpoint_dir}",
    ),
    (", guard: ckpt-*/DONE", "path", "train.guard", "to {checkpoint_dir}/ckpt-*"),
    ("", "'out/last.pt'", "train.script", "DDPGEN_CHECKPOINT_DIR"),
    ("", "0", "", ""),
    ("", "b); im.save('x.png', 'PNG'", "", ""),
    (
        ", args: {out_dir: '{checkpoint_dir}'}",
        "f'{out_dir}/x.pt')\nout_dir = 'out'\nglobals()[sys.argv[1]] = (1",
        "",
        "",
    ),
    ("", "'x.pt'); os.chdir(d", "", ""),
    ("", "p); p = 'a'\nif x: p = '/b'\n(0", "", ""),
    ("", "1); f = lambda p: torch.save(m, p); p = 'a'; (0", "", ""),
    (
        ", args: [-o, '{checkpoint_dir}']",
        "os.path.join(a.out, 'x.pt')); p.add_argument('-o', '--out', default='out'",
        "",
        "",
    ),
    ("", "p); p = os.path.join(\n  p, '/b'", "", ""),
    ("", "p); p = os.path.join(None, *x", "", ""),
    ("", " / ".join(["q"] * 900), "", ""),
    *(
        (train, saves, "train.script", "DDPGEN_CHECKPOINT_DIR")
        for train, saves in (
            ("", "os.path.join(a.out, 'x.pt')); p.add_argument('--out', default='out'"),
            (", args: {out: x}", "f'{a.out}/{e}.pt'); p.add_argument('--out'"),
            ("", "Path('out') / 'x.pt'"),
            (
                "",
                "os.path.join(os.path.join(a.out, 'd'), 'x.pt')); p.add_argument('--out', default='out'",
            ),
            ("", "b); TrainingArguments(output_dir='out'"),
            (
                ", args: {output_dir: x}",
                "b); TrainingArguments(a.output_dir); p.add_argument('--output_dir'",
            ),
        )
    ),
    *(
        (train, saves, "", "")
        for train, saves in (
            (
                ", args: {out: '{checkpoint_dir}'}",
                "f'{a.out}/x.pt'); p.add_argument('--out', default='out'",
            ),
            (", args: {out: /data}", "f'{a.out}/x.pt'); p.add_argument('--out', default='out'"),
            (
                "",
                "f'{a.out}/x.pt'); p.add_argument('--out', default='out'); os.environ.get('DDPGEN_CHECKPOINT_DIR'",
            ),
            ("", "f'{a.out}/x.pt'); a.out = b; p.add_argument('--out', default='out'"),
            ("", "Path('/ckpt') / 'x.pt'"),
            ("", "b); TrainingArguments(output_dir=out"),
        )
    ),
    ("", "f'{out}/last.pt'", "", ""),
    ("", "'/ckpt/last.pt'", "", ""),
    (", resume: {exists: '{checkpoint_dir}/x.pt', args: --resume}", "'x.pt'", "", ""),
    (", workdir: /checkpoints/work", "'x.pt'", "", ""),
    (", workdir: '{checkpoint_dir}/work', guard: ckpt-*/DONE", "'x.pt'", "", ""),
]


def saving(saves: str) -> str:
    return f"torch.save(a, {saves}); torch.load(a)\n"


LIGHTNING = "import lightning as L\nt = L.Trainer(max_epochs=3)\nt.fit(m)\n"
DEFAULT_PLACES = [
    (PARSED, "{output_dir: out}", "train.args.output_dir"),
    (PARSED, "{output_dir: '{checkpoint_dir}/out'}", ""),
    (PARSED, "{output_dir: /ckpt}", ""),
    (PARSED, "[--output_dir]", ""),
    (PARSED.replace("TrainingArguments", "Others"), "{output_dir: out}", ""),
    (LIGHTNING, "{}", "train.script"),
    (LIGHTNING.replace("lightning", "pytorch_lightning"), "{}", "train.script"),
    (LIGHTNING.replace("lightning", "mine"), "{}", ""),
    (LIGHTNING.replace("fit", "test"), "{}", ""),
    (LIGHTNING.replace("max_epochs=3", "default_root_dir=d"), "{}", ""),
    (LIGHTNING.replace("max_epochs=3", "enable_checkpointing=c"), "{}", ""),
    (LIGHTNING.replace("max_epochs=3", "**more"), "{}", ""),
    (f"c = ModelCheckpoint(dirpath=d)\n{LIGHTNING}", "{}", ""),
    (f"c = WandbLogger(save_dir=d)\n{LIGHTNING}", "{}", ""),
    (f"c = ModelCheckpoint('/checkpoints/x')\n{LIGHTNING}", "{}", ""),
    (LIGHTNING.replace("max_epochs=3", "callbacks=make()"), "{}", ""),
    (
        LIGHTNING.replace("max_epochs=3", "callbacks=[EarlyStopping('loss')], logger=False"),
        "{}",
        "train.script",
    ),
    (f"import hydra\n{LIGHTNING}", "{}", ""),
    (
        LIGHTNING.replace("L.Trainer", "Trainer").replace(
            "import lightning as L", "import lightning\nfrom mine import Trainer"
        ),
        "{}",
        "",
    ),
    (
        LIGHTNING.replace("L.Trainer", "Trainer").replace(
            "import lightning as L", "from lightning import Trainer"
        ),
        "{}",
        "train.script",
    ),
    (PARSED, "[--output_dir, ./out, --push_to_hub]", ""),
    (f"def end(t): t.save_checkpoint(place)\n{LIGHTNING}", "{}", ""),
]


@pytest.mark.parametrize(("text", "args", "field"), DEFAULT_PLACES)
def test_on_sky_the_default_place_of_a_trainer_goes_with_the_machine(
    text: str, args: str, field: str, tmp_path: Path
) -> None:
    (tmp_path / "t.py").write_text(text)
    job = read(SKY.format(train=f", args: {args}").encode(), "a.yaml")["sky"].job
    assert [each.fields[0] for each in check(job, tmp_path)] == ([field] if field else [])


@pytest.mark.parametrize(("train", "saves", "field", "word"), LOST)
def test_on_sky_saves_that_go_with_the_machine_are_told(
    train: str, saves: str, field: str, word: str, tmp_path: Path
) -> None:
    (tmp_path / "t.py").write_text(saving(saves))
    found = [*check(read(SKY.format(train=train).encode(), "a.yaml")["sky"].job, tmp_path)]
    assert [each.fields[0] for each in found] == ([field] if field else [])
    assert all(word in each.remedy for each in found)


MIXED = """\
p = argparse.ArgumentParser()
p.add_argument("--mixed_precision", default="no")
args = p.parse_args()
a = Accelerator(mixed_precision=args.mixed_precision)
a.save(a.load())
"""


def test_a_setting_that_comes_from_an_argument(tmp_path: Path) -> None:
    (fault,) = told(tmp_path, MIXED, "{mixed_precision: fp16}")
    assert fault.text.startswith(
        "t.py:4: mixed_precision=args.mixed_precision is fp16, and the job"
    )
    assert told(tmp_path, MIXED, "{mixed_precision: bf16}") == []
    assert told(tmp_path, f"args.mixed_precision = 'no'\n{MIXED}", "{mixed_precision: fp16}") == []
