//! `fullbore sync`: copies the backups that a repository lacks from another one.

use super::{
    forget::Keep,
    forget_backups::{Forget, ForgottenByRules, Identity, WITH_TIMES, identity_of},
    init::say_new,
};
use crate::cli::{
    encryption::{EncryptArgs, sealing_of},
    limit::{RunEnds, RunLimit},
    metered_run::{JudgedRun, MeteredRun, ReportHead},
    options::{DESTINATION, OutputArgs, PERFORMANCE, RunArgs, rare},
    output::{aside, printed_within, terminal_columns},
    report,
    select::SelectArgs,
    values::threads,
};
use clap::{Args, ValueHint};
use fullbore_engine::{
    backup_copy::sync::{RepositorySync, SyncOutcome, SyncPlan},
    plan::SinkSpec,
};
use fullbore_format::{
    error::{Error, ErrorKind, Result},
    text::{
        self,
        columns::fitted_row,
        local_time::recent_minute,
        size::{self, bytes, counted, rate, seconds},
        source_text,
    },
};
use fullbore_platform as platform;
use fullbore_platform::metrics::hardware::RunKind;
use fullbore_repository::{
    open::place, retention::RetentionRules, shard::Shard, writer::is_absent,
};
use fullbore_storage::{Objects, Storages};
use jiff::Zoned;
use serde_json::{Value, json};
use std::{
    collections::BTreeSet,
    ffi::{OsStr, OsString},
    num::NonZeroUsize,
    sync::Arc,
};

/// Memory of a worker: a piece of 8 MiB that is checked, and those that are stored meanwhile.
const WORKER_BYTES: u64 = 32 << 20;

/// Exit code if damaged backups were left out.
const DAMAGED: u8 = 4;

/// `fullbore sync`.
#[derive(Debug, Args)]
#[command(
    after_help = "Rules such as --keep-daily say which backups DEST should have: the others are not copied, and are forgotten there. \
                  Rules only concern sources of which REPO has a selected backup. `fullbore prune DEST` frees the space.\n\
                  EXIT CODES: 0 done, 1 failed, 2 wrong arguments, 4 done but damaged backups were not copied"
)]
#[command(mut_args(rare(&["encrypt_to", "passphrase", "no_encryption"])))]
pub(in crate::cli) struct SyncArgs {
    /// The repository to read
    #[arg(value_name = "REPO", value_hint = ValueHint::DirPath)]
    from: OsString,
    /// The repository to complete
    ///
    /// It is made if it does not exist.
    #[arg(value_name = "DEST", value_hint = ValueHint::DirPath)]
    to: OsString,
    #[command(flatten)]
    select: SelectArgs,
    #[command(flatten)]
    keep: Keep,
    /// Copy only the sources of share K of N, for N machines at once
    ///
    /// All backups of a source are in one share. All shares together copy everything once.
    #[arg(long, value_name = "K/N", value_parser = Shard::parse)]
    shard: Option<Shard>,
    /// Only print what would be copied and forgotten
    #[arg(long, short = 'n')]
    pub(in crate::cli) dry_run: bool,
    /// Fail if the repository at DEST does not exist
    #[arg(long, help_heading = DESTINATION, hide_short_help = true)]
    no_create: bool,
    /// Objects copied at the same time [default: one for each processor]
    ///
    /// The default is the number of processors that this process may use.
    #[arg(long, short = 'j', value_name = "N", value_parser = threads, help_heading = PERFORMANCE, hide_short_help = true)]
    workers: Option<NonZeroUsize>,
    /// Size of all buffers together
    ///
    /// There is one worker for each 32M at most.
    #[arg(long, value_name = "SIZE", default_value = "128M", value_parser = size::parse, help_heading = PERFORMANCE, hide_short_help = true)]
    memory: u64,
    #[command(flatten)]
    pub(in crate::cli) encrypt: EncryptArgs,
    #[command(flatten)]
    output: OutputArgs,
    #[command(flatten)]
    run: RunArgs,
}

/// Two repositories, and what to do with their backups.
struct SyncVerb {
    storages: Storages,
    /// The words of the command line.
    from_word: OsString,
    to_word: OsString,
    target: SinkSpec,
    is_new: bool,
    sync: RepositorySync,
    rules: RetentionRules,
    output: OutputArgs,
}

