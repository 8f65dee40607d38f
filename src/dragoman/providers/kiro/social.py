"""An identity provider's name comes in; a link for the person goes out, and once they come back, a credential."""

from collections.abc import Callable
from urllib.parse import urlencode

from dragoman.accounts.credential import Declined, Unusable
from dragoman.accounts.credential_files import Table
from dragoman.accounts.login import PATIENCE_S, Callback, LoginFailed, code_from_browser, new_proof
from dragoman.accounts.service_client import ServiceClient
from dragoman.accounts.timestamps import format_timestamp
from dragoman.providers.kiro.credential import Method
from dragoman.providers.kiro.refresh import LIFE_S, granted

PROVIDERS = {"google": "Google", "github": "Github"}
CALLBACK = "/oauth/callback"


class SocialLogin:
    """PKCE with a listener on the loopback: the browser brings the code back to us."""

    def __init__(self, line: ServiceClient, root: str, provider: str, patience_s: float = PATIENCE_S) -> None:
        self._line = line
        self._root = root
        self._provider = PROVIDERS[provider]
        self._callback = Callback(CALLBACK, patience_s=patience_s)
        self._proof = new_proof()

    async def run(self, show: Callable[[str], None]) -> Table:
        """`show` is given the link to open."""
        code, back = await code_from_browser(self._callback, self._proof, show, self._link)
        return await self._exchanged(code, back)

    def _link(self, back: str) -> str:
        query = {
            "idp": self._provider,
            "redirect_uri": back,
            "code_challenge": self._proof.challenge,
            "code_challenge_method": "S256",
            "state": self._proof.state,
        }
        return f"{self._root}/login?{urlencode(query)}"

    async def _exchanged(self, code: str, back: str) -> Table:
        question = {"code": code, "code_verifier": self._proof.verifier, "redirect_uri": back}
        try:
            tokens = granted(await self._line.post(f"{self._root}/oauth/token", question))
        except Declined as declined:
            raise LoginFailed(f"the sign-in was refused ({declined.code})") from declined
        except Unusable as unheard:
            raise LoginFailed(str(unheard)) from unheard
        table: Table = {
            "accessToken": tokens.accessToken,
            "refreshToken": tokens.refreshToken or "",
            "expiresAt": format_timestamp(self._line.clock.now() + (tokens.expiresIn or LIFE_S)),
            "authMethod": Method.DESKTOP.value,
            "provider": self._provider,
        }
        return {**table, "profileArn": tokens.profileArn} if tokens.profileArn else table
