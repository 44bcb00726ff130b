"""`sky launch --dryrun` of what we render: the machines that SkyPilot's optimizer takes, and at what price.

The whole way, with a server of SkyPilot's and AWS's own protocol; only that AWS is moto.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.sky import files
from tests.sky.cloud import Chosen, Cloud, table

pytestmark = [pytest.mark.real, pytest.mark.nightly, pytest.mark.timeout(600)]

# The list in tests/sky/catalogs sells no L4:8 as spot, and moto knows this image.
NOT_AS_SPOT: dict[str, Any] = {"accelerators": "L4:8", "gpus_per_node": 8}
IMAGE = "ami-1e749f67"


@pytest.fixture(scope="module")
def cloud(sky_possible: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cloud]:
    with Cloud(tmp_path_factory.mktemp("cloud")).up() as cloud:
        cloud.make_bucket("my-checkpoints")
        yield cloud


def dryrun(cloud: Cloud, place: Path, wanted: dict[str, Any]) -> tuple[int, str]:
    """What `sky launch --dryrun` ends with and says, typed in the bundle."""
    files.laid_out(place, wanted)
    secrets = wanted["targets"]["sky"].get("secrets", [])
    given = [word for name in secrets for word in ("--secret", f"{name}=x")]
    done = cloud.sky("launch", "--dryrun", "-y", *given, "sky.yaml", cwd=place)
    return done.returncode, done.stdout


def test_the_gpu_example_takes_the_cheapest_of_its_kinds_as_spot(
    cloud: Cloud, tmp_path: Path
) -> None:
    code, said = dryrun(cloud, tmp_path, example("spot"))
    assert code == 0, said
    assert "Considered resources (2 nodes)" in said
    # 16 GPUs: two machines at the lowest price in the list, where each kind is cheapest.
    assert table(said) == [
        Chosen("AWS (us-west-2b)", "p4d.24xlarge[Spot]", "A100:8", 2 * 8.1, True),
        Chosen("AWS (us-east-1b)", "p5.48xlarge[Spot]", "H100:8", 2 * 30.0, False),
    ]
    assert "sky jobs launch" in said  # it says itself that nothing comes back by this command


def test_the_cpu_example_pays_the_full_price_only_where_there_is_no_spot_machine(
    cloud: Cloud, tmp_path: Path
) -> None:
    code, said = dryrun(cloud, tmp_path / "example", example("spot_cpu"))
    assert code == 0, said
    assert table(said) == [
        Chosen("AWS (us-east-1b)", "m6i.xlarge[Spot]", "-", 2 * 0.08, True),
        Chosen("AWS (us-east-1)", "m6i.xlarge", "-", 0.38, False),
    ]
    tier = {**NOT_AS_SPOT, "on_demand_fallback": True}
    code, said = dryrun(cloud, tmp_path / "fallback", files.spec(tier=tier))
    assert code == 0, said
    assert table(said) == [Chosen("AWS (us-east-1)", "g6.48xlarge", "L4:8", 13.35, True)]


def test_without_fallback_nobody_pays_the_full_price(cloud: Cloud, tmp_path: Path) -> None:
    code, said = dryrun(cloud, tmp_path, files.spec(tier=NOT_AS_SPOT))
    assert code == 1
    assert table(said) == []
    assert "ResourcesUnavailableError" in said


def test_places_image_and_order_are_what_the_optimizer_keeps_to(
    cloud: Cloud, tmp_path: Path
) -> None:
    tier = {
        "accelerators": "A10G:4",
        "gpus_per_node": 4,
        "infra": ["aws/us-west-2", "aws/us-east-1"],
        "ordered": True,
        "image": IMAGE,
        "disk_size": 300,
    }
    code, said = dryrun(cloud, tmp_path, files.spec(tier=tier))
    assert code == 0, said
    (chosen,) = [each for each in table(said) if each.chosen]
    # Dearer than us-east-1, which is only the second choice.
    assert chosen == Chosen("AWS (us-west-2b)", "g5.12xlarge[Spot]", "A10G:4", 2.3, True)


def test_a_bucket_that_does_not_exist_is_named_before_anything_is_paid(
    cloud: Cloud, tmp_path: Path
) -> None:
    wanted = files.spec(tier={"bucket": "s3://not-there", "infra": "aws"})
    code, said = dryrun(cloud, tmp_path, wanted)
    assert code == 1
    assert "Attempted to use a non-existent bucket as a source: s3://not-there." in said


def example(name: str) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((files.ROOT / "examples" / f"{name}.yaml").read_text())
    return found
