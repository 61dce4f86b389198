from collections import defaultdict
from collections.abc import Sequence

from loadmanager.core.ids import BundleId, Namespace, namespace_of
from loadmanager.reference_broker.changes import BundleLoaded, Change, LeaseGranted, ServingEnded
from tests.testbed.checker.availability import share_positions
from tests.testbed.faults.host import Host
from tests.testbed.faults.trace import Trace
from tests.testbed.faults.violation import Invariant, Report


class ServingWatch:
    """Checks each load of a bundle when it is made.

    Two brokers serve at the same time only if one begins while another serves, so it is enough
    to compare at each load. A broker whose lease has expired serves nothing.
    """

    def __init__(self, hosts: Sequence[Host], trace: Trace, report: Report) -> None:
        self._hosts = hosts
        self._trace = trace
        self._report = report
        self._tokens: defaultdict[Namespace, dict[BundleId, tuple[int, str]]] = defaultdict(dict)
        self.loads = 0

    def changed(self, host: Host, change: Change) -> None:
        if isinstance(change, LeaseGranted):
            return
        if isinstance(change, BundleLoaded):
            self.loads += 1
            self._trace.add("load", f"{host.name} {change.bundle} token {change.fencing_token}")
            self._look_at(host, change)
        elif isinstance(change, ServingEnded):
            self._trace.add("end", f"{host.name} {change.bundle} {change.why.value}")

    def restored(self) -> None:
        """Restart: after a restore of older data, tokens start from a lower number."""
        self._tokens.clear()

    def _look_at(self, host: Host, load: BundleLoaded) -> None:
        for other in self._hosts:
            if other is host:
                continue
            for bundle, token in other.serving.items():
                if share_positions(bundle, load.bundle):
                    self._report(
                        Invariant.ONE_SERVER,
                        load.bundle,
                        f"{host.name} serves it under token {load.fencing_token} while "
                        f"{other.name} serves {bundle} under token {token}",
                    )
        self._compare_tokens(host, load)

    def _compare_tokens(self, host: Host, load: BundleLoaded) -> None:
        """Report a token below an earlier one for the same positions.

        Within one broker process overlapping bundles may have any order: during a split a bundle
        and its halves are loaded at the same time.
        """
        process = host.broker.incarnation
        known = self._tokens[namespace_of(load.bundle)]
        for bundle, (token, by) in known.items():
            same = bundle == load.bundle or (by != process and share_positions(bundle, load.bundle))
            if same and token > load.fencing_token:
                self._report(
                    Invariant.TOKENS_GROW,
                    load.bundle,
                    f"{process} serves it under token {load.fencing_token} after {by} served "
                    f"{bundle} under token {token}",
                )
        known[load.bundle] = (load.fencing_token, process)
