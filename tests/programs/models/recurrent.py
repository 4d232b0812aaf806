"""Recurrent networks: many uses of one module in one forward, cut histories, packed batches."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from tests.programs.data import fit, labels, sequences, sgd
from tests.programs.program import device, program, scaled
from tests.programs.seen import Seen


def labelled(step: int, *, count: int, length: int, width: int) -> tuple[Tensor, Tensor]:
    return sequences(count, length, width, step), labels(count, step)


class CellLoop(nn.Module):
    """One cell, called once for each of 200 steps."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.cell = nn.LSTMCell(width, width)
        self.head = nn.Linear(width, 10)

    def forward(self, sequence: Tensor) -> Tensor:
        hidden = sequence.new_zeros(sequence.shape[0], self.cell.hidden_size)
        state = (hidden, hidden)
        for x in sequence.unbind(dim=1):
            state = self.cell(x, state)
        return torch.as_tensor(self.head(state[0]))


@program(percent=70)
def lstm_cell_200_times() -> Seen:
    return fit(CellLoop(), lambda step: labelled(step, count=256, length=200, width=32), steps=2)


class Stack(nn.Module):
    """Recurrent layers that are modules of their own, with residuals between."""

    def __init__(self, kind: type[nn.RNNBase], width: int = 32, depth: int = 10) -> None:
        super().__init__()
        self.layers = nn.ModuleList(kind(width, width, batch_first=True) for _ in range(depth))
        self.head = nn.Linear(width, 10)

    def forward(self, sequence: Tensor) -> Tensor:
        for layer in self.layers:
            layer.flatten_parameters()
            sequence = sequence + layer(sequence)[0]
        return torch.as_tensor(self.head(sequence[:, -1]))


@program()
def lstm() -> Seen:
    return fit(Stack(nn.LSTM), lambda step: labelled(step, count=64, length=12, width=32))


@program(gpu_percent=80)
def gru() -> Seen:
    return fit(Stack(nn.GRU, depth=3), lambda step: labelled(step, count=512, length=12, width=32))


@program(percent=75)
def lstm_under_autocast_with_gradient_scaling() -> Seen:
    """Cells and layers in bfloat16; the scaler skips the step whose loss it is told to spoil."""
    cells, layers, seen = CellLoop().to(device()), Stack(nn.LSTM, depth=4).to(device()), Seen()
    model = nn.ModuleList([cells, layers])
    optimizer, scaler = sgd(model), torch.amp.GradScaler(device().type, init_scale=2.0**8)
    for step in range(3):
        x, target = labelled(step, count=256, length=24, width=32)
        optimizer.zero_grad()
        with torch.autocast(device().type, torch.bfloat16):
            loss = functional.cross_entropy(cells(x) + layers(x), target)
        scaler.scale(loss * (float("nan") if step == 1 else 1.0)).backward()
        scaler.step(optimizer)
        scaler.update()
        seen.step(model, loss)
        seen.note("scale", scaler.get_scale())
    seen.state(model)
    return seen


class Reader(nn.Module):
    """Embedding, two-way LSTM over sequences of several lengths, mean over what is not padding."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(50, 32)
        self.first = nn.LSTM(32, 32, bidirectional=True, batch_first=True)
        self.second = nn.LSTM(64, 32, num_layers=2, batch_first=True, dropout=0.1)
        self.head = nn.Linear(32, 10)

    def forward(self, text: Tensor, lengths: Tensor) -> Tensor:
        packed = pack_padded_sequence(
            self.embedding(text), lengths, batch_first=True, enforce_sorted=False
        )
        output, _ = pad_packed_sequence(self.second(self.first(packed)[0])[0], batch_first=True)
        return torch.as_tensor(self.head(output.sum(dim=1) / lengths[:, None].to(output.device)))


@program(percent=75, gpu_percent=95)
def packed_sequences() -> Seen:
    model, seen = Reader().to(device()), Seen()
    optimizer = sgd(model)
    for step in range(3):
        drawn = torch.Generator().manual_seed(step)
        count = scaled(256)
        text = torch.randint(50, (count, 24), generator=drawn).to(device())
        lengths = torch.randint(1, 25, (count,), generator=drawn)
        lengths[0] = 24
        loss = functional.cross_entropy(model(text, lengths), labels(256, step))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        seen.step(model, loss)
    return seen


@program(gpu_percent=75)
def truncated_backpropagation_through_time() -> Seen:
    """The state goes on from window to window, its history does not."""
    layers = nn.ModuleList(nn.LSTM(32, 32) for _ in range(6)).to(device())
    head, seen = nn.Linear(32, 10).to(device()), Seen()
    optimizer, states = sgd(layers), [None] * len(layers)
    for step in range(4):
        output = sequences(128, 16, 32, step).transpose(0, 1)  # (length, batch, width)
        for number, layer in enumerate(layers):
            output, states[number] = layer(output, states[number])
        loss = functional.cross_entropy(head(output[-1]), labels(128, step))
        del output
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        states = [tuple(part.detach() for part in state) for state in states]
        seen.step(layers, loss)
        seen.note("states", states)
    return seen


class Seq2Seq(nn.Module):
    """A GRU encoder, and a decoder that attends to all that the encoder said."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.encoder = nn.GRU(width, width, batch_first=True)
        self.decoder = nn.GRUCell(2 * width, width)
        self.head = nn.Linear(width, width)

    def forward(self, source: Tensor) -> Tensor:
        memory, last = self.encoder(source)
        state, x, said = last[0], torch.zeros_like(last[0]), []
        for _ in range(source.shape[1]):
            weights = (memory @ state.unsqueeze(2)).softmax(dim=1)
            context = (weights * memory).sum(dim=1)
            state = self.decoder(torch.cat([x, context], dim=1), state)
            x = self.head(state)
            said.append(x)
        return torch.stack(said, dim=1)


@program(percent=70, cpu_only="one operator of cuDNN's takes all but a few maps of the peak")
def sequence_to_sequence() -> Seen:
    def batch(step: int) -> tuple[Tensor, Tensor]:
        source = sequences(512, 14, 32, step)
        return source, source.flip(1)

    return fit(Seq2Seq(), batch, functional.mse_loss)
