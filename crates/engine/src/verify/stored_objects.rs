//! The check of an encrypted repository without its key: roots, and that all objects are there, as long as they should be.
//!
//! What is in pages and segments is not read, so no file can be named. With `--data`, all stored bytes of segments are compared with the
//! checksums in the roots as well. Manifests have no checksum of stored bytes: only a key finds damage in them.

use super::{RunningCheck, SegmentTables, seek_tables};
use fullbore_format::error::{Error, ErrorKind, Result};
use fullbore_repository::archive::{
    Archive,
    object::{ObjectName, Sealing},
};
use std::collections::BTreeMap;

impl RunningCheck<'_> {
    /// Are the backups encrypted, and was no key given that opens them?
    pub(crate) fn is_locked(&self) -> bool {
        let archives = &self.stock.archives;
        archives
            .iter()
            .any(|archive| archive.store().sealing() == Sealing::Locked)
    }

    /// Segments and manifests, by their lengths. Gives no frames.
    pub(super) fn stored_objects(&self) -> Result<SegmentTables> {
        let mut tables = SegmentTables::default();
        for place in &self.stock.segments {
            let archive = &self.stock.archives[place.archive];
            if let Err(error) = seek_tables::check_length(archive, place) {
                self.bad_segment(place, error, &mut tables)?;
            }
        }
        for archive in &self.stock.archives {
            self.manifests_of(archive)?;
        }
        Ok(tables)
    }

    fn manifests_of(&self, archive: &Archive) -> Result<()> {
        let mut ends: BTreeMap<&str, u64> = BTreeMap::new();
        for page in &archive.root.pages {
            // Without a key no page can be read: only the length shows that some are lacking.
            let end = page
                .manifest_offset
                .map(|offset| offset.saturating_add(page.bytes));
            let needed = ends.entry(&page.backup).or_default();
            *needed = (*needed).max(end.unwrap_or(0));
        }
        if let Some(at) = &archive.root.lists_at {
            let needed = ends.entry(&archive.root.lists_of).or_default();
            *needed = (*needed).max(at.offset.saturating_add(at.bytes));
        }
        for (backup, end) in ends {
            let manifest = ObjectName::Manifest(backup.to_owned());
            let name = archive.store().name(&manifest);
            let why = match archive.store().len(&manifest) {
                Ok(len) if len >= end => continue,
                Ok(len) => format!("it has {len} bytes, the root needs {end}"),
                Err(error) if error.kind == ErrorKind::NotFound => "it is missing".to_owned(),
                Err(error) => return Err(error),
            };
            self.report.mark_damaged_backup(&archive.root.id);
            let error = Error::corrupt(format!("{name} is damaged")).because(why);
            self.report.add((
                error.detail(
                    "with a key, `verify` tells whether its copies in the segments are whole",
                ),
                Vec::new(),
            ))?;
        }
        Ok(())
    }
}
