//! Whose the directories are that only a backup names.
//!
//! Where a tablespace was is the word of the backup, and root would give whatever is there to whom the backup says: a directory
//! of the system, if somebody put a link to it there. So root takes on that word only what its owner has already, and nothing
//! of its own. What a person names is not asked about. See also [`Mount::holder`].

use crate::{
    archive::Archive,
    error::{Error, ErrorKind, Result, quoted},
    format::{
        entry::Owner,
        root::{ClusterInfo, Tablespace},
    },
    platform::{self, owner::OwnerNames},
    postgres::restore::{plan::ClusterPlan, tablespaces},
    restore::Restore,
    target::layout::{TargetMount, deepest_owner, is_trusted_owner},
};

/// Let each tablespace that goes back to where it was be there only if that is its owner's, and refuse what is not.
///
/// # Errors
/// [`Kind::Permission`] if it is another's, or the system's.
pub(crate) fn refuse_foreign(
    restore: &Restore,
    archive: &Archive,
    cluster: &ClusterInfo,
    plan: &mut ClusterPlan,
) -> Result<()> {
    if platform::user().0 != 0 {
        return Ok(());
    }
    for tablespace in cluster
        .tablespaces
        .iter()
        .filter(|space| tablespaces::is_where_it_was(&restore.postgres, space))
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
        let here = if restore.numeric_owner {
            None
        } else {
            OwnerNames::default().uid(&owner.user)
        };
        let uid = here.unwrap_or(owner.uid);
        must_be_held(mount, tablespace, uid, &owner)?;
        mount.holder = Some(uid);
    }
    Ok(())
}

fn must_be_held(
    mount: &TargetMount,
    tablespace: &Tablespace,
    uid: u32,
    owner: &Owner,
) -> Result<()> {
    let (name, directory) = (quoted(&tablespace.name.0), &mount.directory);
    let what = format!("cannot restore tablespace {name} to {directory:?}");
    let (there, holder) = deepest_owner(directory).map_err(|e| Error::io(&*what, e))?;
    if is_trusted_owner(holder, uid) {
        return Ok(());
    }
    let (whose, hint) = if there == directory {
        (
            format!("it belongs to user {holder}"),
            tablespaces::HINT.to_owned(),
        )
    } else {
        let user = if owner.user.is_empty() {
            uid.to_string()
        } else {
            owner.user.to_string()
        };
        let hint = format!(
            "`install -d -o {user} -m 700 {directory:?}` makes it; {}",
            tablespaces::HINT
        );
        (
            format!("it is not there, and {there:?} belongs to user {holder}"),
            hint,
        )
    };
    let why = "of what only a backup names, root takes what the owner of the tablespace has, and nothing of root's";
    Err(
        Error::new(ErrorKind::Permission, format!("{what}: {whose}"))
            .because(why)
            .hint(hint),
    )
}
