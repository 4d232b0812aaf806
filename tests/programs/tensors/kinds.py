"""Sparse, complex, nested, quantised, of mixed precision, of types of the user's own."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.ao.quantization import FakeQuantize, MovingAverageMinMaxObserver
from torch.nn import functional
from torch.nn.utils import parametrizations, parametrize

from tests.programs.data import fit, images, labels, rows, sgd, tokens
from tests.programs.loops.between_steps import classifier, loss_of
from tests.programs.loops.objectives import WIDTH, perceptron
from tests.programs.models.attention import Block, Pooled
from tests.programs.program import device, program, scaled
from tests.programs.seen import Seen

# --- sparse --------------------------------------------------------------------------------------


@program(percent=75)
def sparse_embedding_gradients() -> Seen:
    """Embeddings with sparse gradients and SparseAdam, beside a dense body with Adam."""
    table = nn.Embedding(400, WIDTH, sparse=True).to(device())
    bag = nn.EmbeddingBag(400, WIDTH, mode="sum", sparse=True).to(device())
    body, seen = classifier(), Seen()
    sparse = torch.optim.SparseAdam([*table.parameters(), *bag.parameters()], lr=1e-2)
    dense = torch.optim.Adam(body.parameters(), lr=1e-3)
    for step in range(3):
        words = tokens(2048, 2, 400, step)
        loss = functional.cross_entropy(body(table(words).mean(1) + bag(words)), labels(2048, step))
        sparse.zero_grad()
        dense.zero_grad()
        loss.backward()
        seen.note("sparse", table.weight.grad, bag.weight.grad)
        sparse.step()
        dense.step()
        seen.step(body, loss)
    seen.state(table, bag)
    return seen


@program(cpu_only="cuSPARSE's products need not repeat themselves to the bit")
def sparse_products() -> Seen:
    """A graph network: features are spread along edges by a sparse matrix, in COO and in CSR."""
    generator = torch.Generator().manual_seed(3)
    count = scaled(2048)
    edges = torch.randint(count, (2, 8 * count), generator=generator)
    values = torch.rand(8 * count, generator=generator) / 8
    spread = torch.sparse_coo_tensor(edges, values, (count, count)).coalesce().to(device())
    layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(8)).to(device())
    optimizer, seen = sgd(layers), Seen()
    for step in range(3):
        matrix = spread if step < 2 else spread.to_sparse_csr()
        x = rows(2048, WIDTH, step)
        for layer in layers:
            x = torch.relu(matrix @ layer(x)) + x
        loss = functional.cross_entropy(x, labels(2048, step))
        del x
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        seen.step(layers, loss)
    return seen


# --- complex, nested -----------------------------------------------------------------------------


class Spectral(nn.Module):
    """A filter in the frequencies, with complex weights."""

    def __init__(self, length: int = 64) -> None:
        super().__init__()
        self.filter = nn.Parameter(torch.randn(length // 2 + 1, dtype=torch.cfloat) * 0.5)
        self.bias = nn.Parameter(torch.zeros(length))

    def forward(self, x: Tensor) -> Tensor:
        spectrum = torch.fft.rfft(x, norm="ortho") * self.filter
        phase = torch.polar(torch.ones_like(spectrum.real), spectrum.angle() * 0.1).conj()
        return x + torch.tanh(torch.fft.irfft(spectrum * phase, norm="ortho") + self.bias)


@program()
def complex_numbers() -> Seen:
    model = nn.Sequential(*[Spectral() for _ in range(6)], nn.Linear(64, 10))
    return fit(model, lambda step: (rows(1024, 64, step), labels(1024, step)))


@program(stays="tensors of other types are left as they are", percent=130)
def nested_tensors() -> Seen:
    """Sequences of different lengths in one jagged tensor."""
    body, seen = perceptron(depth=8), Seen()
    optimizer = sgd(body)
    for step in range(3):
        lengths = torch.randint(1, 9, (256,), generator=torch.Generator().manual_seed(step))
        parts = [rows(8, WIDTH, step)[:length] for length in lengths.tolist()]
        ragged = torch.nested.nested_tensor(parts, layout=torch.jagged, device=device())
        said = ragged
        for layer in body:
            said = layer(said) if isinstance(layer, nn.Linear) else torch.tanh(said)
        loss = said.values().square().mean()
        del said, ragged
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        seen.step(body, loss)
    return seen


class Tagged(Tensor):
    """A subclass that carries its name through every operator."""

    name_tag = "none"

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = super().__torch_function__(func, types, args, kwargs or {})
        if isinstance(out, Tagged):
            tags = [a.name_tag for a in args if isinstance(a, Tagged)]
            out.name_tag = tags[0] if tags else "none"
        return out


@program(stays="tensors of other types are left as they are", percent=130)
def subclass_of_tensor() -> Seen:
    """Its type and its tag arrive at the end, and its gradients are right."""
    model, seen = classifier(), Seen()
    optimizer = sgd(model)
    for step in range(3):
        x = rows(2048, WIDTH, step).as_subclass(Tagged)
        x.name_tag = f"batch {step}"
        said = model(x)
        seen.note("type", type(said).__name__, said.name_tag)
        loss = functional.cross_entropy(said, labels(2048, step))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        seen.step(model, loss)
    return seen


# --- precision -----------------------------------------------------------------------------------


@program()
def autocast_with_gradient_scaling() -> Seen:
    """bfloat16 inside, a scaler outside that skips a step whose gradients are not finite."""
    layers = [Block(WIDTH // 2) for _ in range(6)]
    model, seen = Pooled(*layers).to(device()), Seen()
    optimizer = sgd(model)
    scaler = torch.amp.GradScaler(device().type, init_scale=2.0**10)
    for step in range(4):
        generator = torch.Generator().manual_seed(step)
        x = torch.randn(scaled(96), 24, WIDTH // 2, generator=generator).to(device())
        optimizer.zero_grad()
        with torch.autocast(device().type, torch.bfloat16):
            loss = functional.cross_entropy(model(x), labels(96, step))
        scaler.scale(loss * (float("inf") if step == 1 else 1.0)).backward()
        scaler.unscale_(optimizer)
        seen.note("norm", torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0))
        scaler.step(optimizer)
        scaler.update()
        seen.note("scale", scaler.get_scale())
        seen.step(model, loss)
    seen.state(model)
    return seen


@program()
def half_and_double() -> Seen:
    """Whole models in bfloat16 and in double."""
    seen = Seen()
    for kind in (torch.bfloat16, torch.float64):
        torch.manual_seed(3)
        model = classifier(depth=16).to(kind)
        optimizer = sgd(model)
        for step in range(2):
            optimizer.zero_grad()
            said = model(rows(1024, WIDTH, step).to(kind))
            loss = functional.cross_entropy(said.float(), labels(1024, step))
            loss.backward()
            optimizer.step()
            seen.step(model, loss)
        del model, optimizer, said, loss
    return seen


class FakelyQuantised(nn.Module):
    """Activations and weights are rounded to 8 bits on the way, gradients pass through."""

    def __init__(self) -> None:
        super().__init__()
        settings = {"quant_min": 0, "quant_max": 255, "dtype": torch.quint8}
        self.layers = nn.ModuleList(
            nn.Conv2d(3 if n == 0 else 8, 8, 3, padding=1) for n in range(24)
        )
        self.rounds = nn.ModuleList(
            FakeQuantize(MovingAverageMinMaxObserver, **settings) for _ in range(24)
        )
        self.head = nn.Linear(8, 10)

    def forward(self, x: Tensor) -> Tensor:
        for layer, around in zip(self.layers, self.rounds, strict=True):
            scale = layer.weight.abs().amax(dim=(1, 2, 3)) / 127
            zero = torch.zeros(8, dtype=torch.int32, device=x.device)
            weight = torch.fake_quantize_per_channel_affine(
                layer.weight, scale.detach(), zero, 0, -128, 127
            )
            x = around(functional.relu(functional.conv2d(x, weight, layer.bias, padding=1)))
        return torch.as_tensor(self.head(x.mean(dim=(2, 3))))


@program(gpu_percent=80)
def quantisation_aware_training() -> Seen:
    return fit(FakelyQuantised(), lambda step: (images(16, 32, step), labels(16, step)))


# --- parametrisations ----------------------------------------------------------------------------


class Symmetric(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.triu() + x.triu(1).transpose(-1, -2)


@program()
def parametrised_weights() -> Seen:
    """Weight norm, spectral norm, orthogonal, and one of the user's, then one is removed."""
    model, seen = classifier(), Seen()
    parametrizations.weight_norm(model[0])
    parametrizations.spectral_norm(model[2])
    parametrizations.orthogonal(model[4])
    parametrize.register_parametrization(model[6], "weight", Symmetric())
    parametrizations.spectral_norm(model[8], n_power_iterations=3)
    optimizer = sgd(model)
    for step in range(4):
        optimizer.zero_grad()
        with parametrize.cached():
            loss = loss_of(model, step)
        loss.backward()
        optimizer.step()
        seen.step(model, loss)
        if step == 2:
            parametrize.remove_parametrizations(model[6], "weight")
    seen.state(model)
    return seen
