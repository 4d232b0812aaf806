"""What happens around the steps: accumulation, averages of weights, evaluation, copies, savings."""

from __future__ import annotations

import copy
import gc
import io

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn, update_bn

from tests.programs.data import labels, rows, sgd, tokens
from tests.programs.loops.objectives import WIDTH, perceptron
from tests.programs.models.attention import Gpt, next_token_loss
from tests.programs.program import device, program
from tests.programs.seen import Seen


def loss_of(model: nn.Module, step: int) -> Tensor:
    """Of a batch with this number."""
    return functional.cross_entropy(model(rows(2048, WIDTH, step)), labels(2048, step))


def classifier(depth: int = 12) -> nn.Sequential:
    return perceptron(depth=depth, outputs=10)


def one_step(model: nn.Module, optimizer: torch.optim.Optimizer, seen: Seen, step: int) -> None:
    """The usual one."""
    optimizer.zero_grad()
    loss = loss_of(model, step)
    loss.backward()
    optimizer.step()
    seen.step(model, loss)


# --- evaluation ----------------------------------------------------------------------------------


@program()
def validation_first() -> Seen:
    """The sanity check that many trainers make before the first step."""
    model, seen = classifier(), Seen()
    optimizer = sgd(model)
    model.eval()
    with torch.no_grad():
        seen.note("before", *[loss_of(model, 100 + step) for step in range(2)])
    model.train()
    for step in range(3):
        one_step(model, optimizer, seen, step)
    return seen


@program()
def evaluation_between_steps() -> Seen:
    """With inference_mode, with no_grad, and by someone who forgot both."""
    model, seen = classifier(), Seen()
    optimizer = sgd(model)
    for step in range(4):
        one_step(model, optimizer, seen, step)
        with torch.inference_mode():
            seen.note("inference", loss_of(model, 100 + step))
        with torch.no_grad():
            seen.note("no_grad", loss_of(model, 200 + step))
        seen.note("forgotten", loss_of(model, 300 + step))
    return seen


@program()
def samples_between_steps() -> Seen:
    """A language model that writes 20 words after each step, one short forward a word."""
    model, seen = Gpt().to(device()), Seen()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step in range(2):
        text = tokens(32, 32, 64, step)
        optimizer.zero_grad()
        loss = next_token_loss(model(text), text)
        loss.backward()
        optimizer.step()
        seen.step(model, loss)
        model.eval()
        with torch.no_grad():
            words = text[:2, :1]
            for _ in range(20):
                words = torch.cat([words, model(words)[:, -1:].argmax(dim=2)], dim=1)
        seen.note("words", words)
        model.train()
    return seen


# --- several backwards, several averages ---------------------------------------------------------


@program()
def gradient_accumulation() -> Seen:
    """Three small batches for every step of the optimizer."""
    model, seen = classifier(), Seen()
    optimizer = sgd(model)
    for step in range(6):
        loss = loss_of(model, step) / 3
        loss.backward()
        if step % 3 == 2:
            seen.gradients(model)
            optimizer.step()
            optimizer.zero_grad(set_to_none=step < 3)
        seen.note("loss", loss)
    return seen


@program()
def gradients_left_to_the_next_step() -> Seen:
    """zero_grad comes last, so the gradients of one step are there in the next one's forward."""
    model, seen = classifier(), Seen()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for step in range(4):
        loss = loss_of(model, step)
        optimizer.zero_grad(set_to_none=False)
        loss.backward()
        torch.nn.utils.clip_grad_value_(model.parameters(), 0.1)
        seen.note("norm", torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5))
        optimizer.step()
        seen.step(model, loss)
    return seen


@program()
def moving_average_of_weights() -> Seen:
    """EMA by hand through p.data, and by torch's own class."""
    model, seen = classifier(), Seen()
    optimizer, mine = sgd(model), copy.deepcopy(model)
    theirs = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
    for step in range(3):
        one_step(model, optimizer, seen, step)
        for average, now in zip(mine.parameters(), model.parameters(), strict=True):
            average.data.mul_(0.9).add_(now.data, alpha=0.1)
        theirs.update_parameters(model)
    with torch.no_grad():
        seen.note("averaged", loss_of(mine, 50), loss_of(theirs, 50))
    seen.state(mine, theirs)
    return seen


@program()
def stochastic_weight_averaging() -> Seen:
    """SWA, with batch norms that are measured anew at the end."""
    layers = [nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH)) for _ in range(8)]
    model, seen = nn.Sequential(*layers, nn.Linear(WIDTH, 10)).to(device()), Seen()
    optimizer, average = sgd(model), AveragedModel(model)
    rates = torch.optim.swa_utils.SWALR(optimizer, swa_lr=0.05)
    for step in range(4):
        one_step(model, optimizer, seen, step)
        average.update_parameters(model)
        rates.step()
    update_bn([rows(2048, WIDTH, 60 + step) for step in range(2)], average)
    seen.state(average, optimizer)
    return seen


# --- copies and savings --------------------------------------------------------------------------


@program()
def copied_in_mid_training() -> Seen:
    """Both go on, the copy on other batches."""
    model, seen = classifier(), Seen()
    optimizer = sgd(model)
    for step in range(2):
        one_step(model, optimizer, seen, step)
    loss = loss_of(model, 2)  # a graph is alive while the copy is made
    other = copy.deepcopy(model)
    other_optimizer = sgd(other)
    other_optimizer.load_state_dict(optimizer.state_dict())
    loss.backward()
    for step in range(2):
        one_step(model, optimizer, seen, 10 + step)
        one_step(other, other_optimizer, seen, 20 + step)
    seen.state(model, other, optimizer, other_optimizer)
    return seen


@program()
def saved_and_loaded() -> Seen:
    """Saved in the middle of a step, loaded into new objects, and gone on with."""
    model, seen = classifier(), Seen()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step in range(2):
        one_step(model, optimizer, seen, step)
    loss, file = loss_of(model, 2), io.BytesIO()
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, file)
    loss.backward()
    file.seek(0)
    saved = torch.load(file, map_location=device())
    again = classifier()
    seen.note("keys", str(again.load_state_dict(saved["model"])))
    optimizer = torch.optim.AdamW(again.parameters(), lr=1e-3)
    optimizer.load_state_dict(saved["optimizer"])
    for step in range(2, 4):
        one_step(again, optimizer, seen, step)
    seen.state(again, optimizer)
    return seen


@program()
def collector_in_mid_step() -> Seen:
    """gc runs between forward and backward, and graphs hang in cycles that only it can free."""
    model, seen = classifier(), Seen()
    optimizer = sgd(model)
    for step in range(4):
        optimizer.zero_grad()
        loss = loss_of(model, step)
        gc.collect()
        cycle: list[object] = [loss_of(model, 90 + step)]
        cycle.append(cycle)
        del cycle
        gc.collect()
        loss.backward()
        optimizer.step()
        seen.step(model, loss)
    return seen
