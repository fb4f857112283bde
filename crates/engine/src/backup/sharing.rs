//! Whether a backup refers to content of other sources.

use super::{Backup, Subject, source::OpenedSubject};
use fullbore_format::{
    digest::Algorithm,
    error::{Error, ErrorKind, Result},
};
use fullbore_pipeline::sink::Destination;
use fullbore_platform as platform;
use fullbore_repository::{
    first_look::FirstLook,
    shared_content::{OtherSources, SharedContent},
};
use std::sync::Arc;

/// Whose content a backup refers to, besides that of its base.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Dedup {
    /// That of all sources which this process may read and refer to.
    #[default]
    Allowed,
    /// That of all sources of the repository. If that is impossible, the backup fails.
    Repository,
    /// That of no other source.
    Source,
}

/// The share of the memory, as a divisor, that lists, pages and frames of other sources have.
const MEMORY_SHARE: u64 = 4;

impl Backup {
    /// Refuses options that rule out what was asked for.
    ///
    /// # Errors
    /// [`ErrorKind::Usage`].
    pub(super) fn check_dedup(&self) -> Result<()> {
        let why = self.obstacle().or_else(|| self.lack_of_key());
        let Some(why) = why.filter(|_| self.dedup == Dedup::Repository) else {
            return Ok(());
        };
        let message = "cannot share content with other sources";
        Err(Error::new(ErrorKind::Usage, message)
            .because(why)
            .hint("leave out --dedup"))
    }

    /// Returns why this backup stores all its content itself, if it does.
    fn obstacle(&self) -> Option<&'static str> {
        match &self.subject {
            _ if self.to.storage().is_none() => Some("only backups in a repository can"),
            _ if !self.also.is_empty() => Some("the backup goes to several repositories"),
            _ if self.base.full => Some("a full backup stores everything"),
            _ if self.digest != Algorithm::Blake3 => {
                Some("only BLAKE3 shows that content is equal")
            }
            Subject::Files(_) | Subject::Far(_) => None,
            _ => Some("only trees of files can"),
        }
    }

    /// Returns why this host cannot see that content of other sources is equal, if it has a key that only adds backups.
    fn lack_of_key(&self) -> Option<&'static str> {
        let sealed = self.to.storage()?.as_sealed()?;
        let is_put_key = sealed.ring().is_some() && !sealed.reads();
        is_put_key.then_some("the key can add backups only, and reads none of other sources")
    }

    /// Returns the bytes that content of other sources takes; `None` if the run would not fit into the rest.
    pub(super) fn sharing_bytes(&self, streams: usize) -> Option<u64> {
        let bytes = self.tuning.memory_bytes / MEMORY_SHARE;
        let rest = self.tuning.less(bytes);
        rest.depths(streams).is_ok().then_some(bytes)
    }

    /// Finds content of other sources, and names their backups in the intent of the new one.
    ///
    /// # Errors
    /// Those of the destination. Only if it was asked for: [`ErrorKind::Permission`] if this host may not refer to other sources.
    pub(super) fn find_shared(
        &self,
        destination: &mut dyn Destination,
        subject: &OpenedSubject,
        (look, has_base): (&FirstLook, bool),
    ) -> Result<Option<Arc<SharedContent>>> {
        let is_wanted = self.dedup != Dedup::Source && self.obstacle().is_none();
        let bytes = self.sharing_bytes(subject.sources.len());
        let Some(((objects, bytes), true)) = self.to.storage().zip(bytes).zip(Some(is_wanted))
        else {
            return Ok(None);
        };
        self.with_facts(subject, |like| {
            let mut others =
                OtherSources::choose(objects, &look.files, like, (&subject.id, has_base), bytes);
            loop {
                if others.is_empty() {
                    return Ok(None);
                }
                match destination.announce_bases(&others.ids()) {
                    Ok(referred) => return Ok(others.announced(referred, like).map(Arc::new)),
                    Err(error) if self.is_not_allowed(&error) => {
                        platform::debug(|| error.line());
                        let count = others.ids().len();
                        others = others.of_host_only();
                        if others.ids().len() == count {
                            return Ok(None);
                        }
                    }
                    Err(error) => return Err(error),
                }
            }
        })
    }

    /// Returns whether a server lets this host refer to its own backups only.
    fn is_not_allowed(&self, error: &Error) -> bool {
        error.kind == ErrorKind::Permission && self.dedup == Dedup::Allowed
    }
}
