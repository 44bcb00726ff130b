"""What editors and readers are told about a spec is what the reader enforces."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Callable, Iterable, Iterator
from dataclasses import Field, fields
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from hypothesis import given

from ddpgen.errors import SpecInvalidError
from ddpgen.spec.fields import REQUIRED
from ddpgen.spec.groups import Group, Groups
from ddpgen.spec.job import JobSpec, Python
from ddpgen.spec.merge import LAYERS
from ddpgen.spec.schema import Layers, default_of, descriptions, json_schema
from ddpgen.tiers.registry import MODELS, read
from tests.ddpgen import drawn
from tests.ddpgen.conftest import GPT, ROOT, TOLD_OF, Run

REFERENCE = (ROOT / "docs" / "spec.md").read_text(encoding="utf-8")
SAID = descriptions(REFERENCE)
SCHEMA = json_schema(REFERENCE, MODELS)
VALIDATOR = jsonschema.Draft202012Validator(SCHEMA)
EXAMPLES = sorted((ROOT / "examples").glob("*.yaml"))


def keep(path: Path, text: str, update: bool) -> None:
    """Compare a generated file with the one that is checked in."""
    if update:
        path.write_text(text, encoding="utf-8")
    assert path.read_text(encoding="utf-8") == text, f"{path} is out of date; make golden"


def test_the_checked_in_schema_is_current(run: Run, update_golden: bool) -> None:
    outcome = run("schema")
    keep(ROOT / "examples" / "ddpgen.schema.json", outcome.out, update_golden)


def test_the_reference_is_current(update_golden: bool) -> None:
    keep(ROOT / "docs" / "spec.md", with_entries(REFERENCE), update_golden)


def with_entries(page: str) -> str:
    """Return the page with the entries below each heading written again, from the fields that the heading names."""
    lists = dict(entries_by_heading())
    parts = re.split(r"^## (.+)\n", page, flags=re.MULTILINE)
    for i in range(1, len(parts), 2):
        if entries := lists.pop(parts[i], ""):
            parts[i + 1] = ENTRIES.sub(lambda _, new=entries: new, parts[i + 1], count=1)
        parts[i] = f"## {parts[i]}\n"
    assert not lists, "write a section with `- **` for each of these into docs/spec.md"
    return "".join(parts).rstrip() + "\n"


# All entries of a section. One of a new section may still be empty.
ENTRIES = re.compile(r"(- \*\*[^\n]*\n\n( {4}[^\n]+\n)*\n?)+")


def entries_by_heading() -> Iterator[tuple[str, str]]:
    """Yield heading and entries: of the job, of its groups, and of the fields that each tier adds."""
    job = Group(JobSpec).fields
    yield "Shared parts", entries_of(fields(Layers), "", "")
    yield "The job", entries_of(job, "", "")
    yield from of_groups(job, "", "")
    for tier, model in MODELS.items():
        own = [field for field in Group(model).fields if field not in job]
        if not own:
            continue
        yield f"`targets.{tier}`", entries_of(own, f"targets.{tier}.", "")
        yield from of_groups(own, f"targets.{tier}.", "")


def of_groups(declared: Iterable[Field[Any]], place: str, prefix: str) -> Iterator[tuple[str, str]]:
    for field in declared:
        kind, name = field.metadata["kind"], prefix + field.name
        if isinstance(kind, Groups):
            kind, name = kind.group, f"{name}[]"
        if isinstance(kind, Group) and not (place and kind.model is Python):
            inner = fields(kind.model)  # type: ignore[arg-type]
            yield f"`{place}{name}`", entries_of(inner, place, f"{name}.")
            yield from of_groups(inner, place, f"{name}.")


def entries_of(declared: Iterable[Field[Any]], place: str, prefix: str) -> str:
    """Return a list: of each field the values and the default as declared, and the page's description.

    A list and no table, because a table of four columns cannot be read on a phone.
    """
    entries = []
    for field in declared:
        kind, default, path = field.metadata["kind"], default_of(field), prefix + field.name
        head = [f"- **`{path}`**", kind.allowed.replace("*", "\\*")]
        if field.default is REQUIRED:
            head.append("**required**")
        elif isinstance(default, list):
            head.append(f"default `[{', '.join(default)}]`")
        elif default is not None:
            written = str(default).lower() if isinstance(default, bool) else default
            head.append(f"default `{written}`")
        text = textwrap.fill(
            SAID.get(place + path, "?"), 120, initial_indent="    ", subsequent_indent="    ",
            break_long_words=False, break_on_hyphens=False,
        )  # fmt: skip
        entries.append(f"{' · '.join(head)}\n\n{text}\n")
    return "\n".join(entries) + "\n"


def test_the_reader_knows_the_layers_that_the_schema_has() -> None:
    assert {field.name for field in fields(Layers)} == set(LAYERS)


def test_the_schema_is_a_sound_one() -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)


def test_the_page_describes_every_field_in_a_sentence() -> None:
    bare = {path for path, text in described(SCHEMA) if not re.fullmatch(r".{10,}\.", text)}
    assert not bare, "write a sentence into their entries in docs/spec.md"


def described(schema: dict[str, Any], place: str = "") -> Iterator[tuple[str, str]]:
    """Every field as an editor finds it, and what the editor shows of it."""
    if schema.get("additionalProperties") is False:
        for name, each in schema["properties"].items():
            if "$ref" in each:
                assert each == {"$ref": f"#/properties/{name}"}
                each = SCHEMA["properties"][name]
            yield place + name, each["description"]
            yield from described(each, f"{place}{name}.")
    parts = [*schema.get("anyOf", ()), *([schema["items"]] if "items" in schema else ())]
    for part in parts:
        yield from described(part, place)


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_examples_name_their_schema_fit_it_and_validate(
    example: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = example.read_text()
    assert text.startswith("# yaml-language-server: $schema=ddpgen.schema.json\n")
    VALIDATOR.validate(as_editors_read(text))
    monkeypatch.chdir(ROOT)
    tiers = ", ".join(["local", *(t for t in ("hosts", "slurm", "sky") if f"\n  {t}:" in text)])
    done = run("validate", example)
    assert done[:2] == (0, f"{example}: valid for {tiers}\n")
    assert done.err == "" or example.stem in TOLD_OF


def as_editors_read(text: str) -> Any:
    """Editors read YAML 1.2, where 1e-3 is a number."""
    loaded = yaml.safe_load(text)
    if isinstance(loaded["train"].get("lr"), str):
        loaded["train"]["lr"] = float(loaded["train"]["lr"])
    return loaded


# A value for each field that its group cannot be without.
NEEDED = {
    "name": "a", "train": {}, "patience": 3, "steps": "2..3", "url": "s3://b", "image": "i", "count": 1,
}  # fmt: skip
Place = Callable[[dict[str, Any]], dict[str, Any]]


def at_the_top(entries: dict[str, Any]) -> dict[str, Any]:
    sound, train = yaml.safe_load(GPT), entries.get("train", {})
    return {
        **sound,
        **entries,
        "train": {**sound["train"], **train} if isinstance(train, dict) else train,
    }


def in_the_overlay(tier: str) -> Place:
    return lambda entries: {**yaml.safe_load(GPT), "targets": {tier: entries}}


def with_one_wrong(group: Group, place: Place, path: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Specs with one wrong value or key, one for each field below `group`. `place` makes a spec of the group's entries."""
    needed = {field.name: NEEDED[field.name] for field in group.fields if field.default is REQUIRED}
    VALIDATOR.validate(place(needed))
    yield f"{path}no_such", place({**needed, "no_such": 1})
    for field in group.fields:
        kind, here = group.field_kinds[field.name], path + field.name

        def put(value: Any, name: str = field.name) -> dict[str, Any]:
            return place({**needed, name: value})

        yield here, put([[1]])
        if not field.metadata["null"]:
            yield here, put(None)
        if isinstance(kind, Group):
            yield from with_one_wrong(kind, put, f"{here}.")
        elif isinstance(kind, Groups):
            items = lambda item, put=put: put([item])  # noqa: E731
            yield from with_one_wrong(kind.group, items, f"{here}[0].")


