"""Which fencing tokens a broker may still be given for each bundle."""

from loadmanager.core.ids import BundleId
from loadmanager.testbed.broker.outcomes import StaleToken


class FencingTokens:
    """The lowest token that each bundle may yet be loaded with.

    That is the highest token that came with a load, or one above the highest that an
    unload ended. All are kept for as long as the process lives: a bundle that is split
    or moved away leaves one number behind, and that is rare.
    """

    def __init__(self) -> None:
        self._least: dict[BundleId, int] = {}

    def take(self, bundle: BundleId, token: int) -> None:
        """Let ``bundle`` be loaded with ``token``, and with no lower one from now on.

        Raises:
            StaleToken: a higher one came before, or an unload ended this one.
        """
        least = self._least.get(bundle, 0)
        if token < least:
            raise StaleToken(f"{bundle}: fencing token {token} is over; expected {least} or more")
        self._least[bundle] = token

    def end(self, bundle: BundleId, token: int) -> None:
        """Let ``bundle`` be loaded neither with ``token`` nor with a lower one any more."""
        self._least[bundle] = max(self._least.get(bundle, 0), token + 1)
