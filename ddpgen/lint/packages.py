"""Names packages that a job's Python file imports, and that nothing installs on a new machine.

Owns the table of what well-known packages bring along. A package outside of the table may bring anything, and then
nothing is said.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from ddpgen.bundle import code
from ddpgen.errors import FileTroubleError
from ddpgen.lint import source
from ddpgen.spec.job import JobSpec
from ddpgen.spec.rules import Conflict

# Package → the packages that its newest versions, or older ones, install with it.
_NEEDS = {
    "accelerate": "numpy torch pyyaml huggingface-hub safetensors psutil",
    "albumentations": "numpy scipy pyyaml opencv-python scikit-learn pillow matplotlib",
    "bitsandbytes": "torch numpy scipy",
    "datasets": "numpy pandas pyarrow tqdm requests huggingface-hub pyyaml",
    "deepspeed": "torch numpy tqdm einops psutil",
    "einops": "",
    "evaluate": "datasets numpy pandas tqdm requests huggingface-hub",
    "h5py": "numpy",
    "huggingface-hub": "requests tqdm pyyaml",
    "hydra-core": "omegaconf pyyaml",
    "lightning": "torch torchmetrics pytorch-lightning tqdm pyyaml numpy psutil requests",
    "matplotlib": "numpy pillow",
    "mlflow": "numpy pandas scipy matplotlib scikit-learn pyyaml requests pyarrow",
    "numpy": "",
    "omegaconf": "pyyaml",
    "opencv-python": "numpy",
    "opencv-python-headless": "opencv-python numpy",
    "pandas": "numpy",
    "peft": "transformers accelerate torch numpy tqdm pyyaml safetensors huggingface-hub psutil",
    "pillow": "",
    "psutil": "",
    "pyarrow": "numpy",
    "pytorch-lightning": "torch torchmetrics tqdm pyyaml numpy tensorboard requests",
    "pyyaml": "",
    "requests": "",
    "safetensors": "",
    "scikit-learn": "numpy scipy",
    "scipy": "numpy",
    "sentencepiece": "",
    "tensorboard": "numpy pillow",
    "tiktoken": "requests",
    "timm": "torch torchvision pyyaml huggingface-hub safetensors",
    "torch": "numpy",
    "torchaudio": "torch",
    "torchmetrics": "torch numpy",
    "torchvision": "torch numpy pillow requests",
    "tqdm": "",
    "transformers": "numpy pyyaml tqdm requests huggingface-hub safetensors",
    "trl": "transformers accelerate datasets torch numpy",
    "wandb": "requests pyyaml psutil",
}
_OTHER_NAMES = {
    "PIL": "pillow", "cv2": "opencv-python", "hydra": "hydra-core", "sklearn": "scikit-learn", "yaml": "pyyaml",
}  # fmt: skip


def check(job: JobSpec, home: Path) -> Iterator[Conflict]:
    """Yield the packages that are missing, but for torch, which every job needs. `home`: the spec's directory."""
    installed = job.installs
    if installed is None or not installed <= _NEEDS.keys():
        return
    brought = _closure(installed)
    path = source.python_file(job, home)
    tree = source.parsed(path, "") if path else None
    if path is None or tree is None or isinstance(tree, Conflict):
        return
    for line, name in always_imported(tree):
        wanted = _OTHER_NAMES.get(name, name.replace("_", "-"))
        if wanted in _NEEDS.keys() - brought - {"torch"} and not is_own(name, job, home):
            brought.add(wanted)
            problem = f"{path.name}:{line} imports {name}, and no requirement installs {wanted}"
            yield Conflict(("requirements",), problem, f"add {wanted}==VERSION", fatal=False)


def is_packaged(module: str) -> bool:
    """True if a well-known package, or Python, has a module of this name."""
    return module in {*sys.stdlib_module_names, *_OTHER_NAMES} or module.replace("_", "-") in _NEEDS


def is_own(name: str, job: JobSpec, home: Path) -> bool:
    """True if a Python file of `code`, or a directory above one, has the name of the module."""
    try:
        files = code.find(job.code, home, ".")
    except FileTroubleError:
        return True  # the render names the file
    python = (file.split("/") for file in files if file.endswith((".py", ".so")))
    return any(name in (*parents, file.partition(".")[0]) for *parents, file in python)


def _closure(packages: Iterable[str]) -> set[str]:
    """Return the packages, and all that they bring along."""
    installed: set[str] = set()
    waiting = [*packages]
    while waiting:
        name = waiting.pop()
        if name not in installed:
            installed.add(name)
            waiting += _NEEDS[name].split()
    return installed


def always_imported(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield the line and the first name of each module that a source imports under no condition."""
    for node in tree.body:
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name.partition(".")[0]) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            yield node.lineno, (node.module or "").partition(".")[0]
