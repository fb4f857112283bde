//! A tree as the source of a backup.

use super::{
    file_list::listed,
    inner::TreeInner,
    rules::{Closed, Top, TopRole, TreeRules},
    walk::TreeWalk,
};
use crate::patterns::Patterns;
use fullbore_format::{
    entry::{EntryPath, is_within},
    error::Result,
};
use fullbore_pipeline::{
    frame::{Buf, Frame, Scanned, Slice},
    source::{OpenAhead, Source, Stream},
};
use std::{collections::HashSet, io, os::fd::OwnedFd, sync::Arc};

/// A tree, or the part of a tree on one device.
pub struct SourceTree(Arc<TreeInner>);

impl SourceTree {
    /// The patterns that leave out objects.
    pub fn excludes(&self) -> &Patterns {
        &self.0.rules.exclude
    }

    /// A source for the tree below `tops`, which are ascending.
    ///
    /// A top within another one is met there and replaces the object at its path. The directories
    /// `elsewhere` are not delivered; of the directories in `closed` only the given names are. All
    /// directories between a named top and the top around it must be tops, too.
    pub fn new(
        tops: Vec<Top>,
        elsewhere: HashSet<EntryPath>,
        closed: Closed,
        rules: Arc<TreeRules>,
    ) -> Self {
        Self(Arc::new(TreeInner {
            elsewhere,
            closed,
            ..TreeInner::new(tops, rules)
        }))
    }

    /// A source for the objects in `list`, ascending, and the directories above them, below one
    /// directory.
    pub fn listed(top: Top, list: Vec<EntryPath>, rules: Arc<TreeRules>) -> Self {
        Self(Arc::new(TreeInner {
            list: Some(list),
            ..TreeInner::new(vec![top], rules)
        }))
    }

    /// Returns whether the rules exclude `path` from a walk that begins at the first top.
    pub fn leaves_out(&self, path: &[u8], is_dir: bool) -> bool {
        self.0.leaves_out(path, is_dir)
    }

    /// Returns the entry of one object by its path.
    pub fn look(&self, path: &[u8]) -> Scanned {
        self.0.look(path).scanned
    }

    /// Returns the name that excludes the contents of the directory `path`, such as `CACHEDIR.TAG`,
    /// if the rules ask for that.
    pub fn exclusion_mark_at(&self, path: &[u8]) -> Option<&[u8]> {
        self.0.exclusion_mark_at(path)
    }

    /// Returns the length of the path of the innermost top that has `path`; `None` if `path` is
    /// beside all tops.
    pub fn top_bytes(&self, path: &[u8]) -> Option<usize> {
        let tops = self.0.tops.iter().rev();
        let mut around = tops.filter(|top| top.role != TopRole::Above);
        let top = around.find(|top| is_within(path, &top.at))?;
        Some(top.at.len())
    }

    /// Opens a file for reading.
    ///
    /// # Errors
    /// The system's error.
    pub fn open(&self, path: &[u8]) -> io::Result<OwnedFd> {
        self.0.open(path)
    }
}

impl Source for SourceTree {
    fn scan(&self) -> Result<Stream<Scanned>> {
        let inner = self.0.clone();
        let scanned: Stream<Scanned> = match &self.0.list {
            Some(list) => Box::new(listed(self.0.clone(), list.clone())?),
            None => Box::new(TreeWalk::start(self.0.clone())?),
        };
        Ok(Box::new(
            scanned.map(move |scanned| inner.shortage.check().and(scanned)),
        ))
    }

    fn read(&self, slice: Slice, buf: Buf) -> Result<Frame> {
        let frame = match slice {
            Slice::Members(small, large) => self.0.read_members(small, large, buf),
            Slice::Piece {
                file,
                offset,
                len,
                last,
            } => self.0.read_piece(file, offset, len, last, buf),
        };
        self.0.shortage.check().and(frame)
    }

    fn opener(&self) -> Option<Arc<dyn OpenAhead>> {
        Some(self.0.clone())
    }
}
