"""Episodes: by what one is recognised, and what the next one is told."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from vdnn_alloc.episodes import Episodes, Opening

FORWARD = ((1, 984), (2, 123), (2, 984), (3, 41))
Saves = Sequence[tuple[int, int]]


@dataclass
class Counted:
    """What the hooks count while an episode runs."""

    signature: int
    saves: int
    used: list[int] = field(default_factory=list)


class Program:
    """Runs episodes one after another: each opening ends the one before it."""

    def __init__(self, max_signatures: int = 64) -> None:
        self.episodes = Episodes(max_signatures)
        self.current: Counted | None = None

    def run(self, saves: Saves = FORWARD, order: Sequence[int] = ()) -> Opening:
        """One forward and backward: opens, saves, and takes back in `order`."""
        opening = self.open()
        self.current = Counted(hash(saves) if saves else 0, len(saves), list(order))
        return opening

    def open(self) -> Opening:
        ended, self.current = self.current, None
        return self.episodes.open(ended)


def test_the_next_is_told_the_order_that_the_last_was_used_in() -> None:
    program = Program()
    first = program.run(order=[2, 3, 1, 0])
    assert first == Opening(finished=0, expected=0, ranks=[])

    second = program.run(order=[2, 3, 1, 0])

    assert second.finished == second.expected != 0
    assert second.ranks == [3, 2, 0, 1]


def test_saves_that_were_never_used_come_last() -> None:
    program = Program()
    program.run(order=[2, 0])

    assert program.open().ranks == [1, 2, 0, 2]


def test_an_unpack_that_comes_after_the_next_opening_is_still_learned() -> None:
    program = Program()
    program.run(FORWARD, order=[3])
    generator = program.current
    assert generator is not None
    program.run(((9, 77),), order=[0])

    generator.used += [2, 1, 0]
    program.run(FORWARD, order=[3, 2, 1, 0])
    program.run(((9, 77),), order=[0])

    assert program.open().ranks == [3, 2, 1, 0]


def test_two_kinds_that_take_turns_are_each_expected_in_their_turn() -> None:
    program = Program()
    other = ((9, 77), (8, 66))
    for _ in range(3):
        training = program.run(FORWARD, order=[3, 2, 1, 0])
        evaluation = program.run(other)

    assert training.expected == evaluation.finished
    assert evaluation.expected == training.finished
    assert training.ranks == [3, 2, 1, 0]
    assert evaluation.ranks == []


def test_an_evaluation_does_not_unlearn_the_order_of_training() -> None:
    program = Program()
    program.run(order=[3, 2, 1, 0])
    program.run()

    assert program.open().ranks == [3, 2, 1, 0]


def test_an_episode_that_saved_nothing_teaches_nothing() -> None:
    program = Program()
    program.run(order=[3, 2, 1, 0])
    program.run(())

    opening = program.open()

    assert opening.finished == 0
    assert opening.ranks == [3, 2, 1, 0]


def test_what_is_kept_is_bounded_and_the_oldest_goes_first() -> None:
    program = Program(max_signatures=3)
    for size in range(1, 101):
        program.run(((1, size),), order=[0])
    assert len(program.episodes._learned) == 3

    program.run(((1, 100),), order=[0])

    assert program.open().ranks == [0]
