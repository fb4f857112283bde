//! `fullbore verify`.

use super::verify_report;
use crate::{
    cli::{
        limit::{RunEnds, RunLimit},
        options::OutputArgs,
        output::{aside, told},
        progress::Progress,
        report,
        select::SelectArgs,
        values::{threads, time},
    },
    command::wal::wal_faults,
};
use clap::{Args, ValueHint};
use fullbore_engine::verify::{
    Verify,
    sample::{SampleAmount, SampleVerify, Sampled},
};
use fullbore_format::{
    error::Result,
    root::PART_BYTES,
    text::{self, size::bytes},
};
use fullbore_platform::{
    debug,
    metrics::{hardware::RunKind, meter::Meter},
};
use fullbore_repository::open::{is_repository, place};
use fullbore_storage::{Found, Storages};
use serde_json::json;
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
    let ends = RunEnds::of(storages, Some(&args.from), None);
    let filter = args.select.filter(&args.from, true)?;
    let verify = Verify {
        storages: storages.clone(),
        from: args.from,
        filter,
        data: args.data,
        against: args.against,
        workers: args.workers.unwrap_or_else(fullbore_platform::cores),
    };
    let meter = Meter::default();
    let progress = Progress::new(storages, &args.output, false, report::SIDES);
    let found = progress.watch(&meter, || verify.run(&meter));
    progress.clear();
    let found = found?;
    if let Some(record) = &found.record {
        let remembered = storages
            .repository_at(&verify.from)
            .and_then(|objects| record.remember(&*objects, PART_BYTES));
        // A repository that cannot be written to does not remember.
        let _ = remembered.map_err(|why| debug(|| why.line()));
    }
    if !args.output.json {
        told(|out| found.print(out, args.output.verbose).map(|()| 0))?;
    }
    let last = verify_report::last_line(&found, verify.against.as_deref());
    let wal = match is_repository(&verify.from) {
        true => wal_faults(&storages.repository_at(&verify.from)?, verify.data)?.1,
        false => Vec::new(),
    };
    let code = if wal.is_empty() {
        found.exit_code()
    } else {
        found.exit_code().max(4)
    };
    let hint = verify_report::after_damage(&found).filter(|_| is_of_repository(&verify.from));
    // The structure is checked without content: there is no line of frames to judge.
    let limit = found.data.then(|| {
        let verdict = meter.verdict();
        RunLimit::judge(
            &meter,
            &verdict,
            RunKind::Verify,
            &ends,
            verify.workers,
            None,
        )
    });
    let share = found.checked.filter(|_| found.exit_code() == 0);
    let share = share.map(|checked| verify_report::checked_line(checked.share));
    let limit_line = { limit.as_ref() }.and_then(|limit| limit.line(args.output.verbose));
    let lines = hint
        .into_iter()
        .chain(limit_line)
        .chain(report::store(storages.cloud_counts(), limit.as_ref()))
        .chain(share)
        .chain(wal.iter().map(|fault| format!("WAL: {}", fault.trim())))
        .chain([last]);
    progress.end(&lines.collect::<Vec<_>>(), || {
        let mut result = verify_report::json(&found);
        if !wal.is_empty() {
            result["wal_faults"] = json!(wal.iter().map(|fault| fault.trim()).collect::<Vec<_>>());
        }
        if let Some(limit) = &limit {
            limit.add_to(&mut result);
        }
        result
    });
    Ok(code)
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
        line["sampled"] = json!({"bytes": now, "of_bytes": of_bytes, "never_bytes": never_bytes, "oldest": oldest,
            "forgotten": forgotten});
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
