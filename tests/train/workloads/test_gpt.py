"""The transformer: shapes, what each byte may see, how it begins, and that it learns real text."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

from tests.train.workloads.training import train
from train.base.errors import TrainError
from train.workload import Context
from train.workloads import gpt

TINY = {"depth": 2, "width": 16, "heads": 2, "seq_len": 8, "holdout": 0.1}


@pytest.fixture
def text(tmp_path: Path) -> str:
    path = tmp_path / "text"
    path.write_bytes(bytes(range(32, 132)) * 2)  # 200 bytes
    return str(path)


def logits(model: torch.nn.Module, tokens: list[int]) -> torch.Tensor:
    model.eval()
    with torch.no_grad():
        return model(torch.tensor([tokens]))[0]


def test_windows_predict_every_byte_but_the_first_exactly_once(context: Context, text: str) -> None:
    built = gpt.build(context, **TINY, text=text)
    whole = Path(text).read_bytes()
    predicted = b"".join(bytes(built.dataset[i][1:].tolist()) for i in range(len(built.dataset)))
    assert whole[1:180].startswith(predicted)
    assert 179 - len(predicted) < 8
    held_out = b"".join(bytes(window[1:].tolist()) for window in built.eval_dataset.batch([0, 1]))
    assert held_out == whole[181:197]
    assert (built.unit, built.units_per_sample) == ("tokens", 8)


def test_batch_is_what_the_single_samples_are(context: Context, text: str) -> None:
    dataset = gpt.build(context, **TINY, text=text).dataset
    batch = dataset.batch([5, 0, 5])
    assert torch.equal(batch, torch.stack([dataset[i] for i in (5, 0, 5)]))
    assert (batch.dtype, batch.shape) == (torch.uint8, (3, 9))


@pytest.mark.parametrize("tied", [True, False])
def test_no_byte_sees_a_later_one(context: Context, text: str, tied: bool) -> None:
    model = gpt.build(context, **TINY, text=text, tie_weights=tied).model
    before = logits(model, [1, 2, 3, 4, 5, 6, 7, 8])
    after = logits(model, [1, 2, 3, 4, 255, 6, 7, 8])
    assert torch.equal(before[:4], after[:4])
    assert not torch.isclose(before[4:], after[4:]).all(dim=1).any()


def test_attention_is_the_one_of_the_textbook(context: Context, text: str) -> None:
    attention = gpt.build(context, **TINY, text=text).model.blocks[0].attention
    x = torch.randn(3, 8, 16)
    q, k, v = (part.view(3, 8, 2, 8).transpose(1, 2) for part in attention.qkv(x).split(16, dim=2))
    scores = q @ k.transpose(2, 3) / math.sqrt(8)
    weights = scores.masked_fill(torch.ones(8, 8).triu(1).bool(), -math.inf).softmax(dim=3)
    expected = attention.out((weights @ v).transpose(1, 2).reshape(3, 8, 16))
    torch.testing.assert_close(attention(x), expected)


def test_tied_weights_are_one_parameter_and_one_entry_of_the_checkpoint(
    context: Context, text: str
) -> None:
    tied = gpt.build(context, **TINY, text=text, tie_weights=True).model
    free = gpt.build(context, **TINY, text=text, tie_weights=False).model
    assert set(free.state_dict()) - set(tied.state_dict()) == {"head.weight"}
    count = [sum(p.numel() for p in model.parameters()) for model in (tied, free)]
    assert count[1] - count[0] == 256 * 16


def test_residual_branches_begin_smaller_the_deeper_the_model(context: Context, text: str) -> None:
    model = gpt.build(context, text=text, depth=8, width=64, heads=2, seq_len=8).model
    for block in model.blocks:
        assert block.mlp.down.weight.std().item() == pytest.approx(0.02 / 4, rel=0.1)
        assert block.attention.out.weight.std().item() == pytest.approx(0.02 / 4, rel=0.1)
        assert block.mlp.up.weight.std().item() == pytest.approx(0.02, rel=0.1)


@pytest.mark.nightly
def test_it_learns_the_source_of_the_standard_library(context: Context) -> None:
    built = gpt.build(context, depth=2, width=64, heads=2, seq_len=64, holdout=0.001)
    found = train(built, steps=200, lr=4e-3, batch_size=16)
    assert found["loss"] < 3.0  # 5.5 at first; a table of how frequent each byte is has 3.2
    assert found["bits_per_byte"] == pytest.approx(found["loss"] / math.log(2))


def test_rank_0_says_what_it_reads(
    context_of, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for rank in (0, 1):
        gpt.build(context_of(rank=rank, world_size=2), **TINY, text=text)
    said = capsys.readouterr().err
    assert said.startswith(f"ddpgen: gpt: 200 bytes of text from {text!r} (sha256 ")
    assert said.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            {"width": 20, "heads": 3},
            "train.args.heads: a width of 20 cannot be shared ",
        ),
        ({"depth": 0}, "train.args.depth: is 0, but must be a whole number "),
        ({"holdout": 1.0}, "train.args.holdout: is 1.0, but must be at least 0 and below 1"),
        ({"max_bytes": 0}, "train.args.max_bytes: is 0, but must be a whole number"),
        ({"tie_weights": 1}, "train.args.tie_weights: is 1, but must be true "),
        ({"seq_len": 100}, "a text of 200 bytes ("),
        ({"holdout": 0.96}, "a text of 200 bytes ("),
        ({"text": 5}, "train.args.text: is 5, but must be a string "),
        ({"text": "no/such"}, "train.args.text: 'no/such' does not exist below "),
    ],
)
def test_argument_out_of_range(context: Context, text: str, arguments, message: str) -> None:
    with pytest.raises(TrainError) as error:
        gpt.build(context, **(TINY | {"text": text} | arguments))
    assert str(error.value).startswith(message)


def test_short_text_holds_out_one_window(context: Context, text: str) -> None:
    built = gpt.build(context, **(TINY | {"holdout": 0.001}), text=text)
    assert (len(built.dataset), len(built.eval_dataset)) == (23, 1)
