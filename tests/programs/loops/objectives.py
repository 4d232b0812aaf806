"""What people optimise: two networks against each other, penalties on gradients, shared towers."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from tests.programs.data import fit, images, labels, rows, sgd
from tests.programs.program import device, program
from tests.programs.seen import Seen

WIDTH = 64


def perceptron(*, depth: int = 12, inputs: int = WIDTH, outputs: int = WIDTH) -> nn.Sequential:
    """Linear layers with smooth activations, so that second derivatives exist."""
    layers: list[nn.Module] = [nn.Linear(inputs, WIDTH), nn.Tanh()]
    for _ in range(depth):
        layers += [nn.Linear(WIDTH, WIDTH), nn.Softplus()]
    return nn.Sequential(*layers, nn.Linear(WIDTH, outputs)).to(device())


# --- adversaries ---------------------------------------------------------------------------------


@program()
def adversarial() -> Seen:
    """A generator and a discriminator, an optimizer each; the generator's graph is used twice."""
    generator, discriminator, seen = perceptron(), perceptron(outputs=1), Seen()
    of_generator = torch.optim.Adam(generator.parameters(), lr=2e-4, betas=(0.5, 0.999))
    of_discriminator = torch.optim.Adam(discriminator.parameters(), lr=2e-4, betas=(0.5, 0.999))
    judge = functional.binary_cross_entropy_with_logits
    for step in range(4):
        real, noise = rows(2048, WIDTH, step), rows(2048, WIDTH, 100 + step)
        ones, zeros = torch.ones(len(real), 1).to(device()), torch.zeros(len(real), 1).to(device())
        made = generator(noise)

        of_discriminator.zero_grad()
        loss = judge(discriminator(real), ones) + judge(discriminator(made.detach()), zeros)
        loss.backward()
        of_discriminator.step()
        seen.step(discriminator, loss)

        of_generator.zero_grad()
        loss = judge(discriminator(made), ones)
        loss.backward()
        of_generator.step()
        seen.step(generator, loss)
    seen.state(generator, discriminator, of_generator, of_discriminator)
    return seen


@program(percent=80)  # the first derivatives of every layer live until the second are done
def wasserstein_with_gradient_penalty() -> Seen:
    """The discriminator's gradient with respect to its input is itself a loss."""
    critic, seen = perceptron(depth=10, outputs=1), Seen()
    optimizer = torch.optim.RMSprop(critic.parameters(), lr=1e-4)
    for step in range(3):
        real, made = rows(2048, WIDTH, step), rows(2048, WIDTH, 100 + step)
        share = torch.rand(len(real), 1).to(device())
        between = (share * real + (1 - share) * made).requires_grad_()
        (slope,) = torch.autograd.grad(critic(between).sum(), between, create_graph=True)
        penalty = (slope.norm(dim=1) - 1).square().mean()
        loss = critic(made).mean() - critic(real).mean() + 10 * penalty
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        seen.step(critic, loss)
        seen.note("penalty", penalty)
    return seen


# --- derivatives as losses -----------------------------------------------------------------------


@program(percent=80)  # three orders of derivatives of every layer live at once
def physics_informed() -> Seen:
    """u'' = -u, held by the second derivative of the network at its own inputs."""
    field, seen = perceptron(depth=5, inputs=1, outputs=1), Seen()
    optimizer = torch.optim.Adam(field.parameters(), lr=1e-3)
    for step in range(3):
        x = rows(2048, 1, step).requires_grad_()
        u = field(x)
        (first,) = torch.autograd.grad(u.sum(), x, create_graph=True)
        (second,) = torch.autograd.grad(first.sum(), x, create_graph=True)
        loss = (second + u).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        seen.step(field, loss)
    return seen


@program(percent=80)  # the inner step's graph is held until the outer step is done
def meta_learning() -> Seen:
    """MAML: the gradient of the loss after an inner step of gradient descent."""
    model, seen = perceptron(depth=8, outputs=10), Seen()
    optimizer = sgd(model)
    for step in range(3):
        optimizer.zero_grad()
        for task in range(2):
            number = 10 * step + task
            weights = dict(model.named_parameters())
            inner = functional.cross_entropy(model(rows(2048, WIDTH, number)), labels(2048, number))
            slopes = torch.autograd.grad(inner, list(weights.values()), create_graph=True)
            pairs = zip(weights.items(), slopes, strict=True)
            adapted = {name: value - 0.1 * slope for (name, value), slope in pairs}
            said = torch.func.functional_call(model, adapted, (rows(2048, WIDTH, 50 + number),))
            loss = functional.cross_entropy(said, labels(2048, 50 + number))
            loss.backward()
            del inner, slopes, adapted, said
        optimizer.step()
        seen.step(model, loss)
    return seen


# --- two towers ----------------------------------------------------------------------------------


