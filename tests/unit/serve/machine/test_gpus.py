"""Which of this host's GPUs a server uses."""

from collections.abc import Callable

import pytest
from longctx.serve.machine import gpus


@pytest.mark.parametrize(
    ("visible", "ranks", "numbers"),
    [("", 1, (0,)), ("", 2, (0, 1)), ("1", 1, (1,)), ("1,0", 1, (1,)), ("1,0", 2, (1, 0)), ("", 3, ()),
     ("GPU-8a1f", 1, ()), ("GPU-8a1f,GPU-77b0", 2, (0, 1))],
)  # fmt: skip
def test_which_gpus_a_server_computes_on(
    two_gpus: Callable[..., None], visible: str, ranks: int, numbers: tuple[int, ...]
) -> None:
    assert gpus.gpu_numbers({"CUDA_VISIBLE_DEVICES": visible}, ranks) == numbers
