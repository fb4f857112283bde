//! The frame of a command that moves bytes: its meter, its progress, the limit that is judged at the end, and its report.

use super::{
    html_report::{self, HtmlPage, HtmlReport},
    limit::{RunEnds, RunLimit},
    options::OutputArgs,
    progress::Progress,
};
use fullbore_format::error::Result;
use fullbore_platform::metrics::{
    hardware::RunKind,
    meter::{LimitVerdict, Meter},
};
use fullbore_storage::Storages;
use serde_json::Value;
use std::{num::NonZeroUsize, path::Path, sync::Arc};

/// A command that moves bytes, from before its work until its last line.
pub(super) struct MeteredRun {
    meter: Arc<Meter>,
    progress: Progress,
    report: Option<HtmlReport>,
}

/// The setting of a run, by which its limit is judged.
pub(super) struct JudgedRun<'a> {
    pub(super) kind: RunKind,
    pub(super) ends: &'a RunEnds,
    pub(super) workers: NonZeroUsize,
    /// In bytes a second.
    pub(super) max_rate: Option<u64>,
}

/// The heading of a report.
pub(super) struct ReportHead<'a> {
    pub(super) title: String,
    /// The source, as it was backed up.
    pub(super) source: &'a str,
    pub(super) exit_code: u8,
}

impl MeteredRun {
    /// Begins a run. `names` are those of the source, the workers and the sink.
    pub(super) fn new(storages: &Storages, output: &OutputArgs, names: [&'static str; 3]) -> Self {
        Self::beside_output(storages, output, names, false)
    }

    /// Begins a run. If its result goes to standard output, messages go to standard error.
    pub(super) fn beside_output(
        storages: &Storages,
        output: &OutputArgs,
        names: [&'static str; 3],
        is_stdout: bool,
    ) -> Self {
        Self {
            meter: Arc::new(Meter::default()),
            progress: Progress::new(storages, output, is_stdout, names),
            report: None,
        }
    }

    /// Opens the file of the report before any work is done, if one is wanted.
    ///
    /// # Errors
    /// As [`HtmlReport::open`].
    pub(super) fn with_report(self, file: Option<&Path>) -> Result<Self> {
        let report = file.map(HtmlReport::open).transpose()?;
        Ok(Self { report, ..self })
    }

    pub(super) fn meter(&self) -> &Arc<Meter> {
        &self.meter
    }

    pub(super) fn progress(&self) -> &Progress {
        &self.progress
    }

    /// Does the work, and shows its progress.
    ///
    /// # Errors
    /// Those of the work.
    pub(super) fn work<T>(&self, work: impl FnOnce(&Arc<Meter>) -> Result<T>) -> Result<T> {
        let done = self.progress.watch(&self.meter, || work(&self.meter));
        self.progress.clear();
        done
    }

    /// Returns the limit of the run. The engine has given the verdict, or it is that of now.
    pub(super) fn limit(&self, verdict: Option<&LimitVerdict>, run: &JudgedRun<'_>) -> RunLimit {
        let now = self.meter.verdict();
        RunLimit::judge(
            &self.meter,
            verdict.unwrap_or(&now),
            run.kind,
            run.ends,
            run.workers,
            run.max_rate,
        )
    }

    /// Prints the result: `lines` for a person, or the JSON object that `json` makes.
    pub(super) fn end(&self, lines: &[String], json: impl FnOnce() -> Value) {
        self.progress.end(lines, json);
    }

    /// Writes the report, if one is wanted. It has the line of the limit, and `lines`.
    pub(super) fn print_report(
        self,
        head: &ReportHead<'_>,
        mut lines: Vec<String>,
        limit: &RunLimit,
    ) {
        let Some(report) = self.report else { return };
        lines.extend(limit.line(false).is_none().then(|| limit.text()));
        lines.push(html_report::machine());
        report.print(&HtmlPage {
            title: &head.title,
            facts: html_report::facts(head.source, head.exit_code),
            lines: &lines,
            limit,
            timeline: &self.meter.timeline(),
        });
    }
}
