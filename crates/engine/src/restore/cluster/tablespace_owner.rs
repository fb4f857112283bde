//! Checks the owner of tablespace directories that only the backup names.
//!
//! The backup names the location and the owner of a tablespace. With a forged backup, root would
//! give that owner any directory, for example a system directory behind a link. So root accepts a
//! location from the backup only if the directory already belongs to the tablespace's owner, and
//! never a directory of root. Locations that the operator names are not checked. See also
//! [`TargetMount::holder`].

use crate::restore::request::Restore;
use fullbore_format::{
    entry::Owner,
    error::{Error, ErrorKind, Result, quoted},
    root::{ClusterInfo, Tablespace},
};
use fullbore_platform as platform;
use fullbore_platform::owner::OwnerNames;
use fullbore_postgres::restore::{plan::ClusterPlan, tablespaces};
use fullbore_repository::archive::Archive;
use fullbore_tree::write::layout::{TargetMount, deepest_owner, is_trusted_owner};

/// Checks each tablespace that is restored to its original location, and records its owner as the
/// only permitted holder.
///
/// # Errors
/// [`ErrorKind::Permission`] if the directory belongs to another user or to root.
pub(crate) fn refuse_foreign(
    restore: &Restore,
    archive: &Archive,
    cluster: &ClusterInfo,
    plan: &mut ClusterPlan,
) -> Result<()> {
    // The system itself keeps other users from directories that are not theirs.
    if platform::user().0 != 0 {
        return Ok(());
    }
    for tablespace in cluster
        .tablespaces
        .iter()
        .filter(|space| tablespaces::keeps_location(&restore.postgres, space))
    {
        let path = tablespace.path();
        let Some(mount) = plan.mounts.iter_mut().find(|mount| mount.at == path) else {
            continue;
        };
        let owner = archive
            .find(&path)?
            .first()
            .map(|item| item.entry.owner.clone())
            .unwrap_or_default();
        // As the restore itself: by name, or by number if this host has no such user.
        let here = if restore.numeric_owner {
            None
        } else {
            OwnerNames::default().uid(&owner.user)
        };
        let uid = here.unwrap_or(owner.uid);
        check_holder(mount, tablespace, uid, &owner)?;
        mount.holder = Some(uid);
    }
    Ok(())
}

/// Fails unless the directory of the mount belongs to user `uid`.
fn check_holder(
    mount: &TargetMount,
    tablespace: &Tablespace,
    uid: u32,
    owner: &Owner,
) -> Result<()> {
    let name = quoted(&tablespace.name.0);
    let directory = &mount.directory;
    let message = format!("cannot restore tablespace {name} to {directory:?}");
    let (there, holder) = deepest_owner(directory).map_err(|e| Error::io(&*message, e))?;
    if is_trusted_owner(holder, uid) {
        return Ok(());
    }
    let (whose, hint) = if there == directory {
        let whose = format!("it belongs to user {holder}");
        (whose, tablespaces::HINT.to_owned())
    } else {
        let user = if owner.user.is_empty() {
            uid.to_string()
        } else {
            owner.user.to_string()
        };
        let whose = format!("it is not there, and {there:?} belongs to user {holder}");
        let hint = format!(
            "`install -d -o {user} -m 700 {directory:?}` makes it; {}",
            tablespaces::HINT
        );
        (whose, hint)
    };
    let why = "root uses a directory that only the backup names if the owner of the tablespace \
        has it already, and none of root's own";
    Err(
        Error::new(ErrorKind::Permission, format!("{message}: {whose}"))
            .because(why)
            .hint(hint),
    )
}
