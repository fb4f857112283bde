//! `--metrics FILE.prom`: numbers of the last run, for the textfile collector of node_exporter.
//!
//! A number that a run does not measure keeps its value from the file: the time of the last success after a failure, the verified
//! share after a backup. The file is replaced at once, so that a reader never sees a part of it.

use super::{
    output::aside,
    output_file::{EarlierFile, OutputFile},
};
use crate::cli::newest::{NewestBackups, WalNumbers};
use fullbore_engine::{
    fleet::{FleetReport, FleetSource},
    wal::ReceiveProgress,
};
use fullbore_format::{
    error::{Error, ErrorKind, Result, reason},
    text::source_text,
};
use serde_json::Value;
use std::{
    collections::BTreeMap,
    fmt::Write as _,
    path::{Path, PathBuf},
    time::Instant,
};

/// The first line. A file that begins otherwise is not replaced.
const BEGINS: &str = "# Written by fullbore --metrics";

/// Bytes of the file that are read at most.
const MAX_BYTES: u64 = 16 << 20;

const LAST_SUCCESS: &str = "fullbore_last_success_timestamp_seconds";
const NEWEST: &str = "fullbore_newest_backup_timestamp_seconds";
/// The beginning of the names of numbers of a source.
const OF_SOURCE: &str = "fullbore_source_";
const STEP_CODE: &str = "fullbore_step_exit_code";
const STEP_SECONDS: &str = "fullbore_step_duration_seconds";

/// Names, and the text that explains each.
const METRICS: [(&str, &str); 33] = [
    ("fullbore_backup_bytes", "Bytes of files in the last backup"),
    ("fullbore_backup_files", "Files in the last backup"),
    (
        "fullbore_backup_stored_bytes",
        "Bytes that the last backup added to its destination",
    ),
    (
        "fullbore_drill_last_success_timestamp_seconds",
        "Time at which the last drill that passed ended",
    ),
    (
        "fullbore_drill_query_seconds",
        "Seconds of the query in the last drill that passed",
    ),
    (
        "fullbore_drill_replay_seconds",
        "Seconds from the start of the server until it accepted queries in the last drill that passed",
    ),
    (
        "fullbore_drill_restore_seconds",
        "Seconds of the restore in the last drill that passed",
    ),
    (
        "fullbore_last_run_duration_seconds",
        "Duration of the last run",
    ),
    (
        "fullbore_last_run_exit_code",
        "Exit code of the last run: 0 is success",
    ),
    (
        "fullbore_last_run_timestamp_seconds",
        "Time at which the last run ended",
    ),
    (
        "fullbore_last_run_warnings",
        "Warnings of the last run, with entries that could not be read",
    ),
    (
        LAST_SUCCESS,
        "Time at which the last run without errors ended",
    ),
    (NEWEST, "Time at which the newest backup of a source began"),
    (
        "fullbore_source_bytes",
        "Bytes of content in the newest backup of a source",
    ),
    (
        "fullbore_source_damaged_backups",
        "Backups of a source that a verification found to be damaged",
    ),
    (
        "fullbore_source_drill_timestamp_seconds",
        "Time at which the newest drill of a source ended, if it passed",
    ),
    (
        "fullbore_source_expected_seconds",
        "Expected distance of the backups of a source",
    ),
    (
        "fullbore_source_growth_bytes",
        "Growth of a source in the last 30 days",
    ),
    (
        "fullbore_source_late",
        "Whether the newest backup of a source is older than expected",
    ),
    (
        "fullbore_source_newest_timestamp_seconds",
        "Time at which the newest backup of a source began",
    ),
    (
        "fullbore_source_verified_timestamp_seconds",
        "Time at which data of the newest backup of a source was verified last",
    ),
    ("fullbore_source_warnings", "Warnings about a source"),
    (STEP_SECONDS, "Duration of a step of the last run"),
    (STEP_CODE, "Exit code of a step of the last run"),
    (
        "fullbore_verified_bytes",
        "Bytes of data that the last verify of a share read",
    ),
    (
        "fullbore_verified_ratio",
        "Share of the stored data that was ever verified",
    ),
    (
        "fullbore_wal_archived_bytes",
        "Location in the WAL up to which it is in the repository",
    ),
    ("fullbore_wal_gaps", "Gaps in the archived WAL of a system"),
    (
        "fullbore_wal_lag_bytes",
        "Bytes of WAL that the server has and the repository has not",
    ),
    (
        "fullbore_wal_lag_seconds",
        "Seconds since the repository had all WAL of the server",
    ),
    (
        "fullbore_wal_received_bytes",
        "Bytes of WAL that the receiver got since its start",
    ),
    (
        "fullbore_wal_received_segments",
        "Whole WAL segments that the receiver stored since its start",
    ),
    (
        "fullbore_wal_received_timestamp_seconds",
        "Time at which the receiver was connected last",
    ),
];

