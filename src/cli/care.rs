//! Arguments of what cares for backups that are there: restoring in place.

use super::{
    args::VerifyArgs,
    output::{aside, printed, told},
    progress::Progress,
    report,
    values::{threads, time},
};
use crate::{
    error::{Result, quoted},
    format::{entry::EntryPath, root::EntryName},
    metrics::meter::Meter,
    repair::{self, Repair, RepairStep},
    repo::open::place,
    restore::delta::DeltaChanges,
    storage::Found,
    target::layout::TargetMount,
    text::{
        self,
        size::{bytes, count, counted},
    },
    verify::{
        Verify,
        sample::{SampleAmount, SampleVerify, Sampled},
    },
};
use clap::Args;
use serde_json::json;
use std::{
    ffi::{OsStr, OsString},
    io::{IsTerminal, Write},
    os::unix::ffi::OsStrExt,
    time::Duration,
};

/// How to restore into a tree that is there.
#[derive(Debug, Args)]
pub(super) struct DeltaArgs {
    /// Restore into what is there: compare its content, and write in place only what differs. A file that this is cut off at may be old in part
    #[arg(long, requires = "to", conflicts_with = "overwrite")]
    pub(super) delta: bool,
    /// Remove what does not belong to the backup (below the PATHs), also what was excluded from it; it is listed first, by --plan too. What the backup is read from stays, and what is mounted there and not in it
    #[arg(long, requires = "delta", conflicts_with = "overwrite")]
    pub(super) delete: bool,
}

/// `fullbore repair`.
#[derive(Debug, Args)]
#[command(
    after_help = "EXIT CODES: 0 nothing is to be done (any more), 1 failed, 2 wrong arguments, 4 something is to be done. Damage in a \
                  segment stays where it is, and is named by `fullbore verify --data` as long as the segment is there, though no file needs it."
)]
pub(super) struct RepairArgs {
    /// A repository
    #[arg(value_name = "REPO", value_hint = clap::ValueHint::DirPath)]
    pub(super) repository: OsString,
    /// Look at every byte, not only at the structure
    #[arg(long)]
    pub(super) data: bool,
    /// Do it; without this it is only said, or asked on a terminal
    #[arg(long)]
    pub(super) yes: bool,
    /// Threads [default: the processors this process may use]
    #[arg(long, value_name = "N", value_parser = threads)]
    pub(super) workers: Option<std::num::NonZeroUsize>,
    /// One JSON object a line; nothing is asked
    #[arg(long)]
    pub(super) json: bool,
}

/// How much of the data is checked.
#[derive(Debug, Args)]
pub(super) struct SampleArgs {
    /// Check so much of the data, what was checked longest ago first: 5%
    #[arg(long, value_name = "PERCENT", value_parser = percent, conflicts_with_all = ["data", "against", "host", "path", "tag"])]
    sample: Option<f64>,
    /// Check data for so long, what was checked longest ago first: 30m, 2h
    #[arg(long = "for", value_name = "TIME", value_parser = time, conflicts_with_all = ["data", "against", "sample", "host", "path", "tag"])]
    time: Option<Duration>,
}

