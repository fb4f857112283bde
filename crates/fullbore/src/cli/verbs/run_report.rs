//! What a run of a profile has done, for people, hooks and programs.

use crate::cli::{
    child::{self, ChildEnd},
    metrics_file::RunNumbers,
};
use fullbore_format::text::size::{bytes, counted, seconds};
use fullbore_platform as platform;
use serde_json::{Value, json};
use std::time::Instant;

/// A step that ran, or was skipped.
#[derive(Debug)]
pub(super) struct RunStep {
    name: String,
    /// Its exit code; 0 if it was skipped.
    pub(super) code: u8,
    seconds: f64,
    /// Its result, as `--json` prints it.
    result: Value,
    /// The end of its messages if it failed, or why it was skipped.
    said: String,
    is_skipped: bool,
}

/// How a run ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RunOutcome {
    Success,
    /// All was done, but there are warnings, or something could not be read.
    Warning,
    Failure,
}

impl RunOutcome {
    /// The hook that runs then.
    pub(super) fn hook(self) -> &'static str {
        match self {
            Self::Success => "on_success",
            Self::Warning => "on_warning",
            Self::Failure => "on_failure",
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Success => "success",
            Self::Warning => "warning",
            Self::Failure => "failure",
        }
    }
}

impl RunStep {
    pub(super) fn ended(name: &str, end: &ChildEnd, seconds: f64) -> Self {
        Self {
            name: name.to_owned(),
            code: end.code(),
            seconds,
            result: result_of(name, &end.out),
            said: end.err.clone(),
            is_skipped: false,
        }
    }

    pub(super) fn failed(name: &str, said: String, seconds: f64) -> Self {
        Self {
            name: name.to_owned(),
            code: 1,
            seconds,
            result: Value::Null,
            said,
            is_skipped: false,
        }
    }

    pub(super) fn skipped(name: &str, why: &str) -> Self {
        Self {
            name: name.to_owned(),
            code: 0,
            seconds: 0.0,
            result: Value::Null,
            said: why.to_owned(),
            is_skipped: true,
        }
    }

    pub(super) fn json(&self) -> Value {
        json!({"type": "step", "step": self.name, "exit_code": self.code, "seconds": self.seconds, "skipped": self.is_skipped,
            "messages": self.said.lines().collect::<Vec<_>>(), "result": self.result})
    }

    /// One line about the step, after its warnings.
    pub(super) fn lines(&self) -> Vec<String> {
        let mut lines = self.warnings();
        let name = &self.name;
        lines.push(match self.code {
            _ if self.is_skipped => format!("{name}: not run, because {}", self.said),
            0 | 3 => format!("{name}: {} in {}", self.summary(), seconds(self.seconds)),
            _ if child::is_interrupted() => format!("{name}: interrupted"),
            code => format!("{name}: failed with exit code {code}, see above"),
        });
        lines
    }

    /// The warnings of its result, one a line.
    pub(super) fn warnings(&self) -> Vec<String> {
        let texts = self.result["warnings"].as_array().into_iter().flatten();
        let texts = texts.filter_map(Value::as_str);
        texts.map(|text| format!("warning: {text}")).collect()
    }

    /// Warnings, and entries that could not be read.
    fn warning_count(&self) -> u64 {
        let unreadable = self.number("unreadable") + self.number("bad_pages");
        self.warnings().len() as u64 + if self.name == "backup" { unreadable } else { 0 }
    }

    fn number(&self, key: &str) -> u64 {
        self.result[key].as_u64().unwrap_or_default()
    }

    fn summary(&self) -> String {
        match &self.name[..] {
            "backup" => self.backup_summary(),
            "forget" => {
                let forgotten = counted(self.number("forgotten_backups"), "backup");
                format!(
                    "{forgotten} forgotten, {} kept",
                    self.number("kept_backups")
                )
            }
            "prune" => format!("{} freed", bytes(self.number("freed_bytes"))),
            _ => self.verify_summary(),
        }
    }

    fn backup_summary(&self) -> String {
        let id = self.result["id"].as_str().unwrap_or_default();
        let unreadable = match self.number("unreadable") {
            0 => String::new(),
            count => format!("; {} could not be read", counted(count, "entry")),
        };
        format!(
            "{id}, {}, {}, {} stored{unreadable}",
            counted(self.number("files"), "file"),
            bytes(self.number("bytes")),
            bytes(self.number("stored_bytes"))
        )
    }

    fn verify_summary(&self) -> String {
        let sampled = &self.result["sampled"];
        let sampled_number = |key: &str| sampled[key].as_u64().unwrap_or_default();
        if sampled.is_null() {
            return format!("{} sound", counted(self.number("backups"), "backup"));
        }
        let never = match sampled_number("never_checked_bytes") {
            0 => String::new(),
            count => format!("; {} were never checked", bytes(count)),
        };
        format!(
            "{} of {} checked, no damage{never}",
            bytes(sampled_number("checked_bytes")),
            bytes(sampled_number("stored_bytes"))
        )
    }
}

