//! The lists of a root, of pages and of segments in use, as a page of a manifest.
//!
//! They grow with the backup. So a backup with lists that no other has stores them twice: in its root, and as the last page of its manifest.
//! A backup of a source that did not change has the lists of its base; its root names that page, and leaves them out: it is short. What it
//! names is the page itself, never another root, so no chain is followed.

use super::{Live, PageAt, Root};
use crate::{
    digest::hex,
    error::{Error, ErrorKind, Result},
    json::{elements_of, parse_counted},
    page::{SegmentId, decompressed, packed},
    seal::MAX_BYTES,
};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

/// Bytes of lists that are worth sharing: a small root that stands by itself is worth more.
const LEAST_LISTS_BYTES: usize = 1024;

/// Place and digest of a page with lists, in the manifest of [`Root::lists_of`].
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize, Default)]
pub struct ListsAt {
    /// Bytes before it in the manifest.
    pub offset: u64,
    /// Stored bytes.
    pub bytes: u64,
    /// BLAKE3 of the stored bytes.
    pub digest: String,
}

/// What a root says of its page with lists: equal for all roots that share it.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct ListsName {
    of: String,
    digest: String,
    at: Option<ListsAt>,
}

/// The lists of pages and of segments in use. Each entry names its backup; as in a page of entries, an empty name in a page of lists is the
/// backup that the manifest is of.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Default)]
pub struct Lists {
    /// As [`Root::pages`].
    pub pages: Vec<PageAt>,
    /// As [`Root::liveness`].
    pub liveness: Vec<Live>,
}

impl ListsAt {
    /// Reads the lists from their stored bytes.
    ///
    /// # Errors
    /// [`ErrorKind::Corrupt`] if these are not the bytes that were stored.
    pub fn lists(&self, stored: &[u8]) -> Result<Lists> {
        if hex(blake3::hash(stored).as_bytes()) != self.digest {
            return Err(damaged("its digest is not that in the root"));
        }
        Lists::of_page(stored)
    }
}

fn damaged(why: impl Into<String>) -> Error {
    Error::corrupt("a page of lists is damaged").because(why.into())
}

impl Lists {
    /// Returns the lists of a root.
    pub fn of(root: &Root) -> Self {
        let mut lists = Self {
            pages: root.pages.clone(),
            liveness: root.liveness.clone(),
        };
        lists.rename("", &root.id);
        lists
    }

    fn rename(&mut self, from: &str, to: &str) {
        let pages = self.pages.iter_mut().map(|page| &mut page.backup);
        let live = self.liveness.iter_mut().map(|live| &mut live.backup);
        pages
            .chain(live)
            .filter(|backup| **backup == from)
            .for_each(|backup| to.clone_into(backup));
    }

    /// Returns whether a page of them is worth its place.
    pub fn are_worth_sharing(&self) -> bool {
        serde_json::to_vec(self).is_ok_and(|json| json.len() >= LEAST_LISTS_BYTES)
    }

    /// Returns the digest of what anyone may see of the lists: without paths and digests of pages, as in the clear head of an encrypted root.
    pub fn clear_digest(&self) -> String {
        let mut clear = self.clone();
        for page in &mut clear.pages {
            page.first = Default::default();
            page.digest = String::new();
        }
        let json = serde_json::to_vec(&clear).unwrap_or_default();
        hex(blake3::hash(&json).as_bytes())
    }

    /// Returns the lists as a page of the manifest of this backup.
    ///
    /// # Errors
    /// [`ErrorKind::Bug`].
    pub fn page(&self, backup: &str) -> Result<Vec<u8>> {
        let mut lists = self.clone();
        lists.rename(backup, "");
        let json = serde_json::to_vec(&lists)
            .map_err(|e| Error::new(ErrorKind::Bug, "cannot write JSON").because(e))?;
        packed(&json)
    }

    /// Reads a page of lists.
    ///
    /// # Errors
    /// [`ErrorKind::Corrupt`] if it is not the output of [`Lists::page`].
    pub fn of_page(stored: &[u8]) -> Result<Self> {
        let json =
            decompressed(stored, MAX_BYTES as usize).map_err(|error| damaged(error.line()))?;
        parse_counted(&json, elements_of(json.len())).map_err(damaged)
    }
}

impl Root {
    /// Returns whether the pages and the liveness stand in the page that [`Root::lists_of`] names, and not in the root.
    pub fn is_short(&self) -> bool {
        !self.lists_of.is_empty() && self.pages.is_empty()
    }