impl SampleArgs {
    /// Is a part of the data to be checked?
    pub(super) fn amount(&self) -> Option<SampleAmount> {
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

/// `fullbore verify --sample` and `--for`.
///
/// # Errors
/// As [`Sample::run`].
pub(super) fn sample(args: VerifyArgs, amount: SampleAmount) -> Result<u8> {
    let workers = args.workers.unwrap_or_else(crate::platform::cores);
    let (found, sampled) = SampleVerify {
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
        let mut line = report::verify_json(&found);
        line["sampled"] = json!({"bytes": now, "of_bytes": of_bytes, "never_bytes": never_bytes, "oldest": oldest,
            "forgotten": forgotten});
        return told(|out| text::json(out, &line).map(|()| found.exit_code()));
    }
    told(|out| found.print(out).map(|()| 0))?;
    if args.output.quiet {
        return Ok(found.exit_code());
    }
    let never = if *never_bytes > 0 {
        format!("; {} were never checked", bytes(*never_bytes))
    } else {
        String::new()
    };
    aside(format_args!(
        "{} of {} of data were checked{never}",
        bytes(*now),
        bytes(*of_bytes)
    ));
    forgotten.iter().for_each(|why| {
        aside(format_args!(
            "note: the next run does not know of it: {why}"
        ))
    });
    aside(report::verify(&found, None));
    Ok(found.exit_code())
}

/// Check, and say what was found.
///
/// # Errors
/// As [`Verify::run`].
pub(super) fn verify(args: VerifyArgs) -> Result<u8> {
    if let Some(amount) = args.sample.amount() {
        return sample(args, amount);
    }
    let filter = args.select.filter(&args.from, true)?;
    let verify = Verify {
        from: args.from,
        filter,
        data: args.data,
        against: args.against,
        workers: args.workers.unwrap_or_else(crate::platform::cores),
    };
    let meter = Meter::default();
    let progress = Progress::new(&args.output, false, report::SIDES);
    let found = progress.watch(&meter, || verify.run(&meter));
    progress.clear();
    let found = found?;
    if !args.output.json {
        told(|out| found.print(out).map(|()| 0))?;
    }
    let last = report::verify(&found, verify.against.as_deref());
    let hint = report::after_damage(&found).filter(|_| is_of_repository(&verify.from));
    let lines = hint.into_iter().chain(report::store(None)).chain([last]);
    progress.end(&lines.collect::<Vec<_>>(), || report::verify_json(&found));
    Ok(found.exit_code())
}

/// Is it a repository, or a backup in one?
fn is_of_repository(from: &OsStr) -> bool {
    place(from)
        .is_ok_and(|(location, _)| matches!(location.look(), Found::Repository | Found::Directory))
}

/// Say what is to be done, and do it if that is wanted.
///
/// # Errors
/// As [`Repair::plan`] and [`repair::execute`].
pub(super) fn repair(args: RepairArgs) -> Result<u8> {
    let workers = args.workers.unwrap_or_else(crate::platform::cores);
    let repair = Repair {
        repository: args.repository,
        data: args.data,
        workers,
    };
    let steps = repair.plan(&Meter::default())?;
    printed(|out| {
        steps
            .iter()
            .try_for_each(|step| say_step(step, args.json, out))
            .map(|()| 0)
    })?;
    let possible = steps.iter().filter(|step| step.can_be_done()).count() as u64;
    let agreed = possible > 0 && (args.yes || !args.json && is_agreed());
    let left = if agreed {
        repair::execute(&steps)?
    } else {
        Vec::new()
    };
    left.iter()
        .for_each(|step| aside(format_args!("not done: {step}")));
    let done = if agreed {
        possible - left.len() as u64
    } else {
        0
    };
    let is_more = || {
        Ok(steps.iter().any(RepairStep::is_first) && !repair.plan(&Meter::default())?.is_empty())
    };
    let goes_on = agreed && (!left.is_empty() || is_more()?);
    if args.json {
        let line = json!({"type": "result", "steps": possible, "done": done, "again": goes_on});
        told(|out| text::json(out, &line).map(|()| 0))?;
    } else if steps.is_empty() {
        aside("nothing is to be done");
    } else if possible == 0 {
        aside("nothing of this can be repaired");
    } else if !agreed {
        aside("nothing was changed; --yes does it");
    } else {
        aside(format_args!("done: {}", counted(done, "step")));
        if !left.is_empty() {
            aside("run the same command again, for what was not done");
        } else if goes_on {
            aside(
                "run the same command again: there is more to be done, which could be found out only now",
            );
        }
    }
    let all_done = steps.is_empty() || agreed && steps.iter().all(RepairStep::can_be_done);
    Ok(if all_done && !goes_on { 0 } else { 4 })
}

fn say_step(step: &RepairStep, as_json: bool, out: &mut dyn Write) -> Result<()> {
    if as_json {
        let possible = step.can_be_done();
        return text::json(
            out,
            &json!({"type": "step", "what": step.what, "detail": step.detail, "possible": possible}),
        );
    }
    let verb = if step.can_be_done() { "to do" } else { "lost" };
    text::line(out, &format!("{verb}: {}", step.what))?;
    step.detail
        .iter()
        .try_for_each(|line| text::line(out, &format!("        {line}")))
}

/// Ask, if there is somebody to ask.
fn is_agreed() -> bool {
    if !std::io::stdin().is_terminal() || !std::io::stderr().is_terminal() {
        return false;
    }
    let _ = write!(std::io::stderr(), "Do this? [y/N] ");
    let mut answer = String::new();
    std::io::stdin().read_line(&mut answer).is_ok() && matches!(answer.trim(), "y" | "Y" | "yes")
}

/// Say what will be removed. A reader that has gone has read enough.
///
/// # Errors
/// Of standard output: what is not told is not removed.
pub(super) fn say_removed(paths: &[EntryPath], json: bool, quiet: bool) -> Result<()> {
    printed(|out| {
        for path in paths.iter().filter(|_| !quiet || json) {
            let line = match json {
                true => json!({"type": "delete", "path": EntryName(path.clone())}).to_string(),
                false => format!("delete: {}", quoted(path)),
            };
            text::line(out, &line)?;
        }
        Ok(0)
    })
    .map(drop)
}

/// What says of each place outside of the target that it will be written to.
pub(super) fn elsewhere(json: bool, quiet: bool) -> fn(&[TargetMount]) {
    match (json, quiet) {
        (true, _) => |mounts| {
            let line = |mount: &TargetMount| {
                let directory = EntryName(mount.directory.as_os_str().as_bytes().to_vec());
                json!({"type": "elsewhere", "path": EntryName(mount.at.clone()), "directory": directory})
                    .to_string()
            };
            let _ = told(|out| {
                mounts
                    .iter()
                    .try_for_each(|mount| text::line(out, &line(mount)))
                    .map(|()| 0)
            });
        },
        (false, false) => |mounts| {
            mounts.iter().for_each(|mount| {
                aside(format_args!(
                    "elsewhere: {} goes to {:?}",
                    quoted(&mount.at),
                    mount.directory
                ));
            });
        },
        (false, true) => |_| (),
    }
}

/// What a restore into what was there found there.
pub(super) fn changes(changes: &DeltaChanges) -> String {
    let DeltaChanges {
        same,
        changed,
        removed,
        written_bytes,
    } = changes;
    let removed = if *removed > 0 {
        format!(", {} removed", count(*removed))
    } else {
        String::new()
    };
    let files = counted(*changed, "file");
    format!(
        "{files} changed, {} the same{removed}; {} written",
        count(*same),
        bytes(*written_bytes)
    )
}

/// The same as JSON.
pub(super) fn changes_json(changes: &DeltaChanges) -> serde_json::Value {
    json!({"same": changes.same, "changed": changes.changed, "removed": changes.removed,
        "written_bytes": changes.written_bytes})
}
