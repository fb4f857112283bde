//! Restores a PostgreSQL cluster: plans, writes recovery settings, puts `pg_control` in place last.
//!
//! Does not write the files of the cluster; the restore of a tree does. Any other backup needs no
//! step of this room.

pub(crate) mod archived_wal;
pub(crate) mod choose_backup;
mod closing;
mod cluster_rules;
pub(crate) mod config;
pub(crate) mod new_forks;
mod recovery_files;
pub(crate) mod refusals;
pub(crate) mod tablespace_owner;
mod way_to_target;

use super::{
    request::Restore,
    rules::{EntryRules, PlainRules},
};
use archived_wal::ArchivedWal;
use choose_backup::ClusterBackups;
pub(crate) use closing::stream_notes;
use cluster_rules::ClusterRules;
use config::Configuration;
use fullbore_format::{
    entry::EntryKind,
    error::{Error, ErrorKind, Result, quoted},
    root::ClusterInfo,
    text::counted,
};
use fullbore_postgres::{
    inventory,
    layout::PREPARED,
    relation,
    restore::{
        advice,
        plan::{ClusterOptions, ClusterPlan, PG_CONTROL},
        recovery::RecoveryFacts,
    },
};
use fullbore_repository::archive::small_file::small_file;
use fullbore_repository::archive::{Archive, Selection};
use jiff::Timestamp;
use refusals::{refuse_target, refuse_used_tablespaces};

/// Whether a tablespace may be a directory in `pg_tblspc`, and the first version that has it.
const IN_PLACE: &str = "allow_in_place_tablespaces";
const IN_PLACE_SINCE: u32 = 15;
/// Checks that the options have no part that is only for clusters.
///
/// # Errors
/// [`ErrorKind::Usage`] if they have.
pub(crate) fn check_not_postgres(restore: &Restore) -> Result<()> {
    if restore.postgres == ClusterOptions::default() {
        return Ok(());
    }
    if restore.from == "-" {
        let message = "cannot use PostgreSQL options with a stream";
        return Err(Error::new(ErrorKind::Usage, message)
            .hint("write it to a file first: the facts about the cluster are at its end"));
    }
    let message = format!(
        "cannot use PostgreSQL options with {:?}: it is not a backup of a cluster",
        restore.from
    );
    Err(Error::new(ErrorKind::Usage, message)
        .hint("leave out the options that `fullbore restore --help` lists under PostgreSQL"))
}

/// Returns the rules of a restore: those of a cluster, or none. Refuses all that can be refused
/// before anything is written.
///
/// # Errors
/// [`ErrorKind::Usage`] for invalid options, [`ErrorKind::Exists`] if the target has a cluster.
pub(crate) fn rules(
    restore: &Restore,
    archive: &Archive,
    selection: &Selection,
) -> Result<Box<dyn EntryRules>> {
    let Some(cluster) = &archive.root.postgres else {
        check_not_postgres(restore)?;
        return Ok(Box::new(PlainRules));
    };
    let plan = plan(restore, archive, cluster, selection)?;
    let is_whole = selection.holds(PG_CONTROL);
    Ok(Box::new(ClusterRules::new(
        restore, cluster, plan, is_whole,
    )))
}

/// Returns the rules as far as they decide which files are restored.
///
/// # Errors
/// [`ErrorKind::Usage`] for invalid options.
pub(crate) fn rules_of_estimate(
    restore: &Restore,
    archive: &Archive,
) -> Result<Box<dyn EntryRules>> {
    let Some(cluster) = &archive.root.postgres else {
        check_not_postgres(restore)?;
        return Ok(Box::new(PlainRules));
    };
    let known = RecoveryFacts {
        stopped: archive.root.captured_at(),
        is_all: true,
        restore_command: true,
        primary: true,
        ..RecoveryFacts::default()
    };
    let plan = ClusterPlan::new(&restore.postgres, cluster, &known)?;
    Ok(Box::new(ClusterRules::new(restore, cluster, plan, false)))
}

/// Returns what the operator of a restored cluster is told before its files are written; nothing about other trees.
///
/// # Errors
/// Those with which the restore would be refused.
pub(crate) fn preview_notes(
    restore: &Restore,
    archive: &Archive,
    selection: &Selection,
) -> Result<Vec<String>> {
    let Some(cluster) = &archive.root.postgres else {
        return check_not_postgres(restore).map(|()| Vec::new());
    };
    plan(restore, archive, cluster, selection).map(|plan| plan.notes)
}

/// Makes the plan, and refuses all that can be refused before anything is written.
///
/// # Errors
/// [`ErrorKind::Usage`] for invalid options, [`ErrorKind::Exists`] if the target has a cluster.
fn plan(
    restore: &Restore,
    archive: &Archive,
    cluster: &ClusterInfo,
    selection: &Selection,
) -> Result<ClusterPlan> {
    refuse_target(restore, selection)?;
    let is_whole = selection.holds(PG_CONTROL);
    // A target that no WAL can reach is not the fault of the archive.
    let target = &restore.postgres.recovery;
    target.check_target(cluster, archive.root.captured_at())?;
    let conf = Configuration::read(archive, &restore.to)?;
    let backups = if is_whole {
        ClusterBackups::of_cluster(restore, cluster)
    } else {
        None
    };
    let fork = backups
        .as_ref()
        .and_then(|backups| backups.fork(restore, cluster));
    let known = RecoveryFacts {
        fork: fork.as_ref(),
        ..recovery_facts(archive, cluster, &conf)
    };
    let archived = match is_whole {
        true => archived_wal::look(restore, &archive.root, cluster, backups.as_ref())?,
        false => None,
    };
    let mut plan = plan_with(restore, archived, cluster, &known)?;
    plan.mounts.retain(|mount| selection.takes(&mount.at));
    refuse_used_tablespaces(restore, cluster, &plan)?;
    tablespace_owner::refuse_foreign(restore, archive, cluster, &mut plan)?;
    if !is_whole {
        // A control file that is not restored must not be removed from the target.
        plan.last = None;
        // No server will start, so there are no notes about it.
        plan.notes.clear();
        return Ok(plan);
    }
    if !plan.restores_all_databases() {
        leave_out_prepared(archive, &mut plan)?;
    }
    if let Some(backups) = backups {
        if plan.recovery.signal.is_none() {
            plan.notes
                .extend(backups.later_backups_note(&archive.root, cluster));
        }
        let note = backups.other_server_note(restore, &archive.root, cluster);
        plan.notes.extend(note);
        plan.notes
            .extend(backups.choice_note(restore, &archive.root));
    }
    plan.notes.extend(conf.notes(cluster));
    plan.notes.extend(inventory::unlisted_note(cluster));
    plan.before_start.extend(conf.before_start(cluster));
    note_in_place(archive, cluster, &conf, &mut plan)?;
    Ok(plan)
}

