"""A byte-level decoder transformer on any text.

Owns the model, the windows cut from the text and the loss. `text.py` owns the bytes of the text. Knows nothing of
processes: no shape, order or number here depends on them.
"""

from __future__ import annotations

import math
import os

import torch
from torch import nn
from torch.nn import functional

from train.base.console import say
from train.base.errors import TrainError
from train.workload import Context, Workload
from train.workloads import arguments
from train.workloads.text import Text, read_text

VOCABULARY = 256  # bytes: any text is its own token sequence, whatever its language or encoding


def build(
    context: Context,
    *,
    depth: int = 4,
    width: int = 128,
    heads: int = 4,
    seq_len: int = 128,
    dropout: float = 0.0,
    tie_weights: bool = True,
    text: str | None = None,
    max_bytes: int = 100_000_000,
    holdout: float = 0.01,
) -> Workload:
    """Predict the next byte of `text`; its last part, of size `holdout` (0 to 1), is kept for evaluation.

    `text` is a file or a folder, relative to the working directory. Without it, the source of Python's standard
    library is read. Reads at most `max_bytes` in both cases. Raises TrainError for an argument out of its range, and
    for text that is missing or too short.
    """
    arguments.whole_number("depth", depth)
    arguments.whole_number("width", width)
    arguments.whole_number("heads", heads)
    arguments.whole_number("seq_len", seq_len)
    arguments.probability("dropout", dropout)
    arguments.flag("tie_weights", tie_weights)
    arguments.whole_number("max_bytes", max_bytes)
    arguments.probability("holdout", holdout)
    if text is not None:
        arguments.text("text", text)
    if width % heads:
        raise TrainError(
            f"train.args.heads: a width of {width} cannot be shared out evenly to {heads} heads; "
            "make width a multiple of heads"
        )

    corpus = read_text(text, max_bytes)
    training, held_out = _split(corpus, seq_len, holdout)
    if context.rank == 0:
        # This line shows if two nodes, or a run and its resume, read different text.
        size, digest = f"{len(corpus.bytes):,} bytes", corpus.sha256[:16]
        say(f"gpt: {size} of text from {corpus.origin} (sha256 {digest}…)")
    return Workload(
        model=Transformer(depth, width, heads, seq_len, dropout, tie_weights),
        dataset=training,
        eval_dataset=held_out,
        loss=loss,
        metrics=metrics,
        unit="tokens",
        units_per_sample=seq_len,
        data_files=[text] if text is not None and os.path.isfile(os.path.expanduser(text)) else [],
        fingerprint=f"sha256:{corpus.sha256}",
    )


def _split(corpus: Text, seq_len: int, holdout: float) -> tuple[Windows, Windows | None]:
    """Split off the end of the text for evaluation, in one piece of at least one window.

    Scattered windows would lie within the training text, which would make them easier to predict.
    """
    size = len(corpus.bytes)
    held_out = max(math.ceil(size * holdout), seq_len + 1) if holdout else 0
    if size - held_out <= seq_len:
        raise TrainError(
            f"a text of {size} bytes ({corpus.origin}) is too short for windows of seq_len = "
            f"{seq_len} bytes, with holdout = {holdout:g} left over; give more text in "
            "train.args.text or a smaller seq_len"
        )
    training = Windows(corpus.bytes[: size - held_out], seq_len)
    return training, Windows(corpus.bytes[size - held_out :], seq_len) if held_out else None


class Windows:
    """Text cut into windows of seq_len + 1 bytes that overlap by one.

    So each byte except the first is predicted exactly once in an epoch (a rest shorter than a window
    is left out). A sample is uint8 [seq_len + 1], because bytes are cheaper to move to the device than int64.
    """

    def __init__(self, text: torch.Tensor, seq_len: int) -> None:
        self._windows = text.unfold(0, seq_len + 1, seq_len)  # a view: nothing is copied

    def __len__(self) -> int:
        return len(self._windows)

    def __getitem__(self, index: int) -> torch.Tensor:
        return self._windows[index]

    def batch(self, indices: list[int]) -> torch.Tensor:
        """Return uint8 [len(indices), seq_len + 1], gathered by one index operation."""
        return self._windows[torch.tensor(indices)]


class Transformer(nn.Module):
    """Bytes [b, t] (int64, t <= seq_len) -> logits [b, t, 256] for the byte after each."""

    def __init__(
        self, depth: int, width: int, heads: int, seq_len: int, dropout: float, tie_weights: bool
    ) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, width)
        self.position = nn.Parameter(torch.empty(seq_len, width))
        self.dropout = nn.Dropout(dropout)
        self.blocks = nn.ModuleList(Block(width, heads, dropout) for _ in range(depth))
        self.norm = nn.LayerNorm(width)
        # Tied weights are one parameter that is used twice and has only one name. So the checkpoint holds it once, and
        # every optimizer sees it once.
        self.head = None if tie_weights else nn.Linear(width, VOCABULARY, bias=False)
        self._initialise(depth)

    def _initialise(self, depth: int) -> None:
        """Draw weights from N(0, 0.02). Weights that write to the residual stream are divided by sqrt(2·depth),
        because the stream has 2·depth writers."""
        for name, parameter in self.named_parameters():
            if parameter.dim() < 2:
                continue  # layer norms begin as the identity
            writes_to_residual = name.endswith(("attention.out.weight", "mlp.down.weight"))
            scale = (2 * depth) ** -0.5 if writes_to_residual else 1.0
            nn.init.normal_(parameter, std=0.02 * scale)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.dropout(self.embedding(tokens) + self.position[: tokens.shape[1]])
        for block in self.blocks:
            x = block(x)
        x = self.norm(x)
        return functional.linear(
            x, self.embedding.weight if self.head is None else self.head.weight
        )


class Block(nn.Module):
    """A pre-norm block: the residual stream itself is never normalised, so gradients reach every depth."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(width)
        self.attention = Attention(width, heads)
        self.mlp_norm = nn.LayerNorm(width)
        self.mlp = MLP(width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.dropout(self.attention(self.attention_norm(x)))
        out: torch.Tensor = x + self.dropout(self.mlp(self.mlp_norm(x)))
        return out


class Attention(nn.Module):
    """Causal self-attention, [b, t, width] -> [b, t, width].

    Dropout is applied to the result, not to the attention weights. With dropout on the weights, torch would use a
    kernel that stores all t·t weights instead of the fused one.
    """

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, t, width = x.shape
        by_head = self.qkv(x).view(b, t, 3, self.heads, width // self.heads)
        q, k, v = by_head.permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        out: torch.Tensor = self.out(mixed.transpose(1, 2).reshape(b, t, width))
        return out


class MLP(nn.Module):
    """[b, t, width] -> [b, t, width] through four times the width."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.up = nn.Linear(width, 4 * width, bias=False)
        self.down = nn.Linear(4 * width, width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.down(functional.gelu(self.up(x)))
        return out


def loss(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
    """Return the mean cross-entropy of the next byte, in nats; `batch` is uint8 [b, seq_len + 1]."""
    windows = batch.long()
    logits = model(windows[:, :-1])
    return functional.cross_entropy(logits.flatten(0, 1).float(), windows[:, 1:].flatten())


def metrics(model: nn.Module, batch: torch.Tensor) -> dict[str, torch.Tensor]:
    """Return the loss, and `bits_per_byte`: the bits that a byte would take if this model compressed the text."""
    nats = loss(model, batch)
    return {"loss": nats, "bits_per_byte": nats / math.log(2)}