/// The result in what a step printed: its last line; of `forget` a summary of its lines.
fn result_of(name: &str, out: &[u8]) -> Value {
    let text = String::from_utf8_lossy(out);
    let lines: Vec<Value> = text
        .lines()
        .filter_map(|line| serde_json::from_str(line).ok())
        .collect();
    if name != "forget" {
        return lines.into_iter().rfind(is_result).unwrap_or_default();
    }
    let forgotten = lines.iter().filter(is_forgotten).count();
    let kept = lines
        .iter()
        .filter(|line| line["forgotten"] == false)
        .count();
    json!({"forgotten_backups": forgotten, "kept_backups": kept})
}

fn is_result(line: &Value) -> bool {
    line["type"] == "result"
}

fn is_forgotten(line: &&Value) -> bool {
    line["forgotten"] == true
}

/// The run of a profile up to now.
#[derive(Debug)]
pub(super) struct ProfileRun {
    profile: String,
    time: String,
    begun: Instant,
    seconds: Option<f64>,
    pub(super) steps: Vec<RunStep>,
    /// Failures beside the steps: of hooks, and signals.
    failures: Vec<String>,
}

impl ProfileRun {
    pub(super) fn new(profile: &str) -> Self {
        let now = jiff::Timestamp::now();
        Self {
            profile: profile.to_owned(),
            time: fullbore_format::text::utc_second(now),
            begun: Instant::now(),
            seconds: None,
            steps: Vec::new(),
            failures: Vec::new(),
        }
    }

    pub(super) fn fail(&mut self, why: String) {
        self.failures.push(why);
    }

    pub(super) fn end(&mut self) {
        self.seconds = Some(self.seconds());
    }

    fn seconds(&self) -> f64 {
        let now = || self.begun.elapsed().as_secs_f64();
        self.seconds.unwrap_or_else(now)
    }

    /// Did the backup commit nothing?
    pub(super) fn has_failed_backup(&self) -> bool {
        let mut steps = self.steps.iter();
        steps.any(|step| step.name == "backup" && !matches!(step.code, 0 | 3))
    }

    /// The worst code of all steps: damage, then failures, then entries that could not be read.
    pub(super) fn exit_code(&self) -> u8 {
        let of_steps = self.steps.iter().map(|step| step.code);
        let of_rest = (!self.failures.is_empty()).then_some(1);
        of_steps
            .chain(of_rest)
            .max_by_key(exit_code_rank)
            .unwrap_or(0)
    }

    pub(super) fn outcome(&self) -> RunOutcome {
        match self.exit_code() {
            0 if self.warning_count() == 0 => RunOutcome::Success,
            0 | 3 => RunOutcome::Warning,
            _ => RunOutcome::Failure,
        }
    }

    fn warning_count(&self) -> u64 {
        self.steps.iter().map(RunStep::warning_count).sum()
    }

    /// The run for a hook, or as the result.
    pub(super) fn json(&self, hook: Option<&str>) -> Value {
        let steps: Vec<_> = self.steps.iter().map(RunStep::json).collect();
        let mut run = json!({"type": "result", "profile": self.profile, "host": platform::host_name(), "time": self.time,
            "seconds": self.seconds(), "exit_code": self.exit_code(), "outcome": self.outcome().name(),
            "warning_count": self.warning_count(), "failures": self.failures, "steps": steps});
        if let Some(hook) = hook {
            run["hook"] = hook.into();
        }
        run
    }

    pub(super) fn last_line(&self) -> String {
        let time = seconds(self.seconds());
        let end = match self.outcome() {
            RunOutcome::Success => "done".to_owned(),
            RunOutcome::Warning => "done, with warnings".to_owned(),
            RunOutcome::Failure if child::is_interrupted() => "interrupted".to_owned(),
            RunOutcome::Failure => format!("failed with exit code {}", self.exit_code()),
        };
        format!("run {}: {end} in {time}", self.profile)
    }

    fn result_of(&self, name: &str) -> Option<Value> {
        let step = self.steps.iter().find(|step| step.name == name)?;
        Some(step.result.clone()).filter(|result| !result.is_null())
    }

    /// The numbers for a file of metrics.
    pub(super) fn numbers(&self) -> RunNumbers {
        let ran = self.steps.iter().filter(|step| !step.is_skipped);
        RunNumbers {
            exit_code: self.exit_code(),
            seconds: self.seconds(),
            warnings: self.warning_count(),
            steps: ran
                .map(|step| (step.name.clone(), step.code, step.seconds))
                .collect(),
            backup: self.result_of("backup"),
            verify: self.result_of("verify"),
            ..RunNumbers::default()
        }
    }
}

fn exit_code_rank(code: &u8) -> i32 {
    match code {
        0 => 0,
        3 => 1,
        2 => 2,
        4 => 4,
        _ => 3,
    }
}
