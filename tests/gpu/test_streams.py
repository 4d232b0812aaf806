"""Several streams: memory that another stream still uses is not given away under it."""

from __future__ import annotations

import torch

from tests.helpers import fresh, gpu_training

WORDS = 123 * 8 * 1024
DELAY_CYCLES = 200_000_000  # about 0.1 s of a GPU's clock


def read_late_on_a_side_stream() -> bool:
    """Frees a tensor that a delayed side stream still has to read, then asks for its size again."""
    side = torch.cuda.Stream()
    source = torch.full((WORDS,), 7, dtype=torch.int32, device="cuda")
    result = torch.zeros(WORDS, dtype=torch.int32, device="cuda")
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        torch.cuda._sleep(DELAY_CYCLES)
        result.copy_(source)
    source.record_stream(side)
    del source
    for value in range(20):
        torch.full((WORDS,), value, dtype=torch.int32, device="cuda")
    side.synchronize()
    return bool((result == 7).all())


def test_record_stream_keeps_memory_from_reuse_until_the_stream_is_through() -> None:
    assert fresh.call(read_late_on_a_side_stream, install=gpu_training.settings()).result


def pass_between_streams() -> bool:
    """Memory freed on a delayed stream must not be written by another before it is read."""
    first, second = torch.cuda.Stream(), torch.cuda.Stream()
    sums = []
    for value in range(1, 9):
        with torch.cuda.stream(first):
            torch.cuda._sleep(DELAY_CYCLES // 20)
            held = torch.full((WORDS,), value, dtype=torch.int32, device="cuda")
            sums.append((value, held.sum()))
            del held
        with torch.cuda.stream(second):
            torch.zeros(WORDS, dtype=torch.int32, device="cuda")
    torch.cuda.synchronize()
    return all(int(total) == value * WORDS for value, total in sums)


def test_memory_that_changes_stream_waits_for_the_stream_it_came_from() -> None:
    budget = 64 << 20  # little enough for every request to need the other stream's frames
    assert fresh.call(pass_between_streams, install=gpu_training.settings(budget)).result
