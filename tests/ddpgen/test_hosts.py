"""The tier `hosts`: what a list of hosts may say, and the scripts and the list it becomes."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ddpgen.render import Renderer
from ddpgen.spec.job import JobSpec
from ddpgen.tiers.ranks import ranks
from ddpgen.tiers.registry import TIERS, read
from tests.ddpgen.conftest import GPT, ROOT, Fault, Run, check_bash, faults, findings, named

PAIR = GPT + "targets:\n  hosts:\n    hosts: [desk, laptop]\n"


def hosts(text: str, top: str = "") -> str:
    return GPT + top + "targets:\n  hosts:\n" + "".join(f"    {li}\n" for li in text.splitlines())


def job(text: str) -> JobSpec:
    assert faults(text) == []
    return read(text.encode(), "j")["hosts"].job


def rendered_files(text: str) -> dict[str, str]:
    """The files of the tier, by their path in the bundle."""
    return {each.path: each.text for each in TIERS["hosts"].render(job(text), Renderer())}


def listed(text: str) -> Any:
    """The hosts of hosts.json."""
    return json.loads(rendered_files(text)["hosts/hosts.json"])["hosts"]


WARNED = [
    (
        "hosts: [{name: a, gpus: 2}, b]\nenv: {CUDA_VISIBLE_DEVICES: 0}",
        "11:33 targets.hosts.env.CUDA_VISIBLE_DEVICES",
        "hides GPUs",
    ),
    ("hosts: [a, b]\nhead: b\nspares: 1", "11:11 targets.hosts.head", "is a spare"),
    ("hosts: [{name: a, gpus: 2, procs: 1}]", "10:29 targets.hosts.hosts[0].gpus", "stay idle"),
    ("dir: /tmp/x\nhosts: [a, b]", "10:10 targets.hosts.dir", "which is emptied"),
]
REFUSED = [
    (
        "hosts: [a]\ntrain: {workload: null, steps: null, global_batch_size: null, micro_batch_size: null, script: /t.py, workdir: gpt}",
        "11:115 targets.hosts.train.workdir",
        "~/ddpgen/gpt,",
    ),
    (
        "hosts: [a]\ncheckpoint: {dir: x/../gpt/a}",
        "11:23 targets.hosts.checkpoint.dir",
        "~/ddpgen/gpt,",
    ),
    (
        "dir: /d\nhosts: [a]\ncheckpoint: {dir: /d/gpt}",
        "12:23 targets.hosts.checkpoint.dir",
        "/d/gpt,",
    ),
    ("hosts: [a]\nssh_options: [-Z]", "11:19 targets.hosts.ssh_options[0]", "no option"),
    ("hosts: [a]\nssh_options: -p 22", "11:18 targets.hosts.ssh_options", "two words"),
    ("hosts: [a]\nssh_options: [-i]", "11:19 targets.hosts.ssh_options[0]", "no value"),
    (
        "hosts: [a]\nssh_options: [-v, Port=22]",
        "11:23 targets.hosts.ssh_options[1]",
        '"-o", "Port=22"',
    ),
    ("hosts: []", "10:12 targets.hosts.hosts", "no hosts"),
    ("nic: eth0", "1:1 hosts", "no hosts"),
    ("hosts: desk", "10:12 targets.hosts.hosts", "[desk]"),
    ("hosts: [a, [b]]", "10:16 targets.hosts.hosts[1]", "list"),
    ("hosts: [a, {nmae: b}]", "10:17 targets.hosts.hosts[1].nmae", "name?"),
    ("hosts: [a, {nic: b}]", "10:16 targets.hosts.hosts[1].name", "missing"),
    ("hosts: [a, 'b c']", "10:16 targets.hosts.hosts[1]", "fit"),
    ("hosts: [a, me@b]", "10:16 targets.hosts.hosts[1]", "write {name: b, ssh: me@b}"),
    ("hosts: [ssh://me@b:22]", "10:13 targets.hosts.hosts[0]", "{name: b, ssh: ssh://me@b:22}"),
    ("hosts: [a, '$(b)']", "10:16 targets.hosts.hosts[1]", "fit"),
    (
        "secrets: [A]\nhosts: [{name: a, env: {A: x}}]",
        "11:32 targets.hosts.hosts[0].env.A",
        "secrets",
    ),
    ("hosts: [a, A]", "10:16 targets.hosts.hosts[1]", "twice"),
    ("hosts: [a, a.activate]", "10:16 targets.hosts.hosts[1]", "activation"),
    ("hosts: [a, run]", "10:16 targets.hosts.hosts[1]", "driver"),
    (
        "hosts: [{name: a, ssh: x}, {name: b, ssh: x}]",
        "10:39 targets.hosts.hosts[1].name",
        "same place",
    ),
    (
        "hosts: [{name: a, ssh: '-oProxyCommand=touch x'}]",
        "10:28 targets.hosts.hosts[0].ssh",
        "ssh",
    ),
    ("head: dsk\nhosts: [desk]", "10:11 targets.hosts.head", "desk?"),
    ("nodes: 3\nhosts: [a, b]", "10:12 targets.hosts.nodes", "2;"),
    ("nodes: 3..2\nhosts: [a, b]", "10:12 targets.hosts.nodes", "range"),
    ("spares: 2\nhosts: [a, b]", "10:13 targets.hosts.spares", "none that takes part"),
    (
        "spares: 1\nnodes: 3\nhosts: [a, b, c]",
        "11:12 targets.hosts.nodes",
        "1 of them as spares; list 4 hosts",
    ),
    (
        "nodes: 1..2\nrendezvous: {launcher: env}\nhosts: [a, b]",
        "10:12 targets.hosts.nodes",
        "launcher: torchrun",
    ),
    (
        "nodes: 1..2\ntrain: {reduction: allreduce}\nhosts: [a, b]",
        "10:12 targets.hosts.nodes",
        "reduction: tree",
    ),
    ("hosts: [{name: a, address: 127.0.0.1}, b]", "10:32 targets.hosts.hosts[0].address", "itself"),
    ("hosts: [{name: a, ssh: 'b:2222'}, c]", "10:28 targets.hosts.hosts[0].ssh", "ssh://b:2222"),
    ("hosts: [{name: a, address: 0.0.0.0}, b]", "10:32 targets.hosts.hosts[0].address", "itself"),
    ("hosts: [{name: a, nic: 10.0.0.1}, b]", "10:28 targets.hosts.hosts[0].nic", "interface"),
    (
        "hosts: [{name: a, env: {GLOO_SOCKET_IFNAME: b}}, b]",
        "10:49 targets.hosts.hosts[0].env.GLOO_SOCKET_IFNAME",
        "preflight",
    ),
    ("nic: lo\nhosts: [a, b]", "10:10 targets.hosts.nic", "loopback"),
    ("hosts: [localhost, b]", "10:13 targets.hosts.hosts[0]", "localhost"),
    ("hosts: [{name: a, env: {RANK: 1}}]", "10:35 targets.hosts.hosts[0].env.RANK", "torchrun"),
    ("hosts: [{name: a, dir: ~other/x}]", "10:28 targets.hosts.hosts[0].dir", "~/path"),
    (
        "hosts: [{name: a, python: bin/python}]",
        "10:31 targets.hosts.hosts[0].python.interpreter",
        "PATH",
    ),
    ("hosts: [{name: a, procs: 0}, b, c]", "10:30 targets.hosts.hosts[0].procs", "range"),
    (
        "hosts: [{name: a, gpus: 1, procs: 2}]",
        "10:29 targets.hosts.hosts[0].gpus",
        "share 1 GPU of a;",
    ),
    (
        "backend: nccl\nhosts: [{name: a, gpus: 2}, {name: b, gpus: 0}]",
        "11:49 targets.hosts.hosts[1].gpus",
        "nccl",
    ),
    (
        "train: {reduction: allreduce}\nhosts: [{name: a, share: 2}, b]",
        "11:30 targets.hosts.hosts[0].share",
        "tree",
    ),
    ("share: auto\nhosts: [{name: a, share: 2}, b]", "10:12 targets.hosts.share", "exclude"),
    ("share: even\nhosts: [{name: a, share: 2}, b]", "10:12 targets.hosts.share", "exclude"),
    ("share: 2\nhosts: [a, b]", "10:12 targets.hosts.share", "auto"),
    (
        "share: auto\ntrain: {reduction: allreduce}\nhosts: [a, b]",
        "10:12 targets.hosts.share",
        "reduction: tree",
    ),
]


@pytest.mark.parametrize(("text", "where", "word"), REFUSED)
def test_a_list_of_hosts_that_cannot_run_is_refused_at_its_place(
    text: str, where: str, word: str
) -> None:
    found = faults(hosts(text))
    assert named(found, where, word), found


@pytest.mark.parametrize(("text", "where", "word"), WARNED)
def test_a_list_of_hosts_that_is_hardly_meant_is_a_warning(
    text: str, where: str, word: str
) -> None:
    (finding,) = findings(hosts(text))
    assert not finding.fatal
    assert named([Fault.of(finding)], where, word)


def test_a_temporary_directory_on_several_hosts_is_a_warning() -> None:
    text = hosts("hosts: [a, b]\ncheckpoint: {dir: /tmp/x}")
    (finding,) = findings(text)
    assert (finding.fatal, finding.path) == (False, "targets.hosts.checkpoint.dir")
    assert not findings(text.replace("[a, b]", "[a]"))
    assert not findings(text.replace("/tmp", "/tmpx"))


SHARES = "name: a\ntrain: {script: /t.py}\ntargets: {hosts: {hosts: [{name: a, share: 2}, b]}}\n"


def test_two_directories_of_one_machine_may_be_two_hosts() -> None:
    assert (
        findings(hosts("hosts: [{name: a, ssh: x, dir: ~/a}, {name: b, ssh: x, dir: ~/b}]")) == []
    )


def test_a_script_has_no_shares() -> None:
    (fault,) = faults(SHARES)
    assert fault.where == "3:44 targets.hosts.hosts[0].share"
    assert "script" in fault.text


@pytest.mark.parametrize("program", ["script: /t.py", "command: [t], resume: scratch"])
def test_nothing_moves_between_the_processes_of_a_script(program: str) -> None:
    text = SHARES.replace("script: /t.py", program).replace("{name: a, share: 2}", "a")
    assert not job(text).balances
    (fault,) = faults(text.replace("{hosts: {", "{hosts: {share: auto, "))
    assert fault.where == "3:26 targets.hosts.share"
    assert "a script shares out its work by itself" in fault.text


@pytest.mark.parametrize(
    ("text", "balances"),
    [
        ("hosts: [a, b]", True),
        ("hosts: [a]", True),  # two processes
        ("hosts: [{name: a, procs: 1}]", False),
        ("share: even\nhosts: [a, b]", False),
        ("hosts: [{name: a, share: 2}, b]", False),
        ("gpus_per_node: 2\nhosts: [a, b]", True),
        ("train: {reduction: allreduce}\nhosts: [a, b]", False),
        ("nodes: 1..2\nhosts: [a, b]", True),
    ],
)
def test_micro_batches_move_by_default_where_they_can(text: str, balances: bool) -> None:
    made = job(hosts(text))
    assert made.balances is balances
    for host in made.machines:
        script = rendered_files(hosts(text))[f"hosts/{host.name}.sh"]
        assert ("--balance" in script) is balances


NO_ADDRESS = [
    ("x'';touch${IFS}/tmp/pwned;''", """"x';touch${IFS}/tmp/pwned;'" is no address"""),
    ("host;id", '"host;id" is no address'),
    ("trainer@fd00::1", '"fd00::1" is no address'),
    ("ssh://trainer@[fd00::1]:22", '"[fd00::1]" is no address'),
    ("user@", "no host"),
    ("ssh://", "no host"),
    ("ssh://user@:22", "no host"),
]


def with_ssh(ssh: str) -> str:
    return hosts(f"hosts: [{{name: a, ssh: '{ssh}'}}, b]")


@pytest.mark.parametrize(("ssh", "word"), NO_ADDRESS)
def test_the_host_in_ssh_is_held_to_the_rule_of_an_address(ssh: str, word: str) -> None:
    (fault,) = faults(with_ssh(ssh))
    assert fault.where == "10:28 targets.hosts.hosts[0].ssh"
    assert word in fault.text


@pytest.mark.parametrize(
    ("host", "ssh", "address"),
    [
        ("a", "a", "a"),
        ("{name: a, ssh: me@10.0.0.7}", "me@10.0.0.7", "10.0.0.7"),
        ("{name: a, ssh: 'ssh://me@gate.lan:2222'}", "ssh://me@gate.lan:2222", "gate.lan"),
        ("{name: a, ssh: 'ssh://gate/'}", "ssh://gate/", "gate"),
        ("{name: a, ssh: 'DOMAIN\\me@gate'}", "DOMAIN\\me@gate", "gate"),
        ("{name: a, ssh: 'me@fd00::1', address: 10.0.0.1}", "me@fd00::1", "10.0.0.1"),
    ],
)
def test_a_host_is_reached_by_the_others_as_ssh_reaches_it(
    host: str, ssh: str, address: str
) -> None:
    a = listed(hosts(f"hosts: [{host}, b]"))[0]
    assert (a["ssh"], a["address"]) == (ssh, address)


def test_the_head_comes_first_and_ranks_follow() -> None:
    text = hosts("head: c\nhosts: [a, {name: b, procs: 1}, c]").replace("size: 16", "size: 32")
    assert [(rank.host, rank.node_rank, rank.local_rank) for rank in ranks(job(text))] == [
        ("c", 0, 0),
        ("c", 0, 1),
        ("a", 1, 0),
        ("a", 1, 1),
        ("b", 2, 0),
    ]


def test_a_share_is_of_the_host_whatever_its_processes() -> None:
    text = GPT.replace("global_batch_size: 16", "global_batch_size: 32")
    made = job(
        text
        + "targets: {hosts: {hosts: [{name: a, share: 3, procs: 2}, {name: b, share: 1, procs: 1}]}}"
    )
    assert [rank.end - rank.first for rank in ranks(made)] == [3, 3, 2]


def test_what_a_host_says_goes_before_what_the_job_says() -> None:
    files = rendered_files(
        hosts(
            "hosts:\n- {name: a, nic: enp5s0, env: {X: here}, python: ~/v/bin/python, dir: /data}\n- b",
            "nic: eth0\nenv: {X: all, Y: all}\n",
        )
    )
    a, b = files["hosts/a.sh"], files["hosts/b.sh"]
    assert [host["dir"] for host in json.loads(files["hosts/hosts.json"])["hosts"]] == [
        "/data",
        "~/ddpgen",
    ]
    assert ("--nic=enp5s0" in a, "--nic=eth0" in b) == (True, True)
    assert ("export X=here\nexport Y=all\n" in a, "export X=all\nexport Y=all\n" in b) == (
        True,
        True,
    )
    assert 'exec "$HOME"/v/bin/python ' in a


@pytest.mark.parametrize(
    ("tier", "words", "fixed", "said"),
    [
        (
            "nodes: 2",
            ["--rdzv-id={launch}", "--max-restarts=3"],
            True,
            "torchrun, c10d: hosts meet at a (a:29500); it numbers them when all are there",
        ),
        (
            "nodes: 1..2",
            ["--elastic", "--max-restarts=1000"],
            False,
            "torchrun, c10d: hosts meet at a (a:29500), 1 of them are enough; it numbers them when all are there",
        ),
        (
            "rendezvous: {launcher: torchrun-static}",
            ["--node-rank={node_rank}", "--max-restarts=0"],
            True,
            "torchrun, static: hosts are numbered as below and meet at a (a:29500)",
        ),
        (
            "rendezvous: {launcher: env}",
            ["spawn", "--first-rank={first_rank}"],
            True,
            "env: processes meet at a (a:29500), without torchrun",
        ),
    ],
)
def test_each_launcher_has_its_own_command(
    tier: str, words: list[str], fixed: bool, said: str, run: Run
) -> None:
    Path("job.yaml").write_text(hosts(f"{tier}\nhosts: [a, b]"))
    outcome = run("plan", "job.yaml", "--target", "hosts", "--json")
    facts = json.loads(outcome.out)
    command = facts["command"]
    assert facts["rendezvous"] == said
    assert set(words) <= set(command)
    assert ("--world-size={world_size}" in command) == fixed


def rendered(run: Run, text: str) -> Path:
    Path("job.yaml").write_text(text)
    outcome = run("render", "job.yaml", "--target", "hosts")
    assert outcome.code == 0, outcome.err
    assert outcome.err.splitlines()[-1] == "next: bash build/gpt/hosts/run.sh"
    return Path("build/gpt")


def test_the_bundle_holds_a_script_for_each_host_and_the_driver(run: Run) -> None:
    bundle = rendered(run, PAIR)
    assert {path.name for path in (bundle / "hosts").iterdir()} == {
        "run.sh", "desk.sh", "laptop.sh", "hosts.json", "driver",
    }  # fmt: skip
    assert (bundle / "hosts/driver/__main__.py").is_file()
    listing = json.loads((bundle / "hosts/hosts.json").read_text())
    assert [host["script"] for host in listing["hosts"]] == ["hosts/desk.sh", "hosts/laptop.sh"]
    assert (listing["head"], listing["elastic"]) == ("desk", None)


def test_spares_have_scripts_and_take_no_part(run: Run) -> None:
    bundle = rendered(run, hosts("spares: 1\nhosts: [a, {name: b, procs: 1}, c]\nhead: b"))
    listing = json.loads((bundle / "hosts/hosts.json").read_text())
    assert ([host["name"] for host in listing["hosts"]], listing["spares"]) == (["b", "a", "c"], 1)
    assert (bundle / "hosts/c.sh").exists()
    shown = run("plan", "job.yaml", "--target", "hosts", "--json").out
    assert [node["host"] for node in json.loads(shown)["nodes"]] == ["b", "a"]
    assert (
        "spares       c, in place of a bad host" in run("plan", "job.yaml", "--target", "hosts").out
    )
    elastic = rendered(run, hosts("procs_per_node: 1\nnodes: 2..3\nspares: 1\nhosts: [a, b, c, d]"))
    assert json.loads((elastic / "hosts/hosts.json").read_text())["elastic"] == [2, 3]
    off = rendered(run, hosts("exclude_bad_nodes: false\nhosts: [a, b]"))
    assert json.loads((off / "hosts/hosts.json").read_text())["exclude_bad_nodes"] is False


def test_spares_that_nobody_would_use_get_a_warning(run: Run) -> None:
    Path("job.yaml").write_text(hosts("spares: 1\nexclude_bad_nodes: false\nhosts: [a, b]"))
    outcome = run("validate", "job.yaml")
    assert outcome.code == 0
    assert "targets.hosts.spares: has no effect with exclude_bad_nodes: false" in outcome.err


def test_the_scripts_of_a_hostile_spec_are_clean_bash(run: Run) -> None:
    bundle = rendered(
        run,
        GPT + "checkpoint: {dir: '$(touch x) `y`'}\ntargets:\n  hosts:\n    dir: \"it's $(here)\"\n"
        '    hosts: [{name: a.b-c, python: "/it\'s here/python", env: {X: "it\'s\\n$(x)\\\\"}}, b]\n',
    )
    for script in (bundle / "hosts").glob("*.sh"):
        check_bash(script.read_text())


def test_a_host_script_refuses_what_would_give_two_hosts_one_rank(run: Run) -> None:
    script = rendered(run, PAIR) / "hosts/laptop.sh"
    done = subprocess.run(
        ["bash", script, "--hosts=desk"], capture_output=True, text=True, timeout=30
    )
    assert done.returncode == 2
    assert "without laptop" in done.stderr


def test_activation_lines_do_not_take_the_drivers_words(run: Run) -> None:
    eats = "python:\n  activate: ['read -r word || true; echo ate:$word; exit 3']\n"
    bundle = rendered(run, GPT + eats + PAIR.removeprefix(GPT))
    done = subprocess.run(
        ["bash", str(bundle / "hosts/laptop.sh"), "--driven=t"],
        input="stop\n", capture_output=True, text=True, timeout=30,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (69, "ate:\n"), done.stderr


def test_a_script_has_the_same_size_for_any_number_of_hosts(run: Run) -> None:
    text = GPT.replace("global_batch_size: 16", "global_batch_size: 1600")

    def scripts(count: int) -> dict[str, str]:
        names = ", ".join(f"n{i}" for i in range(count))
        bundle = rendered(run, text + f"targets: {{hosts: {{hosts: [{names}]}}}}\n")
        assert len(list((bundle / "hosts").glob("n*.sh"))) == count
        return {name: (bundle / "hosts" / name).read_text() for name in ("run.sh", "n1.sh")}

    assert scripts(200) == scripts(2)


def test_the_scripts_of_an_example(golden: Callable[[str, str], None], run: Run) -> None:
    outcome = run("render", ROOT / "examples/elastic.yaml", "--target", "hosts", "-o", "bundle")
    assert outcome.code == 0, outcome.err
    for script in ("run", "node3"):
        golden(f"elastic.hosts.{script}.sh", Path(f"bundle/hosts/{script}.sh").read_text())
