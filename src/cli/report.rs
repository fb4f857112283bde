//! What a run says while it goes on, and at its end.

use super::{
    args::OutputArgs,
    size::{bytes, counted, rate, seconds},
};
use crate::{
    error::{Error, quoted},
    format::root::Root,
    pipeline::meter::{Meter, Sample, Side, Verdict, verdict},
};
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::json;
use std::{
    io::IsTerminal,
    sync::{Mutex, atomic::Ordering::Relaxed},
};

/// Seconds between two words to a program that reads JSON.
const JSON_SECONDS: f64 = 1.0;
/// Entries named at the end of a run; the manifest has them all.
const NAMED: usize = 10;

/// Tells how far a run is.
pub struct Progress {
    bar: Option<ProgressBar>,
    json: bool,
    last: Mutex<Sample>,
}

impl Progress {
    /// A bar on a terminal, objects if JSON is wanted, else nothing.
    pub fn new(output: &OutputArgs, total_bytes: Option<u64>) -> Self {
        let wanted = !output.json && !output.quiet && std::io::stderr().is_terminal();
        let bar = wanted.then(|| {
            let bar = total_bytes.map_or_else(ProgressBar::no_length, ProgressBar::new);
            let template = if total_bytes.is_some() {
                "{bar:30} {decimal_bytes} of {decimal_total_bytes}, {decimal_bytes_per_sec}, {eta} left; {msg}"
            } else {
                "{spinner} {decimal_bytes}, {decimal_bytes_per_sec}, {elapsed}; {msg}"
            };
            bar.set_style(ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar()));
            bar
        });
        Self { bar, json: output.json && !output.quiet, last: Mutex::default() }
    }

    /// A moment of the run.
    pub fn tick(&self, meter: &Meter, now: Sample) {
        let Ok(mut last) = self.last.lock() else { return };
        let recent = verdict(&last, &now);
        let entries = meter.entries.load(Relaxed);
        if let Some(bar) = &self.bar {
            bar.set_position(now.bytes);
            if recent.seconds > 0.3 {
                bar.set_message(format!(
                    "{}, limit: {}",
                    counted(entries, "entry").replace("ys", "ies"),
                    recent.limit.name()
                ));
                *last = now;
            }
        } else if self.json && recent.seconds >= JSON_SECONDS {
            let speed = (now.bytes - last.bytes) as f64 / recent.seconds;
            let line = json!({"type": "progress", "seconds": now.seconds, "entries": entries, "bytes": now.bytes,
                "stored_bytes": now.stored_bytes, "bytes_per_second": speed as u64, "limit": recent.limit.name()});
            emit(&line);
            *last = now;
        }
    }

    /// The run is over.
    pub fn clear(&self) {
        self.bar.iter().for_each(ProgressBar::finish_and_clear);
    }
}

/// One line of JSON on standard output; if standard output is the backup, on standard error.
pub fn emit(line: &serde_json::Value) {
    println!("{line}");
}

/// The last lines of a backup.
pub fn backup(root: &Root, verdict: &Verdict, to: &str) -> Vec<String> {
    let totals = &root.totals;
    let stored = if totals.stored_bytes == 0 { 1 } else { totals.stored_bytes };
    let mut lines = not_captured(root);
    lines.push(format!(
        "{}, {} in {}, {}; {} stored, ratio {:.2}",
        counted(totals.files, "file"),
        bytes(totals.bytes),
        seconds(verdict.seconds),
        rate(totals.bytes, verdict.seconds),
        bytes(totals.stored_bytes),
        totals.bytes as f64 / stored as f64,
    ));
    lines.push(limit(verdict, ["source", "workers", "sink"]));
    lines.push(format!("backup {} is complete in {to}", root.id));
    lines
}

/// What could not be captured, the first few by name.
fn not_captured(root: &Root) -> Vec<String> {
    let line = |n: &crate::format::root::NotCaptured| format!("not captured: {}: {}", quoted(&n.path.0), n.reason);
    let mut lines: Vec<_> = root.not_captured.iter().take(NAMED).map(line).collect();
    let totals = &root.totals;
    let all = totals.unreadable + totals.changed + totals.vanished + totals.sockets;
    if all > lines.len() as u64 {
        lines.push(format!("and {} more: `fullbore show` lists them", all - lines.len() as u64));
    }
    lines
}

/// What the limit was, and what the other two could do: `limit: workers, busy 97 %; the source could give 2.1×`.
pub fn limit(verdict: &Verdict, names: [&str; 3]) -> String {
    let sides = [Side::Source, Side::Workers, Side::Sink];
    let could = ["could give", "could do", "could take"];
    let others = sides.into_iter().filter(|side| *side != verdict.limit).map(|side| {
        let at = side as usize;
        format!("the {} {} {:.1}×", names[at], could[at], verdict.headroom(side).min(99.9))
    });
    let shares = verdict.of(verdict.limit);
    let busy = shares.busy.max(if verdict.limit == Side::Source { 1.0 - shares.blocked } else { 0.0 });
    format!(
        "limit: {}, busy {:.0} %; {}",
        names[verdict.limit as usize],
        busy * 100.0,
        others.collect::<Vec<_>>().join(", ")
    )
}

/// The result of a backup as JSON.
pub fn backup_json(root: &Root, verdict: &Verdict) -> serde_json::Value {
    let totals = &root.totals;
    json!({"type": "result", "id": root.id, "time": root.time, "complete": true, "limit": verdict.limit.name(),
        "shares": shares(verdict), "seconds": verdict.seconds, "entries": totals.entries, "files": totals.files,
        "bytes": totals.bytes, "stored_bytes": totals.stored_bytes, "unreadable": totals.unreadable,
        "changed": totals.changed, "vanished": totals.vanished, "sockets": totals.sockets,
        "segments": root.segments.len()})
}

/// Busy, starved and blocked shares of each side, by name.
pub fn shares(verdict: &Verdict) -> serde_json::Value {
    let row = |side: Side| {
        let share = verdict.of(side);
        let round = |value: f64| (value * 1000.0).round() / 1000.0;
        (
            side.name().to_owned(),
            json!({"busy": round(share.busy), "starved": round(share.starved), "blocked": round(share.blocked)}),
        )
    };
    [Side::Source, Side::Workers, Side::Sink].map(row).into_iter().collect::<serde_json::Map<_, _>>().into()
}

/// An error as the operator sees it.
pub fn error(error: &Error) -> String {
    let mut text = format!("error: {}", error.line());
    for line in &error.detail {
        text.push_str(&format!("\n       {line}"));
    }
    if let Some(hint) = &error.hint {
        text.push_str(&format!("\nhint:  {hint}"));
    }
    text
}
