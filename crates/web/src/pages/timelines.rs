//! The timelines of a cluster as a picture: a bar of the archived WAL for each, its gaps, and where it left another one.

use super::chart::px;
use fullbore_format::wal::SegmentName;
use maud::{Markup, html};
use serde_json::Value;
use std::ops::RangeInclusive;

const WIDTH: f64 = 720.0;
/// Left of the bars: the numbers of timelines.
const LABEL: f64 = 40.0;
/// Height of a row, and of its bar.
const ROW: usize = 24;
const BAR: usize = 12;
/// The least width of a bar that can be seen.
const LEAST: f64 = 3.0;

/// A timeline, with its WAL as bytes from the beginning of the cluster on.
struct Bar {
    timeline: u64,
    parent: Option<u64>,
    held: RangeInclusive<u64>,
}

/// Draws the timelines of a line of `fullbore wal list --json`, at most `most` of them. All numbers are also in the table of the page.
pub(super) fn picture(wal: &Value, most: usize) -> Markup {
    let segment_bytes = wal["segment_bytes"].as_u64().unwrap_or(16 << 20);
    let lines = wal["timelines"].as_array().into_iter().flatten();
    let bars: Vec<Bar> = lines
        .filter_map(|line| bar(line, segment_bytes))
        .take(most)
        .collect();
    let gaps = wal["gaps"].as_array().into_iter().flatten();
    let gaps = gaps.filter_map(|gap| {
        let row = timeline_of(&gap["first_segment"])?;
        let row = bars.iter().position(|bar| bar.timeline == row)?;
        Some((row, held(gap, segment_bytes)?))
    });
    let gaps: Vec<_> = gaps.take(most).collect();
    let all = bars.iter().map(|bar| &bar.held);
    let begin = all.clone().map(|held| *held.start()).min().unwrap_or(0);
    let end = all.map(|held| *held.end()).max().unwrap_or(0);
    let x = |place: u64| {
        let share = place.saturating_sub(begin) as f64 / end.saturating_sub(begin).max(1) as f64;
        LABEL + share.min(1.0) * (WIDTH - LABEL)
    };
    let wide = |held: &RangeInclusive<u64>| (x(*held.end()) - x(*held.start())).max(LEAST);
    let height = bars.len().max(1) * ROW;
    let top = |row: usize| row * ROW + (ROW - BAR) / 2;
    html! {
        figure {
            figcaption { "WAL of each timeline, gaps " span.trouble { "red" } }
            svg.timelines viewBox=(format!("0 0 {WIDTH} {height}")) role="img" aria-label="Timelines" {
                @for (row, bar) in bars.iter().enumerate() {
                    text x="4" y=(top(row) + BAR - 1) { (bar.timeline) }
                    @if let Some(parent) = parent_row(&bars, bar) {
                        line x1=(px(x(*bar.held.start()))) y1=(top(parent) + BAR) x2=(px(x(*bar.held.start()))) y2=(top(row)) {}
                    }
                    rect.some x=(px(x(*bar.held.start()))) y=(top(row)) width=(px(wide(&bar.held))) height=(BAR) {}
                }
                @for (row, gap) in &gaps {
                    rect.bad x=(px(x(*gap.start()))) y=(top(*row)) width=(px(wide(gap))) height=(BAR) {}
                }
            }
        }
    }
}

fn parent_row(bars: &[Bar], bar: &Bar) -> Option<usize> {
    let parent = bar.parent?;
    bars.iter().position(|other| other.timeline == parent)
}

fn bar(line: &Value, segment_bytes: u64) -> Option<Bar> {
    Some(Bar {
        timeline: line["timeline"].as_u64()?,
        parent: line["parent"].as_u64(),
        held: held(line, segment_bytes)?,
    })
}

fn segment(value: &Value) -> Option<SegmentName> {
    SegmentName::parse(value.as_str()?)
}

fn timeline_of(value: &Value) -> Option<u64> {
    Some(u64::from(segment(value)?.timeline))
}

/// From the begin of the first segment to the end of the last one.
fn held(line: &Value, segment_bytes: u64) -> Option<RangeInclusive<u64>> {
    let first = segment(&line["first_segment"])?.start(segment_bytes);
    let last = segment(&line["last_segment"])?.start(segment_bytes);
    Some(first..=last.saturating_add(segment_bytes))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn bars_are_within_the_frame_whatever_the_names_say() {
        let wal = json!({"segment_bytes": 16 << 20, "timelines": [
            {"timeline": 1, "parent": null, "first_segment": "000000010000000000000002", "last_segment": "000000010000000000000004"},
            {"timeline": 2, "parent": 1, "first_segment": "000000020000000000000005", "last_segment": "00000002FFFFFFFFFFFFFFFF"},
            {"timeline": 3, "parent": 9, "first_segment": "nothing", "last_segment": "<b>"},
        ], "gaps": [{"first_segment": "000000020000000000000006", "last_segment": "000000020000000000000008"}]});
        let drawn = picture(&wal, 100).into_string();
        assert_eq!(drawn.matches("rect class=\"some\"").count(), 2);
        assert_eq!(drawn.matches("rect class=\"bad\"").count(), 1);
        assert_eq!(drawn.matches("<line").count(), 1);
        let numbers = drawn.split(" x=\"").skip(1);
        let numbers = numbers.filter_map(|rest| rest.split('"').next()?.parse::<f64>().ok());
        assert!(numbers.clone().count() >= 5);
        assert!(
            numbers.into_iter().all(|x| (0.0..=WIDTH).contains(&x)),
            "{drawn}"
        );
        assert_eq!(
            picture(&wal, 1)
                .into_string()
                .matches("rect class=\"some\"")
                .count(),
            1
        );
        assert!(picture(&Value::Null, 9).into_string().contains("<svg"));
    }
}