@pytest.mark.parametrize("tier", ["", *MODELS])
def test_what_no_field_takes_is_refused_by_the_schema_and_by_the_reader_at_that_field(
    tier: str,
) -> None:
    group, place = Group(MODELS.get(tier, JobSpec)), in_the_overlay(tier) if tier else at_the_top
    for path, spec in with_one_wrong(group, place, f"targets.{tier}." if tier else ""):
        assert not VALIDATOR.is_valid(spec), path
        with pytest.raises(SpecInvalidError) as caught:
            read(yaml.safe_dump(spec).encode(), "job.yaml")
        assert any(finding.path.startswith(path) for finding in caught.value.findings), path


@pytest.mark.parametrize(
    "line",
    [
        "nods: 1", "nodes: two", "nodes: 0", "backend: mpi", "checkpoint: {every: 5}", "targets: {slrm: {}}",
        "env: {A-B: 1}", "  lr: 0", "  early_stop: {}", "  profile: {}", "rendezvous: {timeout: 10}",
        "targets: {slurm: {time: 90}}", "targets: {slurm: {environment: {container: {runtime: pyxis}}}}",
        "targets: {sky: {bucket: {mode: cached}}}", "targets: {hosts: {hosts: [{nic: eth0}]}}",
    ],
)  # fmt: skip
def test_the_schema_refuses_what_the_reader_refuses(line: str) -> None:
    with pytest.raises(jsonschema.ValidationError):
        VALIDATOR.validate(yaml.safe_load(GPT + line))
    with pytest.raises(SpecInvalidError):
        read((GPT + line).encode(), "job.yaml")


