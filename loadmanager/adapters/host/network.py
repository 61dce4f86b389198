from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from loadmanager.adapters.host.reading import Unreadable, read_int, read_text

_ETHERNET: Final = 1
_IN_USE: Final = {"up", "unknown", "dormant"}
_ONE_AT_A_TIME: Final = {"active-backup", "broadcast"}
"""Modes of bonds with the capacity of one member: it sends alone, or all send the same."""


@dataclass(frozen=True, slots=True)
class Traffic:
    nics: tuple[str, ...]
    received_bytes: int
    sent_bytes: int


class Nics:
    def __init__(self, sys_root: Path) -> None:
        self._devices = sys_root
        self._folder = sys_root / "class" / "net"

    def physical(self) -> tuple[str, ...]:
        """Return the hardware interfaces that are in use.

        The links of ``class/net`` are resolved before the path is searched for ``virtual``, because
        an unresolved veth looks like hardware. Of a bond, its members are returned, or the one in
        use if only one is at a time. An interface below another one of hardware is left out, such
        as a virtual function of Azure: the upper one counts its traffic and has its speed. Raises
        `Unreadable`: there is no sysfs.
        """
        try:
            names = sorted(entry.name for entry in self._folder.iterdir())
        except OSError as error:
            raise Unreadable(self._folder, error.strerror or type(error).__name__) from error
        used = [name for name in names if self._is_hardware(name) and self._in_use(name)]
        return tuple(name for name in used if self._counts(name, used))

    def _counts(self, nic: str, used: Sequence[str]) -> bool:
        for upper in self._uppers(nic):
            if upper in used:
                return False
            bond = self._folder / upper / "bonding"
            if _first_word(bond / "mode") in _ONE_AT_A_TIME:
                members = [one for one in used if upper in self._uppers(one)]
                return nic == (_first_word(bond / "active_slave") or members[0])
        return True

    def _uppers(self, nic: str) -> set[str]:
        """Return the interfaces that stand on one, such as its bond."""
        above = {one.name.removeprefix("upper_") for one in (self._folder / nic).glob("upper_*")}
        master = self._folder / nic / "master"
        return above | ({master.resolve().name} if master.is_symlink() else set())

    def traffic(self, nics: Sequence[str]) -> Traffic:
        """Raises `Unreadable`: one of them has no counters."""
        counters = [self._folder / nic / "statistics" for nic in nics]
        return Traffic(
            tuple(nics),
            sum(read_int(counter / "rx_bytes") for counter in counters),
            sum(read_int(counter / "tx_bytes") for counter in counters),
        )

    def speed_mbit_per_s(self, nics: Sequence[str]) -> int:
        """Raises `Unreadable`: without one speed the host would look fuller than it is."""
        return sum(self._speed_mbit_per_s(nic) for nic in nics)

    def _speed_mbit_per_s(self, nic: str) -> int:
        path = self._folder / nic / "speed"
        # A bond, bridge or VLAN has the speed of the interfaces below.
        stands_on_others = any((self._folder / nic).glob("lower_*"))
        if not self._is_hardware(nic) and not stands_on_others:
            # A veth reports 10 Gbit/s, whatever it is connected to.
            raise Unreadable(path, "a virtual interface has no speed of its own")
        speed = read_int(path)
        if speed <= 0:
            raise Unreadable(path, f"{speed} is no speed")
        return speed

    def _is_hardware(self, nic: str) -> bool:
        try:
            device, root = (self._folder / nic).resolve(), self._devices.resolve()
        except (OSError, RuntimeError) as error:
            raise Unreadable(self._folder / nic, str(error)) from error
        below = device.relative_to(root) if device.is_relative_to(root) else device
        return "virtual" not in below.parts

    def _in_use(self, nic: str) -> bool:
        try:
            kind = read_int(self._folder / nic / "type")
            state = read_text(self._folder / nic / "operstate")
        except Unreadable:
            # Not an interface, such as the file bonding_masters, or one that was just removed.
            return False
        return kind == _ETHERNET and state in _IN_USE


def _first_word(path: Path) -> str:
    try:
        return next(iter(read_text(path).split()), "")
    except Unreadable:
        return ""
