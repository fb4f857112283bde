//! `fullbore verify`.

use super::verify_report;
use crate::cli::{
    limit::{RunEnds, RunLimit},
    metered_run::{JudgedRun, MeteredRun},
    options::OutputArgs,
    output::{aside, told},
    report,
    select::SelectArgs,
    values::{threads, time},
    verbs::wal_report::wal_faults,
};
use clap::{Args, ValueHint};
use fullbore_engine::verify::{
    Verify, VerifyVerdict,
    sample::{SampleAmount, SampleVerify, Sampled},
};
use fullbore_format::{
    error::{Error, ErrorKind, Result},
    root::PART_BYTES,
    text::{self, size::bytes, utc_time},
};
use fullbore_platform::{
    debug,
    metrics::{hardware::RunKind, meter::Meter},
};
use fullbore_repository::{
    open::{is_repository, place},
    shard::Shard,
};
use fullbore_storage::{Found, Storages};
use serde_json::{Value, json};
use std::{
    ffi::{OsStr, OsString},
    num::NonZeroUsize,
    path::PathBuf,
    time::Duration,
};

/// `fullbore verify`.
#[derive(Debug, Args)]
#[command(
    after_help = "EXIT CODES: 0 sound, 1 failed or different, 2 wrong arguments, 4 damage was found"
)]
pub(in crate::cli) struct VerifyArgs {
    /// A repository, archive, tar or -, with @ID, @latest, @2026-11-25 or @2d
    ///
    /// Without @BACKUP, all backups of a repository are checked. An archive, any other tar and -
    /// (standard input) are read to their end. @BACKUP checks one backup: an id, latest, latest~1,
    /// 2026-11-25 or 2d.
    #[arg(value_name = "REPO[@BACKUP]")]
    from: OsString,
    #[command(flatten)]
    select: SelectArgs,
    /// Read and check every byte
    #[arg(long)]
    data: bool,
    #[command(flatten)]
    sample: SampleArgs,
    /// Check only the data of share K of N, for N machines at once
    ///
    /// All shares together check everything once. The structure is checked by each.
    #[arg(long, value_name = "K/N", value_parser = Shard::parse, conflicts_with = "against")]
    shard: Option<Shard>,
    /// Compare with this tree, and list the differences
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    against: Option<PathBuf>,
    /// Threads that compute [default: one for each processor]
    ///
    /// The default is the number of processors that this process may use.
    #[arg(long, short = 'j', value_name = "N", value_parser = threads)]
    workers: Option<NonZeroUsize>,
    #[command(flatten)]
    output: OutputArgs,
}

/// How much of the data is checked.
#[derive(Debug, Args)]
pub(in crate::cli) struct SampleArgs {
    /// Check this share of the data, such as 5%
    ///
    /// Data that was checked longest ago comes first.
    #[arg(long, value_name = "PERCENT", value_parser = percent, conflicts_with_all = ["data", "against", "host", "path", "tag"])]
    sample: Option<f64>,
    /// Check data for this time, such as 30m or 2h
    ///
    /// Data that was checked longest ago comes first.
    #[arg(long = "for", value_name = "TIME", value_parser = time, conflicts_with_all = ["data", "against", "sample", "host", "path", "tag"])]
    time: Option<Duration>,
}

impl SampleArgs {
    /// Is a part of the data to be checked?
    fn amount(&self) -> Option<SampleAmount> {
        self.sample
            .map(SampleAmount::Share)
            .or(self.time.map(SampleAmount::Time))
    }
}

fn percent(text: &str) -> Result<f64, String> {
    let number = text.strip_suffix('%').unwrap_or(text).parse::<f64>().ok();
    let share = number
        .filter(|number| *number > 0.0 && *number <= 100.0)
        .map(|number| number / 100.0);
    share.ok_or_else(|| "use a number above 0 and up to 100, as 5%".to_owned())
}

/// Check, and say what was found.
///
/// # Errors
/// As [`Verify::run`].
pub(in crate::cli) fn run(args: VerifyArgs, storages: &Storages) -> Result<u8> {
    if let Some(amount) = args.sample.amount() {
        return sample(args, amount, storages);
    }
    if args.shard.is_some() && !args.data {
        let message = "--shard divides the data, and only the structure would be checked";
        return Err(Error::new(ErrorKind::Usage, message).hint("add --data, --sample or --for"));
    }
    let ends = RunEnds::of(storages, Some(&args.from), None);
    let filter = args.select.filter(&args.from, true)?;
    let verify = Verify {
        storages: storages.clone(),
        from: args.from,
        filter,
        data: args.data,
        shard: args.shard,
        against: args.against,
        workers: args.workers.unwrap_or_else(fullbore_platform::cores),
    };
    let run = MeteredRun::new(storages, &args.output, report::SIDES);
    let found = run.work(|meter| verify.run(meter))?;
    remember(&found, &verify);
    if !args.output.json {
        told(|out| found.print(out, args.output.verbose).map(|()| 0))?;
    }
    let wal = wal_faults_of(&verify)?;
    let judged = JudgedRun {
        kind: RunKind::Verify,
        ends: &ends,
        workers: verify.workers,
        max_rate: None,
    };
    // The structure is checked without content: there is no line of frames to judge.
    let limit = found.data.then(|| run.limit(None, &judged));
    let limit = limit.as_ref();
    let lines = last_lines(&verify, &found, limit, &wal, args.output.verbose);
    run.end(&lines, || result_json(&found, limit, &wal));
    Ok(match wal.is_empty() {
        true => found.exit_code(),
        false => found.exit_code().max(4),
    })
}

