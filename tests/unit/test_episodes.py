"""Episodes: when one opens, by what it is recognised, and what the next one is told."""

from __future__ import annotations

from collections.abc import Sequence

from vdnn_alloc.episodes import Episode, Episodes, Opening

FORWARD = ((1, 984), (2, 123), (2, 984), (3, 41))


def run(
    episodes: Episodes, saves: Sequence[tuple[int, int]] = FORWARD, order: Sequence[int] = ()
) -> Opening:
    """One forward and backward: opens, saves, takes back in `order`, and lets its records die."""
    opening = episodes.open()
    episode = save(episodes, saves)
    for save_index in order:
        episodes.note_unpack(episode, save_index)
    episode.live_records = 0
    return opening


def save(episodes: Episodes, saves: Sequence[tuple[int, int]]) -> Episode:
    assert episodes.current is not None
    for layer, size in saves:
        episodes.current.note_save(layer, size)
        episodes.current.live_records += 1
    return episodes.current


def test_one_opens_where_none_is() -> None:
    episodes = Episodes()
    assert episodes.wants_opening

    episodes.open()

    assert not episodes.wants_opening


def test_a_model_called_twice_before_its_backward_is_one_episode() -> None:
    episodes = Episodes()
    episodes.open()
    save(episodes, FORWARD)
    assert not episodes.wants_opening
    episode = save(episodes, FORWARD)

    episodes.note_unpack(episode, 7)

    assert episodes.wants_opening


def test_an_optimizer_step_ends_one() -> None:
    episodes = Episodes()
    episodes.open()
    save(episodes, FORWARD)

    episodes.note_step()

    assert episodes.wants_opening


def test_an_evaluation_whose_graph_is_gone_ends_one() -> None:
    episodes = Episodes()
    episodes.open()
    episode = save(episodes, FORWARD)
    assert not episodes.wants_opening

    episode.live_records = 0

    assert episodes.wants_opening


def test_the_next_is_told_the_order_that_the_last_was_used_in() -> None:
    episodes = Episodes()
    first = run(episodes, order=[2, 3, 1, 0])
    assert first == Opening(finished=0, expected=0, ranks=[])

    second = run(episodes, order=[2, 3, 1, 0])

    assert second.finished == second.expected != 0
    assert second.ranks == [3, 2, 0, 1]


def test_a_second_unpack_of_a_save_does_not_change_its_place() -> None:
    episodes = Episodes()
    run(episodes, order=[3, 3, 2, 3, 1, 0, 1])

    assert episodes.open().ranks == [3, 2, 1, 0]


def test_saves_that_were_never_used_come_last() -> None:
    episodes = Episodes()
    run(episodes, order=[2, 0])

    assert episodes.open().ranks == [1, 2, 0, 2]


def test_layer_size_and_order_of_the_saves_tell_episodes_apart() -> None:
    variants = [FORWARD, FORWARD[:3], FORWARD[::-1], ((1, 984), (2, 123), (2, 985), (3, 41))]
    signatures = set()
    for saves in variants:
        episodes = Episodes()
        run(episodes, saves)
        signatures.add(episodes.open().finished)
    assert len(signatures) == len(variants)


def test_an_unpack_that_comes_after_the_next_opening_is_still_learned() -> None:
    episodes = Episodes()
    episodes.open()
    generator = save(episodes, FORWARD)
    episodes.note_unpack(generator, 3)
    run(episodes, ((9, 77),), order=[0])

    for save_index in (2, 1, 0):
        episodes.note_unpack(generator, save_index)
    run(episodes, FORWARD, order=[3, 2, 1, 0])
    run(episodes, ((9, 77),), order=[0])

    assert episodes.open().ranks == [3, 2, 1, 0]


def test_two_kinds_that_take_turns_are_each_expected_in_their_turn() -> None:
    episodes = Episodes()
    other = ((9, 77), (8, 66))
    for _ in range(3):
        training = run(episodes, FORWARD, order=[3, 2, 1, 0])
        evaluation = run(episodes, other)

    assert training.expected == evaluation.finished
    assert evaluation.expected == training.finished
    assert training.ranks == [3, 2, 1, 0]
    assert evaluation.ranks == []


def test_an_evaluation_does_not_unlearn_the_order_of_training() -> None:
    episodes = Episodes()
    run(episodes, order=[3, 2, 1, 0])
    run(episodes)

    assert episodes.open().ranks == [3, 2, 1, 0]


def test_an_episode_that_saved_nothing_teaches_nothing() -> None:
    episodes = Episodes()
    run(episodes, order=[3, 2, 1, 0])
    run(episodes, ())

    opening = episodes.open()

    assert opening.finished == 0
    assert opening.ranks == [3, 2, 1, 0]


def test_what_is_kept_is_bounded_and_the_oldest_goes_first() -> None:
    episodes = Episodes(max_signatures=3)
    for size in range(1, 101):
        run(episodes, ((1, size),), order=[0])
    assert len(episodes._learned) == 3

    run(episodes, ((1, 100),), order=[0])

    assert episodes.open().ranks == [0]
