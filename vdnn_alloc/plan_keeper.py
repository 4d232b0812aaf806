"""From a recorded step to a plan that is followed, step after step.

Note [The life of a plan]
The first step of a signature is recorded while pressure carries it through. If it was short of
memory, the next one follows a plan. The first recording has the times of a first step, in which
the device waits for code to load and engines to be chosen, so the third step is recorded again;
its plan replaces the first if it is faster by more than a few hundredths, or moves less and is no
slower: each new plan needs new mappings. After that a plan is corrected by what happened: a copy
out whose frames nobody took is dropped, and a block that somebody had to wait for is asked back
earlier, where the recorded step says that its frames are to spare. If steps take longer then, the
correction is taken back.

Nothing is recorded or planned while steps do not repeat: a plan is for the step that comes next.
What is planned depends on measured times, and so may when copies run; no bit does.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from vdnn_alloc.native import NO_PREFETCH, WAS_KEPT, WAS_LATE
from vdnn_alloc.planner import plan_step
from vdnn_alloc.simulate import simulate
from vdnn_alloc.step_record import NativeMoves, RecordedStep, read_record

if TYPE_CHECKING:
    from collections.abc import Callable

    from vdnn_alloc.episodes import Opening
    from vdnn_alloc.native import Native
    from vdnn_alloc.simulate import Simulated
    from vdnn_alloc.step_profile import StepProfile

_MAX_SIGNATURES = 64
_RECORDINGS = 2
_BETTER = 1.03
"""A plan replaces another that takes this many times as long, by simulation."""
_CORRECTED_STEPS = 4
"""After which a plan is no longer corrected: a loop must come to rest."""
_JUDGED_STEPS = 2
"""Whose fastest says what a plan is worth."""
_WORSE = 1.02


@dataclass
class _Steps:
    """What is known of the steps of one signature on one device."""

    finished: int = 0
    recordings: int = 0
    is_short: bool = False
    record: RecordedStep | None = None
    moves: NativeMoves = field(default_factory=list)
    refusals: list[tuple[int, int]] = field(default_factory=list)
    """Of workspaces; what was refused once is for ever, for an engine must not change again."""
    step_s: list[float] = field(default_factory=list)
    """Of the steps that followed these moves."""
    before: tuple[NativeMoves, float] | None = None
    """The moves before the last correction, and their fastest step."""
    is_settled: bool = False


class PlanKeeper:
    """The plans of one process. Call it before each episode, with the GIL held."""

    def __init__(self, native: Native, clock: Callable[[], float] = time.perf_counter) -> None:
        self._native = native
        self._clock = clock
        self._steps: OrderedDict[tuple[int, int], _Steps] = OrderedDict()
        self._expected = 0
        self._recorded: int | None = None
        """The signature of the recording that the device is not through with."""
        self._is_recording = False
        self._began_s = 0.0
        self.latest_profile: StepProfile | None = None
        """Of the last recording."""

    def before_episode(self, opening: Opening) -> None:
        """An episode has ended, and another is about to begin."""
        now_s = self._clock()
        repeats = self._expected in (0, opening.finished)
        for device in self._native.used_devices():
            if not opening.finished:
                continue
            steps = self._of(device, opening.finished)
            steps.finished += 1
            if repeats:
                self._follow_up(device, opening.finished, steps, now_s - self._began_s)
        if self._is_recording:
            self._recorded, self._is_recording = opening.finished, False
        self._take_recording(repeats and opening.expected == opening.finished)
        if repeats and self._wants_recording(opening.expected):
            self._native.record_next_episode()
            self._is_recording = True
        self._expected, self._began_s = opening.expected, self._clock()

    def _of(self, device: int, signature: int) -> _Steps:
        steps = self._steps.setdefault((device, signature), _Steps())
        self._steps.move_to_end((device, signature))
        while len(self._steps) > _MAX_SIGNATURES:
            self._steps.popitem(last=False)
        return steps

    def _wants_recording(self, expected: int) -> bool:
        if self._recorded is not None:
            return False
        if expected == 0:
            return not self._steps or all(s.recordings == 0 for s in self._steps.values())
        known = [s for (_, signature), s in self._steps.items() if signature == expected]
        return any(
            s.recordings == 0 or (s.is_short and s.recordings < _RECORDINGS and s.finished >= 2)
            for s in known
        )

    # --- planning -----------------------------------------------------------------------------

    def _take_recording(self, is_next: bool) -> None:
        """Plans from a recording that the device is through with, if the step will come again."""
        if self._recorded is None:
            return
        signature = self._recorded
        for device in self._native.used_devices():
            read = self._native.read_step(device)
            if read is None:
                continue
            self._recorded = None
            steps = self._of(device, signature)
            steps.recordings += 1
            stats = self._native.read_stats(device)
            record = read_record(*read, int(stats["frame_bytes"]))
            if record is not None and signature and is_next:
                self._plan(device, signature, record, stats)

    def _plan(
        self, device: int, signature: int, record: RecordedStep, stats: dict[str, int | float]
    ) -> None:
        steps = self._of(device, signature)
        budget_bytes = _budget_bytes(stats)
        # What the last step left behind (optimizer state, above all) is there from now on.
        base_bytes = max(record.profile.base_bytes, int(stats["owned_bytes"]))
        record = replace(record, profile=replace(record.profile, base_bytes=base_bytes))
        self.latest_profile = record.profile
        steps.record = record
        steps.is_short = record.profile.peak_bytes > budget_bytes
        if not steps.is_short:
            return
        planned = plan_step(record.profile, budget_bytes, frozenset(record.refusable))
        steps.refusals += [record.refusable[block] for block in planned.plan.refused]
        if steps.moves:
            now = simulate(record.profile, record.from_native(steps.moves), budget_bytes)
            if not planned.plan.refused and not _is_better(planned.simulated, now):
                return
        self._set(device, signature, steps, record.to_native(planned.plan))

    def _set(self, device: int, signature: int, steps: _Steps, moves: NativeMoves) -> None:
        steps.moves, steps.step_s = moves, []
        self._native.set_plan(device, signature, moves, steps.refusals)

    # --- correcting ---------------------------------------------------------------------------

    def _follow_up(self, device: int, signature: int, steps: _Steps, step_s: float) -> None:
        """One more step of the signature is over."""
        is_planned = bool(steps.moves) or steps.before is not None
        if not is_planned or steps.is_settled:
            return
        steps.step_s.append(step_s)
        if len(steps.step_s) < _JUDGED_STEPS:
            return
        fastest_s = min(steps.step_s)
        if steps.before is not None and fastest_s > _WORSE * steps.before[1]:
            steps.is_settled = True
            self._set(device, signature, steps, steps.before[0])
            return
        outcome = self._native.read_outcome(device, signature)
        moves = correct(steps.moves, outcome)
        may_help = steps.finished <= _CORRECTED_STEPS and moves != steps.moves
        if may_help and self._is_no_slower(device, steps, moves):
            steps.before = (steps.moves, fastest_s)
            self._set(device, signature, steps, moves)
        else:
            steps.is_settled = True

    def _is_no_slower(self, device: int, steps: _Steps, moves: NativeMoves) -> bool:
        """By simulation."""
        assert steps.record is not None
        budget_bytes = _budget_bytes(self._native.read_stats(device))
        old_ns, new_ns = (
            simulate(steps.record.profile, steps.record.from_native(m), budget_bytes).step_time_ns
            for m in (steps.moves, moves)
        )
        return new_ns is not None and (old_ns is None or new_ns <= old_ns)


def _is_better(new: Simulated, old: Simulated) -> bool:
    """Clearly faster, or no slower with fewer bytes."""
    if new.step_time_ns is None or old.step_time_ns is None:
        return new.step_time_ns is not None
    saves = new.offloaded_bytes < old.offloaded_bytes and new.step_time_ns <= old.step_time_ns
    return saves or old.step_time_ns > _BETTER * new.step_time_ns


def _budget_bytes(stats: dict[str, int | float]) -> int:
    """In whole frames."""
    return int(stats["budget_bytes"] // stats["frame_bytes"] * stats["frame_bytes"])


def correct(moves: NativeMoves, outcome: bytes) -> NativeMoves:
    """Without the needless, and with the late ones asked back an eighth of the way earlier."""
    corrected = []
    for save_index, position in moves:
        flags = outcome[save_index] if save_index < len(outcome) else 0
        if flags & WAS_KEPT:
            continue
        if flags & WAS_LATE and position != NO_PREFETCH:
            position -= position // 8
        corrected.append((save_index, position))
    return corrected
