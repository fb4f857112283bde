//! The end of the restore of a cluster: its control file, and the steps for the operator.

use super::{IN_PLACE, config};
use crate::restore::{request::Restore, rules::ClosingNotes};
use fullbore_format::{
    entry,
    error::{Result, quoted},
    root::{ClusterInfo, Root},
};
use fullbore_platform::{dir::real_path, owner::OwnerNames};
use fullbore_postgres::{inventory, restore::plan::ClusterPlan};
use fullbore_tree::write::{final_file::FinalPlaced, layout::UNFINISHED, tree::TargetTree};
use std::{collections::BTreeSet, fs::Metadata, os::unix::fs::MetadataExt, path::Path};

/// The first version that has `recovery_init_sync_method`.
const SYNCFS_SINCE: u32 = 14;
const WITHOUT_LABEL: &str = "\"global/pg_control\" is left out: a server that starts \
    without \"backup_label\" corrupts its data";

/// Returns the note that the control file keeps its temporary name.
fn kept_control_note() -> String {
    format!(
        "\"global/pg_control\" is not in place, because files of the cluster are missing, or may \
            be: it is kept as {}; rename it only if you know which are missing",
        quoted(&entry::join(b"global", UNFINISHED))
    )
}

/// Puts `global/pg_control` in place, if the cluster `is_whole` (rule 34). All other files are
/// durable by then.
///
/// # Errors
/// The system's, with the path.
pub(super) fn finish(
    (restore, cluster): (&Restore, &ClusterInfo),
    plan: &ClusterPlan,
    tree: &TargetTree,
    is_whole: bool,
) -> Result<ClosingNotes> {
    let mut notes = plan.notes.clone();
    let mut next = Vec::new();
    let mut needed = 0;
    let placed = tree.place_final_file(is_whole)?;
    let left_out = match placed {
        FinalPlaced::Withheld => Some(WITHOUT_LABEL.to_owned()),
        FinalPlaced::Kept => Some(kept_control_note()),
        FinalPlaced::Done | FinalPlaced::Missing => None,
    };
    notes.extend(left_out);
    if placed == FinalPlaced::Done {
        next.extend(unreachable_parents(restore, plan));
        next.extend(plan.before_start.clone());
        needed = next.len();
        next.push(if config::has_original_config(cluster, &restore.to) {
            "start the server as before: its configuration is where it was".to_owned()
        } else {
            start_command(cluster, &restore.to, plan.in_place)
        });
    }
    next.extend(plan.next.iter().cloned());
    Ok(ClosingNotes {
        notes,
        next,
        needed,
        is_kept: placed == FinalPlaced::Kept,
    })
}

/// Returns the steps that let the cluster's owner into directories above it. Directories that root
/// makes there belong to root.
fn unreachable_parents(restore: &Restore, plan: &ClusterPlan) -> Vec<String> {
    let Ok(owner) = restore.to.metadata() else {
        return Vec::new();
    };
    // Root may enter every directory.
    if owner.uid() == 0 {
        return Vec::new();
    }
    let mounts = plan.mounts.iter().map(|mount| &mount.directory);
    let mut closed = BTreeSet::new();
    for place in std::iter::once(&restore.to).chain(mounts) {
        let Ok(place) = real_path(place) else {
            continue;
        };
        let is_closed = |dir: &&Path| dir.metadata().is_ok_and(|dir| !may_enter(&owner, &dir));
        closed.extend(
            place
                .ancestors()
                .skip(1)
                .filter(is_closed)
                .map(Path::to_owned),
        );
    }
    let name = OwnerNames::default().user(owner.uid());
    let user = if name.is_empty() {
        owner.uid().to_string()
    } else {
        name.to_string()
    };
    closed.iter().map(|dir| entry_step(&user, dir)).collect()
}

fn entry_step(user: &str, dir: &Path) -> String {
    format!("let user {user:?} into {dir:?} (chmod o+x): without that the server does not start")
}

/// Returns whether the owner and group of one file may enter a directory.
fn may_enter(owner: &Metadata, dir: &Metadata) -> bool {
    let bit = if dir.uid() == owner.uid() {
        0o100
    } else if dir.gid() == owner.gid() {
        0o010
    } else {
        0o001
    };
    dir.mode() & bit != 0
}

/// Returns the command that starts the server. All files are durable, so the server need not open
/// and sync each once more (rule 38).
fn start_command(cluster: &ClusterInfo, data: &Path, in_place: bool) -> String {
    let sync = (cluster.major >= SYNCFS_SINCE).then_some("-c recovery_init_sync_method=syncfs");
    let in_place = in_place.then(|| format!("-c {IN_PLACE}=on"));
    let options: Vec<_> = sync
        .map(str::to_owned)
        .into_iter()
        .chain(in_place)
        .collect();
    let options = if options.is_empty() {
        String::new()
    } else {
        format!(" -o \"{}\"", options.join(" "))
    };
    format!("pg_ctl -D {data:?}{options} start")
}

/// Returns the notes for a whole cluster that was restored from a stream, as `tar` restores it:
/// only at the end is it known to be one. There are none for another backup.
pub(crate) fn stream_notes(root: &Root, data: &Path) -> ClosingNotes {
    let Some(cluster) = &root.postgres else {
        return ClosingNotes::default();
    };
    let mut notes: Vec<_> = inventory::unlisted_note(cluster).into_iter().collect();
    if cluster.tablespaces.is_empty() {
        return ClosingNotes {
            notes,
            next: vec![start_command(cluster, data, false)],
            ..ClosingNotes::default()
        };
    }
    let places = cluster
        .tablespaces
        .iter()
        .map(|space| quoted(&space.location.0))
        .collect::<Vec<_>>()
        .join(", ");
    notes.push(format!(
        "WARNING: tablespaces are restored below \"pg_tblspc\", and a server that starts there \
            will write to {places}: \
         move them, and write the new places into \"tablespace_map\"; a restore of a repository \
         or an archive does this"
    ));
    ClosingNotes {
        notes,
        ..ClosingNotes::default()
    }
}
