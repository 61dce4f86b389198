"""The brokers of a scenario: their resources, and the hidden costs of their work."""

from pydantic import Field

from loadmanager.config.forms import Section, Word


class HiddenCost(Section):
    """The cost of work on a broker of a class, hidden from strategies.

    Messages and bytes count in and out alike.
    """

    cpu_us_per_msg: float = Field(20.0, ge=0, le=1e6, description="CPU for one message.")
    cpu_ns_per_byte: float = Field(2.0, ge=0, le=1e6, description="CPU for one byte.")
    cpu_us_per_topic_s: float = Field(
        50.0, ge=0, le=1e6, description="CPU each second for having a topic."
    )
    cpu_us_per_connection_s: float = Field(
        20.0, ge=0, le=1e6, description="CPU each second for having a producer or consumer."
    )
    wire_bytes_per_msg: float = Field(
        60.0, ge=0, le=1e6, description="Bytes on the network for a message besides its content."
    )
    memory_kib_per_topic: float = Field(64.0, ge=0, le=1e9, description="Memory for a topic.")
    memory_kib_per_connection: float = Field(
        128.0, ge=0, le=1e9, description="Memory for a producer or consumer."
    )
    memory_kib_per_msg_per_s: float = Field(
        8.0, ge=0, le=1e9, description="Memory for each message per second, as buffers and cache."
    )


class Background(Section):
    """What other processes on a broker's host use; a strategy sees it only in the usage."""

    cores: float = Field(0.0, ge=0, le=4096, description="CPU.")
    network_in_mbit_per_s: float = Field(
        0.0, ge=0, le=1e6, description="What arrives on the network."
    )
    network_out_mbit_per_s: float = Field(
        0.0, ge=0, le=1e6, description="What leaves on the network."
    )
    memory_mib: float = Field(256.0, ge=0, le=1e8, description="Memory.")


class BrokerClass(Section):
    """``count`` brokers that are alike: ``{name}-1`` and so on."""

    name: Word = Field(
        description="Its brokers are `name-1`, `name-2` and so on; the name stands for all of them."
    )
    count: int = Field(ge=1, le=100_000, description="How many.")
    cores: float = Field(8.0, gt=0, le=4096, description="CPU of each.")
    network_mbit_per_s: float = Field(
        10_000.0, gt=0, le=1e7, description="Network of each, in and out."
    )
    memory_mib: float = Field(16_384.0, gt=0, le=1e8, description="Memory of each.")
    cost: HiddenCost = Field(
        default_factory=HiddenCost, description="The cost of their work, hidden from strategies."
    )
    background: Background = Field(
        default_factory=Background, description="What other processes on their hosts use."
    )
    joined: bool = Field(default=True, description="Whether they are there from the beginning.")
    failure_domain: str = Field("", description="The failure domain that they are in, if any.")

    @property
    def brokers(self) -> tuple[str, ...]:
        return tuple(f"{self.name}-{number}" for number in range(1, self.count + 1))
