"""The command lines that scripts make in other ways than by one plain argparse, and the settings of Lightning."""

from __future__ import annotations

from pathlib import Path

import pytest

from ddpgen.lint.program import check
from ddpgen.tiers.registry import read
from tests.ddpgen.test_read_script import told

SUBCOMMANDS = """\
import argparse
root = p = argparse.ArgumentParser()
p.add_argument("--out")
s = p.add_subparsers(dest="cmd", required=True)
p = s.add_parser("fit", help="train")
p.add_argument("--epochs", type=int)
e = s.add_parser("export")
e.add_argument("--format", required=True)
args = root.parse_args()
m.save(m.load())
"""
OPTIONAL = SUBCOMMANDS.replace(", required=True)\np =", ")\np =")
EXCLUSIVE = """\
import argparse
p = argparse.ArgumentParser()
g = p.add_mutually_exclusive_group()
g.add_argument("--cpu", action="store_true")
g.add_argument("--gpu", action="store_true")
g.add_argument("-n", "--number", type=int, default=3)
args = p.parse_args()
m.save(m.load())
"""
REQUIRED = EXCLUSIVE.replace("group()", "group(required=True)")
KNOWN = """\
import argparse
p = argparse.ArgumentParser()
p.add_argument("--epochs", type=int)
p.add_argument("--batch-size", type=int)
args = p.parse_known_args()[0]
m.save(m.load())
"""
REST = KNOWN.replace("args = p.parse_known_args()[0]", "args, rest = p.parse_known_args()")
CLICK = """\
import click
@click.command()
@click.option("--learning-rate", "-l", type=float, required=True)
@click.option("--epochs", default=5)
@click.option("--mode", type=click.Choice(["fast", "exact"]))
@click.option("--verbose/--quiet", default=True)
@click.option("--amp", is_flag=True)
@click.option("--tag", multiple=True)
def main(**settings):
    m.save(m.load())
main()
"""
HYDRA = """\
import hydra
@hydra.main(config_path="conf", config_name="config")
def main(cfg):
    m.save(m.load())
main()
"""
# As nanoGPT's configurator.py, but in the script itself.
INLINE = """\
compile = False
learning_rate = 6e-4
keys = [k for k in globals()]
for arg in sys.argv[1:]:
    key, val = arg.split("=")
    try:
        attempt = literal_eval(val)
    except ValueError:
        attempt = val
    assert type(attempt) == type(globals()[key[2:]])
    globals()[key[2:]] = attempt
m.save(m.load())
"""
LIGHTNING = """\
import lightning as L
class Net(L.LightningModule):
    def training_step(self, batch, i):
        self.log("train_loss", torch.log(batch))
        self.log_dict({"val_loss": 1})
t = L.Trainer(devices=2, callbacks=[ModelCheckpoint(monitor="val_loss")])
t.fit(Net())
"""


def trainer(settings: str) -> str:
    """LIGHTNING with more settings of its Trainer."""
    return LIGHTNING.replace("devices=2", f"devices=2, {settings}")


# Values that Lightning knows.
FINE = [
    ("precision", "bf16-mixed"),
    ("precision", "32"),
    ("precision", 64),
    ("precision", "transformer-engine"),
    ("accelerator", "auto"),
    ("accelerator", "tpu"),
    ("accelerator", "hpu"),
    ("strategy", "auto"),
    ("strategy", "DDP"),
    ("strategy", "ddp_fork_find_unused_parameters_false"),
    ("strategy", "deepspeed_stage_3_offload_nvme"),
    ("strategy", "fsdp_cpu_offload"),
    ("strategy", "tpu_spawn"),
]
# Two arguments of one name, or nearly.
TWICE = """\
import argparse
p = argparse.ArgumentParser()
p.add_argument("--lr", "-l", type=float)
g = p.add_argument_group("more")
args = p.parse_args()
m.save(m.load())
"""


def twice(more: str) -> str:
    """TWICE with other lines behind the group."""
    return TWICE.replace("args =", f"{more}\nargs =")


