"""`tape pipeline` where Spark is not installed."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from tape.cli.main import app
from tape.errors import MissingExtra


@pytest.mark.parametrize("job", ["archive --lake x", "rollup", "fanout --sink log:x --name n"])
def test_without_spark_a_job_says_in_one_sentence_what_to_install(job: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tape.pipeline.jobs.command.find_spec", lambda name: None)
    result = CliRunner().invoke(app, ["pipeline", "run", *job.split()])
    assert isinstance(result.exception, MissingExtra)
    assert "pip install 'tape[spark]'" in str(result.exception)
