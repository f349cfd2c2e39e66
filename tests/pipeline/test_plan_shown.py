"""`snakemake plan` shows the table, also when nothing has to be computed again."""

from pipeline import Pipeline


def test_the_plan_is_shown_as_often_as_it_is_asked_for(measured: Pipeline) -> None:
    for _ in range(2):
        done = measured.run("plan")
        assert done.code == 0, done.output
        assert "256     prefill" in done.output
        assert "campaign: " in done.output
    assert done.jobs.keys() == {"plan"}
