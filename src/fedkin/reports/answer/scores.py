"""What is compared: the main measure of the models that clients use, and its words."""

from dataclasses import dataclass

from fedkin.data.measure import Measure
from fedkin.reports.run import Run
from fedkin.reports.tables import NEVER


@dataclass(frozen=True)
class Score:
    """The main measure of runs, in sentences, tables and charts."""

    measure: Measure

    @property
    def key(self) -> str:
        """Its name in records: `accuracy`, `mse`."""
        return self.measure.name

    @property
    def name(self) -> str:
        """Its name in a sentence."""
        return self.measure.title

    @property
    def sign(self) -> float:
        """1 if higher values are better, else −1: sign · (a − b) is positive if a is better."""
        return 1.0 if self.measure.higher else -1.0

    @property
    def better(self) -> str:
        """The word for better values."""
        return "higher" if self.measure.higher else "lower"

    @property
    def factor(self) -> float:
        """By which values are multiplied for display: 100 for percent."""
        return self.measure.times

    @property
    def in_percent(self) -> bool:
        """Whether values are shares, which are shown in percent."""
        return self.measure.unit == " %"

    @property
    def points(self) -> str:
        """The unit of a difference in a sentence."""
        return " points" if self.in_percent else self.measure.points

    def used(self, run: Run) -> float:
        """Its value for the models that clients use."""
        return run.used_value

    def worst(self, run: Run) -> float:
        """The same of the worst tenth of the clients."""
        return run.used_worst_decile

    def common(self, run: Run) -> float:
        """Its value for the global model."""
        return run.final_value

    def text(self, value: float) -> str:
        """A value: `93.9 %`."""
        return NEVER if value != value else self.measure.text(value)

    def amount(self, value: float) -> str:
        """The size of a difference: `6.4 points`."""
        return f"{self.number(abs(value))}{self.points}"

    def number(self, value: float, signed: bool = False) -> str:
        """A difference without its unit: `6.4`, `−0.3`; with a sign if asked for."""
        text = f"{self.factor * value:{'+' if signed else ''}{self.measure.number}}"
        zero = not text.strip("+-0.")
        return (text.strip("+-") if zero else text).replace("-", "−")
