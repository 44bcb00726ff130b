"""Put the real spec and the real script into README.md, into the blocks that name their files.

`python tools/readme.py` rewrites README.md; `--check` fails if README.md is not current.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def current(text: str) -> str:
    """Return README's text with the current content in each `<!-- from FILE -->` block."""
    return re.sub(
        r"(<!-- from (\S+) -->\n```(\w+)\n).*?(```\n)",
        lambda m: m[1] + excerpt(m[2]) + m[4],
        text,
        flags=re.DOTALL,
    )


def excerpt(name: str) -> str:
    name, _, part = name.partition("#")
    text = (ROOT / name).read_text()
    if part and name.endswith(".sh"):
        return text[text.index(f"\n# --- {part}") + 1 :]
    if part:
        return text[text.index(f"\n{part}:") + 1 :]
    if name.endswith(".yaml"):
        return text[text.index("\nname:") + 1 :]  # without the introduction
    return text


def main() -> int:
    readme = ROOT / "README.md"
    text = readme.read_text()
    if "--check" in sys.argv:
        return int(current(text) != text)
    readme.write_text(current(text))
    return 0


if __name__ == "__main__":
    sys.exit(main())
