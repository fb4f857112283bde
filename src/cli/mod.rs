//! Arguments to commands; progress and the final report.

#[allow(unreachable_pub)]
mod args;
mod report;
mod size;

use crate::{
    command::{
        backup::{Backup, tricks},
        scope::Scope,
    },
    error::Result,
    pipeline::meter::Meter,
    plan::{SinkSpec, Tuning},
    platform,
    stage::codec::Codec,
};
use args::{BackupArgs, Cli, Command, RunArgs};
use clap::{CommandFactory, Parser};
use report::Progress;
use std::{process::ExitCode, sync::Arc};

/// Run the program with the arguments of this process.
pub fn main() -> ExitCode {
    platform::raise_open_files_limit();
    let result = match Cli::parse().command {
        Command::Backup(args) => backup(args),
        Command::Completions { shell } => completions(shell),
        Command::Man { to } => man(to),
        _ => Ok(0),
    };
    match result {
        Ok(code) => ExitCode::from(code),
        Err(error) => {
            eprintln!("{}", report::error(&error));
            ExitCode::from(error.exit_code())
        }
    }
}

/// Exit code of a backup that is complete but for what could not be read.
const UNREADABLE: u8 = 3;

fn backup(args: BackupArgs) -> Result<u8> {
    let (to, ending) = SinkSpec::parse(&args.to);
    let output = args.output.clone();
    let run = args.run.clone();
    let plan = plan(args, to, ending);
    let meter = Arc::new(Meter::default());
    let progress = Progress::new(&output, None);
    let outcome = plan.run(&meter, &|meter, sample| progress.tick(meter, sample));
    progress.clear();
    let outcome = outcome?;
    if output.json {
        report::emit(&report::backup_json(&outcome.root, &outcome.verdict));
    } else if !output.quiet {
        report::backup(&outcome.root, &outcome.verdict, &plan.to.name()).iter().for_each(|line| eprintln!("{line}"));
    }
    let _ = run;
    Ok(if outcome.root.totals.unreadable > 0 { UNREADABLE } else { 0 })
}

fn plan(args: BackupArgs, to: SinkSpec, ending: Option<Codec>) -> Backup {
    Backup {
        scope: Scope {
            paths: args.paths,
            full_paths: args.full_paths,
            exclude: args.exclude,
            exclude_from: args.exclude_from,
            exclude_caches: args.exclude_caches,
            exclude_if_present: args.exclude_if_present,
            files_from: args.files_from,
            null: args.null,
            one_file_system: args.one_file_system,
        },
        stdin_name: args.stdin_name,
        to,
        codec: args.compress.or(ending).unwrap_or(Codec::Zstd(1)),
        digest: args.digest.into(),
        tags: args.tag.into_iter().collect(),
        tuning: Tuning {
            workers: args.workers.unwrap_or_else(platform::cores),
            readers: args.readers.0,
            memory_bytes: args.memory,
            frame_bytes: args.frame_size,
            segment_bytes: args.segment_size,
            tricks: tricks(args.run.no_tricks),
        },
    }
}

fn completions(shell: clap_complete::Shell) -> Result<u8> {
    clap_complete::generate(shell, &mut Cli::command(), "fullbore", &mut std::io::stdout());
    Ok(0)
}

fn man(_to: Option<std::path::PathBuf>) -> Result<u8> {
    Ok(0)
}
