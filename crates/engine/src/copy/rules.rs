//! What a copy leaves out, the same on both sides: what is not copied is not deleted either.

use fullbore_format::error::{Error, Result};
use fullbore_platform as platform;
use fullbore_platform::dir;
use fullbore_postgres::stopped;
use fullbore_tree::{
    file_rules::FileRules,
    patterns::{PatternPlace, Patterns},
    read::{Own, SourceTree, Top, TopRole, TreeRules},
};
use minicbor::{Decode, Encode, bytes::ByteVec};
use std::{
    collections::{HashMap, HashSet},
    path::Path,
    sync::Arc,
};

/// Rules for leaving out parts of a tree, and the names of the tree.
#[derive(Debug, Clone, Default, PartialEq, Eq, Encode, Decode)]
pub struct CopyRules {
    /// Which files are left out. The side of the command line has read the files with patterns.
    #[n(0)]
    pub files: FileRules,
    /// Names of the source that a pattern may begin with: absolute paths without the first `/`.
    #[n(1)]
    pub names: Vec<ByteVec>,
}

impl CopyRules {
    /// Returns whether a directory that only the target has can be removed with all of its content.
    /// It cannot if a rule may keep a file in it.
    pub(super) fn removes_whole_directories(&self) -> bool {
        !self.files.may_leave_out() && !self.files.one_file_system
    }

    /// Returns the rules for what is deleted from the target. With `delete_excluded`, only other
    /// file systems are left out.
    pub(super) fn of_deletion(&self, delete_excluded: bool) -> Self {
        match delete_excluded {
            true => Self {
                files: FileRules {
                    one_file_system: self.files.one_file_system,
                    ..FileRules::default()
                },
                names: Vec::new(),
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
        // A path of the other side must not be read on this one.
        let files = FileRules {
            exclude_from: Vec::new(),
            ..self.files.clone()
        };
        files.patterns(&[place]).map(LeftOutPatterns)
    }

    /// Opens the directory at `root` as a source; objects of `own` are not entered.
    ///
    /// # Errors
    /// Those of the system, and of a pattern.
    pub(super) fn open(&self, root: &Path, own: Own) -> Result<SourceTree> {
        let opened = dir::open_root(root);
        let opened = opened.map_err(|e| Error::io(format!("could not open {root:?}"), e))?;
        let rules = TreeRules {
            files: self.files.clone(),
            exclude: self.patterns()?.0,
            looks_twice: false,
            on_excluded: None,
            caches: Default::default(),
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
        let slashes = (0..path.len()).filter(|offset| path[*offset] == b'/');
        { slashes }.any(|index| self.0.matches(&path[..index], true))
    }
}
