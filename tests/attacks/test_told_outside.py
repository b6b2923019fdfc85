"""What an error tells a client: neither where a database is nor which process runs a thread."""

from __future__ import annotations

import json

import pytest

from capgraph.base import CapgraphError, PersistenceError, ThreadBusyError, ValidationError
from capgraph.serve.problems import error_response, public_message_line

WHERE = "'postgresql://me@db.internal:5432/threads'"


@pytest.mark.parametrize(
    "error",
    [
        PersistenceError(f"The database {WHERE} is away.", fix=f"Start {WHERE}."),
        ValidationError(f"The value is not in {WHERE}.", fix="Look."),
        ThreadBusyError("The thread 'x:secret' is being run already, by process 4711 on host-7."),
    ],
)
def test_no_address_and_no_process_is_told(error: CapgraphError) -> None:
    for text in (public_message_line(error), json.dumps(json.loads(error_response(error).body))):
        for part in ("db.internal", "4711", "host-7", "secret"):
            assert part not in text
