//! A backup as it would be with a root that has not been written yet.

use super::{
    Archive,
    object::{BackupObjects, ObjectName, ObjectReader},
};
use fullbore_format::{error::Result, root::Root, seal::seal};
use fullbore_pipeline::stage::codec::Codec;
use fullbore_storage::Objects;
use std::sync::Arc;

/// Reads a backup with a rebuilt root that has not been written yet.
pub struct PreviewObjects {
    stored: BackupObjects,
    root: Vec<u8>,
    pages: Vec<(u64, Vec<u8>)>,
}

impl PreviewObjects {
    /// Opens the preview.
    ///
    /// # Errors
    /// If the rebuilt pages cannot be read.
    pub fn open(
        objects: &Arc<dyn Objects>,
        root: &Root,
        pages: &[(u64, Vec<u8>)],
    ) -> Result<Archive> {
        let stored = BackupObjects::new(objects, &root.id);
        stored.set_suffix(Codec::named(&root.options.codec)?.suffix());
        Archive::with_store(Box::new(Self {
            stored,
            root: seal(root)?,
            pages: pages.to_vec(),
        }))
    }
}

impl ObjectReader for PreviewObjects {
    fn read_at(
        &self,
        object: &ObjectName,
        offset: u64,
        len: usize,
        out: &mut Vec<u8>,
    ) -> Result<()> {
        let own = match object {
            ObjectName::Root => self.root.get(offset as usize..offset as usize + len),
            ObjectName::Manifest(backup) if backup.is_empty() => self
                .pages
                .iter()
                .find(|(start, page)| *start == offset && page.len() == len)
                .map(|(_, page)| &page[..]),
            _ => None,
        };
        match own {
            Some(bytes) => {
                out.clear();
                out.extend_from_slice(bytes);
                Ok(())
            }
            None => self.stored.read_at(object, offset, len, out),
        }
    }

    fn len(&self, object: &ObjectName) -> Result<u64> {
        if matches!(object, ObjectName::Root) {
            Ok(self.root.len() as u64)
        } else {
            self.stored.len(object)
        }
    }

    fn name(&self, object: &ObjectName) -> String {
        self.stored.name(object)
    }
}
