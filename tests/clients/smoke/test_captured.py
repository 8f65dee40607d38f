"""Requests that clients really sent are built for every upstream: nothing breaks, and nothing vanishes quietly."""

import pytest

from clients.captured import Captured, list_captured
from clients.replay import UPSTREAMS, check

CAPTURED = {request.name: request for request in list_captured()}


@pytest.mark.parametrize("upstream", UPSTREAMS)
@pytest.mark.parametrize("request_", CAPTURED.values(), ids=CAPTURED)
def test_a_captured_request_is_built_for_every_upstream(request_: Captured, upstream: str) -> None:
    assert request_.protocol is not None
    check(bytes(request_.body), request_.protocol, upstream)
