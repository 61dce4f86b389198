import re
from pathlib import Path

import pytest
from aiohttp import web
from fake_pulsar import FakePulsar

from tests.attach.conftest import attach, seen

RUNTIME = "/admin/v2/brokers/configuration/runtime"


def test_all_traffic_on_one_broker_is_seen_and_moves_are_proposed(pulsar: FakePulsar) -> None:
    told = seen(pulsar)
    assert (told["cluster"], told["version"], told["manager"]) == ("research", "4.0.7", "modular")
    assert told["maxOverMean"] == pytest.approx(3.0)
    assert told["leastMaxOverMean"] == pytest.approx(9 / 8)
    assert told["plannedMaxOverMean"] == pytest.approx(9 / 8)
    (first,) = (one for one in told["brokers"] if one["broker"] == pulsar.brokers[0].name)
    # 8 topics, 50 messages in and 100 out in each second.
    assert first["msgsInPerS"] == pytest.approx(400.0)
    assert first["msgsOutPerS"] == pytest.approx(800.0)
    assert {move["source"] for move in told["proposals"]} == {pulsar.brokers[0].name}
    assert len(told["proposals"]) == 5
    assert told["whole"] is True
    assert told["cost"]["requests"] > 0


def test_the_table_fits_80_columns_and_says_what_would_be_moved_and_why(pulsar: FakePulsar) -> None:
    found = attach(pulsar, "--once")
    assert found.exit_code == 0, found.output
    assert "research: Pulsar 4.0.7, modular load manager, 3 brokers" in found.output
    said = r"5 moves would bring the fullest broker from 3\.00 to 1\.1[23] times the mean"
    assert re.search(said, found.output)
    assert f"joint takes it off {pulsar.brokers[0].name}" in found.output
    table = found.output.split("fullest broker:")[0]
    assert max(map(len, table.splitlines())) <= 80


def test_a_repeated_page_is_waited_out_and_rates_are_of_its_own_time(pulsar: FakePulsar) -> None:
    """As brokers with metricsBufferResponse do, which is on in no setting here."""
    first = pulsar.brokers[0]
    (topic, *_), asked = first.topics, []
    labels = f'namespace="bench/skew",topic="{topic}"'

    async def page(_: web.Request) -> web.Response:
        asked.append(0)
        made_s, count = (5.2, 1_000) if len(asked) < 4 else (65.2, 7_000)
        return web.Response(
            text=f'jetty_stats_seconds{{cluster="c"}} {made_s}\n'
            f"pulsar_in_messages_total{{{labels}}} {count}\n"
        )

    first.instead["/metrics/"] = page
    told = seen(pulsar)
    (one,) = (one for one in told["brokers"] if one["broker"] == first.name)
    assert (one["windowS"], one["msgsInPerS"]) == pytest.approx((60.0, 100.0))
    assert told["traffic"] == {"counted": 1.0, "mayMove": 1.0, "passing": 0.0}


def test_nothing_is_asked_but_by_get_and_nobody_is_told_anything(pulsar: FakePulsar) -> None:
    seen(pulsar)
    asked = {path for broker in pulsar.brokers for path in broker.asked}
    owned = {f"/admin/v2/brokers/research/{one.name}/ownedNamespaces" for one in pulsar.brokers}
    assert asked == {
        "/metrics/",
        "/admin/v2/brokers/research",
        "/admin/v2/brokers/version",
        "/admin/v2/clusters/research/namespaceIsolationPolicies",
        "/admin/v2/namespaces/bench/skew/antiAffinity",
        RUNTIME,
        "/admin/v2/brokers/configuration/values",
        "/admin/v2/broker-stats/load-report",
        *owned,
    }


def test_what_stays_says_so(pulsar: FakePulsar) -> None:
    # Another domain hashes elsewhere: all bundles of the namespace are there.
    first = pulsar.brokers[0]
    for topic in list(first.topics):
        first.topics[topic.replace("persistent:", "non-persistent:")] = first.topics.pop(topic)
    first.grows = {t.replace("persistent:", "non-persistent:"): g for t, g in first.grows.items()}
    told = seen(pulsar)
    assert told["proposals"] == []
    assert set(told["staying"].values()) == {
        "has non-persistent topics, which lose messages when they move"
    }
    assert "no move that is allowed is worth its price" in told["verdict"]
    assert seen(pulsar, "--move-non-persistent")["proposals"] != []


def test_a_refused_policy_is_named_and_keeps_bundles_it_may_be_for(pulsar: FakePulsar) -> None:
    policy = {"namespaces": ["other/(?!a).*"], "primary": ["127.0.0.1"], "secondary": []}
    pulsar.isolation["odd"] = policy
    assert len(seen(pulsar)["proposals"]) == 5
    policy["namespaces"] = ["bench/(?!a).*"]
    told = seen(pulsar)
    assert told["proposals"] == []
    why = "isolation policy odd is refused: RE2 does not support 'bench/(?!a).*' "
    assert {one.startswith(why) for one in told["staying"].values()} == {True}
    policy["namespaces"], policy["primary"] = ["bench/([a-z0-9/-]+)+!"], ["10.0.0.1"]
    assert len(seen(pulsar)["proposals"]) == 5


