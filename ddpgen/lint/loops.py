"""The usual mistakes of a training loop that is written by hand for several processes."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from ddpgen.lint import source
from ddpgen.lint.arguments import option_values
from ddpgen.lint.calls import Script, imported, name_of, warning
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
# A source with one of these may share out the data; so may a line with the rank, unless it is one of the others.
_SHARES_OUT = re.compile(rb"Subset|IterableDataset|shard|split_dataset|webdataset|exec\(")
_NAMES_RANK = re.compile("rank", re.IGNORECASE)
_ONLY_ASKS_RANK = re.compile(
    r"\s*(import|from|def|async def|if|elif|while|assert)\b(?!.*(?<![=!])=(?!=)).*|\s*(print|log\w*)\b.*|.*(device|cuda|init_process_group).*"
    r"|.*(DistributedDataParallel|DDP|FSDP)\(.*|\s*\w*rank\w* = (int\()?(\w+\.)*(environ|get_rank|getenv)\b.*|\s*\w+ = \(?\w*rank\w*(\(\))? == 0\)?"
)
_TAKES_DEVICE = re.compile(
    rb"cuda|gpu|nccl|accelerat|xpu|npu|tpu|mps|device_ids|\.to\((?![\"'])|open\(|importlib|runpy|exec\(",
    re.IGNORECASE,
)
_SETS_EPOCH = re.compile(rb"set_epoch|exec\(")
_HANDLES = re.compile(rb"signal|exec\(")
# Names of torch whose capital letters are easily missed.
_TORCH_NAMES = {
    name.lower(): name
    for name in ("DataLoader", "Dataset", "DistributedSampler", "DistributedDataParallel", "TensorDataset", "AdamW", "SGD", "GradScaler")
}  # fmt: skip
_HARMLESS = ("torchvision", "tqdm", "PIL", "yaml", "pandas", "sklearn", "matplotlib", "tensorboard", "wandb", "datasets")  # fmt: skip
# A source with one of these may set variables of any name.
_SETS_VARIABLES = re.compile(
    rb"dotenv|suppress|exec\(|environ(?![\[.]|\)|:)|environ\.(update|pop)|environ\[[^\"']|putenv"
)
# Variables that a shell, a launcher or a site sets.
_SET = re.compile(
    r"(DDPGEN|SKYPILOT|SLURM|TORCHELASTIC|NCCL|GLOO|CUDA|PYTHON|LC|XDG)_\w+|(LOCAL_|GROUP_|ROLE_)?(RANK|WORLD_SIZE)|MASTER_(ADDR|PORT)"
    r"|HOME|USER|LOGNAME|PATH|PWD|SHELL|SHLVL|LANG|TMPDIR|HOSTNAME|OMP_NUM_THREADS|VIRTUAL_ENV|CONDA_\w+"
)


def check(job: JobSpec, script: Script, home: Path) -> Iterator[Conflict]:
    """Yield the likely faults of the script's loop. `home`: the spec's directory."""
    yield from _asks(script)
    yield from _misspelt(script)
    signal = job.train.stop.signal
    if signal and source.is_closed(job, home, _HANDLES, *_HARMLESS):
        problem = f"{script.name} has no handler for {signal}, which ends it without a checkpoint"
        yield warning("train.stop.signal", problem, "leave it out, or call signal.signal() there")
    if not job.persists(""):
        yield from _variables(job, script, home)
    if "backward" not in script.called:
        return
    asks = "cuda" in "".join((*option_values(job.train).values(), *job.env.values()))
    if job.on_gpus and not asks and source.is_closed(job, home, _TAKES_DEVICE, *_HARMLESS):
        problem = f"{script.name} moves nothing to a GPU, so the job's GPUs stay idle"
        yield warning("train.script", problem, 'write .to("cuda"), or leave out gpus_per_node')
    yield from _loaders(script)
    if job.world_size > 1:
        yield from _waits_alone(script)
        if _PARALLEL & script.called.keys() and not _FRAMEWORKS & imported(script.tree):
            yield from _data(job, script, home)


def _unsure(script: Script) -> set[ast.AST]:
    """Return the nodes below a condition, and those of functions that the script itself does not call."""
    functions = [n for n in script.nodes if isinstance(n, (ast.FunctionDef, ast.Lambda))]
    uncalled = (f for f in functions if getattr(f, "name", "") not in script.called)
    return script.at_times | {inner for each in uncalled for inner in ast.walk(each)}


def _asks(script: Script) -> Iterator[Conflict]:
    """Yield the first call that waits for a keyboard."""
    if not {"input", "breakpoint", "set_trace"} & script.called.keys() or "isatty" in script.called:
        return
    unsure = _unsure(script)
    bound = {getattr(node, "arg", getattr(node, "name", "")) for node in script.nodes}
    bound |= {
        n.id for n in script.nodes if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)
    }
    for call in script.calls:
        name = name_of(call.func)
        is_plain = isinstance(call.func, ast.Name) and name in {"input", "breakpoint"} - bound
        if (is_plain or name == "set_trace") and call not in unsure:
            problem = (
                f"{script.location(call)} waits for a keyboard, and no process of a job has one"
            )
            yield warning("train.script", f"{problem}: {name}() ends it", "leave it out")
            return


def _misspelt(script: Script) -> Iterator[Conflict]:
    """Yield the name that torch writes with other capital letters."""
    for node in script.nodes:
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("torch."):
            for alias in node.names:
                name = _TORCH_NAMES.get(alias.name.lower(), alias.name)
                if name != alias.name and not alias.name.islower():
                    problem = f"{script.name}:{node.lineno}: {node.module} has no {alias.name}"
                    yield warning("train.script", problem, f"did you mean {name}?")


def _variables(job: JobSpec, script: Script, home: Path) -> Iterator[Conflict]:
    """Yield the variables that the script needs, and that a new machine does not have."""
    if not source.is_closed(job, home, _SETS_VARIABLES, *_HARMLESS, *_FRAMEWORKS):
        return
    given = {*job.env, *(secret.name for secret in job.secrets)}
    lines, unsure = "\n".join(job.python.activate), _unsure(script)
    for node in script.nodes:
        match node:
            case ast.Subscript(
                ast.Attribute(ast.Name("os"), "environ"), ast.Constant(str(name)), ast.Load()
            ) if node not in unsure:
                if name in given or name in lines or _SET.fullmatch(name) or _sets(script, name):
                    continue
                problem = f"{script.location(node)} needs the variable {name}, which a new machine does not have"
                yield warning("env", problem, f"write env: {{{name}: VALUE}}")


def _sets(script: Script, name: str) -> bool:
    """True if the script gives the variable a value, or asks if it has one."""
    for node in script.nodes:
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
    conditions = [node for node in script.nodes if isinstance(node, ast.If)]
    for condition in conditions if _collectives([script.tree]) else ():
        for call in _collectives(condition.body) if _is_of_first(condition) else ():
            name = name_of(call.func)
            if [name_of(each.func) for each in script.calls].count(name) == 1:
                problem = f"{script.location(call)}: only rank 0 calls {name}(), which waits for all ranks"
                yield warning("train.script", problem, "call it on all ranks")
                return
    for first, rest in _followed(script.tree):
        if isinstance(first, ast.If) and _is_of_others(first.test) and _only_leaves(first):
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


def _collectives(nodes: Iterable[ast.AST]) -> list[ast.Call]:
    """Return the collectives of all ranks below these nodes."""
    calls = [n for each in nodes for n in ast.walk(each) if isinstance(n, ast.Call)]
    return [
        call
        for call in calls
        if name_of(call.func) in _COLLECTIVES
        and isinstance(call.func, ast.Attribute)
        and name_of(call.func.value) in _DISTRIBUTED
        and not any(keyword.arg in ("group", None) for keyword in call.keywords)
        and len(call.args) <= (0 if call.func.attr == "barrier" else 2)
    ]


def _only_leaves(condition: ast.If) -> bool:
    """True if a branch ends the process, or its function, and does nothing else."""
    *before, last = condition.body
    names = [name_of(n.func) for each in before for n in ast.walk(each) if isinstance(n, ast.Call)]
    ends = isinstance(last, ast.Return) and last.value is None
    if isinstance(last, ast.Expr) and isinstance(last.value, ast.Call):
        ends = name_of(last.value.func) in ("exit", "_exit")
    return ends and set(names) <= {"print", "destroy_process_group"}


def _is_of_first(condition: ast.If) -> bool:
    """True for `if rank == 0`, without another branch."""
    match condition.test:
        case ast.Compare(left, [ast.Eq()], [ast.Constant(0)]):
            return _is_rank(left) and not condition.orelse
    return False


def _is_of_others(test: ast.expr) -> bool:
    """True for `rank != 0`, `rank > 0` and `rank`."""
    match test:
        case ast.Compare(left, [ast.NotEq() | ast.Gt()], [ast.Constant(0)]):
            return _is_rank(left)
    return _is_rank(test)


def _is_rank(value: ast.expr) -> bool:
    """True for a name like rank, and for get_rank()."""
    name = name_of(value.func) if isinstance(value, ast.Call) else name_of(value)
    return name in ("rank", "global_rank", "get_rank", "RANK")


def _data(job: JobSpec, script: Script, home: Path) -> Iterator[Conflict]:
    """Yield the loader that gives all ranks the same data, and the sampler whose order is the same in each epoch."""
    sampler = script.called.get("DistributedSampler")
    if sampler is not None and _is_unused(script, sampler):
        problem = f"{script.location(sampler)}: no DataLoader gets the sampler, so each process goes over all of the data"
        yield warning("train.script", problem, "write DataLoader(..., sampler=SAMPLER)")
        return
    if sampler is not None:
        yield from _one_order(job, script, home, sampler)
        return
    keywords = {k.arg for call in script.calls if name_of(call.func) == "DataLoader" for k in call.keywords}  # fmt: skip
    path = source.python_file(job, home)
    text = path.read_text(errors="replace") if path else ""
    lines = filter(_NAMES_RANK.search, (line.partition("#")[0] for line in text.splitlines()))
    if keywords & {"sampler", "batch_sampler", None} or not all(map(_ONLY_ASKS_RANK.fullmatch, lines)):  # fmt: skip
        return
    for call in script.calls:
        shuffle = {keyword.arg: keyword.value for keyword in call.keywords}.get("shuffle")
        if name_of(call.func) != "DataLoader" or shuffle is None or ast.unparse(shuffle) != "True":
            continue
        if source.is_closed(job, home, _SHARES_OUT, *_HARMLESS):
            problem = f"{script.location(call)}: each of {job.world_size} processes goes over all of the data"
            yield warning("train.script", problem, "give the DataLoader a DistributedSampler")
            return


def _loaders(script: Script) -> Iterator[Conflict]:
    """Yield the DataLoader of torch that refuses its own arguments."""
    modules = {n.module for n in script.nodes if isinstance(n, ast.ImportFrom) and any(a.name == "DataLoader" for a in n.names)}  # fmt: skip
    for call in script.calls:
        is_torchs = modules == {"torch.utils.data"} or ast.unparse(call.func).startswith("torch.")
        if name_of(call.func) != "DataLoader" or not is_torchs or call in script.at_times:
            continue
        given = {keyword.arg: ast.unparse(keyword.value) for keyword in call.keywords}
        samplers = [script.value_of(each.value) for each in call.keywords if each.arg == "sampler"]
        has_sampler = any(isinstance(each, ast.Call) for each in samplers)
        workers = given.get("num_workers", "?" if None in given or len(call.args) > 5 else "0")
        faults = {
            "sampler and shuffle=True": has_sampler and given.get("shuffle") == "True",
            f"num_workers={workers}": re.fullmatch(r"-\d+", workers),
            "persistent_workers without num_workers": workers == "0" and given.get("persistent_workers") == "True",
            "prefetch_factor without num_workers": workers == "0" and given.get("prefetch_factor", "").isdecimal(),
        }  # fmt: skip
        for fault in (fault for fault, is_told in faults.items() if is_told):
            problem = f"{script.location(call)}: DataLoader refuses {fault}"
            yield warning(
                "train.script",
                problem,
                "leave one of them out" if "and" in fault else "write num_workers, 1 or more",
            )


def _is_unused(script: Script, sampler: ast.Call) -> bool:
    """True if a name holds the sampler, and the script only calls its set_epoch()."""
    names = [
        target.id
        for node in script.nodes
        if isinstance(node, ast.Assign) and node.value is sampler
        for target in node.targets
        if isinstance(target, ast.Name)
    ]
    uses = [
        n
        for n in script.nodes
        if isinstance(n, ast.Name) and n.id in names and isinstance(n.ctx, ast.Load)
    ]
    calls = [
        n.value for n in script.nodes if isinstance(n, ast.Attribute) and n.attr == "set_epoch"
    ]
    return bool(names) and "DataLoader" in script.called and all(use in calls for use in uses)


def _one_order(job: JobSpec, script: Script, home: Path, sampler: ast.Call) -> Iterator[Conflict]:
    keywords = {keyword.arg: keyword.value for keyword in sampler.keywords}
    loops = (node for node in script.nodes if isinstance(node, ast.For))
    has_epochs = any("epoch" in ast.unparse(loop.target) for loop in loops)
    may_shuffle = len(sampler.args) <= 3 and not keywords.keys() & {"seed", None}
    shuffles = ast.unparse(keywords.get("shuffle", ast.Constant(True))) == "True"
    if not (has_epochs and may_shuffle and shuffles) or "epoch" in script.changed:
        return
    if source.is_closed(job, home, _SETS_EPOCH, *_HARMLESS):
        problem = f"{script.location(sampler)}: without set_epoch() each epoch has the same order of samples"
        yield warning("train.script", problem, "call sampler.set_epoch(epoch) before each epoch")
