"""Playbooks: documents, tools, the runner, and workers of pools."""
