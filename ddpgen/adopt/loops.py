"""The usual mistakes of a training loop that is written by hand for several processes."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from ddpgen.adopt import source
from ddpgen.adopt.arguments import option_values
from ddpgen.adopt.calls import Script, imported, name_of, warning
from ddpgen.spec.job import JobSpec
from ddpgen.spec.rules import Conflict

# Functions of torch.distributed that return only when all ranks call them.
_COLLECTIVES = frozenset([
    "barrier", "monitored_barrier", "all_reduce", "all_gather", "all_gather_object", "all_gather_into_tensor", "all_to_all",
    "reduce_scatter", "reduce_scatter_tensor", "broadcast", "broadcast_object_list",
])  # fmt: skip
_DISTRIBUTED = frozenset(["dist", "distributed"])
_PARALLEL = frozenset(["DistributedDataParallel", "DDP", "FullyShardedDataParallel", "FSDP"])
# Frameworks that share out the data by themselves.
_FRAMEWORKS = frozenset(["lightning", "pytorch_lightning", "accelerate", "transformers", "ignite", "deepspeed"])  # fmt: skip
# A source with one of these may share out the data.
_SHARES_OUT = re.compile(
    rb"Subset|IterableDataset|shard|split_dataset|rank\w*(\(\))?\s*::|\[[^\]\n]*rank[^\]\n]*:|:[^\]\n]*rank[^\]\n]*\]|seed\w*\([^)\n]*rank|webdataset|exec\("
)
_TAKES_DEVICE = re.compile(rb"cuda|gpu|nccl|accelerat|xpu|npu|tpu|mps|exec\(", re.IGNORECASE)
_HARMLESS = ("torchvision", "tqdm", "PIL", "yaml", "pandas", "sklearn", "matplotlib", "tensorboard", "wandb", "datasets")  # fmt: skip
# Variables that a shell, a launcher or a site sets.
_SET = re.compile(
    r"(DDPGEN|SKYPILOT|SLURM|TORCHELASTIC|NCCL|GLOO|CUDA|PYTHON|LC|XDG)_\w+|(LOCAL_|GROUP_|ROLE_)?(RANK|WORLD_SIZE)|MASTER_(ADDR|PORT)"
    r"|HOME|USER|LOGNAME|PATH|PWD|SHELL|LANG|TMPDIR|HOSTNAME|OMP_NUM_THREADS"
)


def check(job: JobSpec, script: Script, home: Path) -> Iterator[Conflict]:
    """Yield the likely faults of the script's loop. `home`: the spec's directory."""
    yield from _asks(script)
    if not job.persists(""):
        yield from _variables(job, script)
    if "backward" not in script.called:
        return
    asks = "cuda" in "".join(option_values(job.train).values())
    if job.on_gpus and not asks and source.is_closed(job, home, _TAKES_DEVICE, *_HARMLESS):
        problem = f"{script.name} moves nothing to a GPU, so the job's GPUs stay idle"
        yield warning("train.script", problem, 'write .to("cuda"), or leave out gpus_per_node')
    if job.world_size > 1:
        yield from _waits_alone(script)
        if _PARALLEL & script.called.keys() and not _FRAMEWORKS & imported(script.tree):
            yield from _data(job, script, home)


def _asks(script: Script) -> Iterator[Conflict]:
    """Yield the first call that waits for a keyboard."""
    for call in script.calls:
        name = name_of(call.func)
        is_plain = isinstance(call.func, ast.Name) and name in ("input", "breakpoint")
        if (is_plain or name == "set_trace") and call not in script.at_times:
            problem = (
                f"{script.location(call)} waits for a keyboard, and no process of a job has one"
            )
            yield warning("train.script", f"{problem}: {name}() ends it", "leave it out")
            return


def _variables(job: JobSpec, script: Script) -> Iterator[Conflict]:
    """Yield the variables that the script needs, and that a new machine does not have."""
    if {"load_dotenv", "exec"} & script.called.keys():
        return
    given = {*job.env, *(secret.name for secret in job.secrets)}
    lines = "\n".join(job.python.activate)
    for node in ast.walk(script.tree):
        match node:
            case ast.Subscript(
                ast.Attribute(attr="environ"), ast.Constant(str(name)), ast.Load()
            ) if node not in script.at_times:
                if name in given or name in lines or _SET.fullmatch(name) or _sets(script, name):
                    continue
                problem = f"{script.location(node)} needs the variable {name}, which a new machine does not have"
                yield warning("env", problem, f"write env: {{{name}: VALUE}}")


def _sets(script: Script, name: str) -> bool:
    """True if the script gives the variable a value, or asks if it has one."""
    for node in ast.walk(script.tree):
        match node:
            case ast.Subscript(slice=ast.Constant(value), ctx=ast.Store()) if value == name:
                return True
            case ast.Call(args=[ast.Constant(value), *_]) if value == name:
                return True
            case ast.keyword(arg) if arg == name:
                return True
            case ast.Compare(ast.Constant(value), [ast.In() | ast.NotIn()]) if value == name:
                return True
    return False


def _waits_alone(script: Script) -> Iterator[Conflict]:
    """Yield the collective that only rank 0 calls, and the line at which the other ranks leave."""
    conditions = [node for node in ast.walk(script.tree) if isinstance(node, ast.If)]
    others_meet = any(_is_of_others(c.test) and _collectives(c.body) for c in conditions)
    for condition in conditions:
        if not _is_of_first(condition.test) or condition.orelse or others_meet:
            continue
        for call in _collectives(condition.body):
            name = name_of(call.func)
            problem = (
                f"{script.location(call)}: only rank 0 calls {name}(), which waits for all ranks"
            )
            yield warning("train.script", problem, "call it on all ranks")
            return
    for first, rest in _followed(script.tree):
        if isinstance(first, ast.If) and _is_of_others(first.test) and _leaves(first.body):
            calls = [n for each in rest for n in ast.walk(each) if isinstance(n, ast.Call)]
            if any(name_of(call.func) == "backward" for call in calls) or _collectives(rest):
                problem = f"{script.name}:{first.lineno}: all ranks but 0 leave here, and rank 0 waits for them later"
                yield warning("train.script", problem, "let all ranks train")
                return


def _followed(tree: ast.AST) -> Iterator[tuple[ast.stmt, list[ast.stmt]]]:
    """Yield each statement of a function or of the module, with the statements behind it."""
    for node in ast.walk(tree):
        if isinstance(node, (ast.Module, ast.FunctionDef)):
            for i, statement in enumerate(node.body):
                yield statement, node.body[i + 1 :]


def _collectives(statements: Iterable[ast.stmt]) -> list[ast.Call]:
    """Return the collectives of all ranks in these statements."""
    calls = [n for each in statements for n in ast.walk(each) if isinstance(n, ast.Call)]
    return [
        call
        for call in calls
        if name_of(call.func) in _COLLECTIVES
        and isinstance(call.func, ast.Attribute)
        and name_of(call.func.value) in _DISTRIBUTED
        and not any(keyword.arg in ("group", None) for keyword in call.keywords)
    ]


def _leaves(body: list[ast.stmt]) -> bool:
    last = body[-1]
    exits = isinstance(last, ast.Expr) and isinstance(last.value, ast.Call)
    return isinstance(last, ast.Return) or (exits and name_of(last.value.func) in ("exit", "_exit"))  # type: ignore[attr-defined]


def _is_of_first(test: ast.expr) -> bool:
    """True for `rank == 0`."""
    match test:
        case ast.Compare(left, [ast.Eq()], [ast.Constant(0)]):
            return _is_rank(left)
    return False


def _is_of_others(test: ast.expr) -> bool:
    """True for `rank != 0`, and for other conditions that rank 0 does not meet."""
    match test:
        case ast.Compare(left, [ast.NotEq() | ast.Gt() | ast.NotIn()], _):
            return _is_rank(left)
    return _is_rank(test)


def _is_rank(value: ast.expr) -> bool:
    """True for a name like rank, and for get_rank()."""
    name = name_of(value.func) if isinstance(value, ast.Call) else name_of(value)
    return name in ("rank", "global_rank", "get_rank", "RANK")


def _data(job: JobSpec, script: Script, home: Path) -> Iterator[Conflict]:
    """Yield the loader that gives all ranks the same data, and the sampler whose order is the same in each epoch."""
    sampler = script.called.get("DistributedSampler")
    words = {each for node in ast.walk(script.tree) for each in (getattr(node, "attr", ""), getattr(node, "id", ""))}  # fmt: skip
    if sampler is not None:
        shuffles = {k.arg: k.value for k in sampler.keywords}.get("shuffle", ast.Constant(True))
        has_epochs = any("epoch" in word for word in words if isinstance(word, str))
        if "set_epoch" not in words and has_epochs and ast.unparse(shuffles) == "True":
            problem = f"{script.location(sampler)}: without set_epoch() each epoch has the same order of samples"
            yield warning(
                "train.script", problem, "call sampler.set_epoch(epoch) before each epoch"
            )
    elif not any(name.endswith("Sampler") for name in script.called) and source.is_closed(
        job, home, _SHARES_OUT, *_HARMLESS
    ):
        for call in script.calls:
            keywords = {keyword.arg: keyword.value for keyword in call.keywords}
            shuffle = keywords.get("shuffle")
            if name_of(call.func) == "DataLoader" and shuffle and ast.unparse(shuffle) == "True":
                problem = f"{script.location(call)}: each of {job.world_size} processes goes over all of the data"
                yield warning("train.script", problem, "give the DataLoader a DistributedSampler")
                return
