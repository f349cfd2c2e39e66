"""What `--config` says through the real Snakemake, which reads everything inside a dictionary or list as text."""

import re

import pytest
from pipeline import Pipeline

SUMMARY = "results/summary.parquet"


def test_numbers_truths_and_nulls_in_dictionaries_are_those_of_the_file(measured: Pipeline) -> None:
    measured.configure(serve={"env": {"A": 1}}, reuse={"passes": 1})
    measured.summarise()
    same = "serve={'enforce_eager':true,'cpu_kv_cache_gib':2,'cudagraph_mode':null,'env':{'A':1}}"
    done = measured.run(SUMMARY, "-n", "--config", same, "reuse={'passes':1}", "lengths=[256,512]", "checkpoint=null")
    assert done.code == 0, done.output
    assert "Nothing to be done" in done.output


@pytest.mark.slow
def test_a_mode_s_own_passes_are_run(measured: Pipeline) -> None:
    done = measured.run(SUMMARY, "-n", "--config", "reuse={passes: 3, suffix_tokens: 32}", "modes=[prefill,reuse]")
    assert done.code == 0, done.output
    assert re.search(r"^measure +6$", done.output, re.MULTILINE), "two lengths, three passes"


def test_what_is_no_number_is_refused_by_its_key(measured: Pipeline) -> None:
    done = measured.run(SUMMARY, "-n", "--config", "reuse={'passes':'two'}")
    assert done.code != 0
    assert "config key reuse.passes: 'two' is not a whole number or null" in done.output
