//! Shows the progress of a run: a bar for people, JSON objects for programs.

use super::{
    options::OutputArgs,
    output::{aside, object_aside, told},
    report::{not_captured, store_json},
};
use fullbore_format::{
    root::Root,
    text::{
        self,
        columns::width,
        size::{self, counted},
    },
};
use fullbore_platform::{
    metrics::meter::{Meter, MeterSample, verdict},
    queue::start_in,
};
use fullbore_storage::Storages;
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::{Value, json};
use std::{
    env,
    ffi::OsString,
    io::{IsTerminal, Write},
    sync::{Mutex, OnceLock, atomic::Ordering::Relaxed, mpsc},
    time::Duration,
};

/// The run time after which an estimate of the end is useful.
pub(super) const A_MOMENT: Duration = Duration::from_secs(2);

/// Seconds between two JSON objects.
const JSON_SECONDS: f64 = 1.0;

/// Seconds between two measurements of the speed.
const LOOK_SECONDS: f64 = 0.3;

/// Shows the progress of a run, and its result.
pub(super) struct Progress {
    bar: Option<ProgressBar>,
    output: OutputArgs,
    /// The storages of the run, for the requests to object stores.
    storages: Storages,
    /// The backup is written to standard output: messages go to standard error.
    aside: bool,
    /// The names of the source, the workers and the sink.
    names: [&'static str; 3],
    now: Mutex<RecentSpeed>,
}

/// The last measurement, and the speed computed from it.
#[derive(Default)]
struct RecentSpeed {
    last: MeterSample,
    /// Bytes a second over the last few seconds.
    speed: f64,
    limit: &'static str,
}

impl RecentSpeed {
    fn look(&mut self, sample: MeterSample, names: [&'static str; 3]) {
        let recent = verdict(&self.last, &sample);
        let speed = sample.bytes.saturating_sub(self.last.bytes) as f64 / recent.seconds;
        self.speed = if self.limit.is_empty() {
            speed
        } else {
            0.8 * self.speed + 0.2 * speed
        };
        self.limit = names[recent.limit as usize];
        self.last = sample;
    }
}

/// Draws the bar: bytes, speed, the time that is left or passed, and what the run does.
fn draw(bar: &ProgressBar, meter: &Meter, recent: &RecentSpeed, sample: MeterSample) {
    let bytes = sample.bytes;
    let waits_for = meter.waits.now();
    let total =
        Some(meter.total_bytes.load(Relaxed)).filter(|total| *total > 0 && waits_for.is_none());
    if total != bar.length() {
        total.map_or_else(|| bar.unset_length(), |total| bar.set_length(total));
        bar.set_style(style(total.is_some()));
    }
    bar.set_position(bytes);
    let amount = match total {
        Some(total) => format!("{} of {}", size::bytes(bytes), size::bytes(total)),
        None => size::bytes(bytes),
    };
    let time = match total {
        Some(total) => {
            let left = total.saturating_sub(bytes) as f64 * sample.seconds / bytes.max(1) as f64;
            format!("{} left", about(left))
        }
        None => about(sample.seconds),
    };
    let files = counted(meter.files.load(Relaxed), "file");
    let doing = match waits_for {
        Some(what) => format!("waiting for {what}"),
        None => files,
    };
    let speed = size::rate(recent.speed as u64, 1.0);
    let limit = format!(", limit: {}", recent.limit);
    let parts = [
        amount,
        format!(", {speed}"),
        format!(", {time}"),
        format!("; {doing}"),
        limit,
    ];
    let has_limit = waits_for.is_none() && !recent.limit.is_empty();
    let parts = &parts[..if has_limit { 5 } else { 4 }];
    let before = if total.is_some() { BAR_COLUMNS + 1 } else { 2 };
    let room = bar_columns().map(|columns| columns.saturating_sub(before));
    bar.set_message(whole_parts(parts, room.unwrap_or(usize::MAX)));
}

/// Columns of the bar itself.
const BAR_COLUMNS: usize = 20;

/// Returns the columns of the terminal at standard error.
fn bar_columns() -> Option<usize> {
    let size = rustix::termios::tcgetwinsize(std::io::stderr()).ok()?;
    Some(usize::from(size.ws_col)).filter(|columns| *columns > 0)
}

/// Joins parts of a line, without the last ones that do not fit.
fn whole_parts(parts: &[String], columns: usize) -> String {
    let mut line = String::new();
    for part in parts {
        if width(&line) + width(part) > columns {
            break;
        }
        line += part;
    }
    line
}

fn progress_json(meter: &Meter, last: &MeterSample, sample: &MeterSample) -> Value {
    let recent = verdict(last, sample);
    let speed = sample.bytes.saturating_sub(last.bytes) as f64 / recent.seconds;
    json!({
        "type": "progress",
        "seconds": sample.seconds,
        "entries": meter.entries.load(Relaxed),
        "bytes": sample.bytes,
        "stored_bytes": sample.stored_bytes,
        "bytes_per_second": speed as u64,
        "limit": recent.limit.name(),
        "waits_for": meter.waits.now(),
    })
}

impl Progress {
    /// Shows a bar on a terminal, and objects with `--json`. `names` are those of the source, the workers and the sink.
    pub(super) fn new(
        storages: &Storages,
        output: &OutputArgs,
        aside: bool,
        names: [&'static str; 3],
    ) -> Self {
        let wanted =
            !output.json && !output.quiet && !output.verbose && std::io::stderr().is_terminal();
        let bar = wanted.then(ProgressBar::no_length);
        if let Some(bar) = &bar {
            bar.set_style(style(false));
            let _ = DRAWN.set(bar.clone());
        }
        Self {
            bar,
            output: output.clone(),
            storages: storages.clone(),
            aside,
            names,
            now: Mutex::default(),
        }
    }

    /// Is a bar shown?
    pub(super) fn is_drawn(&self) -> bool {
        self.bar.is_some()
    }

    /// Measures the run now.
    pub(super) fn tick(&self, meter: &Meter, sample: MeterSample) {
        let Ok(mut now) = self.now.lock() else { return };
        let since = sample.seconds - now.last.seconds;
        if let Some(bar) = &self.bar {
            if since > LOOK_SECONDS {
                now.look(sample, self.names);
            }
            draw(bar, meter, &now, sample);
        } else if self.output.json && !self.output.quiet && since >= JSON_SECONDS {
            self.progress(&progress_json(meter, &now.last, &sample));
            now.last = sample;
        }
    }

    /// Runs `work`, and shows its progress from another thread, if one can be started.
    pub(super) fn watch<T>(&self, meter: &Meter, work: impl FnOnce() -> T) -> T {
        std::thread::scope(|scope| {
            let (done, over) = mpsc::channel::<()>();
            let _ = start_in(scope, move || {
                while over.recv_timeout(Duration::from_millis(100))
                    == Err(mpsc::RecvTimeoutError::Timeout)
                {
                    self.tick(meter, meter.record_point());
                }
            });
            let result = work();
            drop(done);
            meter.record_point();
            result
        })
    }

    /// Ends the bar, whether the run succeeded or failed.
    pub(super) fn clear(&self) {
        self.bar.iter().for_each(ProgressBar::finish_and_clear);
    }

    /// Prints the result: `lines` for a person, or the JSON object that `json` makes.
    pub(super) fn end(&self, lines: &[String], result: impl FnOnce() -> Value) {
        match (self.output.json, self.output.quiet) {
            (true, _) => {
                let mut result = result();
                if let Some(counts) = self.storages.cloud_counts() {
                    result["store"] = store_json(&counts);
                }
                self.result(&result);
            }
            (false, false) => lines.iter().for_each(aside),
            (false, true) => {}
        }
    }

    /// Prints what `--quiet` does not suppress: a backup is incomplete, or earlier backups are `damaged`.
    pub(super) fn lacks(&self, root: &Root, damaged: Option<String>) {
        let lacking = if root.totals.is_complete() {
            Vec::new()
        } else {
            not_captured(root)
        };
        if self.output.quiet || self.output.json {
            lacking.into_iter().chain(damaged).for_each(aside);
        }
    }

    /// Ignores errors: the run continues if its progress cannot be written.
    fn progress(&self, line: &Value) {
        match self.aside {
            true => object_aside(line),
            false => drop(writeln!(std::io::stdout().lock(), "{line}")),
        }
    }

    /// Ignores errors: the work is done even if its result cannot be written.
    fn result(&self, line: &Value) {
        match self.aside {
            true => object_aside(line),
            false => drop(told(|out| text::json(out, line).map(|()| 0))),
        }
    }
}

/// Formats a duration that changes while it is read.
fn about(seconds: f64) -> String {
    if seconds < 59.5 {
        format!("{seconds:.0} s")
    } else {
        size::seconds(seconds)
    }
}

/// Returns the form of the line. Without a locale that has such letters, the bar is of ASCII.
fn style(known: bool) -> ProgressStyle {
    let template = if known {
        format!("{{bar:{BAR_COLUMNS}}} {{wide_msg}}")
    } else {
        "{spinner} {wide_msg}".to_owned()
    };
    let style = ProgressStyle::with_template(&template);
    let style = style.unwrap_or_else(|_| ProgressStyle::default_bar());
    match is_utf8_locale(|name| env::var_os(name)) {
        true => style,
        false => style.progress_chars("#>-").tick_chars("|/-\\ "),
    }
}

/// Returns whether the locale has letters other than those of ASCII.
fn is_utf8_locale(variable: impl Fn(&str) -> Option<OsString>) -> bool {
    let set = ["LC_ALL", "LC_CTYPE", "LANG"].into_iter().map(variable);
    let locale = set.flatten().find(|value| !value.is_empty());
    let locale = locale.unwrap_or_default().to_string_lossy().to_lowercase();
    locale.contains("utf-8") || locale.contains("utf8")
}

/// The bar of this process, for [`clear_line`].
static DRAWN: OnceLock<ProgressBar> = OnceLock::new();

/// Removes the line of the bar, and draws it no more. For the end of the process by a signal.
pub(super) fn clear_line() {
    DRAWN
        .get()
        .into_iter()
        .for_each(ProgressBar::finish_and_clear);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_narrow_terminal_gets_fewer_whole_parts() {
        let parts = ["1.0 MB", ", 2 MB/s", ", 9 s left", "; 文件 3"].map(str::to_owned);
        assert_eq!(whole_parts(&parts, 80), "1.0 MB, 2 MB/s, 9 s left; 文件 3");
        assert_eq!(whole_parts(&parts, 31), "1.0 MB, 2 MB/s, 9 s left");
        assert_eq!(whole_parts(&parts, 15), "1.0 MB, 2 MB/s");
        assert_eq!(whole_parts(&parts, 3), "");
    }

    #[test]
    fn the_first_variable_that_is_set_names_the_locale() {
        let is_utf8 = |set: &[(&str, &str)]| {
            is_utf8_locale(|name| {
                let found = set.iter().find(|(variable, _)| *variable == name);
                found.map(|(_, value)| OsString::from(value))
            })
        };
        assert!(is_utf8(&[("LANG", "de_DE.UTF-8")]));
        assert!(is_utf8(&[("LC_ALL", ""), ("LANG", "C.utf8")]));
        assert!(!is_utf8(&[("LC_ALL", "C"), ("LANG", "de_DE.UTF-8")]));
        assert!(!is_utf8(&[]));
    }
}
