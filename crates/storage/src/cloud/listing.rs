//! The listing of a prefix: taken up again where it broke, and never without an end.

use super::client::{Failed, Requests, TryError};
use crate::ListedObject;
use fullbore_platform::queue::Locked;
use futures_util::StreamExt;
use object_store::{ObjectMeta, path::Path};
use std::{collections::BTreeMap, sync::Mutex};

/// Memory that one listing may take: some 2.5 million keys.
const MAX_LISTED_BYTES: usize = 512 << 20;

/// Memory that a key takes beside its own bytes.
const LISTED_KEY_BYTES: usize = 144;

/// Entries of one listing at most, ours or not: some minutes of pages.
const MAX_ENTRIES: u64 = 20_000_000;

/// The objects of a listing so far.
#[derive(Default)]
struct FoundObjects {
    objects: BTreeMap<String, ListedObject>,
    /// The key of the store that came last, ours or not.
    last: Option<Path>,
    bytes: usize,
    /// Entries that came, those of others and repeated ones too.
    entries: u64,
}

impl FoundObjects {
    fn take(
        &mut self,
        meta: ObjectMeta,
        of_ours: impl Fn(&ObjectMeta) -> Option<ListedObject>,
    ) -> Result<(), TryError> {
        if let Some(object) = of_ours(&meta) {
            self.bytes += object.key.len() + LISTED_KEY_BYTES;
            self.objects.insert(object.key.clone(), object);
        }
        self.last = Some(meta.location);
        self.entries += 1;
        if self.bytes > MAX_LISTED_BYTES || self.entries > MAX_ENTRIES {
            return Err(TryError::TooMuch("the store lists objects without end"));
        }
        Ok(())
    }
}

impl Requests {
    /// Returns the objects below a prefix that `of_ours` takes, each once, by their keys. A listing that broke goes on behind the last key that
    /// came.
    ///
    /// # Errors
    /// The store's; a listing that takes too much memory.
    pub(super) async fn list<F>(
        &self,
        prefix: Option<&Path>,
        of_ours: F,
    ) -> Result<BTreeMap<String, ListedObject>, Failed>
    where
        F: Fn(&ObjectMeta) -> Option<ListedObject>,
    {
        let found = Mutex::new(FoundObjects::default());
        loop {
            let before = found.locked().last.clone();
            let list = || async {
                let last = found.locked().last.clone();
                let mut stream = match &last {
                    Some(last) => self.store.objects.list_with_offset(prefix, last),
                    None => self.store.objects.list(prefix),
                };
                while let Some(meta) = stream.next().await {
                    found.locked().take(meta?, &of_ours)?;
                }
                Ok(())
            };
            match self.retried("list", 1 << 20, list).await {
                Ok(_) => break,
                Err(failed)
                    if found.locked().last == before || !failed.answer.may_pass(self.service) =>
                {
                    return Err(failed);
                }
                Err(_) => {} // it went on for some pages: the tries begin anew
            }
        }
        Ok(found.into_inner().unwrap_or_default().objects)
    }
}
