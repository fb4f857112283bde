//! Roots that share the lists of an earlier backup.
//!
//! The lists of pages and of segments grow with the backup. A backup of a source that did not change has the lists of the backup before, so
//! its root names the backup that has them, and stays short. That backup has them itself: no chain is followed. Its document is kept, as a
//! root or as that of a forgotten backup, as long as an object of that backup is needed; and the lists have at least one.

use super::{Live, PageAt, Root};
use crate::error::{Error, Result};
use std::collections::BTreeSet;

/// Bytes of lists that are worth sharing: a small root that stands by itself is worth more.
const LEAST_LISTS_BYTES: usize = 1024;

impl Root {
    /// Returns whether the pages and the liveness stand in the root of [`Root::lists_of`] alone.
    pub fn is_short(&self) -> bool {
        !self.lists_of.is_empty()
    }

    /// Returns a digest of the list of pages, in which each page names its backup.
    pub fn digest_of_pages(&self) -> String {
        let pages = self.named_pages();
        let json = serde_json::to_vec(&pages).unwrap_or_default();
        blake3::hash(&json).to_hex().to_string()
    }

    /// Returns a short root in place of this one, if the lists of `other` are the same.
    pub fn shortened(&self, other: &Root) -> Option<Root> {
        if !self.may_be_short() || other.is_short() || other.id == self.id {
            return None;
        }
        let pages = self.named_pages();
        let has_own = pages.iter().any(|page| page.backup == other.id);
        if !has_own || pages != other.named_pages() {
            return None;
        }
        let segment = |live: &Live| (live.backup.clone(), live.stream, live.number);
        let there: BTreeSet<_> = other.named_liveness().iter().map(segment).collect();
        if !self
            .liveness
            .iter()
            .all(|live| there.contains(&segment(live)))
        {
            return None;
        }
        Some(Root {
            pages: Vec::new(),
            liveness: Vec::new(),
            lists_of: other.id.clone(),
            lists_digest: self.digest_of_pages(),
            ..self.clone()
        })
    }

    /// Returns whether the root has only lists that another one may have, too, and would be shorter without them.
    pub fn may_be_short(&self) -> bool {
        let refers = self.pages.iter().all(|page| !page.backup.is_empty());
        refers && self.segments.is_empty() && self.may_be_shared()
    }

    /// Returns whether other roots may share the lists of this one.
    pub fn may_be_shared(&self) -> bool {
        let lists = serde_json::to_vec(&(&self.pages, &self.liveness)).unwrap_or_default();
        !self.is_short() && lists.len() >= LEAST_LISTS_BYTES
    }

    /// Completes a short root by the lists of `other`, which it names. Messages call it `name`.
    ///
    /// # Errors
    /// [`ErrorKind::Corrupt`](crate::error::ErrorKind::Corrupt) if these are not the lists that the root was made with.
    pub fn with_lists_of(self, other: &Root, name: &str) -> Result<Root> {
        // Without a key there is no digest, and none in the pages.
        let is_same = self.lists_digest.is_empty() || self.lists_digest == other.digest_of_pages();
        let has_lists = other.id == self.lists_of && !other.is_short() && !other.pages.is_empty();
        if !has_lists || !is_same {
            return Err(self.without_lists(name));
        }
        Ok(Root {
            pages: other.named_pages(),
            liveness: other.named_liveness(),
            lists_of: String::new(),
            lists_digest: String::new(),
            ..self
        })
    }

    /// Returns the error of a short root whose lists are lost.
    pub fn without_lists(&self, name: &str) -> Error {
        Error::corrupt(format!("{name} is damaged")).because(format!(
            "it shares the lists of backup {:?}, which are lost or were changed",
            self.lists_of
        ))
    }

    fn named_pages(&self) -> Vec<PageAt> {
        let mut pages = self.pages.clone();
        let own = pages.iter_mut().filter(|page| page.backup.is_empty());
        own.for_each(|page| page.backup.clone_from(&self.id));
        pages
    }

    fn named_liveness(&self) -> Vec<Live> {
        let mut liveness = self.liveness.clone();
        let own = liveness.iter_mut().filter(|live| live.backup.is_empty());
        own.for_each(|live| live.backup.clone_from(&self.id));
        liveness
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{error::ErrorKind, root::EntryName, seal::seal};

    const FIRST: &str = "20261121T054501Z-k3f9qz";
    const SECOND: &str = "20261122T054501Z-k3f9qz";

    fn page(backup: &str, number: u8) -> PageAt {
        PageAt {
            backup: backup.into(),
            stream: 1,
            first: EntryName(vec![b'a' + number]),
            manifest_offset: Some(u64::from(number)),
            bytes: 1,
            digest: "00".repeat(32),
            ..PageAt::default()
        }
    }

    fn root(id: &str, backup: &str) -> Root {
        let live = Live {
            backup: backup.into(),
            stream: 1,
            number: 1,
            ..Live::default()
        };
        Root {
            format: 1,
            id: id.into(),
            pages: (0..20).map(|number| page(backup, number)).collect(),
            liveness: vec![live],
            ..Root::default()
        }
    }

    #[test]
    fn a_root_with_the_lists_of_another_one_is_short_and_comes_back() {
        let (first, second) = (root(FIRST, ""), root(SECOND, FIRST));
        let short = second.shortened(&first).unwrap();
        let bytes = seal(&short).unwrap();
        assert_eq!(Root::open(&bytes, "it").unwrap_err().kind, ErrorKind::Bug);
        let stored = Root::open_as_stored(&bytes, "it").unwrap();
        assert!(stored.is_short() && stored.pages.is_empty());
        assert_eq!(stored.referenced_backups(), [FIRST]);
        assert_eq!(stored.with_lists_of(&first, "it").unwrap(), second);
        assert_eq!(short.shortened(&first), None, "no chain");
        assert_eq!(second.shortened(&short), None, "no chain");
    }

    #[test]
    fn lists_that_differ_are_not_shared_and_not_taken() {
        let (first, second) = (root(FIRST, ""), root(SECOND, FIRST));
        let short = second.shortened(&first).unwrap();
        let mut fewer = first.clone();
        fewer.pages.pop();
        let mut others = first.clone();
        others.pages[3].digest = "11".repeat(32);
        let mut unmentioned = first.clone();
        unmentioned.liveness.clear();
        assert_eq!(second.shortened(&unmentioned), None);
        let foreign = root(SECOND, "20261120T054501Z-k3f9qz");
        assert_eq!(foreign.shortened(&foreign), None);
        for changed in [fewer, others, Root::default(), second.clone()] {
            assert_eq!(second.shortened(&changed), None);
            let error = short.clone().with_lists_of(&changed, "it").unwrap_err();
            assert_eq!(error.kind, ErrorKind::Corrupt);
        }
        let mut few = second;
        few.pages.truncate(2);
        let mut few_there = first;
        few_there.pages.truncate(2);
        assert_eq!(few.shortened(&few_there), None, "it saves little");
    }
}
