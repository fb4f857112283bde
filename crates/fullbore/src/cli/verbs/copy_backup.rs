//! `fullbore copy` of a backup, from repository to repository.

use super::init::say_new;
use crate::cli::{
    encryption::{EncryptArgs, sealing_of},
    metered_run::MeteredRun,
    options::OutputArgs,
    output::aside,
    report,
    select::SelectArgs,
    values::threads,
};
use clap::Args;
use fullbore_engine::{
    backup_copy::{BackupCopy, CopiedBackup},
    plan::SinkSpec,
};
use fullbore_format::{
    error::{Error, ErrorKind, Result},
    text::size::{bytes, counted, rate, seconds},
};
use fullbore_platform as platform;
use fullbore_storage::Storages;
use serde_json::{Value, json};
use std::{
    ffi::{OsStr, OsString},
    num::NonZeroUsize,
};

/// Options of a copy between repositories.
#[derive(Debug, Args)]
#[command(next_help_heading = "Between repositories")]
pub(super) struct RepositoryCopyArgs {
    #[command(flatten)]
    select: SelectArgs,
    /// Fail if the repository at DST does not exist
    #[arg(long, hide_short_help = true)]
    no_create: bool,
    /// Objects copied at the same time [default: one for each processor]
    ///
    /// The default is the number of processors that this process may use.
    #[arg(long, value_name = "N", value_parser = threads, hide_short_help = true)]
    workers: Option<NonZeroUsize>,
    #[command(flatten)]
    pub(super) encrypt: EncryptArgs,
}

/// Copies a backup from one repository to another one.
///
/// # Errors
/// [`ErrorKind::Usage`] if one of them is no repository; those of the storages.
pub(super) fn copy_backup(
    storages: &Storages,
    from: OsString,
    to_word: &OsStr,
    args: RepositoryCopyArgs,
    output: &OutputArgs,
) -> Result<u8> {
    let (target, _) = SinkSpec::parse(storages, to_word, None)?;
    let is_new = target.is_new_repository();
    let sealing = sealing_of(storages, &from)?;
    let target =
        args.encrypt
            .apply_to_copy(storages, sealing, target, to_word, is_new, args.no_create)?;
    let Some(storage) = target.storage() else {
        let message =
            format!("cannot copy a backup to {to_word:?}: it goes from repository to repository");
        return Err(Error::new(ErrorKind::Usage, message).hint("`fullbore export` writes archives"));
    };
    let workers = args.workers.unwrap_or_else(platform::cores);
    let filter = args.select.filter(&from, true)?;
    let no_create = args.no_create;
    let copy = BackupCopy {
        storages: storages.clone(),
        from,
        filter,
        to: storage.clone(),
        no_create,
        workers,
    };
    let run = MeteredRun::new(storages, output, report::SIDES);
    let copied = run.work(|meter| copy.run(meter))?;
    copied
        .warnings
        .iter()
        .for_each(|warning| aside(format_args!("warning: {warning}")));
    if is_new && !output.json {
        say_new(&target);
    }
    let mut lines = last_lines(&copied, &target.name());
    let last = lines.len().saturating_sub(1);
    // The verdict stays the last line.
    lines.splice(last..last, report::store(storages.cloud_counts(), None));
    run.end(&lines, || {
        let mut result = json(&copied);
        result["new_repository"] = is_new.into();
        result
    });
    Ok(0)
}

/// The last lines of a copy.
fn last_lines(copied: &CopiedBackup, to: &str) -> Vec<String> {
    let there = match copied.there {
        0 => String::new(),
        n => format!(
            "; {}, {} were there",
            counted(n, "object"),
            bytes(copied.there_bytes)
        ),
    };
    let (objects, content, time) = (
        counted(copied.objects, "object"),
        bytes(copied.bytes),
        seconds(copied.seconds),
    );
    let others = match copied.others.len() {
        0 => String::new(),
        n => format!(
            ", with what it needs of {}",
            counted(n as u64, "other backup")
        ),
    };
    let moved = format!(
        "{objects}, {content} in {time}, {}{there}",
        rate(copied.bytes, copied.seconds)
    );
    let wal = match copied.wal.objects {
        0 => String::new(),
        n => format!(
            "; WAL of its cluster: {}, {}",
            counted(n, "object"),
            bytes(copied.wal.bytes)
        ),
    };
    vec![
        format!("{moved}{wal}"),
        format!("backup {} is complete in {to}{others}", copied.id),
    ]
}

/// The result of a copy as JSON.
fn json(copied: &CopiedBackup) -> Value {
    json!({"type": "result", "id": copied.id, "other_ids": copied.others, "objects": copied.objects,
        "stored_bytes": copied.bytes, "there_objects": copied.there, "there_bytes": copied.there_bytes, "seconds": copied.seconds,
        "wal_objects": copied.wal.objects, "wal_bytes": copied.wal.bytes, "warnings": copied.warnings})
}
