"""lightning: its trainer, with validation first, accumulation, two optimizers, and SWA."""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

from tests.programs.data import labels, rows
from tests.programs.loops.objectives import WIDTH, perceptron
from tests.programs.program import device, program, scaled
from tests.programs.seen import Seen


@cache
def classifier_class() -> Callable[[], Any]:
    """A user's module; lightning is imported only where one of its programs runs."""
    import lightning

    class Classifier(lightning.LightningModule):
        """The usual three methods."""

        def __init__(self) -> None:
            super().__init__()
            self.body = perceptron(outputs=10)

        def training_step(self, batch: list[Tensor], _number: int) -> Tensor:
            loss = functional.cross_entropy(self.body(batch[0]), batch[1])
            self.log("loss", loss)
            return loss

        def validation_step(self, batch: list[Tensor], _number: int) -> None:
            self.log("checked", functional.cross_entropy(self.body(batch[0]), batch[1]))

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.AdamW(self.parameters(), lr=1e-3)

    return Classifier


@cache
def adversaries_class() -> Callable[[], Any]:
    """Another."""
    import lightning

    class Adversaries(lightning.LightningModule):
        """Optimises by hand, one network after the other."""

        def __init__(self) -> None:
            super().__init__()
            self.automatic_optimization = False
            self.generator, self.judge = perceptron(), perceptron(outputs=1)

        def training_step(self, batch: list[Tensor], _number: int) -> None:
            for optimizer, sign in zip(self.optimizers(), (1.0, -1.0), strict=True):
                self.toggle_optimizer(optimizer)
                loss = sign * self.judge(self.generator(batch[0])).sigmoid().mean()
                optimizer.zero_grad()
                self.manual_backward(loss)
                self.clip_gradients(optimizer, gradient_clip_val=1.0)
                optimizer.step()
                self.untoggle_optimizer(optimizer)

        def configure_optimizers(self) -> list[torch.optim.Optimizer]:
            return [
                torch.optim.Adam(self.judge.parameters(), lr=1e-3),
                torch.optim.Adam(self.generator.parameters(), lr=1e-3),
            ]

    return Adversaries


def loader(count: int) -> Any:
    data = TensorDataset(rows(count, WIDTH).cpu(), labels(count).cpu())
    return DataLoader(data, batch_size=scaled(2048))


def fit(model: Any, **settings: Any) -> Seen:
    """Three batches, twice."""
    import lightning

    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    with tempfile.TemporaryDirectory() as folder:
        trainer = lightning.Trainer(
            accelerator="gpu" if device().type == "cuda" else "cpu",
            devices=1,
            max_epochs=2,
            default_root_dir=folder,
            logger=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            log_every_n_steps=1,
            **{"enable_checkpointing": False, **settings},
        )
        if hasattr(model, "validation_step") and type(model).validation_step.__module__ == __name__:
            trainer.fit(model, loader(6144), loader(2048))
        else:
            trainer.fit(model, loader(6144))
        seen = Seen()
        seen.note("logged", {key: float(value) for key, value in trainer.callback_metrics.items()})
        seen.note("steps", trainer.global_step)
    seen.state(model)
    return seen


@program(needs=("lightning",))
def trainer_with_validation() -> Seen:
    """A sanity check comes first, a checkpoint after each epoch."""
    return fit(classifier_class()(), enable_checkpointing=True, num_sanity_val_steps=1)


@program(needs=("lightning",))
def trainer_with_accumulation_and_clipping() -> Seen:
    return fit(classifier_class()(), accumulate_grad_batches=3, gradient_clip_val=0.5)


@program(needs=("lightning",))
def trainer_in_bfloat16() -> Seen:
    return fit(classifier_class()(), precision="bf16-mixed", detect_anomaly=False)


@program(needs=("lightning",))
def two_optimizers_by_hand() -> Seen:
    return fit(adversaries_class()())
