//! `fullbore export`.

use super::init::say_new;
use crate::cli::values::any_bytes;
use crate::cli::{
    encryption::{EncryptArgs, sealing_of},
    limit::{RunEnds, RunLimit},
    metered_run::{JudgedRun, MeteredRun},
    options::{DESTINATION, FRAME_BYTES, OutputArgs, PERFORMANCE, WRITES, memory, rare},
    output::aside,
    report::{self, backup_json, damage_json},
    select::SelectArgs,
    values::{destination, segment_size, threads},
};
use clap::{Args, ValueHint};
use fullbore_engine::{
    export::{ExportOptions, Exported},
    plan::SinkSpec,
    volumes::VolumeSizes,
};
use fullbore_format::{error::Result, text::size};
use fullbore_pipeline::stage::codec::Codec;
use fullbore_platform as platform;
use fullbore_platform::metrics::hardware::RunKind;
use fullbore_storage::Storages;
use serde_json::Value;
use std::{ffi::OsString, num::NonZeroUsize};

/// `fullbore export`.
#[derive(Debug, Args)]
#[command(after_help = WRITES, mut_args(rare(&["passphrase", "no_encryption"])))]
pub(in crate::cli) struct ExportArgs {
    /// A repository or archive, with @ID, @latest, @2026-11-25 or @2d
    ///
    /// @BACKUP chooses one backup of a repository: an id, latest, latest~1, 2026-11-25 or 2d.
    #[arg(value_name = "REPO[@BACKUP]")]
    from: OsString,
    #[command(flatten)]
    select: SelectArgs,
    /// A repository, an archive file, volumes:PREFIX or - (standard output)
    ///
    /// A directory is a repository, which is created on first use. An archive is FILE.tar.zst,
    /// FILE.tar.lz4, FILE.tar.gz or FILE.tar. With volumes:PREFIX, the archive is divided into
    /// PREFIX-001.tar.zst and so on.
    #[arg(long, value_name = "DEST", value_hint = ValueHint::AnyPath, value_parser = any_bytes(destination), help_heading = DESTINATION)]
    to: OsString,
    /// Fail if the repository at DEST does not exist
    #[arg(long, help_heading = DESTINATION, hide_short_help = true)]
    no_create: bool,
    /// zstd[:LEVEL], auto, lz4, none, or gzip[:LEVEL] for a plain stream
    ///
    /// The default is the codec that the ending of DEST names, or else that of the backup.
    #[arg(long, value_name = "CODEC", help_heading = DESTINATION)]
    compress: Option<Codec>,
    /// Leave out damaged entries, and list them
    #[arg(long)]
    keep_going: bool,
    /// Threads that compute [default: one for each processor]
    ///
    /// The default is the number of processors that this process may use.
    #[arg(long, short = 'j', value_name = "N", value_parser = threads, help_heading = PERFORMANCE, hide_short_help = true)]
    workers: Option<NonZeroUsize>,
    /// Size of all buffers together
    #[arg(long, value_name = "SIZE", default_value = "128M", value_parser = size::parse, help_heading = PERFORMANCE, hide_short_help = true)]
    memory: u64,
    /// Begin a new segment of a repository after this many stored bytes
    #[arg(long, value_name = "SIZE", default_value = "1G", value_parser = segment_size, help_heading = DESTINATION, hide_short_help = true)]
    segment_size: u64,
    /// Bytes of a volume, or auto
    ///
    /// It is used with volumes:PREFIX. A list such as 8G,25G is for the first volumes; the last size
    /// holds for all that follow.
    #[arg(long, value_name = "SIZE[,SIZE]", help_heading = DESTINATION, hide_short_help = true)]
    volume_size: Option<VolumeSizes>,
    #[command(flatten)]
    pub(in crate::cli) encrypt: EncryptArgs,
    #[command(flatten)]
    output: OutputArgs,
}

pub(in crate::cli) fn run(args: ExportArgs, storages: &Storages) -> Result<u8> {
    let (target, codec) = SinkSpec::parse(storages, &args.to, args.compress)?;
    let target = target.with_volume_sizes(args.volume_size.clone())?;
    let is_new = target.is_new_repository();
    let source = sealing_of(storages, &args.from)?;
    let target =
        args.encrypt
            .apply_to_copy(storages, source, target, &args.to, is_new, args.no_create)?;
    let ends = RunEnds::of(storages, Some(&args.from), Some(&args.to));
    let filter = args.select.filter(&args.from, true)?;
    let export = ExportOptions {
        storages: storages.clone(),
        no_create: args.no_create,
        to: target,
        codec,
        keep_going: args.keep_going,
        workers: args.workers.unwrap_or_else(platform::cores),
        memory: memory(args.memory, FRAME_BYTES),
        segment_bytes: args.segment_size,
    };
    let run =
        MeteredRun::beside_output(storages, &args.output, report::SIDES, export.to.is_stdout());
    let exported = run.work(|meter| export.run(&args.from, &filter, meter))?;
    let judged = JudgedRun {
        kind: RunKind::Backup,
        ends: &ends,
        workers: export.workers,
        max_rate: None,
    };
    let limit = run.limit(Some(&exported.outcome.verdict), &judged);
    let warnings = exported.warnings.iter();
    let mut lines: Vec<_> = warnings.map(|line| format!("harmless: {line}")).collect();
    let new = if is_new { ", a new repository" } else { "" };
    let place = format!(
        "{}{new}, made of {}",
        export.to.completion_text(),
        exported.from
    );
    let is_verbose = args.output.verbose;
    let root = &exported.outcome.root;
    lines.extend(report::backup(root, &limit, is_verbose, &[], &place));
    if is_new && args.output.quiet {
        say_new(&export.to);
    }
    run.end(&lines, || {
        let mut result = export_json(&exported, &limit);
        result["new_repository"] = is_new.into();
        result
    });
    report::damage(&exported.damage, is_verbose)
        .iter()
        .for_each(aside);
    Ok(exported.exit_code())
}

/// The result of an export as JSON.
fn export_json(exported: &Exported, limit: &RunLimit) -> Value {
    let mut json = backup_json(&exported.outcome.root, limit);
    let damage: Vec<_> = exported.damage.iter().map(damage_json).collect();
    let complete = damage.is_empty() && exported.outcome.root.totals.is_complete();
    (json["complete"], json["from_id"]) = (complete.into(), exported.from.clone().into());
    (json["damage"], json["warnings"]) = (damage.into(), exported.warnings.clone().into());
    json
}
