//! Uploads of a session that adds backups.

use super::{AddedBytes, AppendSession};
use crate::{StoredObject, Upload};
use fullbore_format::error::Result;
use std::sync::{Arc, PoisonError};

/// A segment or manifest of a backup that has no root yet.
#[derive(Debug)]
pub(super) struct AddedUpload {
    /// `None` once it has ended.
    inner: Option<Box<dyn Upload>>,
    session: Arc<AppendSession>,
    key: String,
    id: String,
    bytes: u64,
}

impl AddedUpload {
    pub(super) fn new(session: &Arc<AppendSession>, key: &str, id: &str) -> Result<Self> {
        Ok(Self {
            inner: Some(session.inner.create(key)?),
            session: session.clone(),
            key: key.to_owned(),
            id: id.to_owned(),
            bytes: 0,
        })
    }

    fn end(&mut self, is_finished: bool) {
        let bytes = std::mem::take(&mut self.bytes);
        self.session.settle_upload(bytes, is_finished);
    }
}

impl Upload for AddedUpload {
    fn append(&mut self, bytes: &[u8]) -> Result<()> {
        self.session
            .charge(AddedBytes::Upload(bytes.len() as u64))?;
        self.bytes += bytes.len() as u64;
        match &mut self.inner {
            Some(inner) => inner.append(bytes),
            None => Ok(()),
        }
    }

    fn amend(&mut self, offset: u64, bytes: &[u8]) -> Result<()> {
        match &mut self.inner {
            Some(inner) => inner.amend(offset, bytes),
            None => Ok(()),
        }
    }

    fn finish(mut self: Box<Self>) -> Result<StoredObject> {
        let session = self.session.clone();
        let _no_commit = session
            .commits
            .read()
            .unwrap_or_else(PoisonError::into_inner);
        session.check_open("write", &self.key, &self.id)?;
        let Some(inner) = self.inner.take() else {
            return Err(session.refused("write", &self.key));
        };
        let stored = inner.finish();
        self.end(stored.is_ok());
        stored
    }

    fn abort(mut self: Box<Self>) {
        if let Some(inner) = self.inner.take() {
            inner.abort();
        }
        self.end(false);
    }
}

impl Drop for AddedUpload {
    fn drop(&mut self) {
        self.end(false);
    }
}