    /// Returns what the root says of its page with lists.
    pub fn lists_name(&self) -> ListsName {
        ListsName {
            of: self.lists_of.clone(),
            digest: self.lists_digest.clone(),
            at: self.lists_at.clone(),
        }
    }

    /// Names a page with the lists of this root that is `stored` at this offset of its own manifest.
    pub fn note_own_lists(&mut self, lists: &Lists, offset: u64, stored: &[u8]) {
        let mut lists = lists.clone();
        lists.rename("", &self.id);
        self.lists_of.clone_from(&self.id);
        self.lists_digest = lists.clear_digest();
        self.lists_at = Some(ListsAt {
            offset,
            bytes: stored.len() as u64,
            digest: hex(blake3::hash(stored).as_bytes()),
        });
    }

    /// Names no page with the lists of this root.
    pub fn forget_lists(&mut self) {
        self.lists_of.clear();
        self.lists_digest.clear();
        self.lists_at = None;
    }

    /// As [`Root::forget_lists`], if the page has other lists: the root was changed.
    pub fn forget_stale_lists(&mut self) {
        if Lists::of(self).clear_digest() != self.lists_digest {
            self.forget_lists();
        }
    }

    /// Takes the lists of `base`, and the page that it names, if all pages are the same.
    ///
    /// A backup counts its own segments as in use as a whole; the next one, with the same pages, counts frames. So the liveness is taken
    /// with the pages, if it has all segments.
    pub fn share_lists_of(&mut self, base: &Root) {
        if base.lists_at.is_none() {
            return;
        }
        let (own, lists) = (Lists::of(self), Lists::of(base));
        let there: BTreeSet<SegmentId> = lists.liveness.iter().map(Live::id).collect();
        let has_all = own.liveness.iter().all(|live| there.contains(&live.id()));
        // A repair may have changed the lists of the base since the page was written.
        if own.pages != lists.pages || !has_all || lists.clear_digest() != base.lists_digest {
            return;
        }
        self.liveness = lists.liveness;
        self.lists_of.clone_from(&base.lists_of);
        self.lists_digest.clone_from(&base.lists_digest);
        self.lists_at.clone_from(&base.lists_at);
    }

    /// Returns the root without the lists that a page of another manifest has; `None` if no other has them.
    pub fn shortened(&self) -> Option<Root> {
        let shares = !self.lists_of.is_empty() && self.lists_of != self.id && !self.is_short();
        shares.then(|| Root {
            pages: Vec::new(),
            liveness: Vec::new(),
            ..self.clone()
        })
    }

    /// Completes a short root by these lists. Messages call it `name`.
    ///
    /// # Errors
    /// [`ErrorKind::Corrupt`] if these are not the lists that the root was made with.
    pub fn with_lists(self, mut lists: Lists, name: &str) -> Result<Root> {
        lists.rename("", &self.lists_of);
        if lists.pages.is_empty() || lists.clear_digest() != self.lists_digest {
            return Err(self.without_lists(name));
        }
        lists.rename(&self.id, "");
        let Lists { pages, liveness } = lists;
        let root = Root {
            pages,
            liveness,
            ..self
        };
        root.check_ids(name)?;
        Ok(root)
    }

