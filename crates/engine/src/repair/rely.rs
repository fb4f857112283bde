//! The lease on the intent of a backup that is changed.

use fullbore_format::{
    error::Result,
    page::SegmentId,
    root::{BackupOptions, Live, Root},
};
use fullbore_repository::{intent::sealed_intent, protocol};
use fullbore_storage::{Lease, Objects};
use std::collections::{HashMap, HashSet};

/// A lease, whose intent is deleted with it. Without locks, the intent of another process is kept,
/// because a prune must see it.
pub(super) struct IntentLease<'a> {
    pub(super) objects: &'a dyn Objects,
    pub(super) key: String,
    pub(super) is_made: bool,
    pub(super) lease: Option<Box<dyn Lease>>,
}

impl Drop for IntentLease<'_> {
    fn drop(&mut self) {
        if self.lease.is_some() && self.is_made {
            let _ = self.objects.delete(std::slice::from_ref(&self.key)); // the next backup removes it
        }
    }
}

impl IntentLease<'_> {
    /// Names the backups that the new `root` refers to for the first time, and then looks whether
    /// they and these parts of segments are still there: steps 3, 4 and 6 of [`protocol`]. So no
    /// prune beside this removes them. Returns the reason if the repair must wait.
    ///
    /// # Errors
    /// Those of the storage; [`ErrorKind::NotFound`](fullbore_format::error::ErrorKind::NotFound) or
    /// [`ErrorKind::Corrupt`](fullbore_format::error::ErrorKind::Corrupt) if a segment is not there.
    pub(super) fn rely_on(
        &mut self,
        root: &Root,
        bases: &[String],
        reused: &[Live],
    ) -> Result<Option<&'static str>> {
        if bases.is_empty() {
            return Ok(None);
        }
        let Some(lease) = &mut self.lease else {
            return Ok(Some("the storage does not tell whether the backup is used"));
        };
        // Before the look at the bases: a prune that begins later reads the intent and keeps them.
        lease.update(&sealed_intent(self.objects, &root.id, bases)?)?;
        let referred = protocol::refer(self.objects, bases)?;
        let ids: HashSet<SegmentId> = reused.iter().map(Live::id).collect();
        if !referred.gone.is_empty() || !referred.tombstones.is_disjoint(&ids) {
            return Ok(Some("a backup with the content is being forgotten"));
        }
        let options = BackupOptions {
            codec: root.options.codec.clone(),
            ..BackupOptions::default()
        };
        let needed = Root {
            id: root.id.clone(),
            options,
            liveness: reused.to_vec(),
            ..Root::default()
        };
        protocol::check(self.objects, &needed, &HashMap::new())?;
        // After the checks: what they found holds only while the lease is held.
        let is_ours = lease.is_ours();
        Ok((!is_ours).then_some("another process took the lease on the backup"))
    }
}
