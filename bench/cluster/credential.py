"""One credential in the store, renewed by processes on two machines: network namespaces."""

from contextlib import ExitStack

from bench.cluster.network import SERVERS, make_site
from postgres import Postgres
from upstreams.credentials.renewal_rig import renew_at_each_expiry

PROCESSES, EXPIRIES = 4, 20


def renew_on_two_machines() -> str:
    """Let processes need a credential each time that it expires; return what was wrong."""
    with ExitStack() as stack:
        postgres = Postgres(SERVERS)
        stack.callback(postgres.remove)
        sites = [stack.enter_context(make_site(number)) for number in (1, 2)]
        places = [sites[number % 2].enter for number in range(PROCESSES)]
        try:
            renew_at_each_expiry(postgres.database(), places, EXPIRIES, SERVERS)
        except AssertionError as wrong:
            return str(wrong) or "a refresh token was not used exactly once"
    return ""
