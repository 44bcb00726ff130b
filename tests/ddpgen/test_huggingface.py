"""The faults of a script that reads its settings with HfArgumentParser, or calls transformers' trainer."""

from __future__ import annotations

from pathlib import Path

import pytest

from ddpgen.lint.huggingface import SEQ2SEQ, TRAINING
from ddpgen.lint.program import check
from ddpgen.tiers.registry import read
from tests.ddpgen.conftest import Fault
from tests.ddpgen.test_read_script import told, with_args

PARSER = """\
import sys
from dataclasses import dataclass, field
from enum import Enum
from typing import List, Literal, Optional
import mine
from transformers import HfArgumentParser, Trainer, TrainingArguments

class Split(str, Enum):
    TRAIN = "train"
    TEST = "test"

@dataclass
class ModelArguments:
    model_name: str = field(metadata={"help": "the model"})
    use_fast: bool = field(default=True)
    width: Optional[int] = field(default=None)
    tied: Optional[bool] = None
    token: bool = field(default=None)

@dataclass
class DataArguments:
    quick: bool
    data_file: Optional[str] = field(default=None)
    block_size: int = field(default=512, metadata={"help": "tokens"})
    share: float | None = None
    mode: Literal["fast", "exact"] = "fast"
    split: Split = Split.TRAIN
    dtype: str = field(default="auto", metadata={"choices": ["auto", "bfloat16"]})
    columns: List[str] = field(default_factory=list)
    note: str = mine.note()

parser = HfArgumentParser((ModelArguments, DataArguments, TrainingArguments))
model_args, data_args, training_args = parser.parse_args_into_dataclasses()
trainer = Trainer(model=model, args=training_args)
"""
READ = "model_args, data_args, training_args = parser.parse_args_into_dataclasses()\n"
OR_FILE = f"""\
if len(sys.argv) == 2 and sys.argv[1].endswith(".json"):
    model_args, data_args, training_args = parser.parse_json_file(os.path.abspath(sys.argv[1]))
else:
    {READ}"""
OWN_TRAINING = PARSER.replace(
    "parser = Hf",
    "@dataclass\nclass Mine(TrainingArguments):\n    cache_dir: Optional[str] = None\n    save_strategy: str = 'epoch'\n\nparser = Hf",
).replace("DataArguments, TrainingArguments)", "DataArguments, Mine)")


def without(old: str, new: str = "") -> str:
    assert old in PARSER
    return PARSER.replace(old, new)