@program()
def contrastive_two_towers() -> Seen:
    """Each tower's embedding must find its partner among the batch."""
    left, right, seen = perceptron(), perceptron(), Seen()
    temperature = nn.Parameter(torch.tensor(0.1, device=device()))
    parameters = [*left.parameters(), *right.parameters(), temperature]
    optimizer = torch.optim.AdamW(parameters, lr=1e-3)
    for step in range(3):
        one = functional.normalize(left(rows(1024, WIDTH, step)), dim=1)
        two = functional.normalize(right(rows(1024, WIDTH, 100 + step)), dim=1)
        likeness = one[:256] @ two[:256].T / temperature
        partner = torch.arange(256, device=device())
        loss = functional.cross_entropy(likeness, partner)
        loss = loss + functional.cross_entropy(likeness.T, partner)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        seen.step(left, loss)
        seen.gradients(right)
        seen.note("temperature", temperature)
    return seen


@program()
def siamese_with_a_shared_module() -> Seen:
    """One module, called three times in one forward."""
    model, seen = perceptron(), Seen()
    optimizer = sgd(model)
    for step in range(3):
        anchor, same, other = (model(rows(1024, WIDTH, 10 * step + part)) for part in range(3))
        loss = functional.triplet_margin_loss(anchor, same, other)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        seen.step(model, loss)
    return seen


@program()
def distillation() -> Seen:
    """A teacher under no_grad, and a student that must say the same."""
    teacher, student, seen = perceptron(depth=6).eval(), perceptron(), Seen()
    optimizer = sgd(student)
    for step in range(3):
        x = rows(2048, WIDTH, step)
        with torch.no_grad():
            target = teacher(x).softmax(dim=1)
        loss = functional.kl_div(student(x).log_softmax(dim=1), target, reduction="batchmean")
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        seen.step(student, loss)
    return seen


# --- samples inside the graph --------------------------------------------------------------------


class Variational(nn.Module):
    """An autoencoder that samples between its halves."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.decoder = perceptron(depth=6, outputs=32), perceptron(depth=6, inputs=16)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        mean, log_variance = self.encoder(x).chunk(2, dim=1)
        sample = mean + torch.randn_like(mean) * (0.5 * log_variance).exp()
        return self.decoder(sample), mean, log_variance


@program()
def variational_autoencoder() -> Seen:
    def loss_of(said: tuple[Tensor, Tensor, Tensor], x: Tensor) -> Tensor:
        made, mean, log_variance = said
        divergence = -0.5 * (1 + log_variance - mean.square() - log_variance.exp()).mean()
        return functional.mse_loss(made, x) + 0.1 * divergence

    def batch(step: int) -> tuple[Tensor, Tensor]:
        x = rows(2048, WIDTH, step)
        return x, x

    return fit(Variational(), batch, loss_of, steps=4)


class Denoiser(nn.Module):
    """Convolutions that are told the noise level."""

    def __init__(self, width: int = 16, depth: int = 8) -> None:
        super().__init__()
        self.first, self.last = nn.Conv2d(3, width, 3, padding=1), nn.Conv2d(width, 3, 3, padding=1)
        self.level = nn.Linear(1, width)
        self.blocks = nn.ModuleList(nn.Conv2d(width, width, 3, padding=1) for _ in range(depth))
        self.norms = nn.ModuleList(nn.GroupNorm(4, width) for _ in range(depth))

    def forward(self, x: Tensor, level: Tensor) -> Tensor:
        x, told = self.first(x), self.level(level)[:, :, None, None]
        for norm, convolution in zip(self.norms, self.blocks, strict=True):
            x = x + convolution(functional.silu(norm(x) + told))
        return torch.as_tensor(self.last(x))


@program()
def diffusion() -> Seen:
    """The noise that was added has to be named, at a random level for each image."""
    model, seen = Denoiser().to(device()), Seen()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step in range(3):
        clean, noise = images(8, 32, step), images(8, 32, 100 + step)
        level = torch.rand(len(clean), 1).to(device())
        share = level[:, :, None, None]
        loss = functional.mse_loss(model(share * noise + (1 - share) * clean, level), noise)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        seen.step(model, loss)
    return seen


@program()
def policy_gradient() -> Seen:
    """Short rollouts without gradients, then one update through the actions that were drawn."""
    policy, seen = perceptron(depth=8, outputs=4), Seen()
    optimizer = sgd(policy)
    for step in range(3):
        state, states, actions = rows(64, WIDTH, step), [], []
        with torch.no_grad():
            for _ in range(8):
                action = torch.distributions.Categorical(logits=policy(state)).sample()
                states.append(state)
                actions.append(action)
                state = (state + action[:, None]).sin()
        rewards = torch.stack(states).mean(dim=2).flatten()
        drawn = torch.distributions.Categorical(logits=policy(torch.cat(states)))
        loss = -(drawn.log_prob(torch.cat(actions)) * rewards).mean() - drawn.entropy().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        seen.step(policy, loss)
    return seen
