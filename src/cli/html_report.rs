//! One self-contained HTML page about a run: its limit, and its throughput and shares over time as charts.

use super::output::aside;
use crate::{
    error::{Error, ErrorKind, Result, reason},
    metrics::meter::{LimitVerdict, MeterSample, Shares, Side, verdict},
    text::size::{bytes, rate, seconds},
};
use std::{
    fmt::Write,
    fs::{self, File},
    io::{self, Read as _, Write as _},
    path::{Path, PathBuf},
};

/// The first bytes of each page. A file that begins otherwise is not a report, and is not replaced.
const BEGINS: &str = "<!doctype html>\n<!-- A report of fullbore -->";

/// The file that the page is written to.
pub(super) struct HtmlReport {
    path: PathBuf,
    file: File,
    /// Was the file created for the page, and is it still empty?
    is_bare: bool,
}

impl HtmlReport {
    /// Opens the file before the run, so that an error is reported before any work is done. An earlier report in it stays until
    /// [`ReportFile::write`].
    ///
    /// # Errors
    /// [`Kind::Usage`] if the file is not a report; the system's.
    pub(super) fn open(path: &Path) -> Result<Self> {
        let failed = |e| {
            Error::io(
                format!("could not write the report \"{}\"", path.display()),
                e,
            )
        };
        let is_bare = !path.exists();
        if !is_bare && !may_be_replaced(path).map_err(failed)? {
            let what = format!(
                "could not write the report \"{}\": another file is there",
                path.display()
            );
            return Err(
                Error::new(ErrorKind::Usage, what).hint("give the report a name of its own")
            );
        }
        let file = File::options()
            .write(true)
            .create(true)
            .truncate(false)
            .open(path)
            .map_err(failed)?;
        Ok(Self {
            path: path.to_owned(),
            file,
            is_bare,
        })
    }

    /// Writes the page. A failure is a warning: the run itself succeeded.
    pub(super) fn print(mut self, page: &HtmlPage<'_>) {
        let _ = self.file.set_len(0); // fails for a pipe, which has no length
        if let Err(error) = self.file.write_all(page.render().as_bytes()) {
            aside(format!(
                "warning: could not write the report \"{}\": {}",
                self.path.display(),
                reason(&error)
            ));
        }
        self.is_bare = false;
    }
}

