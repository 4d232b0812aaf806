"""Optimizers and schedulers, each with its own way to read and write parameters and gradients."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn

from tests.programs.data import sgd
from tests.programs.loops.between_steps import classifier, loss_of, one_step
from tests.programs.program import program
from tests.programs.seen import Seen

Maker = Callable[..., torch.optim.Optimizer]

MAKERS: dict[str, Maker] = {
    "sgd, nesterov": partial(torch.optim.SGD, lr=0.01, momentum=0.9, nesterov=True),
    "adam, foreach": partial(torch.optim.Adam, lr=1e-3, foreach=True),
    "adam, one by one": partial(torch.optim.Adam, lr=1e-3, foreach=False, amsgrad=True),
    "adamw, fused": partial(torch.optim.AdamW, lr=1e-3, fused=True),
    "sgd, fused": partial(torch.optim.SGD, lr=0.01, momentum=0.9, fused=True),
    "rmsprop": partial(torch.optim.RMSprop, lr=1e-4, centered=True),
    "adagrad": partial(torch.optim.Adagrad, lr=1e-3),
    "adadelta": torch.optim.Adadelta,
    "adamax": torch.optim.Adamax,
    "nadam": torch.optim.NAdam,
    "radam": torch.optim.RAdam,
    "asgd": torch.optim.ASGD,
    "rprop": torch.optim.Rprop,
}


@program()
def every_optimizer() -> Seen:
    """Two steps with each, a new model each time."""
    seen = Seen()
    for name, make in MAKERS.items():
        torch.manual_seed(3)
        model = classifier(depth=6)
        optimizer = make(model.parameters())
        for step in range(2):
            one_step(model, optimizer, seen, step)
        seen.note(name, [p.detach() for p in model.parameters()])
        seen.state(optimizer)
        del model, optimizer
    return seen


@program(percent=85)  # its history is held: five steps of all parameters and gradients
def lbfgs() -> Seen:
    """The step asks for the loss and its gradient several times, through a closure."""
    model, seen = classifier(depth=8), Seen()
    optimizer = torch.optim.LBFGS(
        model.parameters(), lr=0.5, max_iter=4, history_size=3, line_search_fn="strong_wolfe"
    )

    def closure(step: int) -> Tensor:
        optimizer.zero_grad()
        loss = loss_of(model, step)
        loss.backward()
        seen.note("asked", loss)
        return loss

    for step in range(2):
        seen.note("loss", optimizer.step(partial(closure, step)))
    seen.gradients(model)
    seen.state(model)
    return seen


@program()
def schedulers() -> Seen:
    """Rates that warm up, decay, cycle, and fall when the loss does not."""
    model, seen = classifier(), Seen()
    optimizer = sgd(model)
    rates = torch.optim.lr_scheduler
    chained = rates.SequentialLR(
        optimizer,
        [rates.LinearLR(optimizer, 0.1, total_iters=2), rates.CosineAnnealingLR(optimizer, 4)],
        milestones=[2],
    )
    falling = rates.ReduceLROnPlateau(optimizer, patience=0)
    for step in range(5):
        one_step(model, optimizer, seen, step)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of torch's own, about the order of its schedulers
            chained.step()
        falling.step(5.0)
        seen.note("rate", optimizer.param_groups[0]["lr"])
    seen.state(model, optimizer)
    return seen


@program()
def groups_with_settings_of_their_own() -> Seen:
    """Biases without decay, a group that joins later, gradients scaled by hand."""
    model, seen = classifier(), Seen()
    biases = [p for name, p in model.named_parameters() if name.endswith("bias")]
    weights = [p for name, p in model[:-1].named_parameters() if name.endswith("weight")]
    optimizer = torch.optim.AdamW(
        [{"params": weights}, {"params": biases, "weight_decay": 0.0}], lr=1e-3
    )
    for step in range(4):
        if step == 2:
            optimizer.add_param_group({"params": [model[-1].weight], "lr": 1e-2})
        optimizer.zero_grad()
        loss = loss_of(model, step)
        loss.backward()
        for parameter in biases:
            assert parameter.grad is not None
            parameter.grad.mul_(0.5)
        optimizer.step()
        seen.step(model, loss)
    return seen


@program()
def optimizer_inside_backward() -> Seen:
    """Each parameter steps as soon as its gradient is there, which is then dropped."""
    model, seen = classifier(), Seen()
    optimizers = {p: torch.optim.SGD([p], lr=0.01, momentum=0.9) for p in model.parameters()}

    def step_now(parameter: Tensor) -> None:
        optimizers[parameter].step()  # type: ignore[index]
        optimizers[parameter].zero_grad()  # type: ignore[index]

    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(step_now)
    for step in range(4):
        loss = loss_of(model, step)
        loss.backward()
        seen.note("loss", loss)
    seen.state(model)
    return seen


@program()
def update_by_hand() -> Seen:
    """No optimizer: under no_grad, through .data, and by assigning new parameters."""
    model, seen = classifier(), Seen()
    for step in range(5):
        model.zero_grad()
        loss = loss_of(model, step)
        loss.backward()
        seen.step(model, loss)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter -= 0.01 * parameter.grad
        for parameter in model.parameters():
            parameter.data = parameter.data * 0.999
        last = model[-1]
        assert isinstance(last, nn.Linear)
        last.weight = nn.Parameter(last.weight.detach() * 0.99)
    seen.state(model)
    return seen
