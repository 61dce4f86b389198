from collections.abc import Iterator
from typing import Final

from markdown_tables import table

from loadmanager.config.describe import KeyDescription, as_toml, describe, keys_of, section_models
from loadmanager.config.pulsar_import import DEPLOYMENT, MISSPELT, TRANSLATED, UNUSED

_HEAD: Final = """\
# Configuration

Made from the keys' own declarations; do not edit it.

Settings come from a TOML file, over it from environment variables `LOADMANAGER_<SECTION>__<KEY>`,
over those from `--set SECTION.KEY=VALUE`. `loadmanager config check --config FILE` reports every
mistake at once, with the place of each; `loadmanager config show-defaults` prints a file with all
keys, `loadmanager config import broker.conf` one with what Pulsar's file says.

**Dynamic** keys can be changed for all sidecars while they run, in ZooKeeper
(`/admin/configuration`, as Pulsar's): `loadmanager config set leader.round_interval_s 120`, or
`POST /admin/v2/brokers/configuration/{name}/{value}`. The name is `section.key` as here, or
Pulsar's, and then the value is in Pulsar's unit. They count over file, environment and `--set`.
One that means nothing, or contradicts a sidecar's other settings, is left out there and logged.
"""


def configuration_reference() -> str:
    return "\n".join([_HEAD, *_sections(), *_pulsar_keys()]) + "\n"


def _sections() -> Iterator[str]:
    for section, model in section_models().items():
        yield f"## [{section}]\n"
        yield f"{model.__doc__}\n".replace("\n    ", "\n")
        yield from table(
            ("key", "what it does", "expected", "unit", "default", "dynamic"),
            map(_cells, keys_of(section).values()),
        )
        yield ""


def _cells(known: KeyDescription) -> tuple[str, ...]:
    return (
        f"`{known.key}`",
        known.description,
        known.expected,
        known.unit.partition(",")[0],
        "required" if known.required else _default(known),
        "yes" if known.dynamic else "",
    )


def _default(known: KeyDescription) -> str:
    return "unset" if known.default is None else f"`{as_toml(known.default)}`"


def _pulsar_keys() -> Iterator[str]:
    dynamic = {(known.section, known.key) for known in describe() if known.dynamic}
    yield "## Pulsar's keys\n"
    yield "What `loadmanager config import` makes of them. Settings of strategies are in the"
    yield "[strategy guide](strategies.md), with our key beside Pulsar's. The addresses of broker"
    yield f"and ZooKeeper are read from {', '.join(f'`{key}`' for key in sorted(DEPLOYMENT))}.\n"
    yield "| Pulsar's key | ours | dynamic |"
    yield "|---|---|---|"
    for name, (_, targets) in sorted(TRANSLATED.items()):
        ours = ", ".join(f"`[{one.section}] {one.key}`" for one in targets)
        is_dynamic = all((one.section, one.key) in dynamic for one in targets)
        yield f"| `{name}` | {ours} | {'yes' if is_dynamic else ''} |"
    yield "\n| Pulsar's key | why it means nothing here |"
    yield "|---|---|"
    for name, why in sorted(UNUSED.items()):
        yield f"| `{name}` | {why} |"
    older = ", ".join(f"`{name}` for `{right}`" for name, right in sorted(MISSPELT.items()))
    yield f"\n`config import` also accepts the older names {older};"
    yield "they count where the right name has its default."
