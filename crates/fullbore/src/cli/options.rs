//! Options and exit codes that several commands share.

use super::color::ColorChoice;
use clap::{Args, ValueHint};
use fullbore_platform as platform;
use std::{ffi::OsString, os::unix::ffi::OsStringExt, path::PathBuf};

/// Exit codes of a command that reads backups or their notes.
pub(super) const EXIT_CODES: &str =
    "EXIT CODES: 0 done, 1 failed, 2 wrong arguments, 4 damage was found";

/// Exit codes of a command that reads no backups.
pub(super) const PLAIN_EXIT_CODES: &str = "EXIT CODES: 0 done, 1 failed, 2 wrong arguments";

/// Exit codes of a command that writes a stored backup somewhere else.
pub(super) const WRITES: &str = "EXIT CODES: 0 done, with all that the backup has, though that may lack something, 1 failed (nothing was committed), \
                      2 wrong arguments, 4 damage was found";

/// Exit code of a backup that lacks entries that could not be read.
pub(super) const UNREADABLE: u8 = 3;

/// Default of plain bytes in a frame.
pub(super) const FRAME_BYTES: u32 = 1 << 20;

/// Options of every command.
#[derive(Debug, Args, Clone)]
pub(super) struct GlobalArgs {
    /// The repository, in the place of REPO or --to [default: FULLBORE_REPOSITORY]
    #[arg(
        id = "stand_in",
        long = "repository",
        short = 'r',
        value_name = "REPO",
        global = true,
        display_order = 890
    )]
    pub(super) repository: Option<OsString>,
    /// One JSON object a line: progress, then the result
    #[arg(long, global = true, display_order = 891)]
    pub(super) json: bool,
    /// Print errors only
    #[arg(long, short, global = true, display_order = 892)]
    pub(super) quiet: bool,
    /// Print more: each file of a backup, all facts of a list, the frames of damage
    #[arg(long, short, global = true, display_order = 893)]
    pub(super) verbose: bool,
    /// Colours: auto means on a terminal, unless NO_COLOR is set
    #[arg(long, value_enum, value_name = "WHEN", default_value_t = ColorChoice::Auto, global = true, display_order = 894, hide_possible_values = true)]
    pub(super) color: ColorChoice,
    /// Use plain system calls only: no io_uring, no page cache advice, no preallocation
    #[arg(long, global = true, display_order = 900)]
    pub(super) no_tricks: bool,
}

/// How the end of a run is told.
#[derive(Debug, Args, Clone)]
pub(super) struct OutputArgs {
    #[arg(from_global)]
    pub(super) json: bool,
    #[arg(from_global)]
    pub(super) quiet: bool,
    #[arg(from_global)]
    pub(super) verbose: bool,
}

/// Options of all commands that move bytes.
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
