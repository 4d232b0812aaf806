"""The paper's procedure takes the first policy that fits; cells resume, and refuse bad input."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.paper import cells, procedure
from bench.paper.cells import Cell, Outcome
from vdnn_alloc.errors import ConfigError

FITS: Outcome = {"fits": True, "workspace_refusals": 0}
REFUSED: Outcome = {"fits": True, "workspace_refusals": 3}
LACKS: Outcome = {"fits": False, "missing_bytes": 8}
DYN = Cell("vgg16-256", "paper-dyn")


@pytest.mark.parametrize(
    ("outcomes", "chosen"),
    [
        ({"all(m)": LACKS}, None),
        ({"all(m)": FITS, "none(p)": FITS}, "none(p)"),
        ({"all(m)": FITS, "none(p)": LACKS, "conv(p)": FITS}, "conv(p)"),
        ({"all(m)": FITS, "none(p)": LACKS, "conv(p)": REFUSED, "all(p)": FITS}, "all(p)"),
        (
            {"all(m)": FITS, "none(p)": LACKS, "conv(p)": REFUSED, "all(p)": REFUSED},
            "conv(p) greedy",
        ),
        ({"all(m)": FITS, "none(p)": LACKS, "conv(p)": LACKS, "all(p)": LACKS}, "all(m)"),
    ],
)
def test_the_first_policy_that_fits_is_chosen(
    outcomes: dict[str, Outcome], chosen: str | None
) -> None:
    found = procedure.choose(DYN, lambda cell: outcomes[cell.policy])

    assert found["chosen"] == chosen
    assert found["tried"][0] == "all(m)"
    assert found["fits"] is (chosen is not None)


def test_a_finished_cell_is_found_again(tmp_path: Path) -> None:
    assert cells.load(DYN, tmp_path) is None

    cells.save(DYN, FITS, tmp_path)

    found = cells.load(DYN, tmp_path)
    assert found is not None
    assert found["fits"] is True
    assert list(cells.load_all(tmp_path)) == [DYN]


@pytest.mark.parametrize(
    ("bad", "sentence"),
    [
        ({"network": "resnet"}, "network=resnet: not known; there are alexnet"),
        ({"policy": "some"}, "policy=some: not known; there are oracle"),
        ({"precision": "fp8"}, "precision=fp8"),
        ({"batch": -1}, "batch=-1"),
        ({"backend": "host", "precision": "bf16"}, "backend=host has fp32 alone"),
    ],
)
def test_bad_input_is_refused_with_one_sentence(bad: dict[str, str | int], sentence: str) -> None:
    given: dict[str, str | int] = {"network": "alexnet", "policy": "dyn", **bad}

    with pytest.raises(ConfigError, match=sentence):
        Cell(**given)  # type: ignore[arg-type]
