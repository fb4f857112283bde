//! Tells how far a run is while it goes on: a bar for people, objects for programs.

use super::{
    args::OutputArgs,
    report::not_captured,
    say::{aside, object_aside, told},
    size::counted,
};
use crate::{
    command::text,
    format::root::Root,
    pipeline::meter::{Meter, Sample, verdict},
    queue::start_in,
};
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::{Value, json};
use std::{
    io::{IsTerminal, Write},
    sync::{Mutex, atomic::Ordering::Relaxed, mpsc},
    time::Duration,
};

/// Seconds between two words to a program that reads JSON.
const JSON_SECONDS: f64 = 1.0;

/// Tells how far a run is, and what came of it.
pub(super) struct Progress {
    bar: Option<ProgressBar>,
    output: OutputArgs,
    /// Standard output is the backup itself: what is said goes to standard error.
    aside: bool,
    last: Mutex<Sample>,
}

impl Progress {
    /// A bar on a terminal, objects if JSON is wanted, else nothing.
    pub(super) fn new(output: &OutputArgs, aside: bool) -> Self {
        let wanted = !output.json && !output.quiet && std::io::stderr().is_terminal();
        let bar = wanted.then(ProgressBar::no_length);
        bar.iter().for_each(|bar| bar.set_style(style(false)));
        Self { bar, output: output.clone(), aside, last: Mutex::default() }
    }

    /// Does somebody look at it?
    pub(super) fn is_drawn(&self) -> bool {
        self.bar.is_some()
    }

    /// A moment of the run.
    pub(super) fn tick(&self, meter: &Meter, now: Sample) {
        let Ok(mut last) = self.last.lock() else { return };
        let recent = verdict(&last, &now);
        let (entries, waits_for) = (meter.entries.load(Relaxed), meter.waits.now());
        if let Some(bar) = &self.bar {
            let total = Some(meter.total_bytes.load(Relaxed)).filter(|total| *total > 0 && waits_for.is_none());
            if total != bar.length() {
                total.map_or_else(|| bar.unset_length(), |total| bar.set_length(total));
                bar.set_style(style(total.is_some()));
                bar.reset_eta();
            }
            bar.set_position(now.bytes);
            if recent.seconds > 0.3 {
                let files = counted(meter.files.load(Relaxed), "file");
                let limit = || format!("{files}, limit: {}", recent.limit.name());
                bar.set_message(waits_for.map_or_else(limit, |what| format!("waiting for {what}")));
                *last = now;
            }
        } else if self.output.json && !self.output.quiet && recent.seconds >= JSON_SECONDS {
            let speed = (now.bytes - last.bytes) as f64 / recent.seconds;
            let line = json!({"type": "progress", "seconds": now.seconds, "entries": entries, "bytes": now.bytes,
                "stored_bytes": now.stored_bytes, "bytes_per_second": speed as u64, "limit": recent.limit.name(), "waits_for": waits_for});
            self.progress(&line);
            *last = now;
        }
    }

    /// Run `work`, and tell how far it is meanwhile, if there is a thread for that.
    pub(super) fn watch<T>(&self, meter: &Meter, work: impl FnOnce() -> T) -> T {
        std::thread::scope(|scope| {
            let (done, over) = mpsc::channel::<()>();
            let _ = start_in(scope, move || {
                while over.recv_timeout(Duration::from_millis(50)) == Err(mpsc::RecvTimeoutError::Timeout) {
                    self.tick(meter, meter.tick());
                }
            });
            let result = work();
            drop(done);
            meter.tick();
            result
        })
    }

    /// The run is over, for better or worse.
    pub(super) fn clear(&self) {
        self.bar.iter().for_each(ProgressBar::finish_and_clear);
    }

    /// What came of it: lines for a person, or an object, which is only made for who wants it.
    pub(super) fn end(&self, lines: &[String], result: impl FnOnce() -> Value) {
        match (self.output.json, self.output.quiet) {
            (true, _) => self.result(&result()),
            (false, false) => lines.iter().for_each(aside),
            (false, true) => {}
        }
    }

    /// What is said even to those who want no words: that a backup has not all, or that earlier ones are `damaged`.
    pub(super) fn lacks(&self, root: &Root, damaged: Option<String>) {
        let lacking = if root.totals.is_complete() { Vec::new() } else { not_captured(root) };
        if self.output.quiet || self.output.json {
            lacking.into_iter().chain(damaged).for_each(aside);
        }
    }

    /// The run goes on whether it can be told or not.
    fn progress(&self, line: &Value) {
        match self.aside {
            true => object_aside(line),
            false => drop(writeln!(std::io::stdout().lock(), "{line}")),
        }
    }

    /// What was done is done whether it can be told or not.
    fn result(&self, line: &Value) {
        match self.aside {
            true => object_aside(line),
            false => drop(told(|out| text::json(out, line).map(|()| 0))),
        }
    }
}

fn style(known: bool) -> ProgressStyle {
    let template = if known {
        "{bar:30} {decimal_bytes} of {decimal_total_bytes}, {decimal_bytes_per_sec}, {eta} left; {msg}"
    } else {
        "{spinner} {decimal_bytes}, {decimal_bytes_per_sec}, {elapsed}; {msg}"
    };
    ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar())
}