    /// Returns the error of a short root whose lists are lost.
    pub fn without_lists(&self, name: &str) -> Error {
        Error::corrupt(format!("{name} is damaged")).because(format!(
            "the lists that it shares, in the manifest of backup {:?}, are lost or were changed",
            self.lists_of
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{root::EntryName, seal::seal};

    const FIRST: &str = "20261121T054501Z-k3f9qz";
    const SECOND: &str = "20261122T054501Z-k3f9qz";
    const THIRD: &str = "20261123T054501Z-k3f9qz";

    fn root(id: &str, backup: &str) -> Root {
        let page = |number: u8| PageAt {
            backup: backup.into(),
            stream: 1,
            first: EntryName(vec![b'a' + number]),
            manifest_offset: Some(u64::from(number)),
            bytes: 1,
            digest: hex(&[number; 32]),
            ..PageAt::default()
        };
        let live = Live {
            backup: backup.into(),
            stream: 1,
            number: 1,
            ..Live::default()
        };
        Root {
            format: 1,
            id: id.into(),
            pages: (0..20).map(page).collect(),
            liveness: vec![live],
            ..Root::default()
        }
    }

    /// The first backup, and the bytes of its page of lists.
    fn first() -> (Root, Vec<u8>) {
        let mut first = root(FIRST, "");
        let lists = Lists::of(&first);
        assert!(lists.are_worth_sharing());
        let page = lists.page(FIRST).unwrap();
        first.note_own_lists(&lists, 20, &page);
        (first, page)
    }

    #[test]
    fn a_root_that_shares_lists_is_short_and_comes_back() {
        let (first, page) = first();
        assert!(!first.is_short());
        assert_eq!(first.shortened(), None, "its lists are its own");
        let mut second = root(SECOND, FIRST);
        second.liveness[0].bytes = 7;
        second.share_lists_of(&first);
        let short = second.shortened().unwrap();
        let bytes = seal(&short).unwrap();
        assert_eq!(Root::open(&bytes, "it").unwrap_err().kind, ErrorKind::Bug);
        let stored = Root::open_as_stored(&bytes, "it").unwrap();
        assert!(stored.is_short() && stored.pages.is_empty());
        assert_eq!(stored.referenced_backups(), [FIRST]);
        let back = stored.with_lists(Lists::of_page(&page).unwrap(), "it");
        assert_eq!(back.unwrap(), second);
        // The third names the same page: there is no chain.
        let mut third = root(THIRD, FIRST);
        third.share_lists_of(&second);
        assert_eq!(third.shortened().unwrap().lists_of, FIRST);
    }

    #[test]
    fn lists_that_differ_are_not_shared_and_not_taken() {
        let (first, _) = first();
        let mut second = root(SECOND, FIRST);
        second.share_lists_of(&first);
        let short = second.shortened().unwrap();
        let mut fewer = first.clone();
        fewer.pages.pop();
        let mut elsewhere = first.clone();
        elsewhere.pages[3].manifest_offset = Some(77);
        let mut unmentioned = first.clone();
        unmentioned.liveness.clear();
        let mut like = root(SECOND, FIRST);
        like.share_lists_of(&unmentioned);
        assert_eq!(like.shortened(), None, "a segment would not be kept");
        // A repair that changes a root and forgets to say so.
        for changed in [fewer, elsewhere, unmentioned] {
            let mut like = root(SECOND, FIRST);
            like.pages = Lists::of(&changed).pages;
            like.liveness = Lists::of(&changed).liveness;
            like.share_lists_of(&changed);
            assert_eq!(like.shortened(), None);
            let error = short.clone().with_lists(Lists::of(&changed), "it");
            assert_eq!(error.unwrap_err().kind, ErrorKind::Corrupt);
        }
        let mut other = root(SECOND, FIRST);
        other.pages[3].digest = hex(&[77; 32]);
        other.share_lists_of(&first);
        assert_eq!(other.shortened(), None);
        let nothing = short.with_lists(Lists::default(), "it");
        assert_eq!(nothing.unwrap_err().kind, ErrorKind::Corrupt);
        let mut few = root(FIRST, "");
        few.pages.truncate(2);
        assert!(!Lists::of(&few).are_worth_sharing());
    }

    #[test]
    fn pages_of_lists_and_pages_of_entries_are_told_apart_and_ids_are_checked() {
        let (_, page) = first();
        // The ID of the backup is not among the bytes.
        let lists = Lists::of(&root(SECOND, ""));
        assert_eq!(lists.page(SECOND).unwrap(), page);
        assert!(crate::page::ManifestPage::decode(&page).is_err());
        let entries = crate::page::ManifestPage::default().encode().unwrap();
        assert_eq!(
            Lists::of_page(&entries).unwrap_err().kind,
            ErrorKind::Corrupt
        );
        for len in 0..page.len() {
            assert!(Lists::of_page(&page[..len]).is_err());
        }
        let empty =
            packed(format!("{{\"pages\":[{}],\"liveness\":[]}}", "[],".repeat(9000)).as_bytes());
        assert!(Lists::of_page(&empty.unwrap()).is_err());
        let mut bad = root(SECOND, "../../etc");
        let lists = Lists::of(&bad);
        bad.note_own_lists(&lists, 0, b"");
        bad.lists_of = FIRST.into();
        let short = bad.shortened().unwrap();
        assert_eq!(
            short.with_lists(lists, "it").unwrap_err().kind,
            ErrorKind::Corrupt
        );
    }
}
