//! The interface to the operating system, including every optional optimization.
//!
//! This is the only room that may use `unsafe`, ask which system this is, or know of io_uring,
//! page-cache advice, `O_DIRECT`, sparse maps and extended attributes. Functions return
//! [`std::io::Result`] with the bare error of the system; the caller adds the operation, the file
//! and a hint. An optional call can be turned off, see [`tricks`]: it is tried, and if the system
//! refuses it, the plain call does the work. No function here starts a thread, and only [`debug`]
//! prints.
//!
//! Belongs here: one function a system call or a trick, with the plain way beside it. Does not
//! belong here: anything that knows of backups.

pub mod batch_read;
mod blocking;
pub mod child_environment;
pub mod dir;
pub mod durable;
pub mod exact_read;
mod file_system;
pub mod guarded_path;
pub mod inodes;
mod machine;
pub mod memory;
pub mod metrics;
mod mounts;
pub mod owner;
pub mod place;
pub mod pre_content;
pub mod queue;
pub mod read;
pub mod safe_file;
pub mod secrecy;
pub mod tape;
pub mod tree_walk;
pub mod unopened;
pub mod uring;
pub mod write;
pub mod xattr;
mod xattrat;

#[cfg(not(target_os = "linux"))]
compile_error!("only Linux is supported so far: see src/platform");
// Some code casts lengths of files to `usize`, and the offsets in a `pg_control` are those of
// 64-bit systems.
#[cfg(not(target_pointer_width = "64"))]
compile_error!("only systems of 64 bits are supported so far: see src/platform");

use std::{io::Write, sync::OnceLock};

pub use blocking::BlockedCalls;
pub use machine::{
    MachineTime, boot_id, cores, device_read_bytes, group_ids, host_name, is_ignored,
    is_media_error, is_shortage, machine_time, open_files_limit, peak_rss_bytes,
    process_cpu_seconds, process_in, process_is_alive, raise_open_files_limit, sees_all_processes,
    since_boot, survive_file_size_limit, thread_cpu_time, user, user_id, voluntary_sleeps,
    works_in,
};
pub use mounts::{
    FileSystemMount, file_system_id, is_automount, is_pseudo, mounts_below, path_in_file_system,
};

static TRICKS: OnceLock<bool> = OnceLock::new();

/// May a function try a call that the system may refuse? If not, it makes the plain call.
///
/// Both give the same result; the tests run both ways. One answer for the whole process, fixed by
/// the first question: no if [`refuse_tricks`] was called before or `FULLBORE_NO_TRICKS` is set,
/// whatever to.
pub fn tricks() -> bool {
    *TRICKS.get_or_init(|| std::env::var_os("FULLBORE_NO_TRICKS").is_none())
}

/// Makes plain calls only, from the start of the process (`--no-tricks`).
///
/// Does nothing after the first call of [`tricks`].
pub fn refuse_tricks() {
    let _ = TRICKS.set(false);
}

/// Prints one line to stderr if `FULLBORE_DEBUG` is set to any value. The line is built only then.
pub fn debug(line: impl FnOnce() -> String) {
    static WANTED: OnceLock<bool> = OnceLock::new();
    if *WANTED.get_or_init(|| std::env::var_os("FULLBORE_DEBUG").is_some()) {
        let _ = writeln!(std::io::stderr(), "debug: {}", line());
    }
}