/// A step of a run: its name, exit code and duration in seconds.
pub(super) type StepNumbers = (String, u8, f64);

/// The numbers of one run.
#[derive(Debug, Default)]
pub(super) struct RunNumbers {
    /// The exit code.
    pub(super) exit_code: u8,
    /// Duration of the run.
    pub(super) seconds: f64,
    /// Warnings, and entries that could not be read.
    pub(super) warnings: u64,
    /// The steps of `fullbore run`.
    pub(super) steps: Vec<StepNumbers>,
    /// The result of the backup, as `--json` prints it.
    pub(super) backup: Option<Value>,
    /// The result of the verification, as `--json` prints it.
    pub(super) verify: Option<Value>,
    /// The result of a drill that passed, as `--json` prints it.
    pub(super) drill: Option<Value>,
    /// When the newest backup of each source began, if the repository could be read.
    pub(super) newest: Option<NewestBackups>,
    /// The archived WAL of the systems that were looked at.
    pub(super) wal: Vec<WalNumbers>,
    /// The state of the sources of some repositories.
    pub(super) fleet: Option<FleetReport>,
}

/// The file, and the value of the label `profile` of all its numbers.
#[derive(Debug)]
pub(super) struct MetricsFile {
    path: PathBuf,
    output: OutputFile,
    profile: String,
}

/// Numbers by name and labels.
type Numbers = BTreeMap<(String, String), f64>;

/// Parses the name of the file: the collector reads only files that end in `.prom`.
pub(super) fn metrics_path(text: &str) -> Result<PathBuf, String> {
    if text.ends_with(".prom") && text != ".prom" {
        Ok(text.into())
    } else {
        Err("the name of a file that ends in .prom".to_owned())
    }
}

/// Does some work, and writes numbers of it to a file, if one is wanted.
///
/// # Errors
/// As [`MetricsFile::new`]; those of the work.
pub(super) fn measured(
    path: Option<&Path>,
    profile: Option<&str>,
    work: impl FnOnce(&mut RunNumbers) -> Result<u8>,
) -> Result<u8> {
    let file = path
        .map(|path| MetricsFile::new(path, profile))
        .transpose()?;
    let begun = Instant::now();
    let mut numbers = RunNumbers::default();
    let code = work(&mut numbers);
    if let Some(file) = file {
        numbers.exit_code = code.as_ref().map_or_else(Error::exit_code, |code| *code);
        numbers.seconds = begun.elapsed().as_secs_f64();
        file.write(&numbers);
    }
    code
}

impl MetricsFile {
    /// Checks before the run that the file may be written. Without a profile the label is the name of the file.
    ///
    /// # Errors
    /// [`ErrorKind::Exists`] for another file; [`ErrorKind::NotFound`] without its directory.
    pub(super) fn new(path: &Path, profile: Option<&str>) -> Result<Self> {
        let dir = path.parent().filter(|dir| !dir.as_os_str().is_empty());
        if let Some(dir) = dir.filter(|dir| !dir.is_dir()) {
            let message =
                format!("cannot write metrics to {path:?}: there is no directory {dir:?}");
            return Err(Error::new(ErrorKind::NotFound, message)
                .hint("make the directory, or name the one that node_exporter reads"));
        }
        let failed = |e| Error::io(format!("could not read the metrics in {path:?}"), e);
        let output = OutputFile::new(path).map_err(failed)?;
        let earlier = output.earlier(MAX_BYTES).map_err(failed)?;
        if earlier.as_ref().is_some_and(is_foreign) {
            let message = format!("cannot write metrics to {path:?}: another file is there");
            return Err(Error::new(ErrorKind::Exists, message)
                .hint("it was not changed; name a file that is not there yet"));
        }
        let stem = path.file_stem().unwrap_or_default().to_string_lossy();
        let profile = profile.map_or_else(|| stem.into_owned(), str::to_owned);
        Ok(Self {
            path: path.to_owned(),
            output,
            profile,
        })
    }

