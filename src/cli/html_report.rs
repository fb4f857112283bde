//! One self-contained HTML page about a run: its facts, its limit, and charts of throughput and shares over time.

use super::{
    html_chart::{Chart, bytes_a_second, percent},
    limit::RunLimit,
    output::aside,
    output_file::{EarlierFile, OutputFile},
};
use crate::{
    error::{Error, ErrorKind, Result, reason},
    metrics::meter::{LimitVerdict, MeterSample, Shares, Side, verdict},
    platform,
    text::{
        self,
        size::{bytes, seconds},
    },
};
use std::path::{Path, PathBuf};

/// The first bytes of each page. A file that begins otherwise is not a report, and is not replaced.
const BEGINS: &str = "<!doctype html>\n<!-- A report of fullbore -->";

/// The file that the page is written to.
#[derive(Debug)]
pub(super) struct HtmlReport {
    path: PathBuf,
    output: OutputFile,
}

impl HtmlReport {
    /// Looks at the place before the run, so that an error is reported before any work is done. An earlier report stays until the
    /// page is complete.
    ///
    /// # Errors
    /// [`ErrorKind::Usage`] if the file is not a report; the system's.
    pub(super) fn open(path: &Path) -> Result<Self> {
        let what = format!("could not write the report \"{}\"", path.display());
        let failed = |e| Error::io(&what, e);
        let output = OutputFile::new_or_device(path).map_err(failed)?;
        let earlier = output.earlier(BEGINS.len() as u64).map_err(failed)?;
        let is_other =
            |earlier: &EarlierFile| !earlier.bytes.is_empty() && earlier.bytes != BEGINS.as_bytes();
        if earlier.as_ref().is_some_and(is_other) {
            let what = format!("{what}: another file is there");
            return Err(
                Error::new(ErrorKind::Usage, what).hint("give the report a name of its own")
            );
        }
        Ok(Self {
            path: path.to_owned(),
            output,
        })
    }

    /// Writes the page. A failure is a warning: the run itself succeeded.
    pub(super) fn print(self, page: &HtmlPage<'_>) {
        self.write(page.render().as_bytes());
    }

    /// Writes a page that a command on another host has made, unless that host has sent something else.
    pub(super) fn print_made(self, page: &[u8]) {
        if page.starts_with(BEGINS.as_bytes()) {
            self.write(page);
        } else {
            aside("warning: the other host has sent no report");
        }
    }

    fn write(self, page: &[u8]) {
        if let Err(error) = self.output.replace(page, None) {
            aside(format!(
                "warning: could not write the report \"{}\": {}",
                self.path.display(),
                reason(&error)
            ));
        }
    }
}

/// The text of the page.
pub(super) struct HtmlPage<'a> {
    /// Heading.
    pub(super) title: &'a str,
    /// Facts about the run, by name.
    pub(super) facts: Vec<(&'static str, String)>,
    /// The lines that the command printed.
    pub(super) lines: &'a [String],
    /// The limit of the run.
    pub(super) limit: &'a RunLimit,
    /// The run over time.
    pub(super) timeline: &'a [MeterSample],
}

/// Facts about the run of this process: `source` as it was backed up, and the exit code.
pub(super) fn facts(source: &str, exit_code: u8) -> Vec<(&'static str, String)> {
    let result = match exit_code {
        0 => "done",
        3 => "done, but something could not be read",
        4 => "damage was found",
        _ => "failed",
    };
    vec![
        ("host", platform::host_name()),
        ("source", source.to_owned()),
        ("ended", text::local_time::local_now()),
        ("program", format!("fullbore {}", env!("CARGO_PKG_VERSION"))),
        ("exit code", format!("{exit_code}: {result}")),
    ]
}

/// The number of points of a chart; more could not be told apart.
const POINTS: usize = 300;

/// An interval between two points of the timeline.
struct ChartPoint {
    /// Seconds since the start.
    from: f64,
    to: f64,
    /// Bytes a second.
    plain: f64,
    stored: f64,
    verdict: LimitVerdict,
}

impl ChartPoint {
    fn between(pair: &[&MeterSample]) -> Self {
        let [from, to] = [pair[0], pair[1]];
        let time = (to.seconds - from.seconds).max(1e-9);
        let speed = |from: u64, to: u64| to.saturating_sub(from) as f64 / time;
        Self {
            from: from.seconds,
            to: to.seconds,
            plain: speed(from.bytes, to.bytes),
            stored: speed(from.stored_bytes, to.stored_bytes),
            verdict: verdict(from, to),
        }
    }
}

