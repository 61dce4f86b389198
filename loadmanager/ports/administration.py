from loadmanager.ports.lookup import LookupRefused


class Missing(LookupRefused):
    pass


class Conflict(LookupRefused):
    pass


class Unfit(LookupRefused):
    pass


class BundleUnknown(LookupRefused):
    pass


class SplitRefused(LookupRefused):
    """The bundle cannot be split as requested; a retry cannot succeed unless it changes."""


class MergeRefused(LookupRefused):
    """The two bundles cannot be merged; a retry cannot succeed unless they change."""


class UnloadRefused(LookupRefused):
    """The bundle cannot move to the destination; a retry cannot succeed unless that changes."""


class BrokerUnknown(LookupRefused):
    pass
