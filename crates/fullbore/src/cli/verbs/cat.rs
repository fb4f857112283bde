//! `fullbore cat`.

use crate::{
    cli::{
        options::{EXIT_CODES, FRAME_BYTES, memory},
        output::plain_output,
        select::SelectArgs,
    },
    command::cat::Cat,
};
use clap::{Args, ValueHint};
use fullbore_format::error::Result;
use fullbore_platform as platform;
use fullbore_storage::Storages;
use std::{ffi::OsString, os::unix::ffi::OsStringExt};

/// Memory of all buffers for a directory.
const MEMORY_BYTES: u64 = 128 << 20;

/// `fullbore cat`.
#[derive(Debug, Args)]
#[command(after_help = EXIT_CODES)]
pub(in crate::cli) struct CatArgs {
    /// A repository or archive, with @ID, @latest, @2026-11-25 or @2d
    ///
    /// @BACKUP chooses one backup of a repository: an id, latest, latest~1, 2026-11-25 or 2d.
    #[arg(value_name = "REPO[@BACKUP]", value_hint = ValueHint::AnyPath)]
    from: OsString,
    #[command(flatten)]
    select: SelectArgs,
    /// The file or directory, as `fullbore list` prints it
    #[arg(value_name = "PATH")]
    entry: OsString,
}

pub(in crate::cli) fn run(args: CatArgs, storages: &Storages) -> Result<u8> {
    let filter = args.select.filter(&args.from, true)?;
    let cat = Cat {
        storages: storages.clone(),
        from: args.from,
        filter,
        path: args.entry.into_vec(),
        workers: platform::cores(),
        memory: memory(MEMORY_BYTES, FRAME_BYTES),
    };
    plain_output(|out| cat.run(out))
}
