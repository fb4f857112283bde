//! Charts of a page about a run: SVG with axes, units and ticks.

use fullbore_format::text::size::rate;
use std::fmt::Write;

const WIDTH: f64 = 900.0;
const HEIGHT: f64 = 200.0;
/// Room for the labels of the axes.
const LEFT: f64 = 78.0;
const BOTTOM: f64 = 26.0;
const TOP: f64 = 8.0;
const RIGHT: f64 = 14.0;

/// Maximum number of ticks of an axis, without that at zero.
const TICKS: f64 = 6.0;

/// A chart over the time of a run.
pub(super) struct Chart<'a> {
    /// Heading.
    pub(super) title: &'a str,
    /// Seconds of the whole run.
    pub(super) seconds: f64,
    /// The value at the top.
    pub(super) top: f64,
    /// Formats a tick of the vertical axis.
    pub(super) label: fn(f64) -> String,
    /// The explanation below the chart, as HTML.
    pub(super) caption: String,
}

impl Chart<'_> {
    /// The position of a time, in seconds.
    fn x(&self, seconds: f64) -> f64 {
        LEFT + seconds / self.seconds.max(1e-9) * (WIDTH - LEFT - RIGHT)
    }

    /// The position of a value.
    fn y(&self, value: f64) -> f64 {
        let height = HEIGHT - TOP - BOTTOM;
        TOP + height - value / self.top.max(1e-9) * height
    }

    /// A line through points of time and value.
    pub(super) fn line(&self, class: &str, points: impl Iterator<Item = (f64, f64)>) -> String {
        let points: String = points
            .map(|(time, value)| format!("{:.1},{:.1} ", self.x(time), self.y(value)))
            .collect();
        format!("<polyline class=\"{class}\" points=\"{points}\"/>")
    }

    /// A bar between two times and two values.
    pub(super) fn bar(&self, class: &str, times: [f64; 2], values: [f64; 2]) -> String {
        let [start, end] = times.map(|time| self.x(time));
        let [below, above] = values.map(|value| self.y(value));
        format!(
            "<rect class=\"{class}\" x=\"{start:.1}\" y=\"{above:.1}\" width=\"{:.1}\" height=\"{:.1}\"/>",
            end - start + 0.2,
            below - above
        )
    }

    /// The whole chart around its content.
    pub(super) fn draw(&self, content: &str) -> String {
        let title = self.title;
        format!(
            "<h2>{title}</h2>\n<svg id=\"{title}\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" aria-label=\"{title} over time\">{content}{}{}</svg>\n<p>{}</p>\n",
            self.value_axis(),
            self.time_axis(),
            self.caption
        )
    }

    fn value_axis(&self) -> String {
        let mut axis = String::new();
        for value in ticks(self.top) {
            let y = self.y(value);
            let _ = write!(
                axis,
                "<line class=\"grid\" x1=\"{LEFT}\" x2=\"{}\" y1=\"{y:.1}\" y2=\"{y:.1}\"/>\
                 <text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
                WIDTH - RIGHT,
                LEFT - 8.0,
                y + 4.0,
                (self.label)(value)
            );
        }
        axis
    }

    fn time_axis(&self) -> String {
        let (unit_seconds, unit) = time_unit(self.seconds);
        let mut axis = String::new();
        for value in ticks(self.seconds / unit_seconds) {
            let x = self.x(value * unit_seconds);
            let _ = write!(
                axis,
                "<line class=\"tick\" x1=\"{x:.1}\" x2=\"{x:.1}\" y1=\"{0}\" y2=\"{1}\"/>\
                 <text x=\"{x:.1}\" y=\"{2}\" text-anchor=\"middle\">{3} {unit}</text>",
                HEIGHT - BOTTOM,
                HEIGHT - BOTTOM + 5.0,
                HEIGHT - 6.0,
                number(value)
            );
        }
        axis
    }
}

/// The unit of a time axis: its seconds and its name.
fn time_unit(seconds: f64) -> (f64, &'static str) {
    match seconds {
        s if s < 180.0 => (1.0, "s"),
        s if s < 3.0 * 3600.0 => (60.0, "min"),
        _ => (3600.0, "h"),
    }
}

/// Round values from zero to `top`, each 1, 2 or 5 times a power of ten apart.
fn ticks(top: f64) -> Vec<f64> {
    if !top.is_finite() || top <= 0.0 {
        return vec![0.0];
    }
    let power = 10f64.powf((top / TICKS).log10().floor());
    let step = [1.0, 2.0, 5.0, 10.0]
        .map(|times| times * power)
        .into_iter()
        .find(|step| top / step <= TICKS)
        .unwrap_or(10.0 * power);
    let count = (top / step + 1e-9).floor() as u32;
    (0..=count).map(|tick| f64::from(tick) * step).collect()
}

/// A tick without digits that say nothing.
fn number(value: f64) -> String {
    let text = format!("{value:.2}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// A tick of bytes a second.
pub(super) fn bytes_a_second(value: f64) -> String {
    rate(value as u64, 1.0)
}

/// A tick of a share of 1.
pub(super) fn percent(value: f64) -> String {
    format!("{:.0} %", value * 100.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_round_and_few() {
        assert_eq!(ticks(1.0), [0.0, 0.2, 0.4, 0.6000000000000001, 0.8, 1.0]);
        assert_eq!(ticks(7.3), [0.0, 2.0, 4.0, 6.0]);
        assert_eq!(ticks(0.0), [0.0]);
        for top in [0.013, 1.7, 42.0, 999.0, 5.3e8] {
            let found = ticks(top);
            assert!((3..=7).contains(&found.len()), "{top}: {found:?}");
            assert!(found.iter().all(|tick| *tick <= top * 1.0001), "{top}");
        }
        assert_eq!([0.5, 2.0, 120.0].map(number), ["0.5", "2", "120"]);
    }

    #[test]
    fn a_chart_has_units_on_both_axes() {
        let chart = Chart {
            title: "throughput",
            seconds: 600.0,
            top: 4e8,
            label: bytes_a_second,
            caption: String::new(),
        };
        let drawn = chart.draw("");
        assert!(
            drawn.contains(">10 min<") && drawn.contains(">400 MB/s<"),
            "{drawn}"
        );
    }
}