# A script, its arguments besides model_name, the field of the warning and words of it; "" without a warning.
OPTIONS = [
    (PARSER, "blocksize: 256", "train.args.blocksize", "t.py has no option --blocksize; did you mean block_size?"),
    (PARSER, "num_train_epoks: 3", "train.args.num_train_epoks", "did you mean num_train_epochs?"),
    (PARSER, "batch_size: 8", "train.args.batch_size", "did you mean per_device_train_batch_size?"),
    (PARSER, "lr: 8", "train.args.lr", "did you mean learning_rate?"),
    (PARSER, "qqq: 8", "train.args.qqq", "t.py has no option --qqq; correct it, or leave it out"),
    (PARSER, "predict_with_generate: true", "train.args.predict_with_generate", "has no option"),
    (PARSER.replace("TrainingArguments", "Seq2SeqTrainingArguments"), "predict_with_generat: x", "train.args.predict_with_generat", "is no Boolean"),
    (PARSER, "block_size: 512.5", "train.args.block_size", '"512.5" is no int, and t.py reads --block_size as one'),
    (PARSER, "width: x", "train.args.width", '"x" is no int'),
    (PARSER, "share: x", "train.args.share", '"x" is no float'),
    (PARSER, "max_steps: 1e3", "train.args.max_steps", '"1e3" is no int'),
    (PARSER, "use-fast: maybe", "train.args.use-fast", '"maybe" is no Boolean'),
    (PARSER, "mode: exakt", "train.args.mode", 'no choice "exakt" for --mode; did you mean exact?'),
    (PARSER, "split: tes", "train.args.split", 'no choice "tes"'),
    (PARSER, "dtype: bfloat", "train.args.dtype", 'no choice "bfloat"'),
    (PARSER, "save_strategy: step", "train.args.save_strategy", "did you mean steps?"),
    (PARSER, "eval_strategy: best", "train.args.eval_strategy", 'no choice "best"'),
    (PARSER, "optim: adamw", "train.args.optim", 'no choice "adamw" for --optim; did you mean adamw_torch?'),
    (PARSER, "lr_scheduler_type: cosin", "train.args.lr_scheduler_type", "did you mean cosine?"),
    (PARSER, "tied: true", "train.args.tied", "t.py reads a value behind --tied, and gets none"),
    (PARSER, "use_fast: false", "train.args.use_fast", "then t.py has --use_fast on; write args_style: equals"),
    (PARSER, "no-fp16: true", "train.args.no-fp16", "write --fp16=False; in a mapping, args_style: equals"),
    (PARSER, "fp16: true", "train.args.fp16", "fp16 needs a GPU, and the job has none"),
    (PARSER, "load_best_model_at_end: true, eval_strategy: epoch, save_strategy: steps", "train.args.load_best_model_at_end", 'is "epoch" and save_strategy "steps"'),
    (PARSER, "load_best_model_at_end: true", "train.args.load_best_model_at_end", 'eval_strategy is "no"'),
    (PARSER, "max_steps: 100, save_steps: 500", "train.args.save_steps", "save_steps is 500, and max_steps 100"),
    (OWN_TRAINING, "cache_dirs: x", "train.args.cache_dirs", "did you mean cache_dir?"),
    (PARSER.replace(READ, OR_FILE), "blocksize: 1", "train.args.blocksize", "did you mean block_size?"),
    (without("    model_name: str = field(", "    wanted: int = field(metadata={'help': 'x'})\n    model_name: str = field("), "seed: 1", "train.args", "t.py wants wanted; add it"),
    (PARSER, "block_size: 256, share: 0.5, mode: exact, split: test, dtype: bfloat16, columns: [a, b]", "", ""),
    (PARSER, "num-train-epochs: 0.5, evaluation_strategy: 'no', no_cuda: true, seed: '{array_index}'", "", ""),
    (PARSER, "num_train_epoch: 3, model_: x", "", ""),
    (PARSER, "save_strategy: best, load_best_model_at_end: true, no_use_fast: true", "", ""),
    (PARSER, "load_best_model_at_end: true, eval_strategy: steps, eval_steps: 100", "", ""),
    (f"{PARSER}if not cuda: training_args.fp16 = False\n", "fp16: true", "", ""),
    (PARSER, "max_steps: 100, save_steps: 50", "", ""),
    (PARSER, "max_steps: 100, save_steps: 500, save_strategy: epoch", "", ""),
    (OWN_TRAINING, "cache_di: x, no-use-fast: true, token: true", "", ""),
    (OWN_TRAINING, "load_best_model_at_end: true, eval_strategy: epoch", "", ""),
    (without("HfArgumentParser, ", "").replace("import mine", "from mine import HfArgumentParser"), "blocksize: 256", "", ""),
    (without(", TrainingArguments\n", "\nfrom trl import TrainingArguments\n"), "blocksize: 256", "", ""),
    (without("(ModelArguments, DataArguments", "(ModelArguments, mine.Others"), "blocksize: 256", "", ""),
    (without("class DataArguments", "class DataArguments(Base)"), "blocksize: 256", "", ""),
    (without("@dataclass\nclass DataArguments", "class DataArguments"), "blocksize: 256", "", ""),
    (without("into_dataclasses()", "into_dataclasses(return_remaining_strings=True)"), "blocksize: 256", "", ""),
    (without("into_dataclasses()", "into_dataclasses(words)"), "blocksize: 256", "", ""),
    (without(READ, f"parser.add_argument('--blocksize')\n{READ}"), "blocksize: 256", "", ""),
    (without(READ, f"extend(parser)\n{READ}"), "blocksize: 256", "", ""),
    (without(READ, f"sys.argv.remove('--blocksize')\n{READ}"), "blocksize: 256", "", ""),
    (without(READ, f"if x: parser.parse_json_file('a.json')\n{READ}"), "blocksize: 256", "", ""),
    (without('"help": "tokens"', '"aliases": ["--blocksize"]'), "blocksize: 256", "", ""),
    (without('"help": "tokens"', '"type": float'), "block_size: 5.5", "", ""),
]  # fmt: skip