_LR = 'p.add_argument("--lr")'
_IN_FUNCTION = f"""\
import argparse
def read():
  p = argparse.ArgumentParser()
  {_LR}
  {_LR}
  return p.parse_args()
args = read()
m.save(m.load())
"""
# A script, its arguments, the field of the warning and words of it.
OTHERWISE = [
    (SUBCOMMANDS, "{epochs: 3}", "train.args", "wants a sub-command (fit, export)"),
    (SUBCOMMANDS, "[--epochs, '3', fit]", "train.args[0]", "only behind a sub-command (fit)"),
    (SUBCOMMANDS, "[fti, --epochs, '3']", "train.args[0]", "no sub-command fti; did you mean fit?"),
    (SUBCOMMANDS, "[--out, x]", "train.args", "wants a sub-command; write one of fit, export"),
    (SUBCOMMANDS, "[--out, x, fit, --epoch, many]", "train.args[3]", '"many" is no int'),
    (SUBCOMMANDS, "[fit, --lr, '3']", "train.args[1]", "no option --lr"),
    (SUBCOMMANDS, "[export]", "train.args", "wants --format"),
    (OPTIONAL, "{epochs: 3}", "train.args.epochs", "has --epochs only behind a sub-command"),
    (EXCLUSIVE, "{cpu: true, gpu: true}", "train.args.gpu", "takes one of --cpu, --gpu, --number"),
    (EXCLUSIVE, "[--cpu, --num=4]", "train.args[1]", "takes one of"),
    (REQUIRED, "{}", "train.args", "wants one of --cpu, --gpu"),
    (KNOWN, "{epoch_count: 3}", "train.args.epoch_count", "drops it silently; did you mean epochs?"),
    (REST, "[--batchsize, '3']", "train.args[0]", "did you mean batch-size?"),
    (KNOWN, "{epochs: many}", "train.args.epochs", '"many" is no int'),
    (CLICK, "{learning_rate: 0.1, learning-rate: 1}", "train.args.learning_rate", "learning-rate?"),
    (CLICK, "{learning-rate: x}", "train.args.learning-rate", "is no float"),
    (CLICK, "{learning-rate: 1, epochs: 1.5}", "train.args.epochs", "is no int"),
    (CLICK, "{learning-rate: 1, mode: slow}", "train.args.mode", "no choice"),
    (CLICK, "[--learn=1, --amp]", "train.args[0]", "no option --learn"),
    (CLICK, "{epochs: 3}", "train.args", "wants learning-rate"),
    (CLICK, "{learning-rate: 1, amp: 1}", "train.args.amp", "takes no value"),
    (HYDRA, "{lr: 0.1}", "train.args.lr", "write args as a list of words: lr=0.1"),
    (HYDRA, "[lr, '0.003']", "train.args[0]", "lr is no override; write lr=0.003 as one word"),
    (HYDRA, "[steps=2, lr]", "train.args[1]", "lr is no override; write lr=VALUE as one word"),
    (HYDRA, "[--config-name, other, fast, lr=1]", "train.args[2]", "fast is no override; write fast=VALUE"),
    (HYDRA, "[--config-name=other, fast]", "train.args[1]", "fast is no override"),
    (HYDRA, "[lr=1, --config_name=a]", "train.args[1]", "write --config-name"),
    (INLINE, "{learning_rate: 1}", "train.args.learning_rate", "is no float"),
    (INLINE, "{compile: true}", "train.args.compile", "args_style: equals"),
    (INLINE, "[--learning_rate, '0.1']", "train.args[0]", "as one word"),
    (LIGHTNING.replace("devices", "gpus"), "{}", "train.script", "no Trainer(gpus=); write accelerator"),
    (LIGHTNING.replace("devices=2", "max_epoch=2"), "{}", "train.script", "did you mean max_epochs?"),
    (LIGHTNING.replace('or="val', 'or="valid'), "{}", "train.script", "watches valid_loss"),
    (trainer("precision='fp16'"), "{}", "train.script", "t.py:6: Lightning has no precision='fp16'; write \"16-mixed\""),
    (trainer("precision='BF16-mixed'"), "{}", "train.script", "did you mean bf16-mixed?"),
    (trainer("precision=8"), "{}", "train.script", "Lightning has no precision=8; write"),
    (trainer("accelerator='cuda:0'"), "{}", "train.script", "Lightning has no accelerator='cuda:0'; did you mean cuda?"),
    (trainer("accelerator='ddp'"), "{}", "train.script", "Lightning has no accelerator='ddp'; write \"auto\""),
    (trainer("strategy='ddp_elastic'"), "{}", "train.script", "Lightning has no strategy='ddp_elastic'; write"),
    (trainer("strategy='dp'"), "{}", "train.script", "Lightning has no strategy='dp'"),
    (trainer("strategy=S").replace("class", "S = 'zero3'\nclass"), "{}", "train.script", "t.py:7: Lightning has no strategy='zero3'; write \"ddp\""),
    (trainer("precision='half'").replace("L.Trainer", "L.Fabric"), "{}", "train.script", 'write "16-mixed"'),
    ("import transformers\n" + trainer("precision='fp16'"), "{}", "train.script", "Lightning has no precision"),
    (twice(_LR), "{}", "train.script", "t.py:5 adds --lr to a parser that has it"),
    (twice('p.add_argument("--rate", "-l")'), "{}", "train.script", "t.py:5 adds -l to a parser"),
    (twice('g.add_argument("--lr")'), "{}", "train.script", "t.py:5 adds --lr to a parser"),
    (twice('x = p.add_argument("--lr")'), "{}", "train.script", "t.py:5 adds --lr to a parser"),
    (twice('e = g.add_mutually_exclusive_group()\ne.add_argument("--lr")'), "{}", "train.script", "t.py:6 adds --lr"),
    (twice('p.add_argument("-h", "--height")'), "{}", "train.script", "t.py:5 adds -h to a parser"),
    (_IN_FUNCTION, "{}", "train.script", "t.py:5 adds --lr"),
    (_IN_FUNCTION.replace("args = read()", "args = read() if old else None"), "{}", "", ""),
    (SUBCOMMANDS.replace("args =", 'e.add_argument("--format")\nargs ='), "[fit]", "train.script", "t.py:9 adds --format"),
    (SUBCOMMANDS, "[--out, x, fit, --epochs, '3']", "", ""),
    *((trainer(f"{name}={value!r}"), "{}", "", "") for name, value in FINE),
    *((trainer(f"{name}={value!r}").replace("L.Trainer", "L.Fabric"), "{}", "", "") for name, value in FINE),
    (trainer("strategy='dp'").replace("L.Trainer", "L.Fabric"), "{}", "", ""),
    ("import lightning_chips\n" + trainer("strategy='chips', accelerator='chip'"), "{}", "", ""),
    (trainer("strategy='mine'") + "StrategyRegistry.register('mine', Mine)\n", "{}", "", ""),
    (trainer("strategy='zero3'").replace("L.Trainer", "Mine"), "{}", "", ""),
    (trainer("precision='fp16'").replace("lightning", "pytorch_lightning"), "{}", "", ""),
    (trainer("precision=args.precision, accelerator=pick('x'), strategy=DDPStrategy(), **more"), "{}", "", ""),
    (trainer("precision=None, accelerator=True"), "{}", "", ""),
    (TWICE, "{}", "", ""),
    (twice('p.add_argument("lr")'), "[--lr=1, '2']", "", ""),
    (twice('p.add_argument("--lr2")'), "{}", "", ""),
    (twice(_LR).replace("Parser()", "Parser(conflict_handler='resolve')"), "{}", "", ""),
    (twice(_LR).replace("Parser()", "Parser(**settings)"), "{}", "", ""),
    (twice('g.add_argument("--lr")').replace('"more"', '"more", conflict_handler="resolve"'), "{}", "", ""),
    (twice('p.add_argument("-h")').replace("Parser()", "Parser(add_help=False)"), "{}", "", ""),
    (twice(f"if old: {_LR}"), "{}", "", ""),
    (twice(f"if old:\n  {_LR}\nelse:\n  {_LR}"), "{}", "", ""),
    (twice(f"try:\n  {_LR}\nexcept argparse.ArgumentError: pass"), "{}", "", ""),
    (twice(f"p = argparse.ArgumentParser()\n{_LR}"), "{}", "", ""),
    (twice('q = argparse.ArgumentParser()\nq.add_argument("--lr")'), "{}", "", ""),
    (twice(f"def other(p):\n  {_LR}"), "{}", "", ""),
    (twice(f"p._remove_action(x)\n{_LR}"), "{}", "", ""),
    (twice(f"p.conflict_handler = 'resolve'\n{_LR}"), "{}", "", ""),
    (twice(_LR).replace("import argparse\n", "from mine import argparse\n"), "{}", "", ""),
    (twice(_LR).replace("import argparse\n", "import argparse\nimport jsonargparse\n"), "{}", "", ""),
    (SUBCOMMANDS.replace("args =", 'e.add_argument("--out")\nargs ='), "[export, --format=x]", "", ""),
    (SUBCOMMANDS, "[export, --format=fit]", "", ""),
    (SUBCOMMANDS.replace("e = s", "for x in y: e = s"), "{epochs: 3}", "", ""),
    (SUBCOMMANDS.replace('"export"', '"export", aliases=["x"]'), "[x]", "", ""),
    (OPTIONAL, "{out: x}", "", ""),
    (EXCLUSIVE, "{cpu: true, gpu: false, number: 3}\n  args_style: flags", "", ""),
    (REQUIRED, "[-n, '4']", "", ""),
    (KNOWN, "{anything: 3}", "", ""),
    (f"{REST}f(rest)\n", "{epoch_count: 3}", "", ""),
    (f"import mine\n{KNOWN}", "{epoch_count: 3}", "", ""),
    (CLICK, "{learning-rate: 1, tag: [a, b], verbose: true, mode: fast, epochs: 3}", "", ""),
    (CLICK, "[-l, '1', --quiet, --amp]", "", ""),
    (CLICK.replace("required=True", "required=True, envvar='LR'"), "{epochs: 3}", "", ""),
    (CLICK.replace("main()", "main(auto_envvar_prefix='A')"), "{epochs: 3}", "", ""),
    (CLICK.replace("@click.command()", "@click.group()"), "{x: 3}", "", ""),
    (CLICK.replace("@click.option(\"--amp", "@more\n@click.option(\"--amp"), "{x: 3}", "", ""),
    (HYDRA, "[lr=0.1, --config-name, other, --multi]", "", ""),
    (HYDRA, "[+lr=1, ++a.b=2, ~model, ~a=1, 'list=[1, 2]', db@x=y, 'text=', -m, 'lr=1,2']", "", ""),
    (HYDRA, "[-cn, other, -cp, conf, -c, job, -p, model, --info, all]", "", ""),
    (f"sys.argv = f()\n{HYDRA}", "[lr, '1']", "", ""),
    (HYDRA.replace("@hydra.main", "@mine"), "[lr, '1']", "", ""),
    (f"sys.argv = f()\n{HYDRA}", "{lr: 0.1}", "", ""),
    (INLINE, "{learning_rate: 1.0, compile: true}\n  args_style: equals", "", ""),
    (INLINE.replace("attempt = val", "attempt = float(val)"), "{learning_rate: 1}", "", ""),
    (INLINE.replace("    key, val", "    if '=' not in arg: continue\n    key, val"), "{compile: true}", "", ""),
    (LIGHTNING, "{}", "", ""),
    (LIGHTNING.replace("devices", "gpus").replace("lightning", "pytorch_lightning"), "{}", "", ""),
    (LIGHTNING.replace("devices=2", "a_setting_of_lightning_3=2"), "{}", "", ""),
    (LIGHTNING.replace('or="val', 'or="valid').replace('"train_loss"', "name"), "{}", "", ""),
    (LIGHTNING.replace('or="val_loss', 'or="val_loss_epoch'), "{}", "", ""),
    ("import mine\n" + LIGHTNING.replace('or="val', 'or="valid'), "{}", "", ""),
]  # fmt: skip