pub(in crate::cli) fn run(args: SyncArgs, storages: &Storages) -> Result<u8> {
    let report_file = args.run.report.clone();
    let is_dry_run = args.dry_run;
    let verb = SyncVerb::new(args, storages)?;
    let mut plan = verb.sync.plan()?;
    let sources = sources_of(&plan)?;
    let left_out = verb.apply_rules(&mut plan, &sources)?;
    if is_dry_run {
        return verb.print_plan(&plan, &sources, left_out);
    }
    let run = MeteredRun::new(storages, &verb.output, report::SIDES);
    let run = run.with_report(report_file.as_deref())?;
    let there = plan.there;
    let outcome = run.work(|meter| verb.sync.run(plan, meter))?;
    let forgotten = verb.forget(sources)?;
    let done = SyncDone {
        there,
        left_out,
        outcome,
        forgotten,
    };
    verb.print_end(run, &done)
}

/// The outcome of a whole command.
struct SyncDone {
    /// Number of backups that the destination had.
    there: usize,
    /// Number of backups that the rules do not want there.
    left_out: usize,
    outcome: SyncOutcome,
    forgotten: ForgottenByRules,
}

impl SyncDone {
    fn exit_code(&self) -> u8 {
        let is_whole = self.outcome.damaged.is_empty() && self.forgotten.damaged.is_empty();
        if is_whole { 0 } else { DAMAGED }
    }
}

impl SyncVerb {
    fn new(args: SyncArgs, storages: &Storages) -> Result<Self> {
        let from = source_objects(storages, &args.from)?;
        let (target, _) = SinkSpec::parse(storages, &args.to, None)?;
        let is_new = target.is_new_repository();
        let sealing = sealing_of(storages, &args.from)?;
        // A dry run makes no repository, and no keys.
        let target = match args.dry_run {
            true => target,
            false => args.encrypt.apply_to_copy(
                storages,
                sealing,
                target,
                &args.to,
                is_new,
                args.no_create,
            )?,
        };
        let Some(to) = target.storage().cloned() else {
            let message = format!("cannot copy backups to {:?}: it is no repository", args.to);
            return Err(
                Error::new(ErrorKind::Usage, message).hint("`fullbore export` writes archives")
            );
        };
        let most = NonZeroUsize::new((args.memory / WORKER_BYTES) as usize);
        let workers = args.workers.unwrap_or_else(platform::cores);
        let sync = RepositorySync {
            from,
            to,
            filter: args.select.filter(&args.from, false)?,
            shard: args.shard,
            no_create: args.no_create,
            workers: workers.min(most.unwrap_or(NonZeroUsize::MIN)),
        };
        Ok(Self {
            storages: storages.clone(),
            from_word: args.from,
            to_word: args.to,
            target,
            is_new,
            sync,
            rules: args.keep.rules(),
            output: args.output,
        })
    }

    /// The rules of the destination, for these sources.
    fn forget_of(&self, sources: &BTreeSet<Identity>) -> Forget {
        Forget {
            storages: self.storages.clone(),
            repository: self.to_word.clone(),
            rules: self.rules.clone(),
            by_source: true,
            sources: Some(sources.clone()),
            ..Forget::default()
        }
    }

    /// Drops the backups of the plan that the rules would forget at once. Returns their number.
    fn apply_rules(&self, plan: &mut SyncPlan, sources: &BTreeSet<Identity>) -> Result<usize> {
        if self.rules.is_empty() {
            return Ok(0);
        }
        let kept = self.kept(plan, sources)?;
        Ok(plan.keep_only(&kept))
    }

    fn kept(&self, plan: &SyncPlan, sources: &BTreeSet<Identity>) -> Result<BTreeSet<String>> {
        let forget = self.forget_of(sources);
        let there = (!is_absent(&*self.sync.to)).then_some(&self.sync.to);
        forget.kept_with(there, &plan.selected)
    }

    /// Forgets what the rules do not keep in the destination.
    fn forget(&self, sources: BTreeSet<Identity>) -> Result<ForgottenByRules> {
        if self.rules.is_empty() {
            return Ok(ForgottenByRules::default());
        }
        self.forget_of(&sources).apply_rules()
    }

