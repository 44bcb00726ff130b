"""The watch for a cloud's notice that it takes the machine back, against services that speak as theirs."""

from __future__ import annotations

import errno
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.train.metadata import AZURE_WHEN, FAULTS, WHEN, Metadata, azure_event, metadata
from train.launch import notice
from train.launch.notices import Cloud, clouds
from train.launch.notices.service import AbsentError, Service, ServiceError
from train.run.status import Status, write_status

ROOT = Path(__file__).parents[3]
TIMEOUT_S = 30.0
NAMES = tuple(clouds())
NOWHERE = "http://127.0.0.1:9"  # discard: nobody listens
WORDS = {
    "aws": f"aws takes this machine back at {WHEN}",
    "gcp": "gcp takes this machine back 30 s after TIME",
    "azure": f"azure takes this machine back at {AZURE_WHEN}",
}


def words(said: str) -> str:
    """What it says; the time at which gcp was asked is not known beforehand."""
    return re.sub(r"(30 s after|announced by) 20\S+Z", r"\1 TIME", said)


@pytest.fixture(params=NAMES)
def server(request: pytest.FixtureRequest) -> Iterator[Metadata]:
    with metadata(request.param) as served:
        yield served


@pytest.fixture
def aws() -> Iterator[Metadata]:
    with metadata("aws") as served:
        yield served


@pytest.fixture
def gcp() -> Iterator[Metadata]:
    with metadata("gcp") as served:
        yield served


@pytest.fixture
def azure() -> Iterator[Metadata]:
    with metadata("azure") as served:
        yield served


def client(server: Metadata, every: float = 1.0, name: str = "") -> Cloud:
    cloud: Any = clouds()[name or server.cloud](server.base, every)
    request = cloud._service.request

    def with_retries(
        path: str, headers: Any = None, method: str = "GET", timeout_s: float = 1.0
    ) -> Any:
        # Without a fault an answer does come; on a busy machine not within a second.
        return request(path, headers, method, timeout_s if server.fault else timeout_s + 30)

    cloud._service.request = with_retries
    return cloud


def test_every_cloud_says_nothing_until_it_takes_the_machine_back(server: Metadata) -> None:
    cloud = client(server)
    cloud.probe()
    assert [cloud.read_notice(), cloud.read_notice()] == ["", ""]
    server.preempt()
    assert words(cloud.read_notice()) == WORDS[server.cloud]


@pytest.mark.parametrize("fault", FAULTS)
def test_a_service_that_fails_is_not_there_gives_no_notice_and_is_heard_again_afterwards(
    server: Metadata, fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("train.launch.notices.azure._PATIENCE_S", 1.0)
    monkeypatch.setattr("train.launch.notices.gcp._SLACK_S", 0.2)
    server.fault = fault
    with pytest.raises(ServiceError):
        client(server).probe()
    server.fault = ""
    cloud = client(server)
    cloud.probe()
    assert cloud.read_notice() == ""
    server.preempt()
    server.fault = fault
    for _ in range(2):
        with pytest.raises(ServiceError):
            cloud.read_notice()
    server.fault = ""
    assert words(cloud.read_notice()) == WORDS[server.cloud]


def test_one_cloud_is_not_taken_for_another(server: Metadata) -> None:
    for name in set(NAMES) - {server.cloud}:
        with pytest.raises(AbsentError):
            client(server, name=name).probe()


def test_what_does_not_say_that_it_is_google_is_not_believed(gcp: Metadata) -> None:
    gcp.fault = "stranger"
    cloud = client(gcp)
    with pytest.raises(AbsentError):
        cloud.probe()
    with pytest.raises(ServiceError):
        cloud.read_notice()


def test_an_expired_token_is_renewed(aws: Metadata) -> None:
    cloud = client(aws)
    cloud.probe()
    assert cloud.read_notice() == ""
    aws.tokens.clear()
    assert cloud.read_notice() == ""
    assert aws.asked.count("/latest/api/token") == 2
    aws.tokens.clear()
    aws.preempt()
    assert words(cloud.read_notice()) == WORDS["aws"]


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        *(
            ({"action": each, "time": WHEN}, WORDS["aws"])
            for each in ("terminate", "stop", "hibernate")
        ),
        (
            {"action": "stop", "time": "\x1b[31msoon"},
            "aws takes this machine back at an unknown time",
        ),
        ({"action": "reboot", "time": WHEN}, None),
        ({}, None),
    ],
)
def test_only_an_action_that_aws_has_is_a_notice(
    aws: Metadata, answer: dict[str, str], said: str | None
) -> None:
    aws.action = answer
    if said is None:
        with pytest.raises(ServiceError):
            client(aws).read_notice()
    else:
        assert client(aws).read_notice() == said


