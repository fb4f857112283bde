//! Lists of contents that are missing, made anew from the pages.

use super::roots::key;
use crate::archive::Archive;
use fullbore_format::{
    content_list::{MAGIC, encode_page},
    error::Result,
    layout::CONTENTS,
};
use fullbore_platform as platform;
use fullbore_storage::Objects;
use std::collections::BTreeMap;

/// The list of the contents in the pages of a backup.
pub struct MissingList {
    pub backup: String,
    list: Vec<u8>,
}

/// Returns the lists that are missing, or that begin wrongly, of backups whose pages these archives have. In a repository without any
/// list none is missing.
///
/// # Errors
/// The storage's.
pub fn missing_lists(objects: &dyn Objects, archives: &[Archive]) -> Result<Vec<MissingList>> {
    let mut owners: BTreeMap<&str, BTreeMap<u64, (usize, usize)>> = BTreeMap::new();
    for (number, archive) in archives.iter().enumerate() {
        let root = &archive.root;
        // No backup of another source refers to files of a cluster.
        let pages = root.pages.iter().enumerate();
        for (index, page) in pages.filter(|_| root.postgres.is_none()) {
            let owner = if page.backup.is_empty() {
                &root.id
            } else {
                &page.backup
            };
            if let Some(offset) = page.manifest_offset {
                let places = owners.entry(owner).or_default();
                places.entry(offset).or_insert((number, index));
            }
        }
    }
    let mut lacking = Vec::new();
    for (owner, pages) in &owners {
        if !has_list(objects, owner)? {
            lacking.push((*owner, pages));
        }
    }
    if lacking.len() == owners.len() {
        return Ok(Vec::new());
    }
    let lists = lacking.into_iter().map(|(owner, pages)| MissingList {
        backup: owner.to_owned(),
        list: list_of(archives, pages),
    });
    Ok(lists.filter(|list| list.list.len() > MAGIC.len()).collect())
}

fn has_list(objects: &dyn Objects, backup: &str) -> Result<bool> {
    let key = key(backup, CONTENTS);
    let mut begin = Vec::new();
    Ok(match objects.stat(&key)? {
        Some(bytes) if bytes > MAGIC.len() as u64 => {
            objects.read_at(&key, 0, MAGIC.len(), &mut begin).is_ok() && begin == MAGIC
        }
        _ => false,
    })
}

/// Returns the list of these pages: for each offset the number of an archive, and of the page in it. A page that cannot be read is left
/// out.
fn list_of(archives: &[Archive], pages: &BTreeMap<u64, (usize, usize)>) -> Vec<u8> {
    let mut list = MAGIC.to_vec();
    for (offset, (archive, index)) in pages {
        match archives[*archive].page(*index) {
            Ok(page) => list.extend(encode_page(&page, *offset)),
            Err(error) => platform::debug(|| error.line()),
        }
        archives[*archive].let_go();
    }
    list
}

impl MissingList {
    /// Stores the list.
    ///
    /// # Errors
    /// The storage's.
    pub fn write(&self, objects: &dyn Objects) -> Result<()> {
        let mut upload = objects.create(&key(&self.backup, CONTENTS))?;
        upload.append(&self.list)?;
        upload.finish().map(drop)
    }
}
