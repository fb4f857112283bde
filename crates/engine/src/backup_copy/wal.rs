//! The WAL that a copied backup of a cluster leads to.

use fullbore_format::{error::Result, root::Root};
use fullbore_repository::{
    archive::object::Sealing,
    wal::{CopiedWal, WalArchive, WalNeeds, list_systems},
};
use fullbore_storage::Objects;
use std::sync::Arc;

/// Copies the WAL of the cluster of a backup from its start on, also that of copies of the cluster. Returns warnings, too.
///
/// # Errors
/// Those of both storages, and of damaged WAL.
pub(super) fn copy_wal(
    from: &Arc<dyn Objects>,
    to: &Arc<dyn Objects>,
    root: &Root,
) -> Result<(CopiedWal, Vec<String>)> {
    let mut copied = CopiedWal::default();
    let Some(needs) = WalNeeds::of(root) else {
        return Ok((copied, Vec::new()));
    };
    let systems: Vec<String> = list_systems(&**from)?
        .into_keys()
        .filter(|system| identifier_of(system) == needs.system)
        .collect();
    if !systems.is_empty() && Sealing::of(&**from) == Sealing::Locked {
        let warning = "the archived WAL of the cluster is not copied: it takes a key that reads this repository (--key FILE)";
        return Ok((copied, vec![warning.to_owned()]));
    }
    for system in systems {
        let archive = WalArchive::new(from.clone(), &system);
        let one = archive.copy_to(&WalArchive::new(to.clone(), &system), &needs)?;
        copied.objects += one.objects;
        copied.bytes += one.bytes;
        copied.there += one.there;
    }
    Ok((copied, Vec::new()))
}

/// Returns the identifier of a cluster from the name of its WAL, which may name a copy behind a dot.
fn identifier_of(system: &str) -> &str {
    system.split('.').next().unwrap_or_default()
}
