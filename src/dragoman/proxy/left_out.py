"""Bytes that pass, without what their upstream is known to reject."""

from functools import partial

from msgspec import Struct

from dragoman.net.body_threads import run_off_loop
from dragoman.translate.hub.loss import Ledger
from dragoman.upstreams.provider import Pass, Provider
from dragoman.upstreams.rejections.reasoning import leave_out
from dragoman.upstreams.rejections.repairs import apply_rules, is_own_vendor
from dragoman.upstreams.rejections.rules import Found
from dragoman.upstreams.rejections.sent import Sent


class LeftOut(Struct, frozen=True):
    """Opaque reasoning that the upstream has rejected: how a request is built without it, and its digests."""

    change: Pass
    digests: frozenset[bytes]


async def leave_out_rejected(
    sent: Sent, provider: Provider, rules: tuple[Found, ...], left_out: LeftOut | None, ledger: Ledger
) -> Sent:
    """Return bytes that pass without what their upstream rejects; the ledger gets what that costs.

    The protocol's own vendor gets them as they are, without only the reasoning that another account has signed.
    """
    size, is_own = len(sent.body), is_own_vendor(provider, sent.protocol)
    if left_out is not None and (provider.account.pool is not None or not is_own):
        sent = await run_off_loop(size, partial(leave_out, sent, left_out.digests, ledger))
    if rules and not is_own:
        sent = await run_off_loop(size, partial(apply_rules, sent, rules, ledger))
    return sent