def with_model(args: str) -> str:
    return with_args(f"{{model_name: a, {args}}}\n  args_style: flags")


@pytest.mark.parametrize(("text", "args", "field", "words"), OPTIONS)
def test_arguments_for_dataclasses(
    text: str, args: str, field: str, words: str, tmp_path: Path
) -> None:
    found = told(tmp_path, text, f"{{model_name: a, {args}}}\n  args_style: flags")
    assert [each.where for each in found] == ([field] if field else [])
    assert all(words in each.text for each in found)


def test_a_field_without_a_default_has_to_be_given(tmp_path: Path) -> None:
    for args in ("{}", "[--seed, '1']", "{seed: 1}"):
        (fault,) = told(tmp_path, PARSER, args)
        assert fault == Fault("train.args", "t.py wants model_name; add it")
    for args in ("[--model_name, a]", "[--model-name=a]", "{model: a}", "[a.json]"):
        assert told(tmp_path, PARSER.replace(READ, OR_FILE), args) == []
    (tmp_path / "code/t.args").write_text("--model_name a\n")
    assert told(tmp_path, PARSER, "{seed: 1}") == []


_IMPORTS = "from transformers import Trainer, TrainingArguments\n"
# A script, the words of the warning; "" without a warning.
CALLS = [
    (f"{_IMPORTS}TrainingArguments('o', save_step=5)\n", "t.py:2: TrainingArguments has no setting save_step; did you mean save_steps?"),
    (f"{_IMPORTS}Trainer(m, evaldataset=a)\n", "t.py:2: Trainer has no setting evaldataset; did you mean eval_dataset?"),
    (f"{_IMPORTS}TrainingArguments('o', save_strategy='step')\n", 't.py:2: save_strategy has no choice "step"; did you mean steps?'),
    (f"{_IMPORTS}TrainingArguments('o', load_best_model_at_end=True)\n", "t.py:2: load_best_model_at_end needs equal"),
    (f"{_IMPORTS}TrainingArguments('o', max_steps=9, save_steps=50)\n", "t.py:2: save_steps is 50, and max_steps 9"),
    ("import transformers\ntransformers.TrainingArguments('o', save_step=5)\n", "has no setting save_step"),
    (f"{_IMPORTS}TrainingArguments('o', evaluation_strategy='no', no_cuda=True, optim=best)\n", ""),
    (f"{_IMPORTS}TrainingArguments('o', load_best_model_at_end=True, **more)\n", ""),
    (f"{_IMPORTS}TrainingArguments('o', load_best_model_at_end=True, eval_strategy=e)\n", ""),
    (f"{_IMPORTS}TrainingArguments('o', max_steps=9, save_steps=50)\nm.save_checkpoint(m.load_checkpoint())\n", ""),
    (f"{_IMPORTS}class Trainer(Base): ...\nTrainer(m, evaldataset=a)\n", ""),
    ("from mine import TrainingArguments\nTrainingArguments('o', save_step=5)\n", ""),
]  # fmt: skip


@pytest.mark.parametrize(("text", "words"), CALLS)
def test_calls_of_the_trainer(text: str, words: str, tmp_path: Path) -> None:
    found = told(tmp_path, text)
    assert [each.where for each in found] == (["train.script"] if words else [])
    assert all(words in each.text for each in found)


def test_a_job_with_gpus_that_are_left_idle(tmp_path: Path) -> None:
    (tmp_path / "code").mkdir()
    (tmp_path / "code/t.py").write_text(PARSER)
    for args, field in (("use_cpu: true", "train.args.use_cpu"), ("fp16: true", "")):
        job = read(f"{with_model(args)}gpus_per_node: 2\n".encode(), "a.yaml")["local"].job
        assert [each.fields[0] for each in check(job, tmp_path)] == ([field] if field else [])


def test_the_table_has_the_names_of_old_and_new_versions() -> None:
    assert {"no_cuda", "use_cpu", "evaluation_strategy", "eval_strategy"} <= TRAINING.keys()
    assert SEQ2SEQ.keys() - TRAINING.keys() >= {"predict_with_generate", "generation_max_length"}