@pytest.mark.parametrize("primary", [7, [7], "127.0.0.1", {}, ["x"] * 1_001])
def test_a_policy_of_a_wrong_form_is_refused_alone(pulsar: FakePulsar, primary: object) -> None:
    pulsar.isolation["odd"] = {"namespaces": ["bench/.*"], "primary": primary}
    pulsar.isolation["out"] = {"namespaces": ["other/.*"], "primary": ["10.0.0.1"]}
    told = seen(pulsar)
    assert told["proposals"] == []
    (why,) = set(told["staying"].values())
    assert why.startswith("isolation policy odd is refused: ")
    doctor = attach(pulsar, "--doctor")
    assert why[:60] in doctor.stdout
    assert doctor.exit_code == 1
    pulsar.isolation["odd"] = {"namespaces": 7}
    assert {move["source"] for move in seen(pulsar)["proposals"]} == {pulsar.brokers[0].name}


def test_a_quiet_cluster_is_not_judged(pulsar: FakePulsar) -> None:
    pulsar.brokers[0].grows.clear()
    told = seen(pulsar)
    assert (told["maxOverMean"], told["proposals"]) == (None, [])
    assert "no traffic was counted" in told["verdict"]


def test_the_doctor_names_settings_with_commands_that_change_them(pulsar: FakePulsar) -> None:
    found = attach(pulsar, "--doctor")
    assert found.exit_code == 0, found.output
    assert "Pulsar's own balancer acts until --balance or sidecars switch it off" in found.output
    pulsar.brokers[1].settings["loadBalancerSheddingEnabled"] = "false"
    found = attach(pulsar, "--doctor")
    assert found.exit_code == 1
    assert f"brokers differ (false: {pulsar.brokers[1].name}" in found.output
    pulsar.settings["loadBalancerSheddingEnabled"] = "false"
    found = attach(pulsar, "--doctor")
    assert "without attach --balance or sidecars no load manager balances" in found.output
    assert "in broker.conf, so it stays so after --balance" in found.output


def test_a_redirect_leads_to_no_stranger(pulsar: FakePulsar) -> None:
    async def lead_away(_: web.Request) -> web.Response:
        raise web.HTTPTemporaryRedirect("http://127.0.0.1:9/metrics/")

    pulsar.brokers[1].instead["/metrics/"] = lead_away
    told = seen(pulsar)
    assert "no broker of this cluster" in told["missing"][pulsar.brokers[1].name]


ACTIVE = "/admin/v2/brokers/research"
POLICIES = "/admin/v2/clusters/research/namespaceIsolationPolicies"


@pytest.mark.parametrize(
    ("path", "status", "text", "expected"),
    [
        (RUNTIME, 401, "Authentication required", "expected a token or certificate"),
        (RUNTIME, 403, "not a superuser", "the right of a superuser"),
        (RUNTIME, 404, "no such page", "expected the admin REST of a Pulsar broker"),
        (RUNTIME, 500, "boom", "answered 500 (boom)"),
        (RUNTIME, 200, "<html>hello</html>", "expected the JSON of a Pulsar broker"),
        (RUNTIME, 200, "[" * 200_000, "expected the JSON of a Pulsar broker"),
        (RUNTIME, 200, "{}", "no clusterName"),
        (RUNTIME, 200, "[1, 2]", "no clusterName"),
        (ACTIVE, 200, "[]", "has no active broker"),
        (ACTIVE, 200, '["x y"]', "expected host:port"),
        (ACTIVE, 200, "{}", "expected a list"),
        (POLICIES, 200, "[]", "namespaceIsolationPolicies"),
    ],
)
def test_what_no_pulsar_answers_is_named(
    pulsar: FakePulsar, path: str, status: int, text: str, expected: str
) -> None:
    for broker in pulsar.brokers[: 1 if path == RUNTIME else 3]:
        broker.tells(path, text, status)
    found = attach(pulsar, "--once")
    assert found.exit_code == 1
    (line,) = found.stderr.splitlines()
    assert expected in line
    assert path in line or path == ACTIVE


ODD_URLS = ("broker:8080", "pulsar://broker:6650", "http://", "http://b/x")
ODD_ADDRESSES = ("a:1", "a=b:1", "a:1=b", "a:1=http://b:1", "=", "a:1=https://")
TOGETHER = "are not given together"


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        *((f"--pulsar {url}", "expected http://host:port of any broker") for url in ODD_URLS),
        *((f"--pulsar http://a:1,{url}", "expected http") for url in ("", "https://b:2", "b:2")),
        *((f"--address {one}", "expected host:port") for one in ODD_ADDRESSES),
        ("--oauth2-audience a", "--oauth2-audience is given with --oauth2-key-file"),
        ("--oauth2-key-file FILE --token-file FILE", TOGETHER),
        ("--key-file FILE", "--certificate-file and --key-file are given together"),
        ("--ca-file FILE", "FILE"),
        ("--balance --restore", TOGETHER),
        ("--balance --doctor", TOGETHER),
        ("--cordon b:1 --drain b:1", TOGETHER),
        ("--cordon a/b", "a/b"),
        ("--reason x --once", "--reason is given with --cordon"),
        ("--take-over", "--take-over is given with --balance"),
        ("--balance --once --window night", "expected a time such as"),
        ("--doctor --history h", "--history is not given with --doctor"),
        *(
            (f"--as pulsar-admin {more}", "--as is given with --once")
            for more in ("--json --once", "--balance --once", "")
        ),
    ],
)
def test_options_that_mean_nothing_are_refused(tmp_path: Path, given: str, expected: str) -> None:
    file = tmp_path / "file"
    file.write_text("nothing")
    found = attach("http://b:1", *given.replace("FILE", str(file)).split())
    assert found.exit_code == 2
    assert expected.replace("FILE", str(file)) in found.output.replace("\n", "")