    /// Replaces the file. A failure is a warning: the run itself is over.
    pub(super) fn write(&self, run: &RunNumbers) {
        let now = jiff::Timestamp::now().as_second();
        self.replace(&updated(self.earlier(), run, &self.profile, now));
    }

    /// Replaces the file while a receiver runs.
    pub(super) fn write_received(&self, progress: &ReceiveProgress) {
        let now = jiff::Timestamp::now().as_second();
        let mut numbers = self.earlier();
        numbers.extend(received(progress, &self.profile, now));
        self.replace(&numbers);
    }

    fn replace(&self, numbers: &Numbers) {
        // The collector is another user, whatever the umask of this process.
        let written = self.output.replace(render(numbers).as_bytes(), Some(0o644));
        if let Err(error) = written {
            let why = reason(&error);
            aside(format_args!(
                "warning: could not write the metrics {:?}: {why}",
                self.path
            ));
        }
    }

    /// The numbers of the last run; none from a file that another user has written.
    fn earlier(&self) -> Numbers {
        let earlier = self.output.earlier(MAX_BYTES).ok().flatten();
        let own = earlier.filter(|earlier| earlier.is_trusted);
        own.map_or_else(Numbers::new, |own| {
            parse(&String::from_utf8_lossy(&own.bytes))
        })
    }
}

fn is_foreign(earlier: &EarlierFile) -> bool {
    !earlier.bytes.is_empty() && !earlier.bytes.starts_with(BEGINS.as_bytes())
}

/// The numbers after a run that ended at `now`.
fn updated(mut numbers: Numbers, run: &RunNumbers, profile: &str, now: i64) -> Numbers {
    let label = format!("profile={}", quoted_label(profile));
    let mut set = |name: &str, value: f64| {
        numbers.insert((name.to_owned(), label.clone()), value);
    };
    set("fullbore_last_run_timestamp_seconds", now as f64);
    set("fullbore_last_run_duration_seconds", run.seconds);
    set("fullbore_last_run_exit_code", run.exit_code.into());
    set("fullbore_last_run_warnings", run.warnings as f64);
    if run.exit_code == 0 {
        set(LAST_SUCCESS, now as f64);
    }
    if let Some(backup) = &run.backup {
        for name in ["bytes", "files", "stored_bytes"] {
            set(&format!("fullbore_backup_{name}"), number(&backup[name]));
        }
    }
    if let Some(drill) = &run.drill {
        set("fullbore_drill_last_success_timestamp_seconds", now as f64);
        for name in ["query_seconds", "replay_seconds", "restore_seconds"] {
            set(&format!("fullbore_drill_{name}"), number(&drill[name]));
        }
    }
    if let Some(sampled) = run.verify.as_ref().map(|verify| &verify["sampled"]) {
        let of_bytes = number(&sampled["stored_bytes"]);
        let never = number(&sampled["never_checked_bytes"]);
        // A repository without segments has no share of checked bytes.
        if of_bytes > 0.0 {
            set("fullbore_verified_bytes", number(&sampled["checked_bytes"]));
            set("fullbore_verified_ratio", 1.0 - never / of_bytes);
        }
    }
    // A step that the profile does not have any more must not keep its last exit code.
    if !run.steps.is_empty() {
        numbers.retain(|(name, _), _| name != STEP_CODE && name != STEP_SECONDS);
    }
    for (step, code, seconds) in &run.steps {
        let labels = format!("{label},step={}", quoted_label(step));
        numbers.insert((STEP_CODE.into(), labels.clone()), (*code).into());
        numbers.insert((STEP_SECONDS.into(), labels), *seconds);
    }
    if let Some(newest) = &run.newest {
        // Only a complete listing shows that a source has no backup any more.
        if newest.is_whole {
            numbers.retain(|(name, _), _| name != NEWEST);
        }
        for (source, time) in &newest.seconds {
            let labels = format!("{label},source={}", quoted_label(source));
            numbers.insert((NEWEST.into(), labels), *time as f64);
        }
    }
    for wal in &run.wal {
        let labels = format!("{label},system={}", quoted_label(&wal.system));
        for (name, value) in wal.numbers() {
            numbers.insert((name.to_owned(), labels.clone()), value);
        }
    }
    if let Some(fleet) = &run.fleet {
        set_sources(&mut numbers, fleet, &label, now);
    }
    numbers
}

