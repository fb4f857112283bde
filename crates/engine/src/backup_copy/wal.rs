//! The WAL that copied backups of clusters lead to.

use fullbore_format::{
    error::{ErrorKind, Result},
    root::Root,
};
use fullbore_repository::{
    archive::object::Sealing,
    wal::{CopiedWal, WalArchive, WalNeeds, list_systems},
};
use fullbore_storage::Objects;
use std::{collections::BTreeMap, sync::Arc};

/// WAL that was copied, and warnings.
pub(super) type CopiedWalOf = (CopiedWal, Vec<String>);

/// The clusters whose WAL is copied, each from its oldest copied backup on.
#[derive(Debug, Default)]
pub(super) struct WalCopies {
    /// The oldest backup of each cluster, by system identifier.
    oldest: BTreeMap<String, WalNeeds>,
    /// Clusters of which everything is copied.
    done: Vec<String>,
}

impl WalCopies {
    /// Adds a backup that is copied, or was copied before.
    pub(super) fn add(&mut self, root: &Root) {
        let Some(needs) = WalNeeds::of(root) else {
            return;
        };
        let system = needs.system.clone();
        let oldest = self.oldest.entry(system).or_insert_with(|| needs.clone());
        if needs.id < oldest.id {
            *oldest = needs;
        }
    }

    /// Copies the WAL that a backup needs, and that of earlier backups of its cluster.
    ///
    /// # Errors
    /// Those of both storages, and of damaged WAL that the backup leads to.
    pub(super) fn copy_for(
        &mut self,
        from: &Arc<dyn Objects>,
        to: &Arc<dyn Objects>,
        root: &Root,
    ) -> Result<CopiedWalOf> {
        let Some(own) = WalNeeds::of(root) else {
            return Ok(CopiedWalOf::default());
        };
        if self.done.contains(&own.system) {
            return Ok(CopiedWalOf::default());
        }
        match self.oldest.get(&own.system).cloned() {
            None => copy_wal(from, to, &own),
            Some(oldest) => match copy_wal(from, to, &oldest) {
                // Damage before this backup does not concern it.
                Err(error) if error.kind == ErrorKind::Corrupt && oldest != own => {
                    copy_wal(from, to, &own)
                }
                copied => {
                    let copied = copied?;
                    self.done.push(own.system);
                    Ok(copied)
                }
            },
        }
    }

    /// Copies the WAL of the clusters of which no backup was copied.
    ///
    /// # Errors
    /// Those of both storages, and of damaged WAL.
    pub(super) fn copy_rest(
        &mut self,
        from: &Arc<dyn Objects>,
        to: &Arc<dyn Objects>,
    ) -> Result<CopiedWalOf> {
        let mut all = CopiedWalOf::default();
        for (system, needs) in &self.oldest {
            if self.done.contains(system) {
                continue;
            }
            let (copied, warnings) = copy_wal(from, to, needs)?;
            add(&mut all.0, &copied);
            all.1.extend(warnings);
        }
        Ok(all)
    }
}

/// Adds the numbers of one copy of WAL to those of others.
pub(super) fn add(all: &mut CopiedWal, copied: &CopiedWal) {
    all.objects += copied.objects;
    all.bytes += copied.bytes;
    all.there += copied.there;
}

/// Copies the WAL of the cluster of a backup from its start on, also that of copies of the cluster. Returns warnings, too.
fn copy_wal(
    from: &Arc<dyn Objects>,
    to: &Arc<dyn Objects>,
    needs: &WalNeeds,
) -> Result<CopiedWalOf> {
    let mut all = CopiedWal::default();
    let systems: Vec<String> = list_systems(&**from)?
        .into_keys()
        .filter(|system| identifier_of(system) == needs.system)
        .collect();
    if !systems.is_empty() && Sealing::of(&**from) == Sealing::Locked {
        let warning = "the archived WAL of the cluster is not copied: it takes a key that reads this repository (--key FILE)";
        return Ok((all, vec![warning.to_owned()]));
    }
    for system in systems {
        let archive = WalArchive::new(from.clone(), &system);
        let copied = archive.copy_to(&WalArchive::new(to.clone(), &system), needs)?;
        add(&mut all, &copied);
    }
    Ok((all, Vec::new()))
}

/// Returns the identifier of a cluster from the name of its WAL, which may name a copy behind a dot.
fn identifier_of(system: &str) -> &str {
    system.split('.').next().unwrap_or_default()
}