@pytest.mark.parametrize(
    ("event", "said"),
    [
        ("NONE", ""),
        ("MIGRATE_ON_HOST_MAINTENANCE", ""),
        (
            "TERMINATE_ON_HOST_MAINTENANCE",
            "gcp takes this machine back for maintenance, announced by TIME",
        ),
    ],
)
def test_only_a_maintenance_that_ends_the_machine_is_a_notice(
    gcp: Metadata, event: str, said: str
) -> None:
    gcp.maintenance = event
    assert words(client(gcp).read_notice()) == said


def test_gcp_is_heard_at_once_whatever_the_period(gcp: Metadata) -> None:
    cloud = client(gcp, every=25.0)
    assert cloud.read_notice() == ""
    waiting = threading.Timer(0.5, gcp.preempt)
    waiting.start()
    began = time.monotonic()
    assert words(cloud.read_notice()) == WORDS["gcp"]
    assert time.monotonic() - began < 20, "not a period later"
    waiting.join()


@pytest.mark.parametrize(
    ("events", "said"),
    [
        ([azure_event("Preempt", "trainer_2"), azure_event("Preempt", "trainer_30")], ""),
        ([azure_event("Reboot"), azure_event("Freeze"), azure_event("Terminate")], ""),
        ([azure_event("Preempt", "other", "TRAINER_3")], WORDS["azure"]),
        ([azure_event(EventStatus="Started", NotBefore="")], "azure takes this machine back now"),
        (["Preempt", None, {"EventType": "Preempt"}, {"Resources": "trainer_3"}], ""),
    ],
    ids=["of others", "of other kinds", "of several", "begun", "misshapen"],
)
def test_only_a_preempt_event_that_names_this_machine_is_a_notice(
    azure: Metadata, events: list[Any], said: str
) -> None:
    azure.events = events
    assert words(client(azure).read_notice()) == said


def test_proxies_are_not_asked(server: Metadata, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, NOWHERE)
    server.preempt()
    assert words(client(server).read_notice()) == WORDS[server.cloud]


