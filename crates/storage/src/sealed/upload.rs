//! An upload whose bytes are sealed by the thread that appends them.

use super::OpenedObjects;
use crate::{StoredObject, Upload};
use fullbore_crypt::ObjectSealer;
use fullbore_format::error::{Error, ErrorKind, Result};
use std::sync::Arc;

#[derive(Debug)]
pub(super) struct SealedUpload {
    inner: Box<dyn Upload>,
    sealer: ObjectSealer,
    key: String,
    name: String,
    opened: Arc<OpenedObjects>,
    has_failed: bool,
}

impl SealedUpload {
    pub(super) fn new(
        inner: Box<dyn Upload>,
        sealer: ObjectSealer,
        key: &str,
        name: String,
        opened: Arc<OpenedObjects>,
    ) -> Self {
        Self {
            inner,
            sealer,
            key: key.to_owned(),
            name,
            opened,
            has_failed: false,
        }
    }

    fn after_failure(&self) -> Error {
        let message = format!("cannot write {}: an earlier write of it failed", self.name);
        Error::new(ErrorKind::System, message)
    }
}

impl Upload for SealedUpload {
    fn append(&mut self, bytes: &[u8]) -> Result<()> {
        // Sealed bytes that were not taken are lost, and sealing others in their place would use a nonce twice.
        if self.has_failed {
            return Err(self.after_failure());
        }
        let inner = &mut self.inner;
        let appended = self.sealer.append(bytes, |sealed| inner.append(sealed));
        self.has_failed = appended.is_err();
        appended
    }

    fn amend(&mut self, _: u64, _: &[u8]) -> Result<()> {
        let message = format!("cannot amend {}: it is encrypted", self.name);
        Err(Error::new(ErrorKind::Unsupported, message))
    }

    fn finish(mut self: Box<Self>) -> Result<StoredObject> {
        if self.has_failed {
            return Err(self.after_failure());
        }
        let plain_bytes = self.sealer.plain_bytes();
        let rest = self.sealer.finish()?;
        self.inner.append(&rest)?;
        let stored = self.inner.finish();
        self.opened.forget(&self.key);
        Ok(StoredObject {
            bytes: plain_bytes,
            parts: stored?.parts,
        })
    }

    fn abort(self: Box<Self>) {
        self.inner.abort();
    }
}
