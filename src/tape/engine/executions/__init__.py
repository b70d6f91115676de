"""Executions: a request to run a playbook becomes a run and a task of its pool."""
