//! Arguments that say which files are backed up.

use crate::cli::{options::SOURCE, values::any_bytes};
use clap::{Args, ValueHint};
use fullbore_engine::backup::paths::Scope;
use fullbore_format::text::arguments::{name, pattern};
use fullbore_repository::compare::Compare;
use fullbore_tree::file_rules::FileRules;
use std::{ffi::OsString, path::PathBuf};

/// Which files are backed up.
#[derive(Debug, Clone, Args)]
pub(in crate::cli) struct ScopeArgs {
    /// Files and directories, or postgres://… for a running cluster
    ///
    /// The contents of a single directory are the root of the backup.
    #[arg(value_name = "PATH", required_unless_present_any = ["stdin_name", "connect"], value_hint = ValueHint::AnyPath)]
    pub(in crate::cli) paths: Vec<PathBuf>,
    /// Exclude paths that match this pattern, as in .gitignore
    ///
    /// A pattern that begins with a PATH, such as /srv/data/cache, is relative to that PATH. Any
    /// other pattern that begins with / starts at the root of the backup, as `fullbore list` prints
    /// paths. The backup names patterns with a slash that matched nothing. A pattern that begins with ! includes
    /// again what it matches, but nothing in a directory that is excluded itself. Can be repeated.
    #[arg(long, short = 'e', value_name = "GLOB", value_parser = any_bytes(pattern), help_heading = SOURCE)]
    pub(in crate::cli) exclude: Vec<OsString>,
    /// Exclude paths that match a pattern in this file (repeatable)
    ///
    /// Patterns of --exclude come after those of the file, so --exclude '!NAME' can include a name
    /// again.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, help_heading = SOURCE, hide_short_help = true)]
    pub(in crate::cli) exclude_from: Vec<PathBuf>,
    /// Also store the contents of directories with a CACHEDIR.TAG
    ///
    /// Such a directory says that its contents can be made again. A backup stores the directory and
    /// its CACHEDIR.TAG only, and says how many there were. A PATH itself is never excluded, nor
    /// is what --files-from names.
    #[arg(long, help_heading = SOURCE)]
    pub(in crate::cli) include_caches: bool,
    /// Exclude marked caches also from what --files-from names
    #[arg(long, conflicts_with = "include_caches", help_heading = SOURCE, hide_short_help = true)]
    pub(in crate::cli) exclude_caches: bool,
    /// Exclude the contents of directories that hold this name
    ///
    /// A PATH itself is never excluded.
    #[arg(long, value_name = "NAME", value_parser = any_bytes(name), help_heading = SOURCE, hide_short_help = true)]
    pub(in crate::cli) exclude_if_present: Vec<OsString>,
    /// Back up only the names in this file, or in - (standard input)
    ///
    /// The file has one name a line, relative to PATH. Entries below these names are not backed up.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, help_heading = SOURCE, hide_short_help = true)]
    pub(in crate::cli) files_from: Option<PathBuf>,
    /// Names of --files-from end in NUL instead of a new line
    #[arg(long, requires = "files_from", help_heading = SOURCE, hide_short_help = true)]
    pub(in crate::cli) null: bool,
    /// Do not enter other file systems
    #[arg(long, short = 'x', help_heading = SOURCE)]
    pub(in crate::cli) one_file_system: bool,
    /// Store each PATH under its whole path
    ///
    /// If one PATH is below another, it is stored once.
    #[arg(long, help_heading = SOURCE, hide_short_help = true)]
    pub(in crate::cli) full_paths: bool,
}

/// Returns whether a backup that compares in this way reads a file again that was written while the
/// last one was made: its time alone does not show it.
pub(in crate::cli) fn looks_twice(compare: Compare) -> bool {
    matches!(compare, Compare::Mtime | Compare::Size)
}

impl ScopeArgs {
    /// Returns which files are left out.
    pub(in crate::cli) fn rules(&self) -> FileRules {
        let lists = self.exclude_from.iter().cloned();
        FileRules {
            exclude: self.exclude.clone(),
            exclude_from: lists.map(PathBuf::into_os_string).collect(),
            exclude_caches: self.leaves_out_caches(),
            exclude_if_present: self.exclude_if_present.clone(),
            one_file_system: self.one_file_system,
        }
    }

    /// Returns whether marked caches are left out: by default, but not of names that a user has listed.
    fn leaves_out_caches(&self) -> bool {
        self.exclude_caches || (!self.include_caches && self.files_from.is_none())
    }

    /// Returns whether an option selects files.
    pub(in crate::cli) fn selects_files(&self) -> bool {
        let usual = FileRules {
            exclude_caches: self.leaves_out_caches() && !self.exclude_caches,
            ..FileRules::default()
        };
        let has_rules = self.rules() != usual || self.include_caches;
        has_rules || self.files_from.is_some() || self.full_paths
    }

    /// Returns the files that these arguments name. `looks_twice` is set if the next backup compares
    /// less than the inodes.
    pub(in crate::cli) fn scope(&self, looks_twice: bool) -> Scope {
        Scope {
            paths: self.paths.clone(),
            rules: self.rules(),
            files_from: self.files_from.clone(),
            null: self.null,
            full_paths: self.full_paths,
            looks_twice,
            on_excluded: None,
        }
    }
}
