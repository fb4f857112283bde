//! `fullbore host remove`: ends the enrolment of a host.

use super::{host::NamedHost, key_change::RepositoryKeys};
use fullbore_crypt::Access;
use fullbore_engine::fleet::{EVERY_TAG, Fleet, NEVER};
use fullbore_format::{
    error::{Error, ErrorKind, Result},
    text::{self, counted},
};
use fullbore_repository::{annotations::Annotations, archive::Archive, select::BackupFilter};
use fullbore_storage::{Location, Objects, Storages};
use jiff::Timestamp;
use std::{io::Write, sync::Arc};

/// The end of an enrolment.
pub(super) struct HostRemove<'a> {
    pub(super) storages: &'a Storages,
    pub(super) host: NamedHost,
}

impl HostRemove<'_> {
    /// Removes the put key, stops to expect backups, and prints what the host can still do.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] if there is neither a key nor a backup of the host; those of removing the key and of writing tags.
    pub(super) fn run(&self, out: &mut dyn Write) -> Result<()> {
        let name = &self.host.name;
        let objects = self.storages.repository_at(&self.host.repository)?;
        let is_sealed = objects.as_sealed().is_some();
        let removed = match is_sealed {
            true => self.remove_key(out)?,
            false => false,
        };
        let backups = self.expect_no_more(&objects)?;
        if !removed && backups == 0 {
            let message = format!("could not find the host {name:?}");
            return Err(Error::new(ErrorKind::NotFound, message)
                .because("there is neither a put key nor a backup with this name"));
        }
        let stay = counted(backups, "backup");
        text::line(
            out,
            &format!("{stay} of {name} stay, and no more are expected"),
        )?;
        self.say_what_is_left(is_sealed, removed, out)
    }

    /// Returns whether there was a put key.
    fn remove_key(&self, out: &mut dyn Write) -> Result<bool> {
        let keys = RepositoryKeys {
            storages: self.storages,
            location: Location::parse(&self.host.repository)?,
        };
        match keys.remove(&self.host.name, Some(Access::Put), out) {
            Ok(()) => Ok(true),
            Err(error) if error.kind == ErrorKind::NotFound => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Tags the newest backup of each source of the host. Returns how many backups there are.
    fn expect_no_more(&self, objects: &Arc<dyn Objects>) -> Result<u64> {
        let fleet = Fleet {
            storages: self.storages.clone(),
            repositories: vec![self.host.repository.clone()],
            filter: BackupFilter::default(),
            every: None,
            now: Timestamp::now(),
        };
        let sources = fleet.look()?.sources.into_iter();
        let mut backups = 0;
        for source in sources.filter(|source| source.source.host == self.host.name) {
            backups += source.backups;
            let notes = Annotations::read(&**objects, &source.newest)?;
            let mut root = Archive::open_backup(objects, &source.newest)?.root;
            notes.apply(&mut root);
            root.tags.insert(EVERY_TAG.to_owned(), NEVER.to_owned());
            let notes = Annotations {
                tags: Some(root.tags),
                ..notes
            };
            notes.write(&**objects, &source.newest)?;
        }
        Ok(backups)
    }

    fn say_what_is_left(&self, is_sealed: bool, removed: bool, out: &mut dyn Write) -> Result<()> {
        let name = &self.host.name;
        text::line(out, "it can still, until you end that too:")?;
        let mut left = Vec::new();
        if removed {
            left.push("make its removed key count again, if it can put back the old list of keys: `fullbore key rotate` ends that".to_owned());
            left.push(format!("add backups to copies that `fullbore sync` made before, which have its key still: `fullbore key remove COPY --name {name}` in each"));
        }
        if !is_sealed {
            left.push(
                "add and read backups as far as its access goes: the repository is not encrypted"
                    .to_owned(),
            );
        }
        left.push(format!(
            "log in by ssh: remove the line with `--host {name}` from authorized_keys"
        ));
        left.push("use its certificate: revoke it (`serve --tls-crl`), or leave it out of `serve --tls-name`. A session that is open goes on".to_owned());
        left.push(
            "change or delete what its credentials of the storage allow: take these back"
                .to_owned(),
        );
        left.iter()
            .try_for_each(|line| text::line(out, &format!("- {line}")))
    }
}
