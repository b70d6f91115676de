"""A server for programs that were written for the earlier SDKs."""

from tests.durable.conftest import url as url
