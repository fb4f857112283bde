//! A chart of sizes over backups, as SVG without style of its own.

use super::layout::size;
use maud::{Markup, html};

/// Points of a line; more could not be told apart.
const POINTS: usize = 300;
const WIDTH: f64 = 720.0;
const HEIGHT: f64 = 160.0;

/// Draws two lines: what backups hold, and what each added. The numbers are also in the table of the page.
pub(super) fn sizes(title: &str, numbers: &[(u64, u64)]) -> Markup {
    let step = numbers.len().div_ceil(POINTS).max(1);
    let shown: Vec<_> = numbers.iter().step_by(step).copied().collect();
    let top = shown
        .iter()
        .map(|(a, b)| *a.max(b))
        .max()
        .unwrap_or(0)
        .max(1);
    let first: Vec<_> = shown.iter().map(|(bytes, _)| *bytes).collect();
    let second: Vec<_> = shown.iter().map(|(_, stored)| *stored).collect();
    html! {
        figure {
            figcaption {
                (title) ": " span.line-a { "content" } " and " span.line-b { "newly stored" }
                " bytes of each backup, up to " (size(top))
            }
            svg.chart viewBox="0 0 720 160" role="img" aria-label=(title) preserveAspectRatio="none" {
                polyline.line-a points=(points(&first, top)) {}
                polyline.line-b points=(points(&second, top)) {}
            }
        }
    }
}

/// A coordinate with one decimal.
pub(super) fn px(place: f64) -> String {
    format!("{place:.1}")
}

fn points(numbers: &[u64], top: u64) -> String {
    let last = numbers.len().saturating_sub(1).max(1) as f64;
    let at = |(index, number): (usize, &u64)| {
        let x = index as f64 / last * WIDTH;
        let y = HEIGHT - *number as f64 / top as f64 * (HEIGHT - 4.0) - 2.0;
        format!("{},{}", px(x), px(y))
    };
    let mut points: Vec<_> = numbers.iter().enumerate().map(at).collect();
    if let [only] = &points[..] {
        // One point is a level line.
        let y = only.split_once(',').map_or("0", |(_, y)| y);
        let end = format!("{WIDTH},{y}");
        points.push(end);
    }
    points.join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chart_has_a_bounded_number_of_points_within_its_frame() {
        assert_eq!(points(&[0, 10], 10), "0.0,158.0 720.0,2.0");
        assert_eq!(points(&[5], 10), "0.0,80.0 720,80.0");
        let numbers: Vec<_> = (0..100_000u64).map(|number| (number, u64::MAX)).collect();
        let drawn = sizes("t", &numbers).into_string();
        assert!(drawn.matches(',').count() <= 2 * POINTS + 10);
    }
}