/// Remembers in the repository which data was checked, and which backups are damaged.
fn remember(found: &VerifyVerdict, verify: &Verify) {
    let Some(record) = &found.record else { return };
    let Ok((location, _)) = place(&verify.from) else {
        return;
    };
    if !location.is_repository() {
        return; // an archive
    }
    let remembered = verify
        .storages
        .objects(&location)
        .and_then(|objects| record.remember(&*objects, PART_BYTES));
    // A repository that cannot be written to does not remember. Damage that is not remembered is seen here alone.
    if let Err(why) = remembered {
        match found.exit_code() == 4 {
            true => aside(format_args!(
                "note: `fullbore fleet` will not know of it: {}",
                why.line()
            )),
            false => debug(|| why.line()),
        }
    }
}

/// Returns the faults in the archived WAL of a repository.
fn wal_faults_of(verify: &Verify) -> Result<Vec<String>> {
    if !is_repository(&verify.from) {
        return Ok(Vec::new());
    }
    let objects = verify.storages.repository_at(&verify.from)?;
    let faults = wal_faults(&verify.storages, &objects, verify.data)?.1;
    Ok(faults.iter().map(|fault| fault.trim().to_owned()).collect())
}

/// Returns the last lines of a verification.
fn last_lines(
    verify: &Verify,
    found: &VerifyVerdict,
    limit: Option<&RunLimit>,
    wal: &[String],
    is_verbose: bool,
) -> Vec<String> {
    let hint = verify_report::after_damage(found).filter(|_| is_of_repository(&verify.from));
    let share = found.checked.filter(|_| found.exit_code() == 0);
    let share = share.and_then(|checked| verify_report::checked_line(checked.share));
    hint.into_iter()
        .chain(limit.and_then(|limit| limit.line(is_verbose)))
        .chain(report::store(verify.storages.cloud_counts(), limit))
        .chain(share)
        .chain(wal.iter().map(|fault| format!("WAL: {fault}")))
        .chain([verify_report::last_line(found, verify.against.as_deref())])
        .collect()
}

/// Returns the result of a verification as JSON.
fn result_json(found: &VerifyVerdict, limit: Option<&RunLimit>, wal: &[String]) -> Value {
    let mut result = verify_report::json(found);
    if !wal.is_empty() {
        result["wal_faults"] = json!(wal);
    }
    if let Some(limit) = limit {
        limit.add_to(&mut result);
    }
    result
}

/// `fullbore verify --sample` and `--for`.
///
/// # Errors
/// As [`Sample::run`].
fn sample(args: VerifyArgs, amount: SampleAmount, storages: &Storages) -> Result<u8> {
    let workers = args.workers.unwrap_or_else(fullbore_platform::cores);
    let (found, sampled) = SampleVerify {
        storages: storages.clone(),
        repository: args.from,
        amount,
        shard: args.shard,
        workers,
    }
    .run(&Meter::default())?;
    let Sampled {
        bytes: now,
        of_bytes,
        never_bytes,
        oldest,
        forgotten,
    } = &sampled;
    if args.output.json {
        let mut line = verify_report::json(&found);
        line["sampled"] = json!({"checked_bytes": now, "stored_bytes": of_bytes, "never_checked_bytes": never_bytes,
            "oldest_check_time": utc_time(*oldest).filter(|_| *oldest > 0), "not_remembered": forgotten});
        return told(|out| text::json(out, &line).map(|()| found.exit_code()));
    }
    told(|out| found.print(out, args.output.verbose).map(|()| 0))?;
    if args.output.quiet {
        return Ok(found.exit_code());
    }
    let ever = of_bytes.saturating_sub(*never_bytes) as f64 / (*of_bytes).max(1) as f64;
    aside(format_args!(
        "{} of {} of data were checked now, {:.0} % at least once",
        bytes(*now),
        bytes(*of_bytes),
        ever * 100.0
    ));
    forgotten.iter().for_each(|why| {
        aside(format_args!(
            "note: the next run does not know of it: {why}"
        ))
    });
    aside(verify_report::last_line(&found, None));
    Ok(found.exit_code())
}

/// Is it a repository, or a backup in one?
fn is_of_repository(from: &OsStr) -> bool {
    place(from)
        .is_ok_and(|(location, _)| matches!(location.look(), Found::Repository | Found::Directory))
}