impl Drop for HtmlReport {
    /// Deletes the empty file of a run that failed.
    fn drop(&mut self) {
        if self.is_bare {
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Is the file an earlier report, empty, or not a regular file?
fn may_be_replaced(path: &Path) -> io::Result<bool> {
    let found = path.metadata()?;
    if !found.is_file() || found.len() == 0 {
        return Ok(true);
    }
    let mut start = Vec::new();
    File::open(path)?
        .take(BEGINS.len() as u64)
        .read_to_end(&mut start)?;
    Ok(start == BEGINS.as_bytes())
}

/// The text of the page.
pub(super) struct HtmlPage<'a> {
    /// Heading.
    pub(super) title: &'a str,
    /// The lines that the command printed.
    pub(super) lines: &'a [String],
    /// The limit of the run.
    pub(super) verdict: &'a LimitVerdict,
    /// The run over time.
    pub(super) timeline: &'a [MeterSample],
    /// Names of source, workers and sink.
    pub(super) names: [&'a str; 3],
}

const WIDTH: f64 = 900.0;
const HEIGHT: f64 = 160.0;
/// The number of points of a chart; more could not be told apart.
const POINTS: usize = 300;

impl HtmlPage<'_> {
    /// The page.
    fn render(&self) -> String {
        let points = self.points();
        let mut body = format!(
            "<h1>{}</h1>\n<pre>{}</pre>\n",
            escape(self.title),
            escape(&self.lines.join("\n"))
        );
        body.push_str(&self.table());
        body.push_str(&self.throughput(&points));
        for side in [Side::Source, Side::Workers, Side::Sink] {
            body.push_str(&self.shares(side, &points));
        }
        format!(
            "{BEGINS}\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>{}</title>\n<style>{STYLE}</style></head>\n<body>\n{body}</body></html>\n",
            escape(self.title)
        )
    }

    /// For each interval between two points: its time, bytes a second, stored bytes a second, verdict.
    fn points(&self) -> Vec<(f64, f64, f64, LimitVerdict)> {
        let step = self.timeline.len().div_ceil(POINTS).max(1);
        let samples: Vec<_> = std::iter::once(&START)
            .chain(self.timeline.iter().step_by(step))
            .collect();
        let between = |pair: &[&MeterSample]| {
            let time = (pair[1].seconds - pair[0].seconds).max(1e-9);
            let speed = |from: u64, to: u64| to.saturating_sub(from) as f64 / time;
            let stored = speed(pair[0].stored_bytes, pair[1].stored_bytes);
            (
                pair[1].seconds,
                speed(pair[0].bytes, pair[1].bytes),
                stored,
                verdict(pair[0], pair[1]),
            )
        };
        samples.windows(2).map(between).collect()
    }

    fn table(&self) -> String {
        let row = |side: Side| {
            let Shares {
                busy,
                starved,
                blocked,
            } = self.verdict.of(side);
            let mark = if side == self.verdict.limit {
                " class=\"limit\""
            } else {
                ""
            };
            let cell = |share: f64| format!("<td>{:.0} %</td>", share * 100.0);
            format!(
                "<tr{mark}><th>{}</th>{}{}{}</tr>\n",
                self.names[side as usize],
                cell(busy),
                cell(starved),
                cell(blocked)
            )
        };
        let rows: String = [Side::Source, Side::Workers, Side::Sink].map(row).concat();
        format!(
            "<table><tr><th></th><th>busy</th><th>starved</th><th>blocked</th></tr>\n{rows}</table>\n"
        )
    }

    fn throughput(&self, points: &[(f64, f64, f64, LimitVerdict)]) -> String {
        let top = points.iter().map(|p| p.1.max(p.2)).fold(1.0, f64::max);
        let end = points.last().map_or(1.0, |p| p.0);
        let line = |value: fn(&(f64, f64, f64, LimitVerdict)) -> f64| -> String {
            let point = |p: &(f64, f64, f64, LimitVerdict)| {
                format!(
                    "{:.1},{:.1} ",
                    p.0 / end * WIDTH,
                    HEIGHT - value(p) / top * HEIGHT
                )
            };
            points.iter().map(point).collect()
        };
        let lines = format!(
            "<polyline class=\"plain\" points=\"{}\"/><polyline class=\"stored\" points=\"{}\"/>",
            line(|p| p.1),
            line(|p| p.2)
        );
        let caption = format!(
            "content <span class=\"plain\">▬</span> and stored <span class=\"stored\">▬</span> bytes over {}; the top is {}",
            seconds(end),
            rate(top as u64, 1.0)
        );
        chart("throughput", &caption, &lines)
    }

    fn shares(&self, side: Side, points: &[(f64, f64, f64, LimitVerdict)]) -> String {
        let end = points.last().map_or(1.0, |p| p.0);
        let (mut bars, mut from) = (String::new(), 0.0);
        for (to, _, _, verdict) in points {
            let shares = verdict.of(side);
            let (x, width, mut y) = (from / end * WIDTH, (to - from) / end * WIDTH, HEIGHT);
            for (class, share) in [
                ("busy", shares.busy),
                ("starved", shares.starved),
                ("blocked", shares.blocked),
            ] {
                y -= share * HEIGHT;
                let _ = write!(
                    bars,
                    "<rect class=\"{class}\" x=\"{x:.1}\" y=\"{y:.1}\" width=\"{:.1}\" height=\"{:.1}\"/>",
                    width + 0.2,
                    share * HEIGHT
                );
            }
            from = *to;
        }
        let caption = "<span class=\"busy\">■</span> busy <span class=\"starved\">■</span> starved <span class=\"blocked\">■</span> blocked";
        chart(self.names[side as usize], caption, &bars)
    }
}

const START: MeterSample = MeterSample::ZERO;

fn chart(title: &str, caption: &str, content: &str) -> String {
    format!(
        "<h2>{title}</h2>\n<svg id=\"{title}\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\">{content}</svg>\n<p>{caption}</p>\n"
    )
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
}

const STYLE: &str = "body{font:15px system-ui,sans-serif;max-width:920px;margin:2em auto;padding:0 1em;color:#222}\
    pre{background:#f4f4f2;padding:1em;white-space:pre-wrap}svg{width:100%;background:#f4f4f2}\
    table{border-collapse:collapse}td,th{padding:.2em 1em;text-align:right}.limit{background:#fde9d0}\
    polyline{fill:none;stroke-width:2}polyline.plain{stroke:#2060a0}polyline.stored{stroke:#c06020}\
    span.plain{color:#2060a0}span.stored{color:#c06020}\
    rect.busy{fill:#2060a0}rect.starved{fill:#d8d8d4}rect.blocked{fill:#c06020}\
    span.busy{color:#2060a0}span.starved{color:#b8b8b4}span.blocked{color:#c06020}h2{font-size:1.1em;margin-bottom:.3em}";

/// Peak memory and processor time of this process, for the report.
pub(super) fn machine() -> String {
    let cpu = crate::platform::process_cpu_seconds();
    format!(
        "{} of processor time, {} of memory at most",
        seconds(cpu),
        bytes(crate::platform::peak_rss_bytes())
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::meter::Meter;

    #[test]
    fn a_page_holds_its_pictures_and_no_reference_to_elsewhere() {
        let meter = Meter::default();
        (0..5).for_each(|_| {
            meter.record_point();
        });
        let page = HtmlPage {
            title: "backup <x>",
            lines: &["a & b".to_owned()],
            verdict: &meter.verdict(),
            timeline: &meter.timeline(),
            names: ["source", "workers", "sink"],
        };
        let html = page.render();
        assert_eq!(html.matches("<svg").count(), 4);
        assert!(html.contains("backup &lt;x&gt;") && html.contains("a &amp; b"));
        assert!(!html.contains("http") && !html.contains("src="));
    }
}
