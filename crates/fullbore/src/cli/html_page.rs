//! The page of a report, drawn from numbers: facts of a run, its limit, and charts of throughput and shares over time.
//!
//! The numbers may come from another host. They are bounded, and each text is escaped, so that no page has anything of its own but
//! styles; the page forbids scripts and requests besides.

use super::{
    html_chart::{Chart, bytes_a_second, percent},
    limit::RunLimit,
};
use fullbore_platform::metrics::meter::{MeterSample, Shares, Side, verdict};
use serde::{Deserialize, Serialize};

/// The first bytes of each page. A file that begins otherwise is not a report, and is not replaced.
pub(super) const BEGINS: &str = "<!doctype html>\n<!-- A report of fullbore -->";

/// The number of points of a chart; more could not be told apart.
const POINTS: usize = 300;

/// Bytes of the numbers of another host.
const MAX_BYTES: usize = 1 << 20;

/// Lines, facts and kinds of work at most.
const MAX_LINES: usize = 2000;

const SIDES: [Side; 3] = [Side::Source, Side::Workers, Side::Sink];

/// Busy, starved and blocked shares of source, workers and sink, 0 to 1.
type ShareTable = [[f64; 3]; 3];

/// The numbers of a report.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct ReportNumbers {
    title: String,
    /// Names and values.
    facts: Vec<(String, String)>,
    /// The lines that the command printed.
    lines: Vec<String>,
    /// How busy the processors were.
    processors: String,
    /// Kinds of work, with their shares of the processor time.
    work: Vec<(String, f64)>,
    /// The words for source, workers and sink.
    names: [String; 3],
    /// Which of the three was the limit.
    limit: usize,
    shares: ShareTable,
    points: Vec<ReportPoint>,
}

/// An interval between two points of the timeline.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct ReportPoint {
    /// Seconds since the start.
    from: f64,
    to: f64,
    /// Bytes of content and stored bytes in a second.
    plain: f64,
    stored: f64,
    shares: ShareTable,
}

const START: MeterSample = MeterSample::ZERO;

fn shares_of(of: impl Fn(Side) -> Shares) -> ShareTable {
    SIDES.map(|side| {
        let shares = of(side);
        [shares.busy, shares.starved, shares.blocked]
    })
}

impl ReportPoint {
    fn between(pair: &[&MeterSample]) -> Self {
        let [earlier, later] = [pair[0], pair[1]];
        let time = (later.seconds - earlier.seconds).max(1e-9);
        let speed = |start: u64, end: u64| end.saturating_sub(start) as f64 / time;
        let verdict = verdict(earlier, later);
        Self {
            from: earlier.seconds,
            to: later.seconds,
            plain: speed(earlier.bytes, later.bytes),
            stored: speed(earlier.stored_bytes, later.stored_bytes),
            shares: shares_of(|side| verdict.of(side)),
        }
    }

    fn numbers(&mut self) -> impl Iterator<Item = &mut f64> {
        let own = [
            &mut self.from,
            &mut self.to,
            &mut self.plain,
            &mut self.stored,
        ];
        own.into_iter().chain(self.shares.as_flattened_mut())
    }
}