/// Replaces the numbers of all sources, but for those of a repository that could not be read.
fn set_sources(numbers: &mut Numbers, fleet: &FleetReport, label: &str, now: i64) {
    let place = |repository: &str| format!(",repository={},", quoted_label(repository));
    let lost = fleet.repositories.iter().filter(|one| one.error.is_some());
    let lost: Vec<String> = lost.map(|one| place(&one.repository)).collect();
    let is_lost = |labels: &str| lost.iter().any(|place| labels.contains(place));
    numbers.retain(|(name, labels), _| !name.starts_with(OF_SOURCE) || is_lost(labels));
    for source in &fleet.sources {
        let place = place(&source.repository);
        let name = quoted_label(&source_text(&source.source));
        let labels = format!("{label}{place}source={name}");
        for (name, value) in source_numbers(source, now) {
            numbers.insert((format!("{OF_SOURCE}{name}"), labels.clone()), value);
        }
    }
}

/// The numbers of a source that are known.
fn source_numbers(source: &FleetSource, now: i64) -> Vec<(&'static str, f64)> {
    let time = |age: u64| now as f64 - age as f64;
    let drill = source.last_drill.as_ref().filter(|drill| drill.passed);
    let known = [
        ("bytes", Some(source.bytes as f64)),
        ("damaged_backups", Some(source.damaged_backups as f64)),
        (
            "drill_timestamp_seconds",
            drill.map(|drill| time(drill.age_seconds)),
        ),
        (
            "expected_seconds",
            source.expected_seconds.map(|seconds| seconds as f64),
        ),
        (
            "growth_bytes",
            source.growth_bytes.map(|bytes| bytes as f64),
        ),
        ("late", Some(u8::from(source.late).into())),
        ("newest_timestamp_seconds", Some(time(source.age_seconds))),
        (
            "verified_timestamp_seconds",
            source.last_verified.map(|time| time as f64),
        ),
        ("warnings", Some(source.warnings.len() as f64)),
    ];
    let known = known.into_iter();
    known
        .filter_map(|(name, value)| Some((name, value?)))
        .collect()
}

/// The numbers of a receiver at `now`.
fn received(progress: &ReceiveProgress, profile: &str, now: i64) -> Numbers {
    let label = format!("profile={}", quoted_label(profile));
    let numbers = [
        ("lag_bytes", progress.lag_bytes as f64),
        ("lag_seconds", progress.lag_seconds),
        ("received_bytes", progress.received_bytes as f64),
        ("received_segments", progress.stored_segments as f64),
        ("received_timestamp_seconds", now as f64),
    ];
    let named = |(name, value)| ((format!("fullbore_wal_{name}"), label.clone()), value);
    numbers.map(named).into()
}

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or_default()
}

/// A value of a label, quoted as the text format of Prometheus wants it.
fn quoted_label(text: &str) -> String {
    let text = text.replace('\\', "\\\\").replace('"', "\\\"");
    format!("\"{}\"", text.replace('\n', "\\n"))
}

/// The numbers of a file that [`render`] has made; lines that are not understood are dropped.
fn parse(text: &str) -> Numbers {
    text.lines().filter_map(parse_metric).collect()
}

fn parse_metric(line: &str) -> Option<((String, String), f64)> {
    let (name, rest) = line.split_once('{')?;
    let (labels, value) = rest.rsplit_once("} ")?;
    let is_known = METRICS.iter().any(|(known, _)| *known == name);
    let value = value.parse().ok().filter(|_| is_known)?;
    Some(((name.to_owned(), labels.to_owned()), value))
}

