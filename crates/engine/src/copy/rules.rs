//! What a copy leaves out, the same on both sides: what is not copied is not deleted either.

use super::sources::is_name;
use fullbore_format::{
    entry::EntryPath,
    error::{Error, Result},
};
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
    ffi::OsStr,
    os::unix::ffi::OsStrExt,
    path::Path,
    sync::Arc,
};

/// Rules for leaving out parts of a tree, and the names of the tree.
#[derive(Debug, Clone, Default, PartialEq, Eq, Encode, Decode)]
pub struct CopyRules {
    /// Which files are left out. The side of the command line has read the files with patterns.
    #[n(0)]
    pub files: FileRules,
    /// The places of the sources in the target. Without one, or with the empty one, the target gets
    /// the content of one directory; else only these places belong to the copy.
    #[n(1)]
    pub places: Vec<CopyPlace>,
}

/// The place of a source in the target.
#[derive(Debug, Clone, Default, PartialEq, Eq, Encode, Decode)]
pub struct CopyPlace {
    /// A name in the target; empty for the target itself.
    #[cbor(n(0), with = "minicbor::bytes")]
    pub at: EntryPath,
    /// Names of the source that a pattern may begin with: absolute paths without the first `/`.
    #[n(1)]
    pub names: Vec<ByteVec>,
}

impl CopyPlace {
    /// The place of a source with these absolute paths.
    pub fn new<'a>(at: &[u8], paths: impl IntoIterator<Item = &'a Path>) -> Self {
        let name = |path: &Path| {
            let bytes = path.as_os_str().as_bytes();
            bytes.strip_prefix(b"/").unwrap_or(bytes).to_vec().into()
        };
        Self {
            at: at.to_vec(),
            names: paths.into_iter().map(name).collect(),
        }
    }
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
                places: self.without_names().places,
            },
            false => self.clone(),
        }
    }

    /// Returns these rules without the names of the sources, which each side has for itself.
    pub(super) fn without_names(&self) -> Self {
        let places = self.places.iter().map(|place| CopyPlace {
            at: place.at.clone(),
            names: Vec::new(),
        });
        Self {
            files: self.files.clone(),
            places: places.filter(|place| !place.at.is_empty()).collect(),
        }
    }

    /// Returns the names in the target that belong to the copy, ascending; `None` if the whole target
    /// does.
    pub(super) fn only(&self) -> Option<Vec<EntryPath>> {
        let all = self.places.iter().map(|place| place.at.clone());
        let mut names: Vec<EntryPath> = all.filter(|name| !name.is_empty()).collect();
        names.sort();
        (!names.is_empty()).then_some(names)
    }

    /// Returns whether each place is the target itself or a name in it, and no name has two sources.
    pub(super) fn has_valid_places(&self) -> bool {
        let Some(names) = self.only() else {
            return true;
        };
        names.len() == self.places.len()
            && names.iter().all(|name| is_name(name))
            && names.windows(2).all(|two| two[0] != two[1])
    }

    /// Returns these rules for a source that is written by another name.
    pub(super) fn renamed(&self, name: &[u8]) -> Self {
        let mut rules = self.clone();
        let places = rules.places.iter_mut();
        places.for_each(|place| place.at = name.to_vec());
        rules
    }

    /// Returns the patterns.
    ///
    /// # Errors
    /// Those of a pattern.
    pub(super) fn patterns(&self) -> Result<LeftOutPatterns> {
        let places = self.places.iter().map(|place| PatternPlace {
            names: place.names.iter().map(|name| name.to_vec()).collect(),
            at: place.at.clone(),
        });
        let places: Vec<PatternPlace> = places.collect();
        // A path of the other side must not be read on this one.
        let files = FileRules {
            exclude_from: Vec::new(),
            ..self.files.clone()
        };
        files.patterns(&places).map(LeftOutPatterns)
    }

    /// Opens the directory at `root` as a source; objects of `own` are not entered.
    ///
    /// # Errors
    /// Those of the system, and of a pattern.
    pub(super) fn open(&self, root: &Path, own: Own) -> Result<SourceTree> {
        self.open_tops(vec![top_at(root)?], own)
    }

    /// Opens those of the `names` in the directory at `root` that are there, ascending.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub(super) fn open_names(&self, root: &Path, names: &[EntryPath]) -> Result<SourceTree> {
        let mut tops = Vec::new();
        for name in names {
            let top = top_at(root)?;
            let Ok(there) = dir::stat(&top.dir, name) else {
                continue;
            };
            // A directory is open itself: a walk begins in it.
            let is_directory = there.kind == dir::FileKind::Directory;
            let opened = is_directory.then(|| dir::open_dir(&top.dir, name));
            let opened = opened.transpose().map_err(|e| {
                let path = root.join(OsStr::from_bytes(name));
                Error::io(format!("could not open {path:?}"), e)
            })?;
            tops.push(Top {
                at: name.clone(),
                name: opened.is_none().then(|| name.clone()),
                dir: opened.unwrap_or(top.dir),
                role: top.role,
            });
        }
        self.open_tops(tops, Own::default())
    }

    /// Opens these places as a source; objects of `own` are not entered.
    ///
    /// # Errors
    /// Those of a pattern.
    pub(super) fn open_tops(&self, tops: Vec<Top>, own: Own) -> Result<SourceTree> {
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
        Ok(SourceTree::new(
            tops,
            HashSet::new(),
            HashMap::new(),
            Arc::new(rules),
        ))
    }
}

fn top_at(root: &Path) -> Result<Top> {
    let opened = dir::open_root(root);
    Ok(Top {
        at: Vec::new(),
        dir: opened.map_err(|e| Error::io(format!("could not open {root:?}"), e))?,
        name: None,
        role: TopRole::Named,
    })
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