@pytest.mark.parametrize(("text", "args", "field", "words"), OTHERWISE)
def test_a_command_line_that_the_script_reads_otherwise(
    text: str, args: str, field: str, words: str, tmp_path: Path
) -> None:
    found = told(tmp_path, text, args)
    assert [each.where for each in found] == ([field] if field else [])
    assert all(words in each.text for each in found)


_STORES = "from hydra.core.config_store import ConfigStore\n"
# The files below app/, `code`, the words of args, and the warning's field and words; "" without one.
CONFIGS = [
    ("conf/config.yaml", "app", "[--config-name=slow]", "train.args[0]", "hydra looks for slow.yaml in conf, and code has"),
    ("conf/config.yaml conf/fast.yaml", "app", "[lr=1, --config-name, fasst]", "train.args[1]", "did you mean fast?"),
    ("conf/other.yaml", "app", "[lr=1]", "train.script", "hydra looks for config.yaml in conf"),
    ("conf/config.yaml", "[app/t.py]", "[lr=1]", "code", "t.py reads its configuration from conf, which is not in code"),
    ("conf/config.yaml", "app", "[lr=1]", "", ""),
    ("conf/config.yaml conf/sub/slow.yaml", "app", "[--config-name=sub/slow]", "", ""),
    ("conf/config.yaml conf/slow.yml", "app", "[--config-name=slow.yml]", "", ""),
    ("conf/config.yaml conf/slow.yaml", "app", "[--config-name=slow.yaml]", "", ""),
    ("conf/config.yaml", "app", "[--config-dir=/data/conf, --config-name=slow]", "", ""),
    ("conf/config.yaml", "app", "[-cp, /data/conf, --config-name=slow]", "", ""),
    ("conf/config.yaml", "app", "['hydra.searchpath=[file:///x]', --config-name=slow]", "", ""),
    ("conf/config.yaml", "app", "['--config-name={job}']", "", ""),
    ("conf/other.yaml store.py", "app", "[lr=1]", "", ""),
    ("", "app", "[lr=1]", "", ""),
]  # fmt: skip