fn render(numbers: &Numbers) -> String {
    let mut text = format!("{BEGINS}\n");
    for (name, help) in METRICS {
        let of_name: Vec<_> = numbers
            .iter()
            .filter(|((known, _), _)| known == name)
            .collect();
        if of_name.is_empty() {
            continue;
        }
        let _ = writeln!(text, "# HELP {name} {help}.\n# TYPE {name} gauge");
        for ((name, labels), value) in of_name {
            let _ = writeln!(text, "{name}{{{labels}}} {value}");
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use std::fs;

    fn good() -> RunNumbers {
        RunNumbers {
            seconds: 1.5,
            steps: vec![("backup".into(), 0, 1.0)],
            backup: Some(json!({"bytes": 100, "files": 2, "stored_bytes": 50})),
            verify: Some(
                json!({"sampled": {"bytes": 5, "stored_bytes": 100, "never_checked_bytes": 25}}),
            ),
            newest: Some(NewestBackups {
                seconds: [("h:/a \"b\"\\".to_owned(), 7)].into(),
                is_whole: true,
            }),
            ..RunNumbers::default()
        }
    }

    #[test]
    fn a_failed_run_keeps_what_it_does_not_measure() {
        let first = updated(Numbers::new(), &good(), "web", 1000);
        assert_eq!(parse(&render(&first)), first);
        let failed = RunNumbers {
            exit_code: 1,
            steps: vec![("verify".into(), 4, 2.0)],
            ..RunNumbers::default()
        };
        let text = render(&updated(parse(&render(&first)), &failed, "web", 2000));
        for line in [
            "fullbore_last_run_exit_code{profile=\"web\"} 1",
            "fullbore_last_run_timestamp_seconds{profile=\"web\"} 2000",
            "fullbore_last_success_timestamp_seconds{profile=\"web\"} 1000",
            "fullbore_backup_stored_bytes{profile=\"web\"} 50",
            "fullbore_verified_ratio{profile=\"web\"} 0.75",
            "fullbore_step_exit_code{profile=\"web\",step=\"verify\"} 4",
            "fullbore_newest_backup_timestamp_seconds{profile=\"web\",source=\"h:/a \\\"b\\\"\\\\\"} 7",
        ] {
            assert!(text.lines().any(|found| found == line), "{line}\n{text}");
        }
        assert!(!text.contains("step=\"backup\""), "{text}");
    }

    #[test]
    fn a_receiver_writes_how_far_it_is() {
        let progress = ReceiveProgress {
            lag_bytes: 512,
            lag_seconds: 1.5,
            ..ReceiveProgress::default()
        };
        let numbers = received(&progress, "pg", 1000);
        assert_eq!(parse(&render(&numbers)), numbers);
        let text = render(&numbers);
        for line in [
            "fullbore_wal_lag_bytes{profile=\"pg\"} 512",
            "fullbore_wal_lag_seconds{profile=\"pg\"} 1.5",
            "fullbore_wal_received_timestamp_seconds{profile=\"pg\"} 1000",
        ] {
            assert!(text.lines().any(|found| found == line), "{line}\n{text}");
        }
    }

    #[test]
    fn a_drill_that_failed_keeps_the_time_of_the_last_that_passed() {
        let passed = RunNumbers {
            drill: Some(
                json!({"restore_seconds": 2.5, "replay_seconds": 1.5, "query_seconds": 0.25}),
            ),
            ..RunNumbers::default()
        };
        let first = updated(Numbers::new(), &passed, "drill", 1000);
        let failed = RunNumbers {
            exit_code: 1,
            ..RunNumbers::default()
        };
        let text = render(&updated(first, &failed, "drill", 2000));
        for line in [
            "fullbore_drill_last_success_timestamp_seconds{profile=\"drill\"} 1000",
            "fullbore_drill_restore_seconds{profile=\"drill\"} 2.5",
            "fullbore_drill_replay_seconds{profile=\"drill\"} 1.5",
            "fullbore_last_run_exit_code{profile=\"drill\"} 1",
        ] {
            assert!(text.lines().any(|found| found == line), "{line}\n{text}");
        }
    }

    #[test]
    fn a_source_without_backups_is_no_longer_named() {
        let first = updated(Numbers::new(), &good(), "web", 1000);
        let gone = RunNumbers {
            newest: Some(NewestBackups {
                is_whole: true,
                ..NewestBackups::default()
            }),
            ..RunNumbers::default()
        };
        assert!(!render(&updated(first, &gone, "web", 2000)).contains(NEWEST));
    }

    #[test]
    fn another_file_is_not_replaced_and_a_name_ends_in_prom() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.prom");
        fs::write(&path, "node_up 1\n").unwrap();
        assert_eq!(
            MetricsFile::new(&path, None).unwrap_err().kind,
            ErrorKind::Exists
        );
        let missing = dir.path().join("none/x.prom");
        assert_eq!(
            MetricsFile::new(&missing, None).unwrap_err().kind,
            ErrorKind::NotFound
        );
        metrics_path("x.txt").unwrap_err();
    }
}