    fn print_plan(
        &self,
        plan: &SyncPlan,
        sources: &BTreeSet<Identity>,
        left_out: usize,
    ) -> Result<u8> {
        let would_forget = match self.rules.is_empty() || is_absent(&*self.sync.to) {
            true => Vec::new(),
            false => self.forget_of(sources).not_kept(&plan.selected)?,
        };
        self.warn_of(&plan.damaged);
        let code = if plan.damaged.is_empty() { 0 } else { DAMAGED };
        let columns = terminal_columns().filter(|_| !self.output.json && !self.output.verbose);
        printed_within(columns, |out| {
            if self.output.json {
                text::json(out, &plan_json(plan, left_out, &would_forget))?;
            } else if !self.output.quiet {
                let now = Zoned::now();
                for missing in &plan.missing {
                    text::line(
                        out,
                        &plan_row(plan, (&missing.id, missing.bytes), &now, columns),
                    )?;
                }
                for id in &would_forget {
                    text::line(out, &format!("forget {id}"))?;
                }
                text::line(out, &plan_summary(plan, left_out, would_forget.len()))?;
            }
            Ok(code)
        })
    }

    fn warn_of(&self, damaged: &[(String, Error)]) {
        for (id, error) in damaged {
            let subject = match &id[..] {
                "WAL" => "archived WAL".to_owned(),
                id => format!("backup {id}"),
            };
            aside(format_args!(
                "warning: {subject} is not copied: {}",
                error.line()
            ));
        }
    }

    fn print_end(&self, run: MeteredRun, done: &SyncDone) -> Result<u8> {
        let ends = RunEnds::of(&self.storages, Some(&self.from_word), Some(&self.to_word));
        let judged = JudgedRun {
            kind: RunKind::Copy,
            ends: &ends,
            workers: self.sync.workers,
            max_rate: None,
        };
        let limit = run.limit(None, &judged);
        self.warn_of(&done.outcome.damaged);
        for warning in &done.outcome.warnings {
            aside(format_args!("warning: {warning}"));
        }
        for (id, error) in &done.forgotten.damaged {
            aside(format_args!("warning: {id} is kept: {}", error.line()));
        }
        if self.is_new && !self.output.json {
            say_new(&self.target);
        }
        let lines = self.last_lines(done, &limit);
        run.end(&lines, || self.json(done, &limit));
        let exit_code = done.exit_code();
        let head = ReportHead {
            title: format!("sync to {}", self.target.name()),
            source: &self.from_word.to_string_lossy(),
            exit_code,
        };
        run.print_report(&head, lines, &limit);
        Ok(exit_code)
    }

    fn last_lines(&self, done: &SyncDone, limit: &RunLimit) -> Vec<String> {
        let outcome = &done.outcome;
        let mut lines = Vec::new();
        if self.output.verbose {
            lines.extend(outcome.copied.iter().map(|copied| {
                let objects = counted(copied.objects, "object");
                format!("{}  {objects}, {}", copied.id, bytes(copied.bytes))
            }));
        }
        let wal = match outcome.wal.objects {
            0 => String::new(),
            n => format!(
                "; WAL: {}, {}",
                counted(n, "object"),
                bytes(outcome.wal.bytes)
            ),
        };
        lines.push(format!(
            "{}, {} in {}, {}{wal}",
            counted(outcome.objects, "object"),
            bytes(outcome.bytes),
            seconds(outcome.seconds),
            rate(outcome.bytes, outcome.seconds)
        ));
        lines.extend(limit.line(self.output.verbose));
        lines.extend(report::store(limit.counts, Some(limit)));
        if !done.forgotten.ids.is_empty() {
            let count = counted(done.forgotten.ids.len() as u64, "backup");
            lines.push(format!(
                "{count} forgotten by the rules; `fullbore prune` frees what only they need"
            ));
        }
        lines.push(self.verdict(done));
        lines
    }

    /// The last line.
    fn verdict(&self, done: &SyncDone) -> String {
        let to = self.target.name();
        let copied = counted(done.outcome.copied.len() as u64, "backup");
        let mut line = format!("{copied} copied to {to}, {} were there", done.there);
        if done.left_out > 0 {
            line += &format!(", {} not wanted by the rules", done.left_out);
        }
        if !done.outcome.forgotten.is_empty() {
            let count = done.outcome.forgotten.len();
            line += &format!(", {count} forgotten meanwhile");
        }
        if !done.outcome.damaged.is_empty() {
            line += &format!(", {} DAMAGED and not copied", done.outcome.damaged.len());
        }
        line
    }

