//! Options and exit codes that several commands share.

use super::color::ColorChoice;
use clap::{Arg, Args, ValueHint};
use fullbore_platform as platform;
use std::{ffi::OsString, os::unix::ffi::OsStringExt, path::PathBuf};

/// Exit codes of a command that reads backups or their notes.
pub(super) const EXIT_CODES: &str =
    "EXIT CODES: 0 done, 1 failed, 2 wrong arguments, 4 damage was found";

/// Exit codes of a command that reads no backups.
pub(super) const PLAIN_EXIT_CODES: &str = "EXIT CODES: 0 done, 1 failed, 2 wrong arguments";

/// Exit codes of a command that writes a stored backup somewhere else.
pub(super) const WRITES: &str = "EXIT CODES: 0 done (the result is as complete as the backup), 1 failed (nothing was committed), \
                      2 wrong arguments, 4 damage was found";

/// Exit code of a backup that lacks entries that could not be read.
pub(super) const UNREADABLE: u8 = 3;

/// Default of plain bytes in a frame.
pub(super) const FRAME_BYTES: u32 = 1 << 20;

/// Headings of options.
pub(super) const SOURCE: &str = "Source";
pub(super) const DESTINATION: &str = "Destination";
pub(super) const PERFORMANCE: &str = "Performance";

/// Leaves options out of `-h` of one command, for fields that several commands share.
pub(super) fn rare(names: &'static [&'static str]) -> impl FnMut(Arg) -> Arg {
    move |arg| {
        let is_rare = names.contains(&arg.get_id().as_str());
        if is_rare {
            arg.hide_short_help(true)
        } else {
            arg
        }
    }
}

/// Options of every command.
#[derive(Debug, Args, Clone)]
pub(super) struct GlobalArgs {
    /// The repository instead of REPO or --to
    ///
    /// The default is FULLBORE_REPOSITORY.
    #[arg(
        id = "stand_in",
        long = "repository",
        short = 'r',
        value_name = "REPO",
        global = true,
        display_order = 890,
        hide_short_help = true
    )]
    pub(super) repository: Option<OsString>,
    /// Print JSON, one object a line: progress, then the result
    #[arg(long, global = true, display_order = 891, hide_short_help = true)]
    pub(super) json: bool,
    /// Print errors and what needs action only
    #[arg(
        long,
        short,
        global = true,
        display_order = 892,
        hide_short_help = true
    )]
    pub(super) quiet: bool,
    /// Print more, such as each file of a backup or all facts of a list
    ///
    /// If there is damage, the damaged frames are printed too.
    #[arg(
        long,
        short,
        global = true,
        display_order = 893,
        hide_short_help = true
    )]
    pub(super) verbose: bool,
    /// Print in colours: auto, always or never
    ///
    /// auto means on a terminal, unless NO_COLOR is set.
    #[arg(long, value_enum, value_name = "WHEN", default_value_t = ColorChoice::Auto, global = true, display_order = 894, hide_possible_values = true, hide_short_help = true)]
    pub(super) color: ColorChoice,
    /// Use plain system calls only
    ///
    /// There is then no io_uring, no page cache advice and no preallocation.
    #[arg(long, global = true, display_order = 900, hide_short_help = true)]
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
    /// Write an HTML page about the throughput of the run, and its limits
    ///
    /// The page of an earlier run is replaced, but no other file.
    #[arg(long, value_name = "FILE.html", value_hint = ValueHint::FilePath, hide_short_help = true)]
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
