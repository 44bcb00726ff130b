"""A small GPT-2 learns to count, with Hugging Face's Trainer. Nothing here knows of a launcher."""

import argparse

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments


class Counting(torch.utils.data.Dataset):
    """Sequences that count up from a random number, modulo 64."""

    def __init__(self, size, length=32):
        first = torch.randint(64, (size, 1), generator=torch.Generator().manual_seed(0))
        self.ids = (first + torch.arange(length)) % 64

    def __len__(self):
        return len(self.ids)

    def __getitem__(self, i):
        return {"input_ids": self.ids[i], "labels": self.ids[i]}


parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=float, default=3)
parser.add_argument("--save_steps", type=int, default=50)
parser.add_argument("--output_dir", default="out")
args = parser.parse_args()

torch.manual_seed(0)
model = GPT2LMHeadModel(GPT2Config(vocab_size=64, n_positions=32, n_embd=32, n_layer=2, n_head=2))
trainer = Trainer(
    model=model,
    args=TrainingArguments(
        output_dir=args.output_dir,
        num_train_epochs=args.epochs,
        per_device_train_batch_size=8,
        learning_rate=1e-3,
        save_steps=args.save_steps,
        save_total_limit=3,
        logging_steps=50,
        report_to=[],
        disable_tqdm=True,
        use_cpu=not torch.cuda.is_available(),
    ),
    train_dataset=Counting(2048),
)
trainer.train()
trainer.save_model(f"{args.output_dir}/final")