impl ReportNumbers {
    pub(super) fn of(
        title: &str,
        facts: &[(&'static str, String)],
        lines: &[String],
        limit: &RunLimit,
        timeline: &[MeterSample],
    ) -> Self {
        // A long run has more samples than a chart has columns.
        let step = timeline.len().div_ceil(POINTS).max(1);
        let samples = std::iter::once(&START).chain(timeline.iter().step_by(step));
        let samples: Vec<_> = samples.collect();
        let owned = |(name, value): &(&'static str, String)| ((*name).to_owned(), value.clone());
        let work = limit.work().iter();
        Self {
            title: title.to_owned(),
            facts: facts.iter().map(owned).collect(),
            lines: lines.iter().take(MAX_LINES).cloned().collect(),
            processors: limit.processor_text(),
            work: work
                .map(|(name, share)| ((*name).to_owned(), *share))
                .collect(),
            names: limit.names.map(str::to_owned),
            limit: limit.verdict.limit as usize,
            shares: shares_of(|side| limit.verdict.of(side)),
            points: samples.windows(2).map(ReportPoint::between).collect(),
        }
    }

    /// As a host sends them.
    pub(super) fn to_json(&self) -> String {
        serde_json::to_string(self).unwrap_or_default()
    }

    /// Reads the numbers of another host; `None` if they are none, or too many.
    pub(super) fn read(bytes: &[u8]) -> Option<Self> {
        if bytes.len() > MAX_BYTES {
            return None;
        }
        let mut read: Self = serde_json::from_slice(bytes).ok()?;
        let is_bounded = read.points.len() <= POINTS + 1
            && read.limit < SIDES.len()
            && [read.facts.len(), read.lines.len(), read.work.len()]
                .iter()
                .all(|count| *count <= MAX_LINES);
        let work = read.work.iter_mut().map(|(_, share)| share);
        let points = read.points.iter_mut().flat_map(ReportPoint::numbers);
        for number in work.chain(read.shares.as_flattened_mut()).chain(points) {
            // A chart has no room for others.
            *number = number.clamp(0.0, 1e18);
        }
        is_bounded.then_some(read)
    }

    /// The page.
    pub(super) fn render(&self) -> String {
        let title = escape(&self.title);
        let mut body = format!("<h1>{title}</h1>\n{}", self.fact_table());
        body += &format!("<pre>{}</pre>\n", escape(&self.lines.join("\n")));
        body += &self.work_table();
        body += &self.side_table();
        body += &self.throughput();
        for side in 0..SIDES.len() {
            body += &self.share_chart(side);
        }
        format!(
            "{BEGINS}\n<html lang=\"en\"><head><meta charset=\"utf-8\">\
             <meta http-equiv=\"Content-Security-Policy\" content=\"{POLICY}\">\
             <meta name=\"color-scheme\" content=\"light dark\">\
             <title>{title}</title>\n<style>{STYLE}</style></head>\n<body>\n{body}</body></html>\n"
        )
    }

    fn fact_table(&self) -> String {
        let rows: String = self.facts.iter().map(fact_row).collect();
        format!("<table class=\"facts\">{rows}</table>\n")
    }

    /// Where the time of the processors went.
    fn work_table(&self) -> String {
        let rows: String = self.work.iter().map(work_row).collect();
        let use_text = escape(&self.processors);
        format!("<h2>where the time went</h2>\n<p>{use_text}</p>\n<table>{rows}</table>\n")
    }

    fn side_row(&self, side: usize) -> String {
        let mark = if side == self.limit {
            " class=\"limit\""
        } else {
            ""
        };
        let cells = self.shares[side].map(|share| format!("<td>{:.0} %</td>", share * 100.0));
        let name = escape(&self.names[side]);
        format!("<tr{mark}><th>{name}</th>{}</tr>\n", cells.concat())
    }

    fn side_table(&self) -> String {
        let rows: String = (0..SIDES.len()).map(|side| self.side_row(side)).collect();
        format!(
            "<table><tr><th></th><th>busy</th><th>starved</th><th>blocked</th></tr>\n{rows}</table>\n"
        )
    }

    fn share_chart(&self, side: usize) -> String {
        let name = escape(&self.names[side]);
        let chart = Chart {
            title: &name,
            seconds: self.seconds(),
            top: 1.0,
            label: percent,
            caption: "<span class=\"busy\">■</span> busy <span class=\"starved\">■</span> starved <span class=\"blocked\">■</span> blocked".to_owned(),
        };
        let mut bars = String::new();
        for point in &self.points {
            let mut below = 0.0;
            let classes = ["busy", "starved", "blocked"];
            for (class, share) in classes.into_iter().zip(point.shares[side]) {
                bars += &chart.bar(class, [point.from, point.to], [below, below + share]);
                below += share;
            }
        }
        chart.draw(&bars)
    }

    fn throughput(&self) -> String {
        let top = { self.points.iter() }
            .map(|point| point.plain.max(point.stored))
            .fold(1.0, f64::max);
        let chart = Chart {
            title: "throughput",
            seconds: self.seconds(),
            top,
            label: bytes_a_second,
            caption: "content <span class=\"plain\">▬</span> and stored <span class=\"stored\">▬</span> bytes a second".to_owned(),
        };
        let plain = self.points.iter().map(|point| (point.to, point.plain));
        let stored = self.points.iter().map(|point| (point.to, point.stored));
        chart.draw(&(chart.line("plain", plain) + &chart.line("stored", stored)))
    }

    /// Seconds of the whole run.
    fn seconds(&self) -> f64 {
        self.points.last().map_or(1.0, |point| point.to)
    }
}

fn fact_row((name, value): &(String, String)) -> String {
    let (name, value) = (escape(name), escape(value));
    format!("<tr><th>{name}</th><td>{value}</td></tr>\n")
}

fn work_row((name, share): &(String, f64)) -> String {
    let (name, percent) = (escape(name), share * 100.0);
    format!(
        "<tr><th>{name}</th><td>{percent:.0} %</td>\
         <td class=\"bar\"><span style=\"width:{percent:.0}%\"></span></td></tr>\n"
    )
}

/// A page has no script, and asks nobody for anything.
const POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'";

fn escape(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
        .replace('"', "&quot;")
}

/// The colours of both schemes keep a contrast of 4.5 to 1 for text.
const STYLE: &str = ":root{--text:#222;--back:#fff;--soft:#f4f4f2;--grid:#d9d9d4;--quiet:#666;\
    --plain:#2060a0;--stored:#b8560f;--starved:#c9c9c4;--mark:#fde9d0}\
    @media(prefers-color-scheme:dark){:root{--text:#e6e6e3;--back:#16181a;--soft:#202326;--grid:#3a3e42;--quiet:#a2a6a9;\
    --plain:#6cabec;--stored:#f0a05a;--starved:#4b5055;--mark:#4a3418}}\
    body{font:15px system-ui,sans-serif;max-width:920px;margin:2em auto;padding:0 1em;color:var(--text);background:var(--back)}\
    pre{background:var(--soft);padding:1em;white-space:pre-wrap}svg{width:100%;background:var(--soft)}\
    svg text{fill:var(--quiet);font-size:12px}line.grid{stroke:var(--grid)}line.tick{stroke:var(--quiet)}\
    table{border-collapse:collapse;margin:.6em 0}td,th{padding:.2em 1em;text-align:right}.limit{background:var(--mark)}\
    .facts th{color:var(--quiet);font-weight:normal}.facts th,.facts td{text-align:left;padding-left:0}\
    td.bar{width:300px;text-align:left}td.bar span{display:block;height:.8em;background:var(--plain)}\
    polyline{fill:none;stroke-width:2}polyline.plain{stroke:var(--plain)}polyline.stored{stroke:var(--stored)}\
    span.plain,span.busy{color:var(--plain)}span.stored,span.blocked{color:var(--stored)}span.starved{color:var(--starved)}\
    rect.busy{fill:var(--plain)}rect.starved{fill:var(--starved)}rect.blocked{fill:var(--stored)}\
    h2{font-size:1.1em;margin-bottom:.3em}p{color:var(--quiet)}";

#[cfg(test)]
mod tests {
    use super::*;

    fn numbers() -> ReportNumbers {
        let point = ReportPoint {
            from: 0.0,
            to: 1.0,
            plain: 5.0,
            stored: 3.0,
            shares: [[0.5; 3]; 3],
        };
        ReportNumbers {
            title: "<script>a</script>".into(),
            facts: vec![("<b>".into(), "&".into())],
            lines: vec!["</pre><script>".into()],
            processors: "<i>".into(),
            work: vec![("<u>".into(), 0.5)],
            names: ["\"><img src=x>".into(), "b".into(), "c".into()],
            limit: 1,
            shares: [[0.1; 3]; 3],
            points: vec![point],
        }
    }

    #[test]
    fn numbers_of_another_host_give_a_page_without_its_words_as_html() {
        let read = ReportNumbers::read(numbers().to_json().as_bytes()).unwrap();
        let page = read.render();
        for bad in ["<script", "<b>", "<i>", "<u>", "<img", "</pre><", "\"\""] {
            assert!(!page.contains(bad), "{bad}");
        }
        assert!(page.contains(POLICY) && page.starts_with(BEGINS));
    }

    #[test]
    fn numbers_that_are_none_or_too_many_are_refused() {
        for bad in ["", "<!doctype html>", "{}", "[]"] {
            assert!(ReportNumbers::read(bad.as_bytes()).is_none(), "{bad}");
        }
        let mut many = numbers();
        many.points = vec![many.points[0].clone(); POINTS + 2];
        assert!(ReportNumbers::read(many.to_json().as_bytes()).is_none());
        let other = ReportNumbers {
            limit: 3,
            ..numbers()
        };
        assert!(ReportNumbers::read(other.to_json().as_bytes()).is_none());
        let long = ReportNumbers {
            title: "x".repeat(MAX_BYTES),
            ..numbers()
        };
        assert!(ReportNumbers::read(long.to_json().as_bytes()).is_none());
        let mut odd = numbers();
        odd.shares[0][0] = -1e300;
        odd.points[0].to = 1e300;
        let read = ReportNumbers::read(odd.to_json().as_bytes()).unwrap();
        assert_eq!((read.shares[0][0], read.points[0].to), (0.0, 1e18));
    }
}
