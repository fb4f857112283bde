//! What a copy leaves out, the same on both sides: what is not copied is not deleted either.

use fullbore_format::error::{Error, Result};
use fullbore_platform as platform;
use fullbore_platform::dir;
use fullbore_postgres::stopped;
use fullbore_tree::{
    patterns::{PatternPlace, Patterns},
    read::{Own, SourceTree, Top, TopRole, TreeRules},
};
use minicbor::{Decode, Encode, bytes::ByteVec};
use std::{
    collections::{HashMap, HashSet},
    path::Path,
    sync::Arc,
};

/// Rules for leaving out parts of a tree.
#[derive(Debug, Clone, Default, PartialEq, Eq, Encode, Decode)]
pub struct CopyRules {
    /// Lines as in `.gitignore`.
    #[n(0)]
    pub exclude: Vec<ByteVec>,
    /// Names of the source that a pattern may begin with: absolute paths without the first `/`.
    #[n(1)]
    pub names: Vec<ByteVec>,
    /// Whether to leave out the contents of directories with a valid `CACHEDIR.TAG`.
    #[n(2)]
    pub exclude_caches: bool,
    /// Names that leave out the contents of the directory that holds them.
    #[n(3)]
    pub exclude_if_present: Vec<ByteVec>,
    /// Whether to stay on one file system.
    #[n(4)]
    pub one_file_system: bool,
}

impl CopyRules {
    /// Returns whether any rule leaves something out of a directory that exists on both sides.
    pub fn may_leave_out(&self) -> bool {
        !self.exclude.is_empty() || self.exclude_caches || !self.exclude_if_present.is_empty()
    }

    /// Returns whether a directory that only the target has can be removed with all of its content:
    /// nothing in it can be left out.
    pub(super) fn removes_whole_directories(&self) -> bool {
        !self.may_leave_out() && !self.one_file_system
    }

    /// Returns the rules for what is deleted from the target. With `delete_excluded`, only other
    /// file systems are left out.
    pub(super) fn of_deletion(&self, delete_excluded: bool) -> Self {
        match delete_excluded {
            true => Self {
                one_file_system: self.one_file_system,
                ..Self::default()
            },
            false => self.clone(),
        }
    }

    /// Returns the patterns.
    ///
    /// # Errors
    /// Those of a pattern.
    pub(super) fn patterns(&self) -> Result<LeftOutPatterns> {
        let place = PatternPlace {
            names: self.names.iter().map(|name| name.to_vec()).collect(),
            at: Vec::new(),
        };
        let lines: Vec<&[u8]> = self.exclude.iter().map(|line| &line[..]).collect();
        let no_files: [&Path; 0] = [];
        Ok(LeftOutPatterns(Patterns::read(
            &lines,
            &no_files,
            &[place],
        )?))
    }

    /// Opens the directory at `root` as a source; objects of `own` are not entered.
    ///
    /// # Errors
    /// Those of the system, and of a pattern.
    pub(super) fn open(&self, root: &Path, own: Own) -> Result<SourceTree> {
        let opened = dir::open_root(root);
        let opened = opened.map_err(|e| Error::io(format!("could not open {root:?}"), e))?;
        let rules = TreeRules {
            exclude: self.patterns()?.0,
            exclude_caches: self.exclude_caches,
            exclude_if_present: self
                .exclude_if_present
                .iter()
                .map(|name| name.to_vec())
                .collect(),
            one_file_system: self.one_file_system,
            looks_twice: false,
            on_excluded: None,
            walkers: platform::cores().get().clamp(2, 8),
            own,
            overlay: None,
            torn: stopped::live_server_reason,
        };
        let top = Top {
            at: Vec::new(),
            dir: opened,
            name: None,
            role: TopRole::Named,
        };
        Ok(SourceTree::new(
            vec![top],
            HashSet::new(),
            HashMap::new(),
            Arc::new(rules),
        ))
    }
}

/// Patterns that leave out paths, with everything below them.
pub(super) struct LeftOutPatterns(Patterns);

impl LeftOutPatterns {
    /// Warnings about patterns that cannot do what they say.
    pub(super) fn warnings(&self) -> Vec<String> {
        self.0.idle_warnings().collect()
    }

    /// Returns whether an object of this kind is left out, or a directory above it.
    pub(super) fn leave_out(&self, path: &[u8], is_directory: bool) -> bool {
        let is_root = path.is_empty();
        !is_root
            && self.0.can_match()
            && (self.0.matches(path, is_directory) || self.leave_out_above(path))
    }

    /// Returns whether an object of any kind would be left out at this path.
    pub(super) fn may_leave_out(&self, path: &[u8]) -> bool {
        self.leave_out(path, false) || self.leave_out(path, true)
    }

    fn leave_out_above(&self, path: &[u8]) -> bool {
        let slashes = (0..path.len()).filter(|at| path[*at] == b'/');
        { slashes }.any(|at| self.0.matches(&path[..at], true))
    }
}
