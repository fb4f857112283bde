//! Intents: the objects by which backups under way announce themselves.
//!
//! A backup holds the lease on its intent from before its first object until after its root. So a
//! process that removes objects knows which backups are alive, and which objects they refer to.

use super::protocol::{Intent, intent_key};
use fullbore_format::{
    error::{Error, ErrorKind, Result},
    layout::REPOSITORY,
    seal::seal,
};
use fullbore_platform as platform;
use fullbore_storage::{Lease, Leased, Objects, SealedObjects, Take};
use std::{sync::Arc, thread, time::Duration};

/// Time between two attempts to take an intent that another process holds. Most processes hold one
/// for a moment, to see whether its backup is dead.
const RETRY: Duration = Duration::from_millis(1);

/// An intent whose lease this process holds. If the value is dropped, another process can take the
/// lease.
#[derive(Debug)]
pub(super) struct HeldIntent {
    objects: Arc<dyn Objects>,
    lease: Box<dyn Lease>,
    intent: Intent,
}

impl HeldIntent {
    /// Announces a new backup of the host `source`.
    ///
    /// # Errors
    /// [`ErrorKind::Exists`] if there is such an intent; errors of the storage.
    pub(super) fn announce(
        objects: &Arc<dyn Objects>,
        source: &str,
        id: &str,
        time: &str,
    ) -> Result<Self> {
        let intent = intent_of(&**objects, source, id, time);
        let key = intent_key(id);
        let leased = objects
            .lease(&key, &seal(&intent)?, Take::New)
            .inspect_err(|_| {
                // The intent may exist in spite of the error: no other backup has this id.
                let _ = objects.delete(std::slice::from_ref(&key)); // the first error is returned
            })?;
        match leased {
            Leased::Ours(lease) => Ok(Self {
                objects: objects.clone(),
                lease,
                intent,
            }),
            _ => {
                let message = format!("could not begin backup {id:?}: another backup has this id");
                Err(Error::new(ErrorKind::Exists, message).hint("run the same command again"))
            }
        }
    }

    /// Announces that backup `id` is copied to this repository. Waits while other processes hold
    /// its intent.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`] if the storage cannot tell whether another holds it; errors of the storage.
    pub(super) fn take(objects: &Arc<dyn Objects>, id: &str, time: &str) -> Result<Self> {
        let intent = intent_of(&**objects, "", id, time);
        let key = intent_key(id);
        let body = seal(&intent)?;
        let mut take = Take::DeadOrNew;
        loop {
            match objects.lease(&key, &body, take)? {
                Leased::Ours(mut lease) => {
                    lease.update(&body)?; // the intent of a dead backup describes that backup
                    return Ok(Self {
                        objects: objects.clone(),
                        lease,
                        intent,
                    });
                }
                Leased::Unknown => take = Take::New,
                Leased::Held if take == Take::New => {
                    let intent = objects.describe(&key);
                    let message = format!("cannot copy backup {id:?}: {intent} exists");
                    return Err(Error::new(ErrorKind::Unsupported, message)
                        .because("the storage has no locks, so the backup may still be running")
                        .hint(format!(
                            "if it is not running, remove {intent} and run the same command again"
                        )));
                }
                Leased::Held | Leased::Absent => thread::sleep(RETRY),
            }
        }
    }

    pub(super) fn id(&self) -> &str {
        &self.intent.id
    }

    /// Adds to the backups that the intent names. After an error it names those that it named before.
    ///
    /// # Errors
    /// [`ErrorKind::Gone`] if the lease was lost; errors of the storage.
    pub(super) fn rely_on(&mut self, bases: &[String]) -> Result<()> {
        let mut intent = self.intent.clone();
        intent.bases.extend_from_slice(bases);
        intent.bases.sort_unstable();
        intent.bases.dedup();
        self.lease.update(&seal(&intent)?)?;
        self.intent = intent;
        Ok(())
    }

    /// Returns whether the lease is certainly still held.
    pub(super) fn is_ours(&self) -> bool {
        self.lease.is_ours()
    }

    /// Refuses to commit a backup whose lease may have been lost.
    ///
    /// # Errors
    /// As [`taken_for_dead`].
    pub(super) fn check(&self) -> Result<()> {
        if self.is_ours() {
            Ok(())
        } else {
            Err(taken_for_dead(&*self.objects, &self.intent.id))
        }
    }

    /// Deletes the intent: the backup is complete, or no object of it is left.
    pub(super) fn withdraw(self) {
        // While the lease is held, so that this never deletes the intent of another holder.
        if self.is_ours()
            && let Err(error) = self.objects.delete(&[intent_key(&self.intent.id)])
        {
            platform::debug(|| error.line());
        }
    }
}

/// The error of a backup that cannot commit, because its process was suspended for longer than its
/// lease, or because its repository is gone with the lease.
pub(super) fn taken_for_dead(objects: &dyn Objects, id: &str) -> Error {
    if !matches!(objects.get(REPOSITORY), Ok(Some(_))) {
        let repository = objects.describe("");
        let message = format!("cannot commit backup {id:?}: {repository} is not there any more");
        return Error::new(ErrorKind::Gone, message)
            .because("its disk was unplugged or unmounted, or it was renamed or removed meanwhile")
            .detail("nothing was committed")
            .hint("is its disk mounted? then run the same command again");
    }
    Error::new(
        ErrorKind::Gone,
        format!("cannot commit backup {id:?}: another process took it for dead"),
    )
    .because(
        "it did not renew its lease in time, so a prune may have removed objects that it refers to",
    )
    .detail("nothing was committed")
    .hint("run the same command again; a host that sleeps during its backup loses it")
}

/// Returns the document by which a change of backup `id` names the other backups that it begins to
/// refer to.
///
/// # Errors
/// [`ErrorKind::Bug`].
pub fn sealed_intent(objects: &dyn Objects, id: &str, bases: &[String]) -> Result<Vec<u8>> {
    let time = jiff::Timestamp::now()
        .strftime("%Y-%m-%dT%H:%M:%SZ")
        .to_string();
    seal(&Intent {
        bases: bases.to_vec(),
        ..intent_of(objects, "", id, &time)
    })
}

/// Who makes a backup. In an encrypted repository intents are clear all the same: the host has a pseudonym there.
fn intent_of(objects: &dyn Objects, source: &str, id: &str, time: &str) -> Intent {
    let host = platform::host_name();
    let (host, boot, source) = match objects.as_sealed().map(SealedObjects::ring) {
        None => (host, platform::boot_id(), source.to_owned()),
        Some(ring) => {
            let pseudonym = ring.map(|ring| ring.pseudonym(host.as_bytes()));
            (pseudonym.unwrap_or_default(), String::new(), String::new())
        }
    };
    Intent {
        id: id.to_owned(),
        host,
        source,
        boot,
        pid: std::process::id(),
        time: time.to_owned(),
        bases: Vec::new(),
    }
}
