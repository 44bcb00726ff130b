"""The lines of the requirements files that a job has pip read on a new machine."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from ddpgen.tiers.sky.requirement import fault, lines_of
from tests.ddpgen.conftest import GPT, Run, findings

FILES = {
    "pinned.txt": "torch==2.13.0\nnumpy==2.2.6 \\\n  --hash=sha256:aa\n# a comment\n\n",
    "single.txt": "torch==2.13.0\n\nnumpy \\\n  =2.2.6\n",
    "floating.txt": "torch==2.13.0\nnumpy>=2  # newest\ntqdm\n",
    "asks.txt": "torch==2.13.0\n-r base.txt\n-c /limits.txt\n",
    "folder/asks.txt": "-r ../base.txt\n-r inner.txt\n",
    "folder/inner.txt": "-r asks.txt\n-r https://x.org/y.txt\n-c /limits.txt\ntqdm\n",
    "lost.txt": "-r none.txt\n",
    "other.txt": "numpy==2.0\n",
    "hashed.txt": "numpy==2.2.6 --hash=md5:aa\n",
    "asks-code.txt": "torch==2.13.0\n-r inner.txt\n",
    "limited.txt": "-c limits.txt\ntorch\n",
    "limits.txt": "torch==2.13.0\n",
    "base.txt": "numpy==2.2.6\n",
    "flags.txt": "--no-cache-dir\ntorch==2.13.0\n",
    "code/inner.txt": "yaml==6.0\n",
    "code/t.py": "",
    "code/own/setup.py": "",
    "vision.txt": "numpy==2.2.6\ntorchvision==0.20.1\n",
    "old.txt": "torch==2.5.1\n",
    "attention.txt": "# of a GPU\nflash_attn==2.7.4\n",
    "lost-places.txt": "numpy @ file:///croot/numpy_1/work\n-e /w/own\n./gone\n-e gone[all]\n-e code\nfile:///w/a.whl\n/w/b.zip#a\n",
    # pip continues no comment, and takes quotes around a name, variables, addresses and markers.
    "odd.txt": "# why \\\n-r base.txt\n"
    '-r "base.txt"\n-r "my own.txt"\n-r ${DIR}/base.txt\n-r a\0b\n-c "https://x.org/c.txt"\n'
    'a==1 --hash="sha256:00"\na==1.0\na==1.0+cu1\nb==1.0.${PATCH}\n'
    'c-1-py3-none-win_amd64.whl ; sys_platform == "win32"\n'
    "c @ https://x.org/c-1-py3-none-macosx_11_0_arm64.manylinux2014_x86_64.whl\n"
    "https://x.org/?p=d.git;a=snapshot;h=08c1;sf=d.tar.gz\n",
    "last.txt": "-r inner.txt \\",
    "sub/asks.txt": "./wheels/x-1-py3-none-any.whl\n",
    "wheels/x-1-py3-none-any.whl": "",
    "c-1-py3-none-win_amd64.whl": "",
    "ab": "",
    "conda.txt": "einops=0.8=py38_0\n",
    "both.txt": "numpy\n",
    "code/both.txt": "numpy==2.2.6\n",
    "bom.txt": "\ufefftorch=2.13.0\n",
    "x-1-py3-none-any.whl": "numpy\n",
    "short.txt": "-e ./own[all]\n-e git+https://github.com/me/own@v1\n-U torch==2.13.0\n",
    "environment.txt": "name: torch\nchannels:\n  - nvidia\ndependencies:\n  - pytorch=2.13\n",
    "dependencies.txt": "dependencies:\n  - python=3.11\n",
    "project.txt": '[project]\ndependencies = ["torch==2.13.0"]\n',
    "pip.lock.txt": '[[package]]\nname = "numpy"\n',
    "faults.txt": "numpy==2.2.6# pinned\nnumpy==2.2.6; python < '3.12'\nnumpy==2.2.6; sys_platform == linux\n"
    'numpy>=2.*\nnumpy^2\nmine @ ./mine\n- numpy==2.2.6\nnumpy==2.2.6;\n"numpy==2.2.6"\n',
    # pip, or its newest version, takes these lines.
    "right.txt": "numpy==2.2.6, ; python_version in '3.11 3.12'\nnumpy (==2.2.6,)\nnumpy==2.2.6 # pinned\n"
    "numpy==2.2.6;sys_platform=='linux'or os.name=='posix'\nnumpy==2.2.6; ( ( 'x'in extras) and extra==\"x\")\n"
    "numpy==2.2.6; '3' <= python_full_version and 'a b' not in platform_version --hash=sha256:aa\n"
    "mine @ git+https://h/x.git#egg=mine\n./own#b\n./x-1-py3-none-any.whl#sha256=00\n-f gone/wheels\nhttps://x/a.zip#egg=a\n"
    "--future-option=a b\nnumpy==2.2.6; implementation_name!='[a]: b'\n-e .[all]\n-e own\n./own/ ; os_name != 'nt'\nnumpy==${NUMPY}#x\n",
}
# The requirements, and the problems.
TOLD = [
    ("-r pinned.txt", []),
    ("-r single.txt", ['single.txt:3: "numpy =2.2.6" has no == before its version']),
    ("-r floating.txt", ['floating.txt:2: "numpy>=2" is another version next month']),
    ("[-r floating.txt, -c limits.txt]", []),
    ("-r limited.txt", []),
    ("-r asks.txt", []),
    ("-r lost.txt", ["none.txt does not exist beside the spec, nor in code"]),
    ("-r folder/asks.txt", []),
    (
        "[-r base.txt, -r other.txt]",
        ["other.txt:1: asks for numpy==2.0, and base.txt for numpy==2.2.6"],
    ),
    (
        "[numpy==2.1, -r base.txt]",
        ["base.txt:1: asks for numpy==2.2.6, and requirements for numpy==2.1"],
    ),
    ("-r hashed.txt", ['hashed.txt:1: pip takes no "md5" as a --hash']),
    ("-r odd.txt", []),
    ("-r last.txt", ['inner.txt:1: "yaml" is no name of a package']),
    ("-r sub/asks.txt", []),
    ("-r conda.txt", ['conda.txt:1: "einops=0.8=py38_0" has no ==']),
    ("-r both.txt", []),
    ("-r bom.txt", ['bom.txt:1: "torch=2.13.0" has no == before its version']),
    ("-r utf16.txt", ['utf16.txt:1: "torch=2.13.0" has no == before its version']),
    ("./x-1-py3-none-any.whl", []),
    ("-r base.yaml", ["base.yaml is a file of conda"]),
    ("-r asks-code.txt", ['inner.txt:1: "yaml" is no name of a package']),
    ("-r inner.txt", ['inner.txt:1: "yaml" is no name of a package']),
    ("-r short.txt", ["short.txt:3: -U is for pip's command line alone"]),
    *(
        (f"-r {name}.txt", [f"{name}.txt is a file {kind}, and pip reads lines"])
        for name, kind in (
            ("environment", "of conda"),
            ("dependencies", "of conda"),
            ("project", "in TOML"),
            ("pip.lock", "in TOML"),
        )
    ),
    (
        "-r faults.txt",
        [
            f"faults.txt:{number}: {words}"
            for number, words in enumerate(
                (
                    "has no space before #",
                    '"python" is no variable of a marker',
                    '"linux" is no variable of a marker',
                    '"numpy>=2.*" is no line',
                    '"numpy^2" is no line',
                    '"mine @ ./mine" is no line',
                    "begins with -",
                    '"numpy==2.2.6;" is no line',
                    '""numpy==2.2.6"" is no line',
                ),
                1,
            )
        ],
    ),
    ("-r right.txt", []),
    (
        "-r lost-places.txt",
        [
            f"lost-places.txt:{number}: {words}"
            for number, words in enumerate(
                (
                    "/croot/numpy_1/work is looked for on the new machine",
                    "/w/own is looked for on",
                    "./gone is not in code (code)",
                    "gone is not in code (code)",
                    "code is not in code (code)",
                    "/w/a.whl is looked for on",
                    "/w/b.zip is looked for on",
                ),
                1,
            )
        ],
    ),
    ("[-e ./own, ./own, '-e own[a]', -e ., './own ; os_name != \"nt\"']", []),
    *(
        (f"[{lines}]", [words])
        for lines, words in (
            (
                "torch==2.13.0, torchvision==0.15.2",
                "torchvision 0.15.2 is made for torch 2.0, and torch 2.13 is pinned",
            ),
            ("torchvision==0.28.0+cu126, torch==2.12, '-i https://x'", "made for torch 2.13"),
            ("torch==2.4.0, torchaudio==2.2.0", "torchaudio 2.2.0 is made for torch 2.2"),
            ("torch==2.9.0, torchaudio==2.8", "made for torch 2.8"),
            (
                "torch==2.13.0, -r vision.txt",
                "vision.txt:2: torchvision 0.20.1 is made for torch 2.5",
            ),
            (
                "torchvision==0.28.0, -r old.txt",
                "torchvision 0.28.0 is made for torch 2.13, and torch 2.5",
            ),
        )
    ),
    *(
        (f"[{lines}]", [])
        for lines in (
            "torch==2.13.0, torchvision==0.28.0, torchaudio==2.11.0",
            "torch==2.5.1+cu118, torchvision==0.20.1, torchaudio==2.5.0, '-i https://x'",
            "torch==2.10.0, torchvision==0.25.*",
            "torch==2.9.0, torchaudio==2.9.0",
            "torch==2.4.0, torchvision==0.19, torchaudio==2.4",
            "\"torch==2.13.0; sys_platform != 'x'\", torchvision==0.15.2",
            "torch==2.13.0, \"torchvision==0.15.2 ; sys_platform == 'win32'\"",
            "torch==2.13.0, torchmetrics==1.4.0, torch-vision==0.15.2",
        )
    ),
    *(
        (f"[torch==2.13.0, {line}]", [place or f'"{line}" is built with torch'])
        for line, place in (
            ("flash-attn==2.7.4.post1", ""),
            ("causal_conv1d==1.5.0", ""),
            ("mamba-ssm @ git+https://h.org/m.git@v2", ""),
            ("git+https://github.com/NVIDIA/apex.git@1", ""),
            ("-e git+https://github.com/Dao-AILab/flash-attention.git@v2", "is built with torch"),
            ("-r attention.txt", 'attention.txt:2: "flash_attn==2.7.4" is built with torch'),
            (
                "Flash.Attn==2.7, --extra-index-url=https://download.pytorch.org/whl/cu126",
                '"Flash.Attn==2.7" is built',
            ),
        )
    ),
    *(
        (f"[torch==2.13.0, {line}]", [])
        for line in (
            "https://github.com/Dao-AILab/flash-attention/releases/download/v2/f-2-cp311-cp311-linux_x86_64.whl",
            "flash-attn @ https://h.org/flash_attn-2-cp311-cp311-linux_x86_64.whl",
            "flash-attn==2.7.4, -f https://h.org/wheels",
            "flash-attn==2.7.4, --extra-index-url=https://h.org/wheels",
            "flash-attn-wheel==2.7, flash-attention-jax==1, mamba==1, apex==0.9.10, xformers==1, flashinfer-python==1",
            "git+https://github.com/NVIDIA/apex-tools.git@1, mine @ git+https://github.com/mamba-org/mamba@1",
        )
    ),
    ("-e ./gone", ["./gone is not in code (code)"]),
    ("[gone/]", ["gone/ is not in code (code)"]),
    ("--editable=./code", ["./code is not in code (code)"]),
    ("-r flags.txt", ["flags.txt:1: --no-cache-dir is for pip's command line alone"]),
]


def spec(requirements: str) -> str:
    sky = f"{{bucket: s3://bbb, requirements: {requirements}}}"
    return f"{GPT}code: code\ntargets: {{sky: {sky}}}\n"


def write(place: Path) -> None:
    (place / "utf16.txt").write_text("torch=2.13.0\n", encoding="utf-16")
    for name, text in FILES.items():
        (place / name).parent.mkdir(exist_ok=True)
        (place / name).write_text(text)


@pytest.mark.parametrize(("requirements", "problems"), TOLD)
def test_what_pip_would_refuse_in_a_file_is_named(
    requirements: str, problems: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path)
    found = [each for each in findings(spec(requirements)) if "requirements" in each.path]
    assert len(found) == len(problems), found
    for each, words in zip(found, problems, strict=True):
        assert words in each.problem
        is_sure = not re.search(r"(?<!none)\.txt| is made for | is built ", each.problem)
        assert each.fatal == is_sure


def test_a_file_travels_with_all_that_it_names(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path)
    (tmp_path / "job.yaml").write_text(spec("-r folder/asks.txt"))
    assert run("render", "job.yaml", "--target", "sky").code == 0
    code = tmp_path / "build/gpt/code"
    assert sorted(str(path.relative_to(code)) for path in code.rglob("*.txt")) == [
        "base.txt", "both.txt", "folder/asks.txt", "folder/inner.txt", "inner.txt",
    ]  # fmt: skip


def test_a_lock_with_many_hashes_is_read_at_once() -> None:
    lock = "a==1 \\\n" + "  --hash=sha256:00 \\\n" * 50_000
    ((number, line),) = lines_of(lock)
    assert (number, line.count("--hash")) == (1, 50_000)
    assert fault("a==" + "1" * 5_000 + "x") is not None


def test_a_file_that_is_no_text_is_not_judged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path)
    (tmp_path / "pinned.txt").write_bytes(b"\xff\xfe=")
    assert not [each for each in findings(spec("-r pinned.txt")) if ".txt" in each.problem]
