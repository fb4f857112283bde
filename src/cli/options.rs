//! Options and exit codes that several commands share.

use crate::platform;
use clap::{Args, ValueHint};
use std::{os::unix::ffi::OsStringExt, path::PathBuf};

/// What a command that looks at backups, or at what is noted of them, ends with.
pub(super) const EXIT_CODES: &str =
    "EXIT CODES: 0 done, 1 failed, 2 wrong arguments, 4 damage was found";

/// What a command ends with that looks at none.
pub(super) const PLAIN_EXIT_CODES: &str = "EXIT CODES: 0 done, 1 failed, 2 wrong arguments";

/// What a command ends with that writes a stored backup somewhere else.
pub(super) const WRITES: &str = "EXIT CODES: 0 done, with all that the backup has, though that may lack something, 1 failed (nothing was committed), \
                      2 wrong arguments, 4 damage was found";

/// Exit code of a backup that lacks entries that could not be read.
pub(super) const UNREADABLE: u8 = 3;

/// Default of plain bytes in a frame.
pub(super) const FRAME_BYTES: u32 = 1 << 20;

/// How the end of a run is told.
#[derive(Debug, Args, Clone)]
pub(super) struct OutputArgs {
    /// One JSON object a line: progress, then the result
    #[arg(long)]
    pub(super) json: bool,
    /// Say nothing but errors
    #[arg(long, short)]
    pub(super) quiet: bool,
    /// Say more: the limit of a run of less than 2 seconds too, and each damaged frame
    #[arg(long, short, conflicts_with = "quiet")]
    pub(super) verbose: bool,
}

/// What all commands that move bytes have.
#[derive(Debug, Args, Clone)]
pub(super) struct RunArgs {
    /// Write a page about the run: throughput, and what the limit was, over time; it replaces an earlier one, but no other file
    #[arg(long, value_name = "FILE.html", value_hint = ValueHint::FilePath)]
    pub(super) report: Option<PathBuf>,
}

/// `wanted` bytes for buffers, or fewer if the limit of address space is lower; at least 8 frames.
pub(super) fn memory(wanted: u64, frame_bytes: u32) -> u64 {
    platform::memory::within_limit(wanted, 8 * u64::from(frame_bytes))
}

/// Converts paths to the form of the archive.
pub(super) fn selected(paths: Vec<std::path::PathBuf>) -> Vec<Vec<u8>> {
    paths
        .into_iter()
        .map(|path| path.into_os_string().into_vec())
        .collect()
}
