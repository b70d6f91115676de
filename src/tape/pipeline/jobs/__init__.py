"""The jobs of `tape pipeline run`, one module each; `python -m tape.pipeline.jobs.<job>` is for spark-submit."""
