//! What the system offers, and every trick played with it.
//!
//! The only place that may use `unsafe`, ask which system this is, or know of io_uring, page-cache advice, `O_DIRECT`,
//! sparse maps and extended attributes. Functions return [`std::io::Result`] and the bare error of the system: what was
//! being done, to which file, and what to try are the caller's words. Every trick is a choice, see [`Tricks`]: it is
//! tried, and where the system refuses it the plain call does the work. Nothing here starts threads, and
//! nothing prints, except [`debug`].

pub mod batch_read;
mod blocking;
pub mod dir;
pub mod durable;
pub mod inodes;
mod machine;
pub mod memory;
mod mounts;
pub mod owner;
pub mod read;
pub mod safe_file;
pub mod tree_walk;
pub mod unopened;
pub mod uring;
pub mod write;
pub mod xattr;
mod xattrat;

#[cfg(not(target_os = "linux"))]
compile_error!("only Linux is supported so far: see src/platform");
// Lengths of files are cut to `usize` in some places, and the offsets in a `pg_control` are those of 64 bits.
#[cfg(not(target_pointer_width = "64"))]
compile_error!("only systems of 64 bits are supported so far: see src/platform");

use std::{io::Write, sync::OnceLock};

pub use blocking::BlockedCalls;
pub use machine::{
    boot_id, cores, host_name, idle_seconds, is_ignored, is_media_error, is_shortage,
    open_files_limit, peak_rss_bytes, process_cpu_seconds, process_in, process_is_alive,
    raise_open_files_limit, sees_all_processes, survive_file_size_limit, thread_cpu_time,
    times_asleep, user, works_in,
};
pub use mounts::{FileSystemMount, is_automount, is_pseudo, mounts_below};

/// May a function try a call that the system may refuse?
///
/// Both give the same result; the tests run both ways.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Tricks {
    /// Try, and fall back to the plain call.
    #[default]
    Auto,
    /// The plain call, always (`--no-tricks`).
    Never,
}

/// Print one line to stderr if `FULLBORE_DEBUG` is set, whatever to. The line is built only then.
pub fn debug(line: impl FnOnce() -> String) {
    static WANTED: OnceLock<bool> = OnceLock::new();
    if *WANTED.get_or_init(|| std::env::var_os("FULLBORE_DEBUG").is_some()) {
        let _ = writeln!(std::io::stderr(), "debug: {}", line());
    }
}
