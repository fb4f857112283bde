//! `fullbore cat`: writes one file of a backup to standard output, or a directory as a tar.

use crate::cli::{
    options::{EXIT_CODES, FRAME_BYTES, memory},
    output::plain_output,
    select::SelectArgs,
};
use clap::{Args, ValueHint};
use fullbore_engine::{export::ExportOptions, plan::SinkSpec};
use fullbore_format::{
    entry::EntryKind,
    error::{Error, ErrorKind, Result, quoted},
};
use fullbore_pipeline::stage::codec::Codec;
use fullbore_platform as platform;
use fullbore_platform::metrics::meter::Meter;
use fullbore_repository::{
    archive::{Archive, Selection, not_there, source_paths::selection_in, stored_file::StoredFile},
    open::open,
};
use fullbore_storage::Storages;
use std::{
    ffi::OsString,
    io::{self, Write},
    os::unix::ffi::OsStringExt,
    sync::Arc,
};

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
    let path = args.entry.into_vec();
    plain_output(|out| cat(storages, open(storages, &args.from, &filter)?, &path, out))
}

/// Writes a file to `out`, or a directory to standard output. Returns the exit code.
///
/// # Errors
/// [`ErrorKind::NotFound`] if the path is not in the backup; [`ErrorKind::Usage`] for other kinds of entries;
/// [`ErrorKind::Corrupt`] for damage, which is found after a part was written.
fn cat(storages: &Storages, archive: Archive, path: &[u8], out: &mut dyn Write) -> Result<u8> {
    let selection = selection_in(&archive, &[path.to_vec()])?;
    let [path] = selection.paths() else {
        return Err(Error::new(ErrorKind::Bug, "one path became several"));
    };
    let parts = archive.file_parts(path)?;
    match parts.last().map(|item| &item.entry.kind) {
        Some(EntryKind::File { .. }) => StoredFile::new(Arc::new(archive), Arc::default(), parts)?
            .write_to(out, failed)
            .map(|()| 0),
        Some(EntryKind::Directory) => write_tar(storages, archive, &selection),
        None if archive.has(path)? => write_tar(storages, archive, &selection),
        None => Err(not_there(&archive, path)),
        Some(_) => {
            let message = format!("cannot write {}: it is no file or directory", quoted(path));
            Err(Error::new(ErrorKind::Usage, message)
                .hint("`fullbore list` shows what it is; `fullbore restore` makes it again"))
        }
    }
}

fn write_tar(storages: &Storages, archive: Archive, selection: &Selection) -> Result<u8> {
    let options = ExportOptions {
        storages: storages.clone(),
        no_create: false,
        to: SinkSpec::Stdout,
        codec: Some(Codec::None.for_pipe()),
        keep_going: false,
        workers: platform::cores(),
        memory: memory(MEMORY_BYTES, FRAME_BYTES),
        segment_bytes: u64::MAX,
    };
    let exported = options.run_archive(archive, selection, &Arc::new(Meter::default()))?;
    Ok(exported.exit_code())
}

fn failed(error: io::Error) -> Error {
    Error::io("could not write to standard output", error)
}