impl HtmlPage<'_> {
    /// The page.
    fn render(&self) -> String {
        let points = self.points();
        let title = escape(self.title);
        let mut body = format!("<h1>{title}</h1>\n{}", self.fact_table());
        body += &format!("<pre>{}</pre>\n", escape(&self.lines.join("\n")));
        body += &self.work_table();
        body += &self.side_table();
        body += &throughput(&points);
        for side in [Side::Source, Side::Workers, Side::Sink] {
            body += &self.shares(side, &points);
        }
        format!(
            "{BEGINS}\n<html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"color-scheme\" content=\"light dark\">\
             <title>{title}</title>\n<style>{STYLE}</style></head>\n<body>\n{body}</body></html>\n"
        )
    }

    fn fact_table(&self) -> String {
        let row = |(name, value): &(&str, String)| {
            format!("<tr><th>{name}</th><td>{}</td></tr>\n", escape(value))
        };
        let rows: String = self.facts.iter().map(row).collect();
        format!("<table class=\"facts\">{rows}</table>\n")
    }

    /// Where the time of the processors went.
    fn work_table(&self) -> String {
        let row = |(name, share): &(&str, f64)| {
            let percent = share * 100.0;
            format!(
                "<tr><th>{name}</th><td>{percent:.0} %</td>\
                 <td class=\"bar\"><span style=\"width:{percent:.0}%\"></span></td></tr>\n"
            )
        };
        let rows: String = self.limit.work().iter().map(row).collect();
        let use_text = escape(&self.limit.processor_text());
        format!("<h2>where the time went</h2>\n<p>{use_text}</p>\n<table>{rows}</table>\n")
    }

    fn points(&self) -> Vec<ChartPoint> {
        let step = self.timeline.len().div_ceil(POINTS).max(1);
        let samples: Vec<_> = std::iter::once(&START)
            .chain(self.timeline.iter().step_by(step))
            .collect();
        samples.windows(2).map(ChartPoint::between).collect()
    }

    fn side_table(&self) -> String {
        let row = |side: Side| {
            let Shares {
                busy,
                starved,
                blocked,
            } = self.limit.verdict.of(side);
            let mark = if side == self.limit.verdict.limit {
                " class=\"limit\""
            } else {
                ""
            };
            let cells =
                [busy, starved, blocked].map(|share| format!("<td>{:.0} %</td>", share * 100.0));
            let name = self.limit.names[side as usize];
            format!("<tr{mark}><th>{name}</th>{}</tr>\n", cells.concat())
        };
        let rows: String = [Side::Source, Side::Workers, Side::Sink].map(row).concat();
        format!(
            "<table><tr><th></th><th>busy</th><th>starved</th><th>blocked</th></tr>\n{rows}</table>\n"
        )
    }

    fn shares(&self, side: Side, points: &[ChartPoint]) -> String {
        let chart = Chart {
            title: self.limit.names[side as usize],
            seconds: end_of(points),
            top: 1.0,
            label: percent,
            caption: "<span class=\"busy\">■</span> busy <span class=\"starved\">■</span> starved <span class=\"blocked\">■</span> blocked".to_owned(),
        };
        let mut bars = String::new();
        for point in points {
            let shares = point.verdict.of(side);
            let mut below = 0.0;
            for (class, share) in [
                ("busy", shares.busy),
                ("starved", shares.starved),
                ("blocked", shares.blocked),
            ] {
                bars += &chart.bar(class, [point.from, point.to], [below, below + share]);
                below += share;
            }
        }
        chart.draw(&bars)
    }
}

fn throughput(points: &[ChartPoint]) -> String {
    let top = { points.iter() }
        .map(|point| point.plain.max(point.stored))
        .fold(1.0, f64::max);
    let chart = Chart {
        title: "throughput",
        seconds: end_of(points),
        top,
        label: bytes_a_second,
        caption: "content <span class=\"plain\">▬</span> and stored <span class=\"stored\">▬</span> bytes a second".to_owned(),
    };
    let plain = points.iter().map(|point| (point.to, point.plain));
    let stored = points.iter().map(|point| (point.to, point.stored));
    chart.draw(&(chart.line("plain", plain) + &chart.line("stored", stored)))
}

/// Seconds of the whole run.
fn end_of(points: &[ChartPoint]) -> f64 {
    points.last().map_or(1.0, |point| point.to)
}

const START: MeterSample = MeterSample::ZERO;

fn escape(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
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

/// Peak memory and processor time of this process, for the report.
pub(super) fn machine() -> String {
    let cpu = platform::process_cpu_seconds();
    format!(
        "{} of processor time, {} of memory at most",
        seconds(cpu),
        bytes(platform::peak_rss_bytes())
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        cli::limit::RunEnds,
        metrics::{hardware::RunKind, meter::Meter},
    };
    use std::num::NonZeroUsize;

    #[test]
    fn a_page_holds_its_pictures_and_no_reference_to_elsewhere() {
        let meter = Meter::default();
        (0..5).for_each(|_| {
            meter.record_point();
        });
        let verdict = meter.verdict();
        let ends = RunEnds::default();
        let workers = NonZeroUsize::MIN;
        let limit = RunLimit::judge(&meter, &verdict, RunKind::Backup, &ends, workers, None);
        let page = HtmlPage {
            title: "backup <x>",
            facts: facts("host:/a&b", 3),
            lines: &["a & b".to_owned()],
            limit: &limit,
            timeline: &meter.timeline(),
        };
        let html = page.render();
        assert_eq!(html.matches("<svg").count(), 4);
        assert!(html.contains("backup &lt;x&gt;") && html.contains("a &amp; b"));
        assert!(html.contains("host:/a&amp;b") && html.contains("3: done, but"));
        assert!(html.contains("prefers-color-scheme:dark"));
        assert!(!html.contains("http") && !html.contains("src="));
    }
}
