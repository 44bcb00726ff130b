"""Paths, stores, addresses and destinations of ssh that cannot be, and unusual ones that can."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from ddpgen.spec import places, ssh
from ddpgen.spec.fields import Refused
from tests.ddpgen.conftest import GPT, faults, named

SCRIPT = "name: s\ncode: .\ntrain: {{script: t.py, {}}}\n"
SKY = f"{GPT}targets: {{{{sky: {{{{{{}}}}}}}}}}\n"
HOSTS = f"{GPT}targets: {{{{hosts: {{{{hosts: [{{}}, b]}}}}}}}}\n"
SLURM = f"{GPT}targets: {{{{slurm: {{{{{{}}}}}}}}}}\n"

REFUSED = [
    (f"{GPT}checkpoint: {{dir: ..}}\n", "8:19 checkpoint.dir", "own"),
    (f"{GPT}checkpoint: {{dir: /dev/null}}\n", "8:19 checkpoint.dir", "system"),
    (f"{GPT}checkpoint: {{dir: ~/}}\n", "8:19 checkpoint.dir", "home directory"),
    (f"{GPT}checkpoint: {{dir: /ck/*}}\n", "8:19 checkpoint.dir", "fills in *"),
    (f"{GPT}checkpoint: {{dir: 'C:\\ck'}}\n", "8:19 checkpoint.dir", "Windows"),
    (f"{GPT}python: ~/venv\n", "8:9 python.interpreter", "write ~/venv/bin/python3"),
    (f"{GPT}python: /usr/bin\n", "8:9 python.interpreter", "write /usr/bin/python3"),
    (f"{GPT}python: /usr/bin/env\n", "8:9 python.interpreter", "write /usr/bin/python3"),
    (SCRIPT.format("resume: {exists: 'a\\d+', args: x}"), "3:40 train.resume.exists", "backslash"),
    (f"{GPT}targets: {{slurm: {{login: $H}}}}\n", "8:26 targets.slurm.login", "write the name"),
    (
        f"{GPT}targets: {{slurm: {{login: h, ssh_options: [-oRemoteCommand=x]}}}}\n",
        "8:43 targets.slurm.ssh_options[0]",
        "runs no command",
    ),
    (
        f"{GPT}targets: {{sky: {{bucket: s3://bbb, requirements: [cv2]}}}}\n",
        "8:50 targets.sky.requirements[0]",
        "write opencv-python-headless",
    ),
    (
        f"{GPT}targets: {{sky: {{bucket: s3://bbb, requirements: [torch, python==3.11]}}}}\n",
        "8:57 targets.sky.requirements[1]",
        "leave it out",
    ),
    (f"{GPT}checkpoint: {{dir: a/step-000000010}}\n", "8:19 checkpoint.dir", "another job"),
    (f'{GPT}checkpoint: {{dir: "\\n"}}\n', "8:19 checkpoint.dir", "blank"),
    (f"{GPT}checkpoint: {{dir: 'me@host:/ck'}}\n", "8:19 checkpoint.dir", "place for scp"),
    (f"{GPT}checkpoint: {{dir: 'file://ck'}}\n", "8:19 checkpoint.dir", "names a host"),
    (HOSTS.replace("b]", "b], dir: 'h:/x'").format("a"), "8:39 targets.hosts.dir", "place for scp"),
    (f'{GPT}python: "/opt/python3\\n"\n', "8:9 python.interpreter", "control"),
    (f"{GPT}python: python2.7\n", "8:9 python.interpreter", "Python 3.10"),
    (f"{GPT}python: /usr/bin/python3.9\n", "8:9 python.interpreter", "write /usr/bin/python3.10"),
    (f"{GPT}python: /usr/bin/env python3\n", "8:9 python.interpreter", "write python3"),
    (f"{GPT}secrets: {{A: 'file:~/x/'}}\n", "8:14 secrets.A", "without a comma"),
    (f"{GPT}secrets: {{A: file:/dev/null}}\n", "8:14 secrets.A", "without a comma"),
    (f'{GPT}python: "python3 -u"\n', "8:9 python.interpreter", "name of a program"),
    (f'{GPT}python: "/opt/python3 -u"\n', "8:9 python.interpreter", "option"),
    (SCRIPT.format("workdir: ."), "3:32 train.workdir", "own"),
    (SCRIPT.format("workdir: s3://b/x"), "3:32 train.workdir", "URL"),
    (HOSTS.replace("b]", "b], dir: s3://b/x").format("a"), "8:39 targets.hosts.dir", "URL"),
    (SLURM.format("dir: s3://b/x"), "8:24 targets.slurm.dir", "URL"),
    (SCRIPT.format("guard: ./DONE"), "3:30 train.guard", "own directory"),
    (SCRIPT.format("guard: $X/y/DONE"), "3:30 train.guard", "$X "),
    (SCRIPT.format("guard: 'ckpt-[0-9/DONE'"), "3:30 train.guard", "]"),
    (SCRIPT.format("resume: {exists: out/**/x.pt}"), "3:40 train.resume.exists", "one directory"),
    (SCRIPT.format("resume: {exists: '{checkpoint_dir}'}"), "3:40 train.resume.exists", "there"),
    ("name: s\ntrain: {script: /opt/$USER/t.py}\n", "2:17 train.script", "$USER "),
    (f"{GPT}checkpoint: {{dir: s3://bbb/$USER/x}}\n", "8:19 checkpoint.dir", "the value itself"),
    (f"{GPT}checkpoint: {{dir: $SCRATCH/x}}\n", "8:19 checkpoint.dir", "ln -s $SCRATCH ~/LINK"),
    (f"{GPT}checkpoint: {{dir: az://abc/x?sv=1&sig=2}}\n", "8:19 checkpoint.dir", "credentials"),
    (SLURM.format("environment: {venv: ~/v -x}"), "8:39 targets.slurm.environment.venv", "option"),
    (
        SLURM.format("environment: {container: {image: x.sif, mounts: $DATA}}"),
        "8:67 targets.slurm.environment.container.mounts",
        "$DATA ",
    ),
    (SLURM.format("login: 'gate:22'"), "8:26 targets.slurm.login", "ssh://gate:22"),
    (SLURM.format("login: 'https://gate'"), "8:26 targets.slurm.login", "user@host"),
    (SLURM.format("login: 'me:pw@gate'"), "8:26 targets.slurm.login", "password"),
    (SLURM.format("dir: $SCRATCH"), "8:24 targets.slurm.dir", "$SCRATCH "),
    (HOSTS.format("{name: a, ssh: '@h'}"), "8:42 targets.hosts.hosts[0].ssh", "user"),
    (HOSTS.format("{name: a, ssh: 'ssh://h:0'}"), "8:42 targets.hosts.hosts[0].ssh", "port"),
    (HOSTS.format("10.0.0.300"), "8:27 targets.hosts.hosts[0]", "no address"),
    (
        HOSTS.format("{name: a, address: 10.0.0.011}"),
        "8:46 targets.hosts.hosts[0].address",
        "leading zeros",
    ),
    (
        HOSTS.format("{name: a, address: 224.0.0.1}"),
        "8:46 targets.hosts.hosts[0].address",
        "no host",
    ),
    (SKY.format("bucket: gs://A"), "8:25 targets.sky.bucket", "Google"),
    (
        SKY.format("bucket: https://a.blob.core.windows.net/b--c"),
        "8:25 targets.sky.bucket",
        "Azure",
    ),
    (
        SKY.format("bucket: {url: s3://bbb, prefix: a/step-000000010}"),
        "8:49 targets.sky.bucket.prefix",
        "another job",
    ),
    (SCRIPT.format("resume: {exists: 'out/ckpt-{0..9}.pt'}"), "3:40 train.resume.exists", "[0-9]"),
    (SCRIPT.format("resume: {exists: out/ckpt-%05d.pt}"), "3:40 train.resume.exists", "%05d"),
    (SCRIPT.format("resume: {exists: s3://bbb/x.pt}"), "3:40 train.resume.exists", "URL"),
]


@pytest.mark.parametrize(("text", "where", "word"), REFUSED)
def test_a_place_that_cannot_be_is_refused(text: str, where: str, word: str) -> None:
    found = faults(text)
    assert named(found, where, word), found


def test_a_link_is_advised_only_for_a_whole_directory() -> None:
    for path in ("/data/a$b", "/data/$USER/x", "$a.b/c"):
        refusal = places.path_fault(path)
        assert refusal is not None
        assert "ln -s" not in refusal.remedy


def bucket_fault(url: str) -> Refused | None:
    scheme, _, name = url.partition("://")
    return places.bucket_fault(scheme, name)


def ssh_words(text: str) -> object:
    """Return the first fault of words for ssh, which `text` has with commas between them; None without one."""
    faults = ssh.options_faults(text.split(","))
    return next((fault for _, fault in faults), None)


TABLES: list[tuple[Callable[[str], object], str, str]] = [
    (
        places.directory_fault,
        "ck  ~  ../ck  ./a/b  /data/ck  ~/ck  /dev/shm/x  /devices/x  runs/..x/y  runs/v1..  /data/lock",
        ".  ..  ./  /  //  ~/..  a/..  ../x/..  ../..  /dev  /dev/shm  /proc/x  /sys  ~you/x  $HOME/x  ${A}/x",
    ),
    (places.guard_fault, "ckpt-*/DONE  {checkpoint_dir}/*/DONE  a**/DONE  [0-9]/[]a]/[!]]/[[]/D  {job},{array_index}/D", "ckpt-{a,b}/D  s3://b/D  DONE  {checkpoint_dir}/DONE  $X/*/DONE  a/**/D  [/D  a/[!b  []/D"),
    (places.checkpoint_file_fault, "*.pt  {checkpoint_dir}/a.pt  /a.pt  ~/a.pt  {job}-{x}.pt  100%.pt", "{a,b}.pt  a-%d.pt  .  {checkpoint_dir}  $X/a.pt"),
    (places.program_fault, "python3.12  /opt/x/python  ~/v/bin/python  my-bash-python", "bin/python  python3;ls  ~you/p  /$A/p  3.11  ~/v/bin/activate  pip3  torchrun"),
    (
        places.url_fault,
        ("/data  s3://bbb/x  gs://b_b/x  az://abc/x  abfs://cont@acc.dfs.core.windows.net/x  sftp://me@h/x  hf://o/x"
        "  s3://arn:aws:s3:eu-west-1:123456789012:accesspoint/a-b/c  s3://arn:aws-cn:s3-outposts:cn-north-1:123456789012:outpost/o-1/accesspoint/ab"
        "  s3://arn:aws:s3:us-east-1:123456789012:accesspoint:ab"
        "  s3://bbb/runs/status  s3://bbb/lock  s3://bbb/lr?x=1  s3://bbb/a&key=1"),
        ("s3//b/x  gs//b  s3:/b  foo://b  s3://  s3://k:s@bbb  s3://k@bbb  sftp://u:p@h/x  az://abc/x?sig=1  gs:///x  s3://bbb/$A"
        "  s3://bbb/step-000000010/  s3://arn:aws:s3:eu-west-1:123456789012:accesspoint/ab/step-000000010  s3://arn:aws:s3:::bbb  gs://bbb/x?a=1&X-Goog-Signature=2  abfs://AB/x"),
    ),
    (
        bucket_fault,
        ("s3://my-bucket  s3://my.bucket  r2://abc  gs://my_bucket  gs://a.b.com  az://abc-d  oci://Any_Name"
        "  s3://abc-s3alias  s3://abc--ol-s3"),
        ("s3://ab  s3://a..b  s3://a.-b  s3://a_b  s3://10.0.0.1  s3://xn--abc  r2://A_B"
        "  nebius://Abc  gs://AB  gs://x  gs://10.0.0.1  gs://googx  az://a--b  az://-ab"),
    ),
    (
        places.Address().parse_text,
        "10.0.0.7  gpu-01  gpu_1.lan  node.  a1.b-c.example.org  100.64.0.1",
        "10.0.0.300  10.0.0.011  10.0.1  1.2.3.4.5  1.2.3.4.  224.0.0.1  255.255.255.255  0.1.2.3  300  a..b  a/b",
    ),
    (
        ssh.Destination().parse_text,
        ("h  me@h  ssh://me@h:2222  ssh://h/  DOM\\me@h  me@corp.org@h  me@fd00::1  ssh://[fd00::1]:22  a_b  ::1  [::1]  fe80::1%eth0"
        "  ssh://me@h:22/  2  me@2  300  1.2"),
        ("me@  @h  me@@h  h:22  me@h:22  ssh://  ssh://@h  ssh://h:0  ssh://h:99999  ssh://h:x  ssh://h:  ssh://h:0/  ssh://h:22/x  h/x"
        "  sh://h  ssh://h/x  10.0.0.300  me@10.0.0.011  https://h  me:pw@h  ssh:/me@h  ssh://me:pw@h:22  me@a,me@b"
        "  a,b  [::1]:22  me@-h  ssh://2001:db8::1:22  me@h:/home/me"),
    ),
    (
        ssh_words,
        "-J,gate  -o,ConnectTimeout=5  -oPort=22,-4,-vv  -p2222,-i,~/.ssh/k  -F,/etc/x  -tt,-A  -vp,22  -o,-x  -o,SessionType=default  -oStdinNull=no",
        "-p  -v,-i  gate  -J,gate,b  --  -  -N  -vf  -W,a:1  -Q,key  -Z  -o,A=1,-n  -o,SessionType=none  -ostdinnull=yes  -v,-o,ForkAfterAuthentication=true",
    ),
    (places.Prefix().parse_text, "a  a/b  runs/steps  step-x  a/stop  lock", "step-000000001  a/step-000000001/b"),
]  # fmt: skip


@pytest.mark.parametrize(("fault", "accepted", "refused"), TABLES)
def test_the_grammar_of_a_place(
    fault: Callable[[str], object], accepted: str, refused: str
) -> None:
    assert not [text for text in accepted.split() if is_refused(fault, text)]
    assert not [text for text in refused.split() if not is_refused(fault, text)]


def is_refused(fault: Callable[[str], object], text: str) -> bool:
    """True if `fault` returns or raises a refusal."""
    try:
        return isinstance(fault(text), Refused)
    except Refused:
        return True
