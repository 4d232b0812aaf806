"""torch.func and its older relatives, alone and inside training."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, hessian, jacfwd, jacrev, jvp, vjp, vmap
from torch.nn import functional

from tests.programs.data import labels, rows, sgd
from tests.programs.loops.between_steps import classifier, one_step
from tests.programs.loops.objectives import WIDTH, perceptron
from tests.programs.program import device, program
from tests.programs.seen import Seen


@program()
def per_sample_gradients() -> Seen:
    """vmap(grad), as differential privacy needs it; then clipped, averaged, and stepped with."""
    model, seen = perceptron(depth=3, outputs=10), Seen()
    optimizer = sgd(model)
    for step in range(3):
        weights = {name: p.detach() for name, p in model.named_parameters()}
        x, target = rows(16, WIDTH, step), labels(16, step)

        def loss_of_one(weights: dict[str, Tensor], x: Tensor, target: Tensor) -> Tensor:
            said = functional_call(model, weights, (x[None],))
            return functional.cross_entropy(said, target[None])

        each = vmap(grad(loss_of_one), (None, 0, 0))(weights, x, target)
        for name, parameter in model.named_parameters():
            scale = (1 / each[name].flatten(1).norm(dim=1)).clamp(max=1.0)
            parameter.grad = torch.einsum("n,n...->...", scale, each[name]) / len(x)
        optimizer.step()
        seen.gradients(model)
        del each
        classic = classifier(depth=40)
        classic(rows(2048, WIDTH, step)).sum().backward()
        seen.gradients(classic)
    return seen


@program()
def jacobians_and_hessians() -> Seen:
    """Beside a training that goes on."""
    model, small, seen = classifier(), perceptron(depth=1, inputs=8, outputs=1), Seen()
    optimizer = sgd(model)
    for step in range(3):
        x = torch.linspace(-1, 1, 8, device=device()) + step
        seen.note("reverse", jacrev(small)(x))
        seen.note("forward", jacfwd(small)(x))
        seen.note("second", hessian(lambda x: small(x).sum())(x))
        seen.note("older", torch.autograd.functional.jacobian(small, x))
        seen.note("older", torch.autograd.functional.hessian(lambda x: small(x).sum(), x))
        y, pull = vjp(small, x)
        seen.note("vjp", y.detach(), *pull(torch.ones_like(y)))
        seen.note("jvp", *jvp(small, (x,), (torch.ones_like(x),)))
        seen.note("nested", grad(lambda u: grad(lambda v: (v**3).sum())(u).sum())(x))
        one_step(model, optimizer, seen, step)
    return seen


class Differentiates(nn.Module):
    """Its forward contains a gradient and a directional derivative."""

    def __init__(self) -> None:
        super().__init__()
        self.energy, self.rest = perceptron(depth=2, outputs=1), perceptron(depth=10)

    def forward(self, x: Tensor) -> Tensor:
        force = -grad(lambda x: self.energy(x).sum())(x)
        _, push = jvp(torch.tanh, (x,), (torch.ones_like(x),))
        return torch.as_tensor(self.rest(x + force * push.detach()))


@program(percent=80)
def transforms_inside_a_forward() -> Seen:
    """A force field: the loss is on what grad() gave, so backward goes through it."""
    model, seen = Differentiates(), Seen()
    optimizer = sgd(model)
    for step in range(3):
        optimizer.zero_grad()
        loss = model(rows(2048, WIDTH, step)).square().mean()
        loss.backward()
        optimizer.step()
        seen.step(model, loss)
    return seen


@program()
def ensemble_in_one_call() -> Seen:
    """Five models' weights are stacked and run as one, with ordinary autograd around vmap."""
    models, seen = [perceptron(depth=4, outputs=10) for _ in range(5)], Seen()
    stacked, buffers = torch.func.stack_module_state(models)
    weights = {name: value.detach().requires_grad_() for name, value in stacked.items()}
    optimizer = torch.optim.SGD(list(weights.values()), lr=0.01)
    for step in range(3):

        def run(weights: dict[str, Tensor], buffers: dict[str, Tensor], x: Tensor) -> Tensor:
            return functional_call(models[0], (weights, buffers), (x,))  # type: ignore[no-any-return]

        said = vmap(run, (0, 0, None))(weights, buffers, rows(1024, WIDTH, step))
        loss = functional.cross_entropy(said.flatten(0, 1), labels(1024, step).repeat(5))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        seen.note("loss", loss)
        seen.note("gradient", *[value.grad for value in weights.values()])
    return seen


@program()
def functional_call_with_other_weights() -> Seen:
    """A hypernetwork makes the weights that a module is called with."""
    model, maker, seen = perceptron(depth=8), nn.Linear(8, WIDTH * WIDTH).to(device()), Seen()
    optimizer = sgd(maker)
    for step in range(3):
        made = maker(torch.ones(8, device=device())).view(WIDTH, WIDTH)
        said = functional_call(model, {"4.weight": made}, (rows(2048, WIDTH, step),))
        loss = said.square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        seen.step(maker, loss)
        seen.gradients(model)
        model.zero_grad()
        del made, said, loss
    return seen


@program()
def forward_mode() -> Seen:
    """Dual numbers through a training step, and forward over reverse."""
    model, seen = classifier(), Seen()
    optimizer = sgd(model)
    for step in range(3):
        x = rows(2048, WIDTH, step)
        with torch.autograd.forward_ad.dual_level(), torch.no_grad():
            dual = torch.autograd.forward_ad.make_dual(x, torch.ones_like(x))
            said = torch.autograd.forward_ad.unpack_dual(model(dual))
            seen.note("tangent", said.tangent)
        one_step(model, optimizer, seen, step)
    return seen


@program()
def refused_beside_hooks_of_the_user() -> Seen:
    """A transform under the user's own saved-tensor hooks raises as ever."""
    model, seen = classifier(), Seen()
    optimizer = sgd(model)
    for step in range(3):
        with torch.autograd.graph.save_on_cpu(), seen.catching(RuntimeError):
            grad(lambda x: x.sin().sum())(rows(2048, WIDTH, step))
        one_step(model, optimizer, seen, step)
    return seen