    fn json(&self, done: &SyncDone, limit: &RunLimit) -> Value {
        let outcome = &done.outcome;
        let copied = outcome.copied.iter().map(|copied| {
            json!({"id": copied.id, "objects": copied.objects, "stored_bytes": copied.bytes,
                "there_objects": copied.there, "there_bytes": copied.there_bytes, "seconds": copied.seconds})
        });
        let mut result = json!({"type": "result", "dry_run": false, "copied": copied.collect::<Vec<_>>(),
            "there_backups": done.there, "unwanted_backups": done.left_out, "forgotten_ids": done.forgotten.ids,
            "gone_ids": outcome.forgotten, "not_copied": damaged_json(&outcome.damaged), "objects": outcome.objects,
            "stored_bytes": outcome.bytes, "wal_objects": outcome.wal.objects, "wal_bytes": outcome.wal.bytes,
            "seconds": outcome.seconds, "warnings": outcome.warnings, "new_repository": self.is_new});
        limit.add_to(&mut result);
        if let Some(counts) = &limit.counts {
            result["store"] = report::store_json(counts);
        }
        result
    }
}

/// Opens the repository that is read.
fn source_objects(storages: &Storages, word: &OsStr) -> Result<Arc<dyn Objects>> {
    let (location, backup) = place(word)?;
    if let Some(backup) = backup {
        let message =
            format!("cannot sync backup {backup:?} alone: sync is for whole repositories");
        return Err(Error::new(ErrorKind::Usage, message)
            .hint("`fullbore copy REPO@BACKUP DEST` copies one backup; --host, --path and --tag select some"));
    }
    if !location.is_repository() {
        let message = format!("cannot read {location}: it is not a repository");
        return Err(Error::new(ErrorKind::Usage, message)
            .hint("`fullbore sync REPO DEST` copies the backups of REPO to the repository DEST, and makes DEST if it is missing"));
    }
    storages.objects(&location)
}

/// Returns the sources of the selected backups.
fn sources_of(plan: &SyncPlan) -> Result<BTreeSet<Identity>> {
    plan.selected.iter().map(identity_of).collect()
}

fn plan_row(
    plan: &SyncPlan,
    (id, len): (&str, u64),
    now: &Zoned,
    columns: Option<usize>,
) -> String {
    let root = plan.root(id);
    let when = root.map(|root| recent_minute(&root.time, now));
    let source = root.map(|root| source_text(&root.source));
    let size = bytes(len);
    let before = match columns {
        Some(..WITH_TIMES) => format!("copy   {id:<23} {size:>8}  "),
        _ => format!(
            "copy   {id:<23} {:<16} {size:>8}  ",
            when.unwrap_or_default()
        ),
    };
    fitted_row(&before, &source.unwrap_or_default(), columns)
}

fn plan_summary(plan: &SyncPlan, left_out: usize, forgotten: usize) -> String {
    let total = plan.missing.iter().map(|missing| missing.bytes).sum();
    let mut line = format!(
        "{} would be copied, {}; {} there",
        counted(plan.missing.len() as u64, "backup"),
        bytes(total),
        plan.there
    );
    if left_out > 0 {
        line += &format!(", {left_out} not wanted by the rules");
    }
    if forgotten > 0 {
        line += &format!(", {forgotten} would be forgotten");
    }
    line
}

fn plan_json(plan: &SyncPlan, left_out: usize, would_forget: &[String]) -> Value {
    let missing = plan.missing.iter();
    let copied = missing.map(|missing| json!({"id": missing.id, "stored_bytes": missing.bytes}));
    let total: u64 = plan.missing.iter().map(|missing| missing.bytes).sum();
    json!({"type": "result", "dry_run": true, "copied": copied.collect::<Vec<_>>(), "stored_bytes": total,
        "there_backups": plan.there, "unwanted_backups": left_out, "forgotten_ids": would_forget,
        "not_copied": damaged_json(&plan.damaged)})
}

fn damaged_json(damaged: &[(String, Error)]) -> Value {
    let pairs = damaged.iter();
    pairs
        .map(|(id, error)| json!({"id": id, "error": error.line()}))
        .collect()
}
