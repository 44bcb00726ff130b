"""A line of a requirements file, as pip reads it. Pure.

Sources: PEP 508 for a package, and pip's documentation of the format for options and URLs.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable, Iterator, Sequence

from ddpgen.spec.fields import Refused, Text, did_you_mean, show
from ddpgen.spec.yamltree import Scalar

_NAME = r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?"
_EXTRAS = rf"( *\[ *({_NAME}( *, *{_NAME})*)? *\])?"
_VERSION = r"(===?|!=) *[A-Za-z0-9_.*+!-]+|([~<>]=|[<>]) *[A-Za-z0-9_.+!-]+"
_VERSIONS = rf"({_VERSION})( *, *({_VERSION}))*( *,)?"
_PACKAGE = rf"{_NAME}{_EXTRAS}( *({_VERSIONS}|\( *{_VERSIONS} *\)))?"
_URL = r"(git|hg|svn|bzr)\+(?![a-z]+:/*( |;|$))[^ ']+|(https?|file)://?[^ ']+"
_ARCHIVE = r"[^ '\"$;:-][^ '\"$;:]*\.(whl|zip|tar\.(gz|bz2|xz))"
_PATH = rf"{_ARCHIVE}|\.{{1,2}}|[A-Za-z0-9_.+-]*/[^ '\"$;]*"
_MARKERS = (
    "python_version", "python_full_version", "os_name", "sys_platform", "platform_machine", "platform_python_implementation",
    "platform_release", "platform_system", "platform_version", "implementation_name", "implementation_version", "extra",
)  # fmt: skip
# With the older names of some.
_VARIABLE = rf"{'|'.join(_MARKERS)}|extras|dependency_groups|python_implementation|(os|sys|platform)\.[a-z_]+"
_VALUE = rf"""({_VARIABLE}|'[^\0-\x1f'#]*'|"[^\0-\x1f"#]*")"""
_COMPARED = rf"(\( *)*{_VALUE} *([=!<>~]=|===|[<>]|(in|not +in)\b) *{_VALUE}( *\))*"
_MARKER = rf"( *; *{_COMPARED}( *(and|or)\b *{_COMPARED})*)?"
# A word, with "" around its spaces.
_WORD = r"(?![-=#])([^ '\"\0-\x1f]|\"[^'\"\0-\x1f]*\")+"
_FLAGS = "no-index|pre|prefer-binary|require-hashes"
_FILE = r"[^ '\"=#-][^ '\"]*"
_WITH_VALUE = (
    "editable|index-url|extra-index-url|find-links|no-binary|only-binary|trusted-host"
    "|use-feature|hash|config-settings|global-option"
)
# The last alternative takes other options, because pip may have more than those above.
_OPTION = (
    rf"(-[rc] *|--(requirement|constraint)(=| +)){_FILE}|(-[ife] *|--({_WITH_VALUE})(=| +)){_WORD}|--({_FLAGS})"
    rf"|--(?!(requirement|constraint|{_FLAGS}|{_WITH_VALUE})\b(?!-))[a-z][a-z-]*((=| +){_WORD})?"
)
_COMMENT = r"#[^\0-\x1f']*"
_REQUIREMENT = rf"({_PACKAGE}|{_NAME}{_EXTRAS} *@ *(?=[a-z+]+:|\$)[^ ']+|{_URL}|{_PATH}){_MARKER}"
# A path, or a line that begins with one.
_LOCAL = re.compile(rf"[^ ]*/|\.|{_ARCHIVE}")
_LINE = rf"({_REQUIREMENT}|{_OPTION})( +({_OPTION}))*( +{_COMMENT})?|{_COMMENT}"
# Options of pip's command line (pip 26), which no requirements file may have.
_COMMAND_LINE = (
    "abi|break-system-packages|cache-dir|cert|compile|debug|disable-pip-version-check|dry-run|force-reinstall"
    "|ignore-installed|ignore-requires-python|implementation|isolated|log|no-build-isolation|no-cache-dir|no-clean"
    "|no-color|no-compile|no-deps|no-input|platform|prefix|progress-bar|proxy|python|python-version|quiet|report"
    "|retries|root|src|target|timeout|upgrade|upgrade-strategy|user|verbose"
)
# An option behind a requirement that pip reads only on a line of its own.
_IGNORED = re.compile(
    r"(?!-)[^\"'#]*? (-[cefir]|--(?!(?:hash|config-settings|global-option)\b)[a-z-]+)"
)
# A name that Python imports, or a program → what pip calls it; "" for one that is not pip's.
_OTHER_NAMES = {
    "cudatoolkit": "", "cv2": "opencv-python-headless",
    "pil": "pillow", "python": "", "pytorch": "torch", "skimage": "scikit-image", "sklearn": "scikit-learn", "yaml": "pyyaml",
}  # fmt: skip
CONDA_REMEDY = "write a requirements file, or setup: [conda env update -f FILE]"
# A version as PEP 440 writes it, with more freedom in the order of its parts.
_PEP440 = r"v?([0-9]+!)?[0-9]+([._-]?([0-9]+(?![0-9])|[abcr]|rc|alpha|beta|pre|preview|post|rev|dev))*(\+[a-z0-9._-]+)?"
_EXACT = re.compile(r"(?<![=~!<>])==(?!=) *([A-Za-z0-9_.+!-]+)(?![A-Za-z0-9_.*+!-])")
_WHEEL = re.compile(r"(^|/)[^-/]+-[^-/]+(-[0-9][^-/]*)?-[^-/]+-[^-/]+-[^-/]+\.whl$")
# The text before a match is the requirement itself, without options, comment and marker.
_END = re.compile(r"(^| )(-|#)|;")
_ON_A_DISK = re.compile(
    rf"(?:-e *|--editable(?:=| +)|{_NAME}{_EXTRAS} *@ *)?(?:file:(?://(?:localhost)?)?)?(?P<path>~?/[^ '\"$;#\[]*)(?=[ ;#\[]|$)"
)
_BUILT_WITH_TORCH = re.compile(
    r"(flash[-_.]attn|mamba[-_.]ssm|causal[-_.]conv1d)(?![\w.-])"
    r"|[^;#]*/(Dao-AILab/(flash-attention|causal-conv1d)|state-spaces/mamba|NVIDIA/apex)(?![\w-])",
    re.IGNORECASE,
)
_READS_FILE = re.compile(
    r"(?:^| )(?:-[rc] *|--(?:requirement|constraint)(?:=| +))(?![A-Za-z]+://)([^ ]+)"
)


class Requirement(Text):
    """One line of a requirements file: a package, a URL or an option."""

    def __init__(self) -> None:
        super().__init__(_LINE, "one line of a requirements file, like torch==2.13.0 or -r FILE")

    def parse(self, raw: Scalar) -> str:
        if refused := fault(raw.text):
            raise refused
        return super().parse(raw)


def fault(text: str) -> Refused | None:
    """Return the refusal of a line that pip would refuse, or leave out. `text`: the line."""
    own = re.split(r" (?=-)| #", text)[0].strip()
    if text.startswith("- "):
        return Refused("begins with -, and pip leaves such a line out", "leave the - out")
    if refused := _usual_fault(text):
        return refused
    is_judged = not (own.startswith(("-", "#")) or "$" in own or _LOCAL.match(own))
    if is_judged and not re.fullmatch(_REQUIREMENT, own, re.ASCII):
        problem = f"{show(own)} is no line of a requirements file"
        return Refused(problem, "write one line for each package, like torch==2.13.0")
    return None


def _usual_fault(text: str) -> Refused | None:
    if re.match(r"(python3? -m )?pip3? +install\b", text):
        return Refused("is a command", "write what it installs alone, like torch==2.13.0")
    one_sign = rf"(?P<name>{_NAME}{_EXTRAS}) *[=@] *(?P<version>[0-9][^ =]*)(=[^ =]*)?"
    if single := re.fullmatch(one_sign, text):
        problem = f"{show(text)} has no == before its version"
        return Refused(problem, f"write {single['name']}=={single['version']}")
    if address := re.search(r"(?:^|[ =@])((?:git|hg|svn|bzr)\+(?![a-z]+:|\$)[^ ]*)", text):
        remedy = "write one like git+ssh://git@HOST/OWNER/NAME.git"
        return Refused(f"{show(address[1])} is no URL", remedy)
    if version := re.match(r"[^/:;]*; *[a-z_]+ *[=!<>~]+ *([0-9][0-9.]*)", text):
        return Refused(f"{version[1]} in a marker has no quotes", f"write '{version[1]}' there")
    on_command_line = rf"(?:[^\"'#]* )?(--(?:{_COMMAND_LINE})(?![a-z-])|(?<![^ ])-[ABD-Zbdhjkmnopqtuvxyz](?![^ ]))"
    if option := re.match(on_command_line, text):
        problem = f"{option[1]} is for pip's command line alone"
        return Refused(problem, "leave it out; the environment is the job's own")
    if (
        wheel := re.match(r"([^ '\"$;:-][^ '\"$;:]*\.whl)(?=[ ;\[]|$)", text)
    ) and not _WHEEL.search(wheel[1]):
        problem = f"{show(wheel[1])} is no name of a wheel"
        return Refused(problem, "write it as it was built: NAME-VERSION-PYTHON-ABI-PLATFORM.whl")
    others = r"(?:macosx|win)[_0-9][^-./ ]*"
    if build := re.search(rf"-({others}(?:\.{others})*)\.whl(?=[ \[#]|$)(?!.*;)", text):
        problem = f"{show(build[1])} is the platform of a wheel, and the machines run Linux"
        return Refused(problem, "write the wheel for Linux")
    if conda := re.match(r"(?:-r|--requirement)[ =]*([^ ]+\.ya?ml)(?=[ ;]|$)", text):
        problem = f"{conda[1]} is a file of conda, and pip reads lines like torch==2.13.0"
        return Refused(problem, CONDA_REMEDY)
    if weak := re.search(r"--hash[= ][\"']?(?!sha(?:256|384|512):|[\"'])([^ :\"']*)", text):
        return Refused(f"pip takes no {show(weak[1])} as a --hash", "write sha256:HASH")
    return _package_fault(text)


def _package_fault(text: str) -> Refused | None:
    if (name := package(text)) in _OTHER_NAMES and "@" not in text:
        problem = f"{show(name)} is no name of a package that pip installs"
        known = _OTHER_NAMES[name]
        return Refused(
            problem, f"write {known}" if known else "leave it out; image or setup brings it"
        )
    if note := re.match(r"[^@/:'\"$# -][^@/:'\"$#]*(?<! )(?=#)", text):
        problem = "has no space before #, and so the note is no comment"
        return Refused(problem, f"write {note[0]} # and the note")
    marker = text.partition(" ;" if "@" in text else ";")[2]
    marker = re.sub(r"'[^']*'|\"[^\"]*\"| +[#-].*", "", marker)
    for word in re.findall(r"[A-Za-z_][\w.]*", marker) if package(text) else ():
        if not re.fullmatch(rf"{_VARIABLE}|and|or|not|in", word):
            remedy = did_you_mean(word, _MARKERS, f"write '{word}', if it is a value")
            return Refused(f"{show(word)} is no variable of a marker", remedy)
    if marker.count("(") != marker.count(")"):
        return Refused("a marker has a bracket without its pair", "close each bracket")
    versions = [] if "$" in text else _EXACT.findall(_END.split(text)[0])
    for version in versions:
        if not re.fullmatch(_PEP440, version, re.IGNORECASE):
            remedy = "write one like ==2.13.0, or ==2.* for any that begins so"
            return Refused(f"{show(version)} is no version", remedy)
    if len(set(versions)) > 1:
        problem = f"{show(text)} asks for {' and '.join(versions[:2])} at once"
        return Refused(problem, "keep one of them")
    if versions and re.search(rf"!= *{re.escape(versions[0])}(?![\w.*+!-])", text):
        return Refused(f"{show(text)} asks for {versions[0]} and excludes it", "keep one of them")
    return None


def package(requirement: str) -> str:
    """Return the name of the package that the requirement installs; "" if it is an option, a URL or a path."""
    match = re.match(rf"{_NAME}(?=[^A-Za-z0-9._:/+-]|$)", requirement, re.ASCII)
    archive = re.fullmatch(rf"({_PATH}).*", requirement)
    return match[0].lower() if match and not archive else ""


def directory(requirement: str) -> str:
    """Return the relative directory that the requirement installs, or has pip look into; "" without one."""
    match = re.match(
        rf"(-[ef] *|--(editable|find-links)(=| +))?(?P<path>{_PATH}|(?<=-e )[\w.-]+)(?=[ ;\[]|$)",
        requirement,
    )
    path = re.split(r"[\[#]", match["path"])[0] if match else ""
    return "" if path.startswith(("-", "/")) or re.fullmatch(_ARCHIVE, path) else path


def absolute(requirement: str) -> str:
    """Return the absolute path that the requirement installs; "" without one."""
    match = _ON_A_DISK.match(requirement)
    return match["path"] if match else ""


def built_with_torch(requirement: str) -> bool:
    """True if the requirement is a package that pip builds from its source, which imports torch."""
    return bool(_BUILT_WITH_TORCH.match(requirement)) and not re.search(r"\.whl\b", requirement)


def pins(requirements: Iterable[str]) -> Iterator[tuple[int, str, str]]:
    """Yield the index, the package and the version of each requirement that means one version on every machine."""
    for i, requirement in enumerate(requirements):
        versions = [] if ";" in requirement else _EXACT.findall(_END.split(requirement)[0])
        if versions and (name := package(requirement)):
            yield i, re.sub("[-_.]+", "-", name), versions[0]


def floats(requirement: str) -> bool:
    """True if the requirement may mean another version next month."""
    wanted = _END.split(requirement)[0]
    return bool(package(requirement)) and "==" not in wanted and "@" not in wanted


def are_equal(version: str, other: str) -> bool:
    """True if pip may install one version for both: 2.13 is 2.13.0, and 2.13.0 may be 2.13.0+cu126."""
    builds = {each.partition("+")[2] for each in (version, other)} - {""}
    releases = {re.sub(r"(\.0)+$", "", each.partition("+")[0]) for each in (version, other)}
    return len(releases) == 1 and len(builds) < 2


def ignored_option(requirement: str) -> str:
    """Return the option behind the requirement that pip ignores there; "" without one."""
    option = _IGNORED.match(requirement)
    return option[1] if option else ""


def unknown_option(requirement: str) -> str:
    """Return the option at the beginning of the line, if pip 26 does not have it; "" otherwise."""
    known = (
        rf"requirement|constraint|all-releases|only-final|uploaded-prior-to|{_FLAGS}|{_WITH_VALUE}"
    )
    option = re.match(rf"--(?!({known})(?![a-z-]))[a-z-]+", requirement)
    return option[0] if option else ""


def names_index(requirement: str) -> bool:
    """True if pip may learn from the line where else packages are."""
    return bool(
        re.match(r"-[ifr]|--(extra-index-url|index-url|find-links|requirement)\b", requirement)
    )


def without_hash(requirements: Sequence[str]) -> Iterator[int]:
    """Yield the index of each package that lacks a hash. If one has a hash, pip asks for all of them."""
    hashed = any(re.search(r"(^--require-hashes| --hash)\b", each) for each in requirements)
    if hashed and not any(map(files_of, requirements)):
        for i, requirement in enumerate(requirements):
            if package(requirement) and not re.search(r" --hash\b|#sha\d+=", requirement):
                yield i


def may_bring_others(requirement: str) -> bool:
    """True if the requirement may install packages that it does not name, other than those that a named one needs."""
    option = re.match(r"-(?!r|e|-requirement|-editable)|#", requirement)
    return bool(files_of(requirement)) or not (package(requirement) or option)


def lines_of(content: str) -> Iterator[tuple[int, str]]:
    """Yield the number of each line of a requirements file, and its text without a comment. A \\ continues a line."""
    first = 0
    parts: list[str] = []
    for number, line in enumerate([*content.splitlines(), ""], 1):
        first = first if parts else number
        if line.endswith("\\") and not line.lstrip().startswith("#"):
            parts.append(line[:-1])
            continue
        text = "".join([*parts, line])
        parts = []
        if requirement := " ".join(re.sub(r"(^|\s)#.*", "", text).split()):
            yield first, requirement


def files_of(requirement: str, beside: str = "") -> list[str]:
    """Return the files of the job that the requirement has pip read.

    `beside`: the directory of the file with this line. An archive is looked for in the working directory all the same.
    """
    text = re.sub(rf"(^| ){_COMMENT}$", "", requirement)
    lists = _READS_FILE.findall(re.sub(r"([\"'])([^\"' ]*)\1", r"\2", text))
    files = [posixpath.join(beside, name) for name in lists if not re.search(r"[\"'$\0]", name)]
    if archive := re.match(rf"({_ARCHIVE})(?=[ ;\[]|$)", text):
        files.append(archive[1])
    return [posixpath.normpath(file) for file in files]
