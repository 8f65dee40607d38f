"""The values that a run leaves behind, and the figures that are drawn from them."""

from statistics import median

from msgspec import Struct, field

from bench.cases import Case
from bench.load import Outcome

CALM = 0.1
NONE = "–"


class Reading(Struct, frozen=True):
    """One gateway, one case, one number of connections, once."""

    outcome: Outcome
    cpu_us: float  # of the gateway's processes, per request
    generator: str
    others: float  # the share of the gateway's core that other processes took meanwhile

    @property
    def calm(self) -> bool:
        return self.others <= CALM


class Cell(Struct):
    """All readings of one gateway in one case, in the order of the rounds."""

    gateway: str
    case: str
    connections: int
    readings: list[Reading] = field(default_factory=list)
    problem: str | None = None

    @property
    def cpu_us(self) -> float | None:
        """The median of the calm readings, or of all where none was calm: a crowded core costs cache misses."""
        chosen = [reading for reading in self.readings if reading.calm] or self.readings
        return median(reading.cpu_us for reading in chosen) if chosen else None

    @property
    def first_token_ms(self) -> tuple[float, float] | None:
        """p50 and p99."""
        found = [r.outcome for r in self.readings if r.outcome.first_p50 is not None]
        if not found:
            return None
        return median(o.first_p50 or 0.0 for o in found) * 1e3, median(o.first_p99 or 0.0 for o in found) * 1e3

    @property
    def gap_ms(self) -> float | None:
        """The p99 of what passes between two pieces of a stream."""
        found = [r.outcome.gap_p99 for r in self.readings if r.outcome.gap_p99 is not None]
        return median(found) * 1e3 if found else None

    @property
    def errors(self) -> int:
        return sum(reading.outcome.errors for reading in self.readings)


class Start(Struct, frozen=True):
    """One start of a gateway, until its path of health answers."""

    seconds: float
    cpu_s: float
    idle_mb: float  # the resident set, soon after


class Memory(Struct, frozen=True):
    """The resident set of a gateway's processes, in MB."""

    started: float
    after_many: float
    many: int  # requests
    at_end: float


class Machine(Struct, frozen=True):
    """What the figures were measured on."""

    date: str
    cpu: str
    cores: int
    kernel: str
    python: str
    versions: dict[str, str]
    other_python: str = ""  # the second interpreter, where there is one
    beside: str = ""  # the other commit, where there is one


class Results(Struct):
    """A whole run."""

    machine: Machine
    rounds: int
    cells: list[Cell] = field(default_factory=list)
    memory: dict[str, Memory] = field(default_factory=dict)
    starts: dict[str, list[Start]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def cell(self, gateway: str, case: str, connections: int) -> Cell:
        """Return the cell, made when it is first needed."""
        cell = self.find_cell(gateway, case, connections)
        if cell not in self.cells:
            self.cells.append(cell)
        return cell

    def find_cell(self, gateway: str, case: str, connections: int) -> Cell:
        """The cell as it was measured, or an empty one."""
        for cell in self.cells:
            if (cell.gateway, cell.case, cell.connections) == (gateway, case, connections):
                return cell
        return Cell(gateway, case, connections)

    @property
    def connections(self) -> list[int]:
        """The numbers of connections that were measured."""
        return sorted({cell.connections for cell in self.cells})

    def cpu_us(self, gateway: str, case: str, connections: int) -> float | None:
        return self.find_cell(gateway, case, connections).cpu_us

    def cold_start_s(self, gateway: str) -> float | None:
        starts = self.starts.get(gateway)
        return median(start.seconds for start in starts) if starts else None

    def ratio(self, case: str, baseline: str, connections: int) -> float | None:
        """dragoman's CPU over nginx's."""
        ours = self.cpu_us("dragoman", case, connections)
        theirs = self.cpu_us("nginx", baseline, connections)
        return ours / theirs if ours and theirs else None

    def over(self, gateway: str, case: Case, connections: int) -> float | None:
        """LiteLLM's CPU over that of another gateway; what copies bytes copies the same upstream bytes."""
        theirs = self.cpu_us("litellm", case.name, connections)
        ours = self.cpu_us(gateway, (case.baseline if gateway == "nginx" else case).name, connections)
        return theirs / ours if theirs and ours else None

    def added_ms(self, gateway: str, case: str, baseline: str, connections: int) -> tuple[float, float] | None:
        """First token through the gateway less first token without it, p50 and p99."""
        through = self.find_cell(gateway, case, connections).first_token_ms
        direct = self.find_cell("direct", baseline, connections).first_token_ms
        if through is None or direct is None:
            return None
        return through[0] - direct[0], through[1] - direct[1]

    def delay_ms(self, gateway: str, case: str, baseline: str, connections: int) -> float | None:
        """By how much an event comes later after the one before than it does without a gateway, p99."""
        through = self.find_cell(gateway, case, connections).gap_ms
        direct = self.find_cell("direct", baseline, connections).gap_ms
        return None if through is None or direct is None else through - direct


def format_number(value: float | None) -> str:
    if value is None:
        return NONE
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}"
