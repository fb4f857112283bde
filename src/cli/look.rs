//! Looking into a repository, and copying out of it.

use super::{
    args::OutputArgs,
    output::{aside, printed},
    progress::Progress,
    report,
    select::SelectArgs,
    selected,
    values::{destination, segment_size, threads},
};
use crate::{
    command::{copy::Copy, diff::Diff, export::Export, find::Find},
    error::{Error, ErrorKind, Result},
    metrics::meter::Meter,
    plan::SinkSpec,
    platform,
    restore::{
        Restore,
        estimate::{EstimateRequest, RestoreEstimate},
    },
    stage::codec::Codec,
    text::{
        self,
        arguments::{any_bytes, pattern},
        size,
    },
};
use clap::{Args, ValueHint};
use std::{ffi::OsString, num::NonZeroUsize, path::PathBuf, sync::Arc};

/// What a command ends with that writes a stored backup somewhere else.
const WRITES: &str = "EXIT CODES: 0 done, with all that the backup has, though that may lack something, 1 failed (nothing was committed), \
                      2 wrong arguments, 4 damage was found";

/// `fullbore export`.
#[derive(Debug, Args)]
#[command(after_help = WRITES)]
pub(super) struct ExportArgs {
    /// A repository or an archive; @ID, @PREFIX or @latest chooses the backup
    #[arg(value_name = "FROM[@BACKUP]")]
    from: OsString,
    #[command(flatten)]
    select: SelectArgs,
    /// FILE.tar.zst, FILE.tar.lz4, FILE.tar.gz, FILE.tar, - (standard output) or a directory (a repository, made on first use)
    #[arg(long, value_name = "DEST", value_hint = ValueHint::AnyPath, value_parser = any_bytes(destination))]
    to: OsString,
    /// Fail if the repository it goes to is not there
    #[arg(long)]
    no_create: bool,
    /// zstd[:LEVEL], lz4, none, or gzip[:LEVEL] for a plain stream [default: as DEST ends, else as it was]
    #[arg(long, value_name = "CODEC")]
    compress: Option<Codec>,
    /// Leave out what is damaged, and list it
    #[arg(long)]
    keep_going: bool,
    /// Threads that compute [default: the processors this process may use]
    #[arg(long, value_name = "N", value_parser = threads)]
    workers: Option<NonZeroUsize>,
    /// All buffers together
    #[arg(long, value_name = "SIZE", default_value = "128M", value_parser = size::parse)]
    memory: u64,
    /// Stored bytes after which a repository begins a new segment
    #[arg(long, value_name = "SIZE", default_value = "1G", value_parser = segment_size)]
    segment_size: u64,
    #[command(flatten)]
    output: OutputArgs,
}

/// `fullbore copy-backup`.
#[derive(Debug, Args)]
#[command(after_help = WRITES)]
pub(super) struct CopyArgs {
    /// A repository; @ID, @PREFIX or @latest chooses the backup
    #[arg(value_name = "REPOSITORY[@BACKUP]")]
    from: OsString,
    #[command(flatten)]
    select: SelectArgs,
    /// Another repository, made on first use
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    to: OsString,
    /// Fail if the repository it goes to is not there
    #[arg(long)]
    no_create: bool,
    /// Objects that are copied at the same time [default: the processors this process may use]
    #[arg(long, value_name = "N", value_parser = threads)]
    workers: Option<NonZeroUsize>,
    #[command(flatten)]
    output: OutputArgs,
}

/// `fullbore diff`.
#[derive(Debug, Args)]
#[command(
    after_help = "Bytes are those of the content that is new; of what was changed, those that differ, in whole blocks.\n\
                  EXIT CODES: 0 done, whether they differ or not, 1 failed, 2 wrong arguments, 4 damage was found"
)]
pub(super) struct DiffArgs {
    /// The repository
    #[arg(value_name = "REPOSITORY", value_hint = ValueHint::DirPath)]
    repository: OsString,
    #[command(flatten)]
    select: SelectArgs,
    /// A backup: an id, the beginning of one, or latest [default: the one before B of the same source]
    #[arg(value_name = "A")]
    a: Option<String>,
    /// Another one
    #[arg(value_name = "B", default_value = "latest")]
    b: String,
    /// Only these, and what is below them
    #[arg(value_name = "PATH")]
    paths: Vec<PathBuf>,
    /// One JSON object a line
    #[arg(long)]
    json: bool,
}

/// `fullbore find`.
#[derive(Debug, Args)]
#[command(
    after_help = "EXIT CODES: 0 found, 1 not found or failed, 2 wrong arguments, 4 a backup is damaged"
)]
pub(super) struct FindArgs {
    /// The repository
    #[arg(value_name = "REPOSITORY", value_hint = ValueHint::DirPath)]
    repository: OsString,
    #[command(flatten)]
    select: SelectArgs,
    /// As in .gitignore: '*.conf' anywhere, 'etc/*.conf' or '/passwd' from the root of the backup
    #[arg(value_name = "PATTERN", value_parser = any_bytes(pattern))]
    pattern: OsString,
    /// One JSON object a line
    #[arg(long)]
    json: bool,
}

pub(super) fn diff(args: DiffArgs) -> Result<u8> {
    let DiffArgs {
        repository,
        select,
        a,
        b,
        paths,
        json,
    } = args;
    let filter = select.filter(&repository, false)?;
    let diff = Diff {
        repository,
        filter,
        a,
        b,
        paths: selected(paths),
        json,
    };
    printed(|out| diff.run(out).map(|_| 0))
}

