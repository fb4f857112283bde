//! The entries of the tree that a copy writes, as they are before it.

use super::attributes::AttributeReader;
use crate::{
    error::Result,
    format::{
        entry::EntryKind,
        page::{EntryState, Record},
    },
    frame::Scanned,
    source::Stream,
};

/// Bytes of the texts of an entry at most; attributes beyond it are left out.
const MAX_TEXT: usize = 512 << 10;

/// The entries of a tree that are not listed yet.
pub(super) struct TreeListing {
    pub(super) scan: Stream<Scanned>,
    /// `None` if the content of all files is compared: their attributes are compared then, too.
    pub(super) attributes: Option<AttributeReader>,
}

impl Iterator for TreeListing {
    type Item = Result<Record>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            let Scanned {
                mut entry, state, ..
            } = match self.scan.next()? {
                Ok(scanned) => scanned,
                Err(error) => return Some(Err(error)),
            };
            if state == EntryState::Vanished {
                continue;
            }
            if let Some(attributes) = self.attributes.as_mut().filter(|_| entry.is_file()) {
                // An error makes the entry differ: then it is written again, which reports it.
                entry.xattrs = attributes.read(&entry.path).unwrap_or_default();
            }
            if let EntryKind::File { map, .. } = &mut entry.kind {
                *map = None;
            }
            if entry.text_bytes() > MAX_TEXT {
                entry.xattrs.clear();
            }
            return Some(Ok(Record::without_content(entry, state)));
        }
    }
}
