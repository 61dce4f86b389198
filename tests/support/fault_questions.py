"""What a run of faults asks the sidecars: to know when to go on, never to judge them."""

import json
from collections.abc import Sequence
from http import HTTPStatus

import aiohttp
from fault_hosts import Host

from loadmanager.demo.cluster import KNOWN_BROKERS, NAMESPACE

ANSWER_TIMEOUT = aiohttp.ClientTimeout(total=1.0)
ORDER_TIMEOUT = aiohttp.ClientTimeout(total=30.0)
DONE = frozenset({HTTPStatus.OK, HTTPStatus.NO_CONTENT})


class Sidecars:
    def __init__(self, http: aiohttp.ClientSession) -> None:
        self._http = http

    async def unready(self, host: Host) -> str:
        """Return what a sidecar lacks; "" if it is of use."""
        status, text = await self._ask(f"{host.sidecar_url}/readyz")
        return "" if status == HTTPStatus.OK else f"sidecar-{host.number}: {text}"

    async def strangers(self, hosts: Sequence[Host]) -> str:
        """Return which sidecar does not know all brokers yet; "" if all do."""
        for host in hosts:
            if unready := await self.unready(host):
                return unready
            _, metrics = await self._ask(f"{host.sidecar_url}/metrics")
            found = KNOWN_BROKERS.search(metrics)
            if not found or int(float(found[1])) != len(hosts):
                return f"sidecar-{host.number} does not know all brokers"
        return ""

    async def leader(self, host: Host) -> str:
        status, text = await self._ask(f"{host.sidecar_url}/admin/v2/brokers/leaderBroker")
        return str(json.loads(text)["brokerId"]) if status == HTTPStatus.OK else "nobody"

    async def unload_all(self, host: Host) -> None:
        await self._put(f"{host.sidecar_url}/admin/v2/namespaces/{NAMESPACE}/unload", None)

    async def create_namespace(self, host: Host, bundles: int) -> None:
        body = {"bundles": {"numBundles": bundles}}
        await self._put(f"{host.sidecar_url}/admin/v2/namespaces/{NAMESPACE}", body)

    async def _ask(self, url: str) -> tuple[int, str]:
        try:
            async with self._http.get(url, timeout=ANSWER_TIMEOUT) as answer:
                return answer.status, await answer.text()
        except (aiohttp.ClientError, TimeoutError) as error:
            return 0, repr(error)

    async def _put(self, url: str, body: object) -> None:
        async with self._http.put(url, json=body, timeout=ORDER_TIMEOUT) as answer:
            assert answer.status in DONE, f"PUT {url}: {answer.status} {await answer.text()}"
