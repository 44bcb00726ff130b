"""`make pictures`: docs/recording.svg, a terminal in which a killed worker starts again and the weights stay the same.

Two real runs of examples/gpt.yaml with fewer steps: one loses a worker by `kill -9`, the other is undisturbed. Takes a
few minutes; needs Linux. The picture shows the lines that tell the story, and `…` for the others.
"""

from __future__ import annotations

import codecs
import io
import os
import pty
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from rich.console import CONSOLE_SVG_FORMAT, Console
from rich.text import Text

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tests.real.jobs import ROOT, children

PICTURE = ROOT / "docs/recording.svg"
STEPS, KILL_AT = 120, 80  # a checkpoint every 50 steps: 30 steps are repeated
COLUMNS = 68  # so few that a phone can show them
SHOWN = re.compile(
    r"ddpgen: (restart|resuming|done at step .*results)|ddpgen rank \d: rank|step +\d"
)
# rich's form loads a font from elsewhere. Without it, the reader's own fixed-width font fits, because each text of the
# picture has its length.
FORM = re.sub(r"@font-face \{\{.*?\}\}\n", "", CONSOLE_SVG_FORMAT, flags=re.DOTALL)
FORM = FORM.replace(' clip-path="url(#{unique_id}-clip-terminal)"', "")  # it cuts the last line


class Screen:
    """The lines of the picture, each with the time since the beginning."""

    def __init__(self, directory: str) -> None:
        self._console = Console(
            file=io.StringIO(), record=True, width=COLUMNS, force_terminal=True, color_system="256"
        )
        self._directory = f"{directory}/"
        self._began = time.monotonic()
        self._left_out = False

    def typed(self, command: str, comment: str = "") -> None:
        note = f"  # {comment}" if comment else ""
        self.add(Text.assemble(("$ ", "green"), (command, "bold"), (note, "cyan")))

    def printed(self, line: str) -> None:
        """Add a line of output as the terminal shows it in the end, or `…` for lines that are left out."""
        line = line.rstrip("\r").rpartition("\r\x1b[2K")[2].replace(self._directory, "")
        if SHOWN.match(line):
            self.add(Text(line.replace(f" on {socket.gethostname()} ", " on desk ")))
        elif line and not self._left_out:
            self.add(Text("…"))
            self._left_out = True

    def add(self, line: Text) -> None:
        minutes, seconds = divmod(int(time.monotonic() - self._began), 60)
        clock = f"{minutes}:{seconds:02}"
        if line.plain.startswith("step"):
            line.truncate(COLUMNS - 5, overflow="ellipsis")
        for part in line.wrap(self._console, COLUMNS - 5):
            self._console.print(Text.assemble((f"{clock:5}", "bright_black"), part))
            clock = ""
        self._left_out = False

    def save(self, path: Path) -> None:
        picture = self._console.export_svg(title="", code_format=FORM, unique_id="recording")
        path.write_text("".join(f"{line.rstrip()}\n" for line in picture.strip().splitlines()))


def main() -> None:
    with tempfile.TemporaryDirectory() as place:
        spec = (ROOT / "examples/gpt.yaml").read_text().replace("steps: 400", f"steps: {STEPS}")
        for name in ("gpt", "calm"):
            Path(place, f"{name}.yaml").write_text(spec.replace("name: gpt", f"name: {name}"))
        screen = Screen(os.path.realpath(place))
        launch(screen, place, "gpt", kill_at=KILL_AT)
        launch(screen, place, "calm", "undisturbed")
        command = f"sha256sum build/checkpoints/*/*{STEPS}/model.pt | cut -c1-12,65-"
        screen.typed(command)
        lines = subprocess.check_output(command, shell=True, cwd=place, text=True).splitlines()
        for line in lines:
            screen.add(Text(line))
    if len(lines) != 2 or len({line.split()[0] for line in lines}) != 1:
        sys.exit("\n".join(["the weights are not the same:", *lines]))
    screen.save(PICTURE)


def launch(
    screen: Screen, directory: str, name: str, comment: str = "", kill_at: int | None = None
) -> None:
    """Run the job in a terminal of its own, and kill its second worker at step `kill_at`."""
    screen.typed(f"ddpgen launch {name}.yaml --target local", comment)
    reader, terminal = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "ddpgen", "launch", f"{name}.yaml", "--target", "local"],
        cwd=directory, env={**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "100"},
        stdin=subprocess.DEVNULL, stdout=terminal, stderr=terminal,
    )  # fmt: skip
    os.close(terminal)
    line = ""
    for text in read(reader):
        *lines, line = (line + text).split("\n")
        for complete in lines:
            screen.printed(complete)
        steps = re.findall(r"step +(\d+)/", line)
        if kill_at and steps and int(steps[-1]) >= kill_at:
            screen.printed(line)
            agent = children(process.pid)[0]
            worker = children(agent)[1]
            screen.typed(f"kill -9 {worker}", "a worker, from another terminal")
            os.kill(worker, signal.SIGKILL)
            line, kill_at = "", None
    if process.wait() or kill_at:
        sys.exit(f"{name} ended in another way, with exit code {process.returncode}")


def read(reader: int) -> Iterator[str]:
    """Yield the text that comes out of a terminal, until its last program has ended."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    try:
        while data := os.read(reader, 4096):
            yield decoder.decode(data)
    except OSError:  # Linux raises it at the terminal's end
        pass
    finally:
        os.close(reader)


if __name__ == "__main__":
    main()
