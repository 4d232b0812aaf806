"""When an episode opens, and how its saves are told apart: what the hooks count as they pass."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from tests.helpers import fresh

if TYPE_CHECKING:
    from vdnn_alloc.hooks import Hooks

AMPLE = {"budget": "64MiB"}
SHAPE = (123 * 8, 64)


def hooks() -> Hooks:
    """Those of this process."""
    from vdnn_alloc.installation import installation

    return installation().controller.hooks


def forward(*rows: int) -> torch.Tensor:
    """Saves one storage of its own for each number of rows."""
    x = torch.ones(1, SHAPE[1], requires_grad=True)
    return torch.stack([(x * 2).expand(count, SHAPE[1]).exp().sum() for count in rows]).sum()


def ended() -> tuple[int, int, list[int]]:
    """What the open episode has counted. Opens the next."""
    episode = hooks().begin_episode()
    assert episode is not None
    return episode.signature, episode.saves, episode.used


def openings() -> dict[str, bool]:
    """Whether the next save would open another, after each of these."""
    found = {"at the start": hooks().wants_opening}
    loss = forward(984)
    found["after a forward"] = hooks().wants_opening
    again = forward(984)
    found["after a second forward"] = hooks().wants_opening
    loss.backward()
    found["after a backward"] = hooks().wants_opening
    again.backward()
    loss = forward(984)
    found["in the next forward"] = hooks().wants_opening
    parameter = torch.nn.Parameter(torch.ones(3))
    torch.optim.SGD([parameter], lr=0.1).step()
    found["after an optimizer's step"] = hooks().wants_opening
    kept = forward(984)
    del loss
    found["while a graph is alive"] = hooks().wants_opening
    del kept
    found["when all graphs are gone"] = hooks().wants_opening
    return found


def test_one_opens_when_the_program_saves_again_after_it_took_something_back() -> None:
    found = fresh.call(openings, install=AMPLE).result

    assert found == {
        "at the start": True,
        "after a forward": False,
        "after a second forward": False,
        "after a backward": True,
        "in the next forward": False,
        "after an optimizer's step": True,
        "while a graph is alive": False,
        "when all graphs are gone": True,
    }


def counts() -> list[tuple[int, int, list[int]]]:
    """Of four kinds of forward, one of them twice, and of one that is taken back twice."""
    found = []
    for rows in [(984, 1496, 984), (984, 1496), (1496, 984, 984), (984, 1495, 984)]:
        hooks().begin_episode()
        kept = forward(*rows)
        found.append(ended())
        del kept
    kept = forward(984, 1496, 984)
    kept.backward(retain_graph=True)
    kept.backward()
    return [*found, ended()]


def test_size_and_order_of_the_saves_tell_episodes_apart() -> None:
    *kinds, again = fresh.call(counts, install=AMPLE).result

    assert len({signature for signature, _, _ in kinds}) == len(kinds)
    assert again[0] == kinds[0][0]
    assert [saves for _, saves, _ in kinds] == [3, 2, 3, 3]


def test_a_second_unpack_of_a_save_does_not_change_its_place() -> None:
    *_, (_, saves, used) = fresh.call(counts, install=AMPLE).result

    assert sorted(used) == list(range(saves))