/// Makes the plan of a cluster with the WAL that the repository has.
fn plan_with(
    restore: &Restore,
    archived: Option<ArchivedWal>,
    cluster: &ClusterInfo,
    known: &RecoveryFacts<'_>,
) -> Result<ClusterPlan> {
    let Some(archived) = archived else {
        return ClusterPlan::new(&restore.postgres, cluster, known);
    };
    let options = archived.options(&restore.postgres);
    let with_wal = ClusterInfo {
        wal: "included".to_owned(),
        ..cluster.clone()
    };
    let has_all = !archived.segments.is_empty();
    let cluster = if has_all { &with_wal } else { cluster };
    let mut plan = ClusterPlan::new(&options, cluster, known)?;
    plan.archived_segments = archived.segments;
    plan.notes.extend(archived.notes);
    Ok(plan)
}

/// Returns the facts that decide how the server can recover. If the backup lacks part of the
/// configuration, the root's facts count.
fn recovery_facts<'a>(
    archive: &'a Archive,
    cluster: &ClusterInfo,
    conf: &Configuration,
) -> RecoveryFacts<'a> {
    let is_all = conf.is_whole();
    let archives = match conf.value("archive_mode") {
        Some(mode) => advice::turns_archiving_on(&mode),
        None => cluster.archives && !is_all,
    };
    let has_command = conf.value("restore_command").is_some();
    RecoveryFacts {
        stopped: archive.root.captured_at(),
        is_all,
        archives,
        restore_command: has_command || (cluster.has_restore_command && !is_all),
        primary: conf.value("primary_conninfo").is_some(),
        now: Some(Timestamp::now()),
        fork: None,
    }
}

/// Notes that the server needs a setting to recover an in-place tablespace, unless the
/// configuration has it.
fn note_in_place(
    archive: &Archive,
    cluster: &ClusterInfo,
    conf: &Configuration,
    plan: &mut ClusterPlan,
) -> Result<()> {
    let value = conf.value(IN_PLACE);
    if value.is_some_and(|value| value.eq_ignore_ascii_case("on")) {
        return Ok(());
    }
    if let Some(path) = in_place_tablespace(archive, cluster, plan)? {
        plan.in_place = true;
        plan.notes.push(format!(
            "tablespace {} is a directory: a server recovers that only with {IN_PLACE} = on",
            quoted(&path)
        ));
    }
    Ok(())
}

/// Leaves out the transactions prepared in databases that are restored empty, and notes how many.
fn leave_out_prepared(archive: &Archive, plan: &mut ClusterPlan) -> Result<()> {
    let selection = Selection::new(&[PREPARED])?;
    // Unreadable files are reported by the restore itself.
    let files = archive
        .records(&selection, false)
        .flatten()
        .filter(|item| item.entry.kind != EntryKind::Directory);
    let paths: Vec<_> = files.map(|item| item.entry.path.clone()).collect();
    let mut lost = 0;
    for path in paths {
        let content = small_file(archive, &path).ok().flatten();
        let is_lost = content.is_some_and(|(_, content)| plan.leave_out_prepared(&path, &content));
        lost += u64::from(is_lost);
    }
    if lost > 0 {
        plan.notes.push(format!(
            "rolled back in databases that are left out: {}",
            counted(lost, "prepared transaction")
        ));
    }
    Ok(())
}

/// Returns the first in-place tablespace (a directory instead of a link), if the server will
/// recover and no option permits such tablespaces.
fn in_place_tablespace(
    archive: &Archive,
    cluster: &ClusterInfo,
    plan: &ClusterPlan,
) -> Result<Option<Vec<u8>>> {
    let recovers = cluster.online || plan.recovery.signal.is_some();
    let is_told = plan
        .recovery
        .settings
        .iter()
        .any(|(name, _)| name == IN_PLACE);
    if cluster.major < IN_PLACE_SINCE || !recovers || is_told {
        return Ok(None);
    }
    let is_linked = |path: &[u8]| cluster.tablespaces.iter().any(|space| space.path() == path);
    let selection = Selection::new(&[b"pg_tblspc"])?;
    // Unreadable pages are reported by the restore itself.
    let directories = archive
        .records(&selection, false)
        .flatten()
        .filter(|item| item.entry.kind == EntryKind::Directory);
    Ok(directories
        .map(|item| item.entry.path.clone())
        .find(|path| is_tablespace(path) && !is_linked(path)))
}

fn is_tablespace(path: &[u8]) -> bool {
    path.strip_prefix(b"pg_tblspc/")
        .and_then(relation::number)
        .is_some()
}
