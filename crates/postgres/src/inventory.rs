//! Writes PostgreSQL's own manifest of a cluster while the files are stored.
//!
//! Every file is listed, under each of its names. WAL and the manifest itself are not listed: the
//! manifest has WAL ranges instead. The manifest format cannot describe links, pipes and devices;
//! their names are kept apart, because `pg_verifybackup` reports them. Memory: the name, size and
//! CRC of each file with several names.

use super::{
    manifest::{Finished, Manifest, WalRange},
    restore::plan::AUTO_CONF,
};
use fullbore_format::{
    entry::{Entry, EntryKind, EntryPath},
    error::{Result, quoted},
    page::Record,
    root::{ClusterInfo, EntryName},
};
use fullbore_pipeline::frame::Scanned;
use fullbore_platform::queue::Locked;
use std::{collections::HashMap, sync::Mutex};

/// Names of links, pipes and devices kept at most: a person reads the list.
pub const MAX_UNLISTED: usize = 1000;
/// Names shown in a message at most.
const NAMED: usize = 10;

/// The manifest under construction. Any thread may add entries; entries of one stream arrive in
/// archive order.
pub(super) struct ManifestInventory(Mutex<InventoryState>);

struct InventoryState {
    /// `None` once the manifest is finished.
    manifest: Option<Manifest>,
    /// Files with several names, by first name. The facts are filled in once the file is stored.
    firsts: HashMap<EntryPath, Option<FileFacts>>,
    unlisted: Vec<EntryName>,
}

/// Facts about a file that the manifest records beside its name.
#[derive(Clone, Copy)]
struct FileFacts {
    size: u64,
    mtime_seconds: i64,
    crc32c: Option<u32>,
}

impl ManifestInventory {
    /// Begins the manifest of a cluster of major version `major`.
    ///
    /// # Errors
    /// The system's, if the temporary file cannot be made.
    pub(super) fn new(major: u32, system_identifier: u64) -> Result<Self> {
        let manifest = Some(Manifest::new(major, system_identifier)?);
        Ok(Self(Mutex::new(InventoryState {
            manifest,
            firsts: HashMap::new(),
            unlisted: Vec::new(),
        })))
    }

    /// Registers an entry that the scan has met: it may be the first name of a file, and later
    /// names will be links to it.
    pub(super) fn register(&self, scanned: &Scanned) {
        if scanned.is_first {
            self.0
                .locked()
                .firsts
                .insert(scanned.entry.path.clone(), None);
        }
    }

    /// Lists an entry that is complete in the backup.
    ///
    /// # Errors
    /// The system's, if the temporary file cannot be written.
    pub(super) fn list_stored(&self, record: &Record, crc32c: Option<u32>) -> Result<()> {
        if record.state.is_stored() {
            self.0.locked().list_stored(record, crc32c)
        } else {
            Ok(())
        }
    }

    /// Lists a file that fullbore makes for the backup.
    ///
    /// # Errors
    /// The system's, if the temporary file cannot be written.
    pub(super) fn list_made(
        &self,
        path: &[u8],
        size: u64,
        mtime_seconds: i64,
        crc32c: u32,
    ) -> Result<()> {
        self.0.locked().list(
            path,
            FileFacts {
                size,
                mtime_seconds,
                crc32c: Some(crc32c),
            },
        )
    }

    /// Ends the manifest after the last file, with the WAL ranges that recovery needs. A file
    /// stored later is not listed.
    ///
    /// # Errors
    /// The system's, if the temporary file cannot be written.
    pub(super) fn finish(&self, wal: &[WalRange]) -> Result<Option<Finished>> {
        let manifest = self.0.locked().manifest.take();
        manifest.map(|manifest| manifest.finish(wal)).transpose()
    }

    /// Names of stored entries that the manifest cannot describe, the first [`MAX_UNLISTED`].
    pub(super) fn unlisted(&self) -> Vec<EntryName> {
        self.0.locked().unlisted.clone()
    }
}

impl InventoryState {
    fn list_stored(&mut self, record: &Record, crc32c: Option<u32>) -> Result<()> {
        let path = &record.entry.path;
        match &record.entry.kind {
            EntryKind::File { size, .. } => {
                let crc32c = if *size == 0 { Some(0) } else { crc32c };
                let facts = FileFacts {
                    size: *size,
                    mtime_seconds: record.entry.mtime.seconds,
                    crc32c,
                };
                // The server's manifest has no links: a further name is listed with size and
                // checksum of the first.
                if let Some(first) = self.firsts.get_mut(path) {
                    *first = Some(facts);
                }
                self.list(path, facts)
            }
            EntryKind::HardLink(first) => {
                let facts = self.firsts.get(first).copied().flatten();
                facts.map_or(Ok(()), |facts| self.list(path, facts))
            }
            _ => {
                if self.unlisted.len() < MAX_UNLISTED && is_unlisted(&record.entry) {
                    self.unlisted.push(EntryName(path.clone()));
                }
                Ok(())
            }
        }
    }

    fn list(&mut self, path: &[u8], facts: FileFacts) -> Result<()> {
        let FileFacts {
            size,
            mtime_seconds,
            crc32c,
        } = facts;
        match &mut self.manifest {
            Some(manifest) if !is_wal(path) => manifest.add(path, size, mtime_seconds, crc32c),
            _ => Ok(()),
        }
    }
}

fn is_wal(path: &[u8]) -> bool {
    path.starts_with(b"pg_wal/")
}

/// Returns whether `pg_verifybackup` will report this entry because the manifest cannot describe
/// it.
pub fn is_unlisted(entry: &Entry) -> bool {
    let is_special = !matches!(
        entry.kind,
        EntryKind::File { .. } | EntryKind::HardLink(_) | EntryKind::Directory
    );
    let is_ignored = entry.path == b"pg_wal" || is_wal(&entry.path) || entry.path == AUTO_CONF;
    is_special && !is_ignored
}

/// Returns a note that names the entries `pg_verifybackup` will report although the restored
/// cluster is intact.
pub fn unlisted_note(cluster: &ClusterInfo) -> Option<String> {
    let names: Vec<_> = cluster
        .unlisted
        .iter()
        .take(NAMED)
        .map(|name| quoted(&name.0))
        .collect();
    let more = if cluster.unlisted.len() > NAMED {
        " and more"
    } else {
        ""
    };
    (!names.is_empty()).then(|| {
        format!(
            "pg_verifybackup will report {}{more}: backup_manifest cannot describe links, pipes and devices (pg_basebackup leaves \
             them out)",
            names.join(", ")
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_note_names_the_first_ten_entries() {
        let with_files = |count: usize| {
            let names = (0..count)
                .map(|n| EntryName(format!("link{n}").into()))
                .collect();
            unlisted_note(&ClusterInfo {
                unlisted: names,
                ..ClusterInfo::default()
            })
        };
        assert_eq!(with_files(0), None);
        assert!(with_files(2).unwrap().starts_with(
            "pg_verifybackup will report \"link0\", \"link1\": backup_manifest cannot"
        ));
        let ten = with_files(10).unwrap();
        assert!(ten.contains("\"link9\":") && !ten.contains("more"), "{ten}");
        assert!(with_files(11).unwrap().contains("\"link9\" and more: "));
    }
}