def test_a_service_that_is_slow_once_is_asked_again(
    server: Metadata, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.fault = "500"
    asked = Service.request

    def recovers(self: Service, *args: Any, **more: Any) -> Any:
        try:
            return asked(self, *args, **more)
        finally:
            server.fault = ""

    monkeypatch.setattr(Service, "request", recovers)
    assert notice._is_there(client(server))


# --- the watch, and the command of a pod's hook ---------------------------------------------------


@contextmanager
def running(*command: str | Path, **services: str) -> Iterator[subprocess.Popen[str]]:
    places = {f"DDPGEN_METADATA_{n.upper()}": services.get(n, NOWHERE) for n in NAMES}
    with subprocess.Popen(
        [sys.executable, *command], cwd=ROOT, env=os.environ | places, text=True,
        stdin=subprocess.PIPE, stderr=subprocess.PIPE,
    ) as process:  # fmt: skip
        yield process
        process.kill()


def end(process: subprocess.Popen[str]) -> tuple[int, str]:
    """Its exit code and what it said."""
    said = process.communicate(timeout=TIMEOUT_S)[1]
    return process.returncode, said


def until(reached: Callable[[], bool]) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while not reached():
        assert time.monotonic() < deadline
        time.sleep(0.01)


class Watch:
    """The watch over all clouds, by a thread as the supervisor has it."""

    def __init__(self, stop: Path, services: dict[str, str], patch: pytest.MonkeyPatch) -> None:
        for name in NAMES:
            patch.setenv(f"DDPGEN_METADATA_{name.upper()}", services.get(name, NOWHERE))
        self.lines: list[str] = []
        patch.setattr(notice, "say", self.lines.append)
        self._thread = threading.Thread(target=notice.watch, args=(stop, NAMES, 0.2), daemon=True)
        self._thread.start()

    def end(self) -> list[str]:
        """What it has said, but for answers that were late."""
        self._thread.join(TIMEOUT_S)
        assert not self._thread.is_alive()
        return [words(line) for line in self.lines if not line.endswith("asking on")]


Watching = Callable[..., Watch]


@pytest.fixture
def watching(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Watching:
    def watch(stop: Path = tmp_path / "stop", **services: str) -> Watch:
        return Watch(stop, services, monkeypatch)

    return watch


def test_a_notice_becomes_a_stop_file(server: Metadata, tmp_path: Path, watching: Watching) -> None:
    watch = watching(**{server.cloud: server.base})
    until(lambda: any("scheduledevents" in p or "inst" in p for p in server.asked))
    assert not (tmp_path / "stop").exists()
    server.preempt()
    line = f"preempted: {WORDS[server.cloud]}"
    assert watch.end() == [f"{line}; asking for a clean stop"]
    assert words((tmp_path / "stop").read_text()) == f"{line}\n"
    assert os.listdir(tmp_path) == ["stop"]


def test_where_no_cloud_is_it_ends_quietly(tmp_path: Path, watching: Watching) -> None:
    (line,) = watching().end()
    assert line.startswith("no aws or gcp or azure here ")
    assert not (tmp_path / "stop").exists()


@pytest.mark.parametrize("there", ["", "user: enough\n"])
def test_a_directory_is_waited_for_and_what_the_user_has_asked_for_stays(
    aws: Metadata, tmp_path: Path, watching: Watching, there: str
) -> None:
    stop = tmp_path / "job" / "stop"
    aws.preempt()
    watch = watching(stop, aws=aws.base)
    until(lambda: any("cannot create" in line for line in watch.lines))
    (tmp_path / "draft").mkdir()
    if there:
        (tmp_path / "draft" / "stop").write_text(there)
    (tmp_path / "draft").rename(stop.parent)
    told = "a stop was asked for already (user: enough)" if there else "asking for a clean stop"
    assert told in watch.end()[-1]
    assert stop.read_text() == (there or f"preempted: {WORDS['aws']}\n")


def test_a_service_that_goes_away_is_told_once_and_watched_on(
    server: Metadata, tmp_path: Path, watching: Watching
) -> None:
    watch = watching(**{server.cloud: server.base})
    until(lambda: len(server.asked) >= 4)
    server.fault = "500"
    until(lambda: bool(watch.lines))
    failed = len(server.asked)
    until(lambda: len(server.asked) >= failed + 5)
    server.preempt()
    assert not (tmp_path / "stop").exists()
    server.fault = ""
    watch.end()
    (told,) = (line for line in watch.lines if line.endswith("asking on"))
    assert told.startswith(f"{server.cloud} does not say ")
    assert words((tmp_path / "stop").read_text()) == f"preempted: {WORDS[server.cloud]}\n"


WATCH = """
import sys
from pathlib import Path
from threading import Thread
from train.launch import notice
Thread(target=notice.watch, args=(Path(sys.argv[1]), ("aws",), 0.2), daemon=True).start()
sys.stdin.read()
"""


def test_a_watch_that_waits_for_an_answer_holds_up_no_end(aws: Metadata, tmp_path: Path) -> None:
    aws.fault = "hang"
    with running("-c", WATCH, tmp_path / "stop", aws=aws.base) as process:
        until(lambda: bool(aws.asked))
        assert end(process) == (0, "")  # which closes its standard input


def test_without_hard_links_the_file_comes_with_its_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(*args: Any) -> None:
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)
    assert notice._request_stop(tmp_path / "stop", "preempted: x")
    assert (tmp_path / "stop").read_text() == "preempted: x\n"
    assert notice._request_stop(tmp_path / "stop", "preempted: y")
    assert (tmp_path / "stop").read_text() == "preempted: x\n"
    assert "asked for already (preempted: x)" in capsys.readouterr().err
    assert os.listdir(tmp_path) == ["stop"]


HOOK = ("-m", "train", "notice")


def test_a_hook_waits_until_all_of_the_job_on_this_machine_has_ended(tmp_path: Path) -> None:
    node = tmp_path / "nodes" / "a"
    node.mkdir(parents=True)
    for place in (tmp_path, node):
        write_status(place, Status("running", "x", 4))
    with running(*HOOK, f"--stop-file={tmp_path}/stop", "--wait=30s") as process:
        assert process.stderr is not None
        assert "asking for " in process.stderr.readline()
        text = (tmp_path / "stop").read_text()
        assert text == "preempted: kubernetes takes this machine back\n"
        write_status(tmp_path, Status("stopped", "x", 5))
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(1.0)
        write_status(node, Status("stopped", "x", 5))
        assert end(process) == (0, "")


def test_a_hook_does_not_wait_for_ever_and_not_at_all_without_a_job(tmp_path: Path) -> None:
    write_status(tmp_path, Status("running", "x", 4))
    began = time.monotonic()
    with running(*HOOK, f"--stop-file={tmp_path}/stop", "--wait=1s") as process:
        code, said = end(process)
    assert code == 1
    assert "still runs after 1 s" in said
    assert time.monotonic() - began < 40
    with running(*HOOK, f"--stop-file={tmp_path}/none/stop") as process:
        code, said = end(process)
    assert (code, said.count("\n")) == (0, 1)
    assert f"nothing to stop: {tmp_path / 'none'} " in said
