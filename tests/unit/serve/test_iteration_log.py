"""What vLLM logs of its iterations, as 0.32 wrote it on a CPU."""

from pathlib import Path

from longctx.serve.iteration_log import prefill_iterations

LOGS = Path(__file__).parents[2] / "data" / "server_logs"
JIT = "WARNING [jit_monitor.py:103] Triton kernel JIT compilation during inference: kernel."


def test_the_prompt_tokens_and_seconds_of_each_iteration_are_read() -> None:
    lines = (LOGS / "cpu-0.32-iterations.log").read_text(encoding="utf-8").splitlines()
    # One iteration of a full chunk and one of the rest of a prompt; those of decode have no prompt tokens.
    assert prefill_iterations(lines)[:2] == [(2048, 0.18679, False), (64, 0.06496, False)]
    assert len(prefill_iterations(lines)) == sum(" 0 context tokens" not in line for line in lines)
    compiling = prefill_iterations([*lines[:1], JIT, *lines[1:]])
    assert [compiled for _, _, compiled in compiling][:2] == [False, True]


def test_a_log_without_iterations_gives_none() -> None:
    assert prefill_iterations((LOGS / "cpu-0.32-start.log").read_text(encoding="utf-8").splitlines()) == []
