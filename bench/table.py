"""The lines of the table the figures are shown in."""

from dataclasses import dataclass, field
from statistics import median

from measure import text_of


MET = {True: "yes", False: "**no**", None: ""}


@dataclass
class Line:
    """One line of the table."""
    row: str
    what: str
    result: float
    target: float | None        # None: only reported
    sign: str = "<="
    unit: str = ""
    shown: str = ""
    a: str = ""
    b: str = ""
    commands: list = field(default_factory=list)
    raw: list = field(default_factory=list)

    @property
    def met(self):
        """None without a target."""
        if self.target is None:
            return None
        return self.result <= self.target if self.sign == "<=" else self.result >= self.target

    def markdown(self):
        result = self.shown or f"{self.result:.4g}{self.unit}"
        target = "none" if self.target is None else f"{self.sign} {self.target:.4g}{self.unit}"
        commands = "<br>".join("`" + text_of(c).replace("|", "\\|") + "`" for c in self.commands)
        return (f"| {self.row} | {self.what} | {target} | {result} | "
                f"{MET[self.met]} | {self.a} | {self.b} | {commands} |")


HEADER = ("| row | measure | target | result | met | A | B | commands: A, B |\n"
          "|---|---|---|---|---|---|---|---|")


def ratio_line(row, what, target, pairs, commands, sign="<=", unit="s"):
    """The median of the ratios A / B, with their range, and the medians of both sides."""
    ratios = [a / b for a, b in pairs]
    middle = median(ratios)
    return Line(row, what, middle, target, sign,
                shown=f"{middle:.3f} ({min(ratios):.3f}–{max(ratios):.3f})",
                a=f"{median(a for a, _ in pairs):.4g} {unit}",
                b=f"{median(b for _, b in pairs):.4g} {unit}", commands=commands, raw=pairs)


def wall_line(row, what, target, pairs):
    """The ratios of the seconds that both sides of `pairs` took."""
    return ratio_line(row, what, target, pairs.of("wall"), [pairs.a.command, pairs.b.command])
