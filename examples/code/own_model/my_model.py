"""Guess the language of a word from its letters: a model of your own, in the form ddpgen trains.

Copy this file, put your model and data in it, and name it in the spec:

    code: [my_model.py, words.txt]
    train:
      workload: my_model.py:build
      args: {width: 48}
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn
from torch.nn import functional
from torch.nn.utils.rnn import pad_sequence

from train.workload import Context, Workload

HELD_OUT_EVERY = 5  # each fifth word is kept for evaluation


def build(context: Context, *, width: int = 48, dropout: float = 0.2) -> Workload:
    """The arguments after `context` are the ones a spec may give in `train.args`."""
    languages, words = read_words(Path(__file__).with_name("words.txt"))
    return Workload(
        model=Reader(width, len(languages), dropout),
        dataset=Words([word for i, word in enumerate(words) if i % HELD_OUT_EVERY]),
        eval_dataset=Words(words[::HELD_OUT_EVERY]),
        collate=collate,
        loss=loss,
        metrics=metrics,
        finish=finish,
        optimizer=optimizer,
        unit="words",
    )


def read_words(path: Path) -> tuple[list[str], list[tuple[str, int]]]:
    """The languages, and every word with the number of its language."""
    lines = path.read_text(encoding="utf-8").splitlines()
    languages = [line.split(":")[0] for line in lines]
    words = [(word, i) for i, line in enumerate(lines) for word in line.split(":")[1].split()]
    return languages, words


class Words:
    """A dataset is anything with len() and [index]; [index] must depend on the index alone."""

    def __init__(self, words: list[tuple[str, int]]) -> None:
        self.letters = [torch.tensor(list(word.encode())) for word, _ in words]
        self.languages = [language for _, language in words]

    def __len__(self) -> int:
        return len(self.letters)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return self.letters[index], self.languages[index]


def collate(samples: list[tuple[torch.Tensor, int]]) -> tuple[torch.Tensor, ...]:
    """Words of many lengths -> letters [b, longest] filled up with 0, lengths [b], languages [b].

    As long as the longest word *of this micro-batch*: that is the same on any number of processes.
    """
    letters = [word for word, _ in samples]
    lengths = torch.tensor([len(word) for word in letters])
    return pad_sequence(letters, batch_first=True), lengths, torch.tensor([y for _, y in samples])


class Reader(nn.Module):
    """Reads a word letter by letter; what it then remembers names the language."""

    def __init__(self, width: int, languages: int, dropout: float) -> None:
        super().__init__()
        self.letter = nn.Embedding(256, width)
        self.memory = nn.GRU(width, width, batch_first=True)
        self.dropout = nn.Dropout(dropout)  # its randomness comes keyed; nothing to do for it
        self.language = nn.Linear(width, languages)

    def forward(self, letters: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        remembered, _ = self.memory(self.letter(letters))
        at_the_end = remembered[torch.arange(len(letters), device=letters.device), lengths - 1]
        return self.language(self.dropout(at_the_end))


def loss(model: nn.Module, batch: tuple[torch.Tensor, ...]) -> torch.Tensor:
    """A mean over the micro-batch: ddpgen averages the micro-batches of a step."""
    letters, lengths, languages = batch
    return functional.cross_entropy(model(letters, lengths), languages)


def metrics(model: nn.Module, batch: tuple[torch.Tensor, ...]) -> dict[str, torch.Tensor]:
    """Means over the micro-batch, too; shown at each evaluation beside the loss. And for finish(): a row for
    each word."""
    letters, lengths, languages = batch
    found = model(letters, lengths).argmax(dim=1)
    return {
        "accuracy": (found == languages).float().mean(),
        "found": found,
        "language": languages,
    }


def finish(rows: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Optional: what is no mean of micro-batches, from the rows of all words. Here the worst language's F1."""
    found, language = rows["found"], rows["language"]
    scores = []
    for each in language.unique():
        hits = ((found == each) & (language == each)).sum()
        scores.append(2 * hits / ((found == each).sum() + (language == each).sum()))
    return {"worst_f1": min(scores)}


def optimizer(model: nn.Module, lr: float) -> torch.optim.Optimizer:
    """Optional: takes the place of `train.optimizer`. Here only matrices decay, biases do not."""
    matrices = [p for p in model.parameters() if p.dim() > 1]
    others = [p for p in model.parameters() if p.dim() <= 1]
    groups = [{"params": matrices, "weight_decay": 0.05}, {"params": others, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=lr)