@pytest.mark.parametrize(("files", "code", "args", "field", "words"), CONFIGS)
def test_the_configuration_of_hydra_is_in_code(
    files: str, code: str, args: str, field: str, words: str, tmp_path: Path
) -> None:
    for name in ("t.py", *files.split()):
        (tmp_path / "app" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "app" / name).write_text(HYDRA if name == "t.py" else _STORES)
    spec = f"name: a\ncode: {code}\ntrain:\n  script: t.py\n  args: {args}\n"
    found = list(check(read(spec.encode(), "a.yaml")["local"].job, tmp_path))
    assert [each.fields[0] for each in found] == ([field] if field else [])
    assert all(words in f"{each.problem}; {each.remedy}" for each in found)


@pytest.mark.parametrize(
    "decorator",
    [
        'config_path=None, config_name="slow"',
        'config_path="conf"',
        'config_path=place, config_name="slow"',
        'config_path="/data/conf", config_name="slow"',
        'config_path="pkg://conf", config_name="slow"',
        'config_path="../../conf", config_name="slow"',
        '"conf", "config"',
    ],
)
def test_a_configuration_of_hydra_may_be_elsewhere(decorator: str, tmp_path: Path) -> None:
    (tmp_path / "code/conf").mkdir(parents=True)
    (tmp_path / "code/conf/config.yaml").touch()
    text = HYDRA.replace('config_path="conf", config_name="config"', decorator)
    assert told(tmp_path, text, "[lr=1]") == []
    if decorator.startswith('"'):
        assert len(told(tmp_path, text.replace('"config"', '"slow"'), "[lr=1]")) == 1