@pytest.mark.parametrize(
    "line",
    [
        "preflight: false", "preflight: off", "preflight: {enabled: off}", "env: {A: 1}", "code: [7]",
        "checkpoint: {keep: 1_000, shared: yes}", "targets: {local: }", "targets: ",
        "targets: {slurm: {account: 1234, mem: 4000, nodelist: 17, environment: {container: {image: 1, runtime: pyxis}}}}",
        "targets: {sky: {cpus: 8, memory: 64, bucket: s3://bucket}}", "targets: {hosts: {hosts: [1, {name: 2}]}}",
        "  eval_every: 9 steps\n  best: loss\n  early_stop: {patience: 3}\ntargets: {local: {train: {early_stop: {min_delta: 1}}}}",
        "  eval_every: 9 steps\n  best: loss\n  early_stop: {min_delta: 1}\ntargets: {local: {train: {early_stop: {patience: 3}}}}",
    ],
)  # fmt: skip
def test_the_schema_takes_what_the_reader_takes(line: str) -> None:
    assert "local" in read((GPT + line).encode(), "job.yaml")
    VALIDATOR.validate(in_an_editor(GPT + line))


def in_an_editor(text: str) -> Any:
    """As YAML 1.2 has it: `off`, `yes` and 1_000 are texts there."""

    class Editor(yaml.SafeLoader):
        yaml_implicit_resolvers = {  # noqa: RUF012
            first: [
                (tag, form) for tag, form in known if tag.rpartition(":")[2] not in ("bool", "int")
            ]
            for first, known in yaml.SafeLoader.yaml_implicit_resolvers.items()
        }

    Editor.add_implicit_resolver("tag:yaml.org,2002:bool", re.compile("(true|false)$"), list("tf"))
    number = re.compile("[-+]?[0-9]+$")
    Editor.add_implicit_resolver("tag:yaml.org,2002:int", number, list("-+0123456789"))
    return yaml.load(text, Editor)


def test_the_schema_takes_a_spec_whose_job_is_in_an_overlay() -> None:
    spec = {"targets": {"local": yaml.safe_load(GPT)}}
    assert read(yaml.safe_dump(spec).encode(), "job.yaml")
    VALIDATOR.validate(spec)
    assert not VALIDATOR.is_valid({"name": "gpt"})


@pytest.mark.parametrize("layer", [{"targets": None}, {"extends": "a.yaml"}, {"profile": "lab"}])
def test_the_schema_takes_a_part_of_a_spec(layer: dict[str, Any]) -> None:
    VALIDATOR.validate({"restarts": 10, **layer})
    assert not VALIDATOR.is_valid({"restart": 10, **layer})


@pytest.mark.slow
@given(drawn.job(yaml.safe_load(GPT)))
def test_the_schema_takes_any_spec_that_the_reader_takes(spec: dict[str, Any]) -> None:
    raw = yaml.safe_dump(spec, allow_unicode=True).encode("utf-8", "surrogatepass")
    try:
        read(raw, "job.yaml")
    except SpecInvalidError:
        return
    VALIDATOR.validate(spec)
