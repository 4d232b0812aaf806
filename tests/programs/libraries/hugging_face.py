"""transformers, accelerate and peft: their trainers, their loops, their ways to use memory."""

from __future__ import annotations

import tempfile
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset

from tests.programs.data import tokens
from tests.programs.loops.between_steps import classifier
from tests.programs.loops.objectives import WIDTH
from tests.programs.program import device, program, scaled
from tests.programs.seen import Seen

VOCABULARY, LENGTH = 64, 32


class Texts(Dataset[dict[str, Tensor]]):
    """Random words, which a language model has to continue."""

    def __init__(self, count: int) -> None:
        self.words = tokens(count, LENGTH, VOCABULARY).cpu()

    def __len__(self) -> int:
        return len(self.words)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return {"input_ids": self.words[index], "labels": self.words[index]}


def gpt2(layers: int = 5) -> Any:
    """A GPT-2 of 32 features."""
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        vocab_size=VOCABULARY, n_positions=LENGTH, n_embd=32, n_layer=layers, n_head=4
    )
    return GPT2LMHeadModel(config)


def train_by_trainer(model: Any, **settings: Any) -> Seen:
    """transformers.Trainer over three steps; its checkpoints go to a folder that is removed."""
    from transformers import Trainer, TrainingArguments

    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=folder,
            max_steps=3,
            learning_rate=1e-3,
            logging_steps=1,
            disable_tqdm=True,
            report_to=[],
            use_cpu=device().type == "cpu",
            dataloader_pin_memory=False,
            **{
                "save_strategy": "no",
                "per_device_train_batch_size": scaled(16),
                **settings,
            },
        )
        data = Texts(144)
        trainer = Trainer(model, arguments, train_dataset=data, eval_dataset=data)
        trainer.train()
        seen = Seen()
        logs = trainer.state.log_history
        seen.note("loss", [log["loss"] for log in logs if "loss" in log])
        seen.note("norm", [log["grad_norm"] for log in logs if "grad_norm" in log])
        seen.note("evaluated", trainer.evaluate()["eval_loss"])
    seen.state(trainer.model)
    return seen


@program(needs=("accelerate", "transformers"))
def trainer() -> Seen:
    return train_by_trainer(gpt2())


@program(needs=("accelerate", "transformers"))
def trainer_with_accumulation_and_checkpoints() -> Seen:
    """Gradients of two batches a step, the model and optimizer saved after each, bfloat16."""
    return train_by_trainer(
        gpt2(),
        gradient_accumulation_steps=2,
        save_strategy="steps",
        save_steps=1,
        save_total_limit=1,
        bf16=True,
    )


@program(percent=93, needs=("accelerate", "transformers"))  # the block that is recomputed is in use
def trainer_with_recomputation() -> Seen:
    return train_by_trainer(
        gpt2(layers=12),
        per_device_train_batch_size=scaled(48),
        gradient_checkpointing=True,
        gradient_checkpointing_kwargs={"use_reentrant": False},
        optim="adafactor",
    )


@program(needs=("transformers",))
def bert_by_hand() -> Seen:
    """A classifier from a configuration, in the usual loop, with a mask and a warm-up."""
    from transformers import BertConfig, BertForSequenceClassification
    from transformers import get_linear_schedule_with_warmup as warm_up

    config = BertConfig(
        vocab_size=VOCABULARY,
        hidden_size=32,
        num_hidden_layers=5,
        num_attention_heads=4,
        intermediate_size=64,
        max_position_embeddings=LENGTH,
        num_labels=10,
    )
    model, seen = BertForSequenceClassification(config).to(device()), Seen()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    rates = warm_up(optimizer, 1, 4)
    for step in range(3):
        text = tokens(16, LENGTH, VOCABULARY, step)
        said = model(input_ids=text, attention_mask=(text > 5).long(), labels=text[:, 0] % 10)
        optimizer.zero_grad()
        said.loss.backward()
        optimizer.step()
        rates.step()
        seen.step(model, said.loss)
    return seen


@program(needs=("transformers",))
def writing_between_steps() -> Seen:
    """model.generate(), with its cache of keys and values, after each step."""
    model, seen = gpt2().to(device()), Seen()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step in range(2):
        text = tokens(16, LENGTH, VOCABULARY, step)
        loss = model(input_ids=text, labels=text).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        seen.step(model, loss)
        model.eval()
        start = text[:2, :4]
        mask = torch.ones_like(start)
        made = model.generate(
            start, attention_mask=mask, max_new_tokens=12, do_sample=True, pad_token_id=0
        )
        seen.note("written", made)
        model.train()
    return seen


# --- accelerate ----------------------------------------------------------------------------------


@program(needs=("accelerate", "transformers"))
def accelerator() -> Seen:
    """prepare(), accumulate(), clipping, and gathering of losses."""
    from accelerate import Accelerator

    helper = Accelerator(cpu=device().type == "cpu", gradient_accumulation_steps=2)
    model = gpt2()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    loader = DataLoader(Texts(64), batch_size=scaled(16))
    model, optimizer, loader = helper.prepare(model, optimizer, loader)
    seen = Seen()
    for batch in loader:
        with helper.accumulate(model):
            loss = model(**batch).loss
            helper.backward(loss)
            if helper.sync_gradients:
                seen.note("norm", helper.clip_grad_norm_(model.parameters(), 1.0))
            optimizer.step()
            optimizer.zero_grad()
        seen.note("loss", helper.gather(loss.detach()))
    seen.state(helper.unwrap_model(model))
    return seen


@program(percent=10, runs_out=True, needs=("accelerate",))
def batch_size_that_fits() -> Seen:
    """find_executable_batch_size halves after each lack of memory. Where it does not lack any, the
    rounds in between are none: so only what comes after them is noted."""
    from accelerate.utils import find_executable_batch_size

    def attempt(batch_size: int) -> None:
        x = torch.ones(scaled(batch_size), WIDTH, device=device())
        classifier()(x).sum().backward()

    find_executable_batch_size(attempt, starting_batch_size=32768)()
    torch.manual_seed(7)
    model, seen = classifier(), Seen()
    for step in range(2):
        x = torch.full((scaled(1024), WIDTH), float(step + 1), device=device())
        loss = functional.cross_entropy(model(x), torch.zeros(len(x), device=device()).long())
        model.zero_grad()
        loss.backward()
        seen.step(model, loss)
    return seen


# --- peft ----------------------------------------------------------------------------------------


@program(needs=("peft", "transformers"))
def lora() -> Seen:
    """Adapters of low rank on a frozen GPT-2; then they are merged into it."""
    from peft import LoraConfig, get_peft_model

    config = LoraConfig(
        r=4, lora_alpha=8, lora_dropout=0.1, target_modules=["c_attn"], fan_in_fan_out=True
    )
    model, seen = get_peft_model(gpt2(layers=8), config).to(device()), Seen()
    learnt = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(learnt, lr=1e-2)
    for step in range(3):
        text = tokens(16, LENGTH, VOCABULARY, step)
        loss = model(input_ids=text, labels=text).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        seen.step(model, loss)
    merged = model.merge_and_unload()
    assert isinstance(merged, nn.Module)
    with torch.no_grad():
        seen.note("merged", merged(input_ids=tokens(2, LENGTH, VOCABULARY)).logits)
    return seen
