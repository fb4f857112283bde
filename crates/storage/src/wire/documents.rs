//! How many bytes an object may have that is held as a whole: one of a put, and one of a get.
//!
//! 32 MiB are enough for the root of a backup of 16 TiB. A larger root is possible only where the data is that it describes: its size
//! follows from the bytes that the session or the repository has stored, and from the root of the base.

use crate::Objects;
use fullbore_format::{
    error::{Error, Result},
    layout::BACKUPS,
    root::root_limit,
};
use std::sync::atomic::{
    AtomicU64,
    Ordering::{AcqRel, Acquire},
};

/// Bytes that every object may have.
const FREE_BYTES: u64 = 32 << 20;

/// The objects of a session that are held as a whole.
#[derive(Debug, Default)]
pub(super) struct WholeObjects {
    /// Bytes of uploads of this session.
    uploaded: AtomicU64,
    /// Bytes of the largest object that the other side was given.
    largest: AtomicU64,
}

impl WholeObjects {
    pub(super) fn note_uploaded(&self, bytes: usize) {
        self.uploaded.fetch_add(bytes as u64, AcqRel);
    }

    /// Returns the bytes that an object may have which the other side puts.
    pub(super) fn put_limit(&self) -> u64 {
        let base = self.largest.load(Acquire);
        root_limit(self.uploaded.load(Acquire), base.max(FREE_BYTES))
    }

    /// Checks the size of an object before it is read.
    ///
    /// # Errors
    /// [`ErrorKind::Corrupt`](fullbore_format::error::ErrorKind::Corrupt) if it has more bytes than the data of the repository explains;
    /// those of the storage.
    pub(super) fn check_read(&self, objects: &dyn Objects, key: &str, bytes: u64) -> Result<()> {
        if bytes > FREE_BYTES {
            let listed = objects.list(BACKUPS)?;
            let stored = listed.iter().map(|object| object.bytes).sum();
            let most = root_limit(stored, FREE_BYTES);
            if bytes > most {
                let message = format!("cannot read {} at once", objects.describe(key));
                let why = format!("it has {bytes} bytes, and may have {most}");
                return Err(Error::corrupt(message).because(why));
            }
        }
        self.largest.fetch_max(bytes, AcqRel);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{MemoryObjects, PutIf};

    #[test]
    fn what_a_session_has_stored_and_read_is_what_it_may_put() {
        let whole = WholeObjects::default();
        assert_eq!(whole.put_limit(), FREE_BYTES);
        whole.note_uploaded(1 << 30);
        assert_eq!(whole.put_limit(), FREE_BYTES + (1 << 18));
        let objects = MemoryObjects::new();
        whole.check_read(&objects, "a", FREE_BYTES).unwrap();
        assert_eq!(whole.put_limit(), FREE_BYTES + (1 << 18));
        whole.check_read(&objects, "a", FREE_BYTES + 1).unwrap_err();
        assert_eq!(whole.put_limit(), FREE_BYTES + (1 << 18));
        let segment = vec![0; 1 << 20];
        let put = objects.put("backups/x/s01-000001.tar.zst", &segment, &PutIf::Absent);
        put.unwrap();
        whole.check_read(&objects, "a", FREE_BYTES + 256).unwrap();
        whole
            .check_read(&objects, "a", FREE_BYTES + 257)
            .unwrap_err();
        assert_eq!(whole.put_limit(), FREE_BYTES + 256 + (1 << 18));
    }
}
