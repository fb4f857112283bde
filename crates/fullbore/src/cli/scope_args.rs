//! Arguments that say which files are backed up.

use crate::cli::values::any_bytes;
use clap::{Args, ValueHint};
use fullbore_engine::backup::paths::Scope;
use fullbore_format::text::arguments::{name, pattern};
use fullbore_repository::compare::Compare;
use std::{ffi::OsString, path::PathBuf};

/// Which files are backed up.
#[derive(Debug, Clone, Args)]
pub(in crate::cli) struct ScopeArgs {
    /// Files and directories; one directory alone: its contents are the root of the backup. Or
    /// postgres://… for a running cluster
    #[arg(value_name = "PATH", required_unless_present_any = ["stdin_name", "connect"], value_hint = ValueHint::AnyPath)]
    pub(in crate::cli) paths: Vec<PathBuf>,
    /// Leave out what matches this pattern, as in .gitignore; can be repeated
    ///
    /// A pattern that begins with a PATH, such as /srv/data/cache, is relative to that PATH.
    /// Another one that begins with / is at the root of the backup, as `fullbore list` prints
    /// paths. One that matched nothing is named at the end. `!` before a pattern takes back what
    /// it matches, but nothing in a directory that is left out itself.
    #[arg(long, short = 'e', value_name = "GLOB", value_parser = any_bytes(pattern))]
    pub(in crate::cli) exclude: Vec<OsString>,
    /// Leave out what matches a pattern in this file; those of --exclude come after them, as
    /// --exclude '!NAME'; can be repeated
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(in crate::cli) exclude_from: Vec<PathBuf>,
    /// Leave out the contents of directories with a CACHEDIR.TAG, but not of a PATH itself
    #[arg(long)]
    pub(in crate::cli) exclude_caches: bool,
    /// Leave out the contents of directories that hold this name, but not of a PATH itself
    #[arg(long, value_name = "NAME", value_parser = any_bytes(name))]
    pub(in crate::cli) exclude_if_present: Vec<OsString>,
    /// Back up only the names in this file, one a line, relative to PATH, and not what is below
    /// them; - for standard input
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(in crate::cli) files_from: Option<PathBuf>,
    /// The names of --files-from end in NUL
    #[arg(long, requires = "files_from")]
    pub(in crate::cli) null: bool,
    /// Do not go into other file systems
    #[arg(long, short = 'x')]
    pub(in crate::cli) one_file_system: bool,
    /// Store each PATH under its whole path; one below another is stored once
    #[arg(long)]
    pub(in crate::cli) full_paths: bool,
}

/// Returns whether a backup that compares in this way reads a file again that was written while the
/// last one was made: its time alone does not show it.
pub(in crate::cli) fn looks_twice(compare: Compare) -> bool {
    matches!(compare, Compare::Mtime | Compare::Size)
}

impl ScopeArgs {
    /// Returns the files that these arguments name. `looks_twice` is set if the next backup compares
    /// less than the inodes.
    pub(in crate::cli) fn scope(&self, looks_twice: bool) -> Scope {
        Scope {
            paths: self.paths.clone(),
            exclude: self.exclude.clone(),
            exclude_from: self.exclude_from.clone(),
            exclude_caches: self.exclude_caches,
            exclude_if_present: self.exclude_if_present.clone(),
            files_from: self.files_from.clone(),
            null: self.null,
            one_file_system: self.one_file_system,
            full_paths: self.full_paths,
            looks_twice,
            on_excluded: None,
        }
    }
}
