//! What the intent of a host may say: it keeps the objects of all backups that it names.

use super::{AnnouncedBackup, AppendSession};
use crate::whole_root;
use fullbore_format::{
    error::{Error, ErrorKind, Result},
    intent::Intent,
    key_kind::max_document_bytes,
    layout::{BACKUPS, INTENTS, PARTIAL, ROOT, is_backup_id},
    root::{Root, RootOwner, is_void},
    seal::{open_sealed, seal},
};
use fullbore_platform::queue::Locked;

/// Backups that an intent names: the latest one, one that was interrupted, and their successors.
const MAX_BASES: usize = 16;

impl AppendSession {
    /// Checks the intent of an announced backup before it is replaced.
    ///
    /// # Errors
    /// As [`AppendSession::check_intent`].
    pub(super) fn check_new_intent(&self, id: &str, body: &[u8]) -> Result<()> {
        let backup = self.added.locked().backups.get(id).cloned();
        let mut backup = backup.unwrap_or_default();
        self.check_intent(id, body, &mut backup)?;
        if let Some(known) = self.added.locked().backups.get_mut(id) {
            known.may_refer_to = backup.may_refer_to;
            known.base_root_bytes = backup.base_root_bytes;
            known.base_lists = backup.base_lists;
        }
        Ok(())
    }

    /// Checks a new intent. An intent keeps the objects of all backups that it names: it may name some of the same host.
    ///
    /// # Errors
    /// [`ErrorKind::Corrupt`] if it is no intent of this backup, [`ErrorKind::Permission`] if it names backups
    /// that it may not name; the storage's.
    pub(super) fn check_intent(
        &self,
        id: &str,
        body: &[u8],
        backup: &mut AnnouncedBackup,
    ) -> Result<()> {
        let name = format!("the intent of backup {id:?}");
        if body.len() as u64 > max_document_bytes(&format!("{INTENTS}/{id}.json")) / 2 {
            return refused_intent("it is too long".to_owned(), &name);
        }
        let intent: Intent = open_sealed(body, &name)?;
        if intent.id != id || intent.bases.len() > MAX_BASES {
            return refused_intent(
                format!("it is not of this backup, or names more than {MAX_BASES} bases"),
                &name,
            );
        }
        self.check_source(&intent.source, backup.is_sealed)?;
        for base in &intent.bases {
            if is_backup_id(base) && !backup.may_refer_to.contains(base) {
                self.note_base(base, backup)?;
            }
        }
        Ok(())
    }

    /// Refuses a backup of another host before it has stored anything; its root is what counts.
    fn check_source(&self, source: &str, is_sealed: bool) -> Result<()> {
        match self.owner(is_sealed)? {
            RootOwner::Host(host) if !source.is_empty() && source != host => {
                let message = format!("cannot add a backup of host {source:?}");
                Err(Error::new(ErrorKind::Permission, message)
                    .because(format!("this host may add backups of {host:?}"))
                    .hint(format!("run the backup with --host {host}")))
            }
            _ => Ok(()),
        }
    }

    fn note_base(&self, base: &str, backup: &mut AnnouncedBackup) -> Result<()> {
        let document = |name: &str| self.inner.get(&format!("{BACKUPS}/{base}/{name}"));
        let stored = match document(ROOT)? {
            None => document(PARTIAL)?,
            root => root,
        };
        // One that is gone has no objects to keep; a void root says the same.
        let Some((bytes, _)) = stored.filter(|(bytes, _)| !is_void(bytes)) else {
            return Ok(());
        };
        let name = format!("the root of backup {base:?}");
        let root = Root::of_backup_as_stored(base, &bytes, &name)?;
        if let RootOwner::Host(host) = self.owner(backup.is_sealed)?
            && root.source.host != host
        {
            let message = format!("cannot take backup {base:?} as the base");
            let source_host = &root.source.host;
            let why =
                format!("it is of host {source_host:?}, and this host may add backups of {host:?}");
            return Err(Error::new(ErrorKind::Permission, message)
                .because(why)
                .hint(format!("run the backup with --host {host}")));
        }
        let is_short = root.is_short();
        let root = whole_root(&*self.inner, root, &name)?;
        let bytes = if is_short { seal(&root)? } else { bytes };
        let others = root.referenced_backups().into_iter().map(str::to_owned);
        backup.may_refer_to.extend(others);
        backup.may_refer_to.insert(base.to_owned());
        backup.base_root_bytes = backup.base_root_bytes.max(bytes.len() as u64);
        backup.base_lists.push(root.lists_name());
        Ok(())
    }
}

fn refused_intent(why: String, name: &str) -> Result<()> {
    let message = format!("cannot store {name}");
    Err(Error::new(ErrorKind::Permission, message).because(why))
}
