"""The paper's accounting of memory: exact, from shapes, for its own static procedure.

Baseline: weights, all input maps, twice the largest gradient map, the largest workspace; nothing is
charged for weight gradients or optimizer state. Offloading: the input maps of the layers that the
policy names, each map once, the image among them; never the classifier's.

What the paper leaves open, decided here:
- Its averages are met (all six, within 9 %) by the plain mean over the layers of forward and
  backward, each counted once, so that is the average.
- A map counts from the layer that reads it in backward, as if its prefetch came just in time.
- A convolution's output is given up before its backward: ReLU's gradient, which reads it, is in
  place there and comes first. Pooling reads both sides.
- Averages and maxima are of feature extraction alone: its weights, maps and gradients. The paper's
  own averages are below the weights of the whole network.
- The baseline keeps every map, those too that only a concatenation reads.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from bench.paper.layers import Kind, Layer, Trace

OFFLOADED_KINDS = {
    "none": (),
    "conv": (Kind.CONV,),
    "all": (Kind.CONV, Kind.POOL),
}


def offloaded_maps(trace: Trace, policy: str) -> set[int]:
    """The feature maps that a policy of the paper moves."""
    return trace.inputs_of(*OFFLOADED_KINDS[policy])


def offloaded_bytes(trace: Trace, policy: str) -> int:
    return trace.bytes_of(offloaded_maps(trace, policy))


def index_bytes(trace: Trace) -> int:
    """What PyTorch's MaxPool adds to the paper's maps: one int64 for each output."""
    return sum(layer.index_bytes for layer in trace.layers)


def branch_bytes(trace: Trace) -> int:
    """What PyTorch's ReLU adds: its results that a concatenation copies. The paper's library wrote
    branches straight into their concatenation."""
    return trace.bytes_of(trace.inputs_of(Kind.CONCAT) - trace.inputs_of(Kind.CONV, Kind.POOL))


def classifier_bytes(trace: Trace) -> int:
    """The inputs of the fully connected layers: our `all` moves them, the paper's does not."""
    maps = trace.inputs_of(Kind.LINEAR) - offloaded_maps(trace, "all")
    return trace.bytes_of(maps)


@dataclass(frozen=True)
class Baseline:
    """The paper's network-wide allocation."""

    weight_bytes: int
    map_bytes: int
    gradient_bytes: int
    """Two buffers of the largest map's size."""
    workspace_bytes: int

    @property
    def total_bytes(self) -> int:
        return self.weight_bytes + self.map_bytes + self.gradient_bytes + self.workspace_bytes


def baseline(trace: Trace, workspace_bytes: int = 0) -> Baseline:
    """With (m) convolutions, or with (p) ones whose largest workspace is known."""
    return Baseline(
        weight_bytes=sum(layer.weight_bytes for layer in trace.layers),
        map_bytes=sum(trace.map_bytes),
        gradient_bytes=2 * max(trace.map_bytes[layer.output] for layer in trace.layers),
        workspace_bytes=workspace_bytes,
    )


@dataclass(frozen=True)
class Moment:
    """One layer, forward or backward, and what is on the device while it runs."""

    name: str
    held_bytes: int


def average_bytes(timeline: list[Moment]) -> float:
    return sum(moment.held_bytes for moment in timeline) / len(timeline)


def maximum_bytes(timeline: list[Moment]) -> int:
    return max(moment.held_bytes for moment in timeline)


def timeline(trace: Trace, policy: str) -> list[Moment]:
    """One step of feature extraction under a policy, without workspaces (m)."""
    step = _Step(trace, offloaded_maps(trace, policy))
    forward = [step.forward(n) for n in range(len(step.layers))]
    step.begin_backward()
    return forward + [step.backward(n) for n in reversed(range(len(step.layers)))]


@dataclass
class _Step:
    """What is held as the paper's procedure goes through the layers and back."""

    trace: Trace
    offloaded: set[int]
    maps: set[int] = field(default_factory=set)
    gradients: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.layers = self.trace.features
        self._weights = sum(layer.weight_bytes for layer in self.layers)
        self._readers: dict[int, list[int]] = {}
        for n, layer in enumerate(self.layers):
            for number in layer.inputs:
                self._readers.setdefault(number, []).append(n)
        self.maps.add(0)

    def forward(self, n: int) -> Moment:
        layer = self.layers[n]
        self.maps.add(layer.output)
        moment = self._moment(layer, "forward")
        last_read = {number for number in layer.inputs if self._readers[number][-1] == n}
        self.maps -= last_read & (self.offloaded | self._never_read_again())
        return moment

    def begin_backward(self) -> None:
        """The classifier has read the last map and left its gradient."""
        self.gradients.add(self.layers[-1].output)

    def backward(self, n: int) -> Moment:
        layer = self.layers[n]
        if layer.kind is not Kind.POOL:
            self.maps.discard(layer.output)
        if layer.kind is not Kind.CONCAT:
            self.maps |= set(layer.inputs)
        self.gradients |= set(layer.inputs) - {0}
        moment = self._moment(layer, "backward")
        self.maps.discard(layer.output)
        self.gradients.discard(layer.output)
        return moment

    def _never_read_again(self) -> set[int]:
        """Maps that only a concatenation reads: backward needs its result alone."""
        kept = self.trace.inputs_of(Kind.CONV, Kind.POOL)
        return set(range(len(self.trace.map_bytes))) - kept

    def _moment(self, layer: Layer, phase: str) -> Moment:
        held = self.trace.bytes_of(self.maps) + self.trace.bytes_of(self.gradients)
        return Moment(f"{layer.name} {phase}", self._weights + held)