pub(super) fn find(args: FindArgs) -> Result<u8> {
    let FindArgs {
        repository,
        select,
        pattern,
        json,
    } = args;
    let filter = select.filter(&repository, false)?;
    let find = Find {
        repository,
        filter,
        pattern,
        json,
    };
    printed(|out| find.run(out))
}

pub(super) fn export(args: ExportArgs) -> Result<u8> {
    let (to, codec) = SinkSpec::parse(&args.to, args.compress)?;
    let filter = args.select.filter(&args.from, true)?;
    let export = Export {
        from: args.from,
        filter,
        no_create: args.no_create,
        to,
        codec,
        keep_going: args.keep_going,
        workers: args.workers.unwrap_or_else(platform::cores),
        memory: crate::cli::memory(args.memory, crate::cli::FRAME_BYTES),
        segment_bytes: args.segment_size,
    };
    let meter = Arc::new(Meter::default());
    let progress = Progress::new(&args.output, export.to == SinkSpec::Stdout, report::SIDES);
    let is_new = export.to.is_new_repository();
    let exported = progress.watch(&meter, || export.run(&meter));
    progress.clear();
    let exported = exported?;
    let (root, verdict) = (&exported.outcome.root, &exported.outcome.verdict);
    let mut lines: Vec<_> = exported
        .warnings
        .iter()
        .map(|line| format!("harmless: {line}"))
        .collect();
    let new = if is_new { ", a new repository" } else { "" };
    let place = format!(
        "{}{new}, made of {}",
        export.to.completion_text(),
        exported.from
    );
    lines.extend(report::backup(root, verdict, &[], &place));
    if is_new && args.output.quiet {
        crate::cli::say_new(&export.to);
    }
    progress.end(&lines, || {
        let mut result = report::export_json(&exported);
        result["new_repository"] = is_new.into();
        result
    });
    report::damage(&exported.damage).iter().for_each(aside);
    Ok(exported.exit_code())
}

pub(super) fn copy(args: CopyArgs) -> Result<u8> {
    let (to, _) = SinkSpec::parse(args.to.as_os_str(), None)?;
    let is_new = to.is_new_repository();
    let Some(storage) = to.storage() else {
        let what = format!(
            "cannot copy a backup to {:?}: it goes from repository to repository",
            args.to
        );
        return Err(Error::new(ErrorKind::Usage, what).hint("`fullbore export` writes archives"));
    };
    let workers = args.workers.unwrap_or_else(platform::cores);
    let filter = args.select.filter(&args.from, true)?;
    let no_create = args.no_create;
    let copy = Copy {
        from: args.from,
        filter,
        to: storage.clone(),
        no_create,
        workers,
    };
    let meter = Meter::default();
    let progress = Progress::new(&args.output, false, report::SIDES);
    let copied = progress.watch(&meter, || copy.run(&meter));
    progress.clear();
    let copied = copied?;
    copied
        .warnings
        .iter()
        .for_each(|warning| aside(format_args!("warning: {warning}")));
    if is_new && !args.output.json {
        crate::cli::say_new(&to);
    }
    let mut lines = report::copy(&copied, &to.name());
    let last = lines.len().saturating_sub(1);
    lines.splice(last..last, report::store(None));
    progress.end(&lines, || {
        let mut result = report::copy_json(&copied);
        result["new_repository"] = is_new.into();
        result
    });
    Ok(0)
}

/// `fullbore restore --plan`.
pub(super) fn plan(restore: Restore, target: Option<PathBuf>, json: bool) -> Result<u8> {
    let contract = EstimateRequest { restore, target }.run()?;
    printed(|out| {
        match json {
            true => text::json(out, &contract)?,
            false => contract_lines(&contract)
                .iter()
                .try_for_each(|line| text::line(out, line))?,
        }
        Ok(0)
    })
}

fn contract_lines(contract: &RestoreEstimate) -> Vec<String> {
    let (fetched, frames) = (
        size::bytes(contract.fetched_bytes),
        size::counted(contract.frames, "frame"),
    );
    let segments = format!(
        "{} of {}",
        size::counted(contract.segments, "segment"),
        size::counted(contract.backups, "backup")
    );
    let speed = |name: &str, rate: f64, seconds: f64| match rate {
        0.0 => format!("{name:<13} nothing"),
        rate => format!(
            "{name:<13} {}, {}",
            size::rate(rate as u64, 1.0),
            size::seconds(seconds)
        ),
    };
    let [(_, read), (_, decode), (_, write)] = contract.seconds();
    let threads = size::counted(contract.workers as u64, "thread");
    let mut lines = vec![
        format!("backup        {}", contract.id),
        format!(
            "wanted        {}, {}",
            size::counted(contract.files, "file"),
            size::bytes(contract.bytes)
        ),
        format!("fetch         {fetched} in {frames}, from {segments}"),
        format!(
            "amplification {:.2} bytes fetched for each that is wanted, {:.2} decoded for each of content",
            contract.fetch_amplification(),
            contract.decode_amplification()
        ),
        speed("read", contract.read_rate, read),
        format!(
            "{} by {threads}",
            speed("decode", contract.decode_rate, decode)
        ),
    ];
    lines.push(match contract.write_rate {
        Some(rate) => speed("write", rate, write),
        None => "write         not measured".to_owned(),
    });
    let (least, most) = (
        size::seconds(contract.least_seconds),
        size::seconds(contract.most_seconds),
    );
    lines.push(format!(
        "expected      {least} to {most}, as these overlap; the limit is to {}",
        contract.limit
    ));
    lines.extend(
        contract
            .notes
            .iter()
            .map(|note| format!("note          {note}")),
    );
    lines
}
