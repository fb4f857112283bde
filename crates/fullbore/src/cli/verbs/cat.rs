//! `fullbore cat`: writes one file of a backup to standard output, or a directory as a tar.

use crate::cli::{
    options::{EXIT_CODES, FRAME_BYTES, memory},
    output::plain_output,
    select::SelectArgs,
};
use clap::{Args, ValueHint};
use fullbore_engine::{export::ExportOptions, plan::SinkSpec};
use fullbore_format::{
    digest::Running,
    entry::{Entry, EntryKind},
    error::{Error, ErrorKind, Result, quoted},
    page::PageItem,
};
use fullbore_pipeline::stage::codec::Codec;
use fullbore_platform as platform;
use fullbore_platform::metrics::meter::Meter;
use fullbore_repository::{
    archive::{
        Archive, Selection, extents::FileContent, frame_cache::FrameCache, not_there,
        schedule::misfit, source_paths::selection_in,
    },
    open::open,
};
use fullbore_storage::Storages;
use std::{
    ffi::OsString,
    io::{self, Write},
    os::unix::ffi::OsStringExt,
    sync::Arc,
};

/// Bytes that are written at once.
const STEP_BYTES: u64 = 1 << 20;

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
    let parts = file_parts(&archive, path)?;
    match parts.last().map(|item| &item.entry.kind) {
        Some(EntryKind::File { .. }) => write_file(archive, parts, out).map(|()| 0),
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

/// Returns the records of a file, also if `path` is another name of it.
fn file_parts(archive: &Archive, path: &[u8]) -> Result<Vec<PageItem>> {
    let parts = archive.find(path)?;
    match parts.first().map(|item| &item.entry.kind) {
        Some(EntryKind::HardLink(target)) => archive.find(target),
        _ => Ok(parts),
    }
}

/// Writes the content of a file, with zeros for its holes, and compares its digest at the end.
fn write_file(archive: Archive, parts: Vec<PageItem>, out: &mut dyn Write) -> Result<()> {
    let last = &parts[parts.len() - 1];
    let entry = last.entry.clone();
    let name = quoted(&entry.path);
    if !last.state.is_stored() {
        let message = format!("cannot write {name}: the backup could not capture it");
        return Err(Error::new(ErrorKind::NotFound, message));
    }
    let content = FileContent::new(parts).ok_or_else(|| misfit(&entry.path))?;
    let frames = FrameCache::new(Arc::new(archive));
    let mut digest = Running::default();
    let mut written = 0;
    let mut data_offset = 0;
    for run in entry_runs(&entry) {
        write_zeros(run.0 - written, out)?;
        // In steps, so that a large run does not fill the memory.
        let mut left = run.1;
        while left > 0 {
            let len = left.min(STEP_BYTES);
            let mut bytes = Vec::new();
            for range in content.runs(data_offset, len) {
                range.append(&frames, &mut bytes)?;
            }
            digest.update(&bytes);
            out.write_all(&bytes).map_err(failed)?;
            data_offset += len;
            left -= len;
        }
        written = run.0 + run.1;
    }
    write_zeros(entry.size().saturating_sub(written), out)?;
    match content.digest() {
        Some(wanted) if !digest.finish().contains(&wanted) => {
            Err(Error::corrupt(format!("file {name} is damaged"))
                .because("its digest is not the one in the backup"))
        }
        _ => Ok(()),
    }
}

/// Returns offset and length of each run of data of a file.
fn entry_runs(entry: &Entry) -> Vec<(u64, u64)> {
    match &entry.kind {
        EntryKind::File { map: Some(map), .. } => {
            map.iter().map(|run| (run.offset, run.len)).collect()
        }
        _ => vec![(0, entry.size())],
    }
}

fn write_zeros(count: u64, out: &mut dyn Write) -> Result<()> {
    io::copy(&mut io::Read::take(io::repeat(0), count), out)
        .map(drop)
        .map_err(failed)
}

fn failed(error: io::Error) -> Error {
    Error::io("could not write to standard output", error)
}
