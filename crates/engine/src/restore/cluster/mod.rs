//! Restores a PostgreSQL cluster: plans, writes recovery settings, puts `pg_control` in place last.
//!
//! Does not write the files of the cluster; the restore of a tree does. Any other backup needs no
//! step of this room.

pub(crate) mod archived_wal;
pub(crate) mod choose_backup;
pub(crate) mod config;
pub(crate) mod new_forks;
pub(crate) mod refusals;
pub(crate) mod tablespace_owner;
mod way_to_target;

use super::Restore;
use crate::{report::damage::Report, wal::read_segment};
use archived_wal::ArchivedWal;
use choose_backup::ClusterBackups;
use config::Configuration;
use fullbore_format::{
    entry::{self, Entry, EntryKind, Owner, Time},
    error::{Error, ErrorKind, Result, quoted},
    root::ClusterInfo,
    sizes,
    text::counted,
};
use fullbore_platform::{dir::real_path, owner::OwnerNames};
use fullbore_postgres::{
    inventory,
    layout::PREPARED,
    relation,
    restore::{
        advice, conf,
        plan::{AUTO_CONF, ClusterOptions, ClusterPlan, Fate, PG_CONTROL},
        recovery::RecoveryFacts,
        tablespaces,
    },
};
use fullbore_repository::archive::small_file::small_file;
use fullbore_repository::{
    archive::{Archive, Selection},
    open::place,
    wal::WalArchive,
};
use fullbore_tree::write::{
    final_file::{FinalPlaced, UNFINISHED},
    layout::TargetLayout,
    tree::TargetTree,
    writer::TargetWriter,
};
use jiff::Timestamp;
use refusals::{refuse_target, refuse_used_tablespaces};
use std::{
    collections::BTreeSet,
    fs::Metadata,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    sync::Arc,
    time::{SystemTime, UNIX_EPOCH},
};

/// Whether a tablespace may be a directory in `pg_tblspc`, and the first version that has it.
const IN_PLACE: &str = "allow_in_place_tablespaces";
const IN_PLACE_SINCE: u32 = 15;
/// The first version that has `recovery_init_sync_method`.
const SYNCFS_SINCE: u32 = 14;
const WITHOUT_LABEL: &str = "\"global/pg_control\" is left out: a server that starts \
    without \"backup_label\" corrupts its data";

/// Checks that the options have no part that is only for clusters.
///
/// # Errors
/// [`ErrorKind::Usage`] if they have.
pub(crate) fn check_not_postgres(restore: &Restore) -> Result<()> {
    if restore.postgres == ClusterOptions::default() {
        return Ok(());
    }
    if restore.from == "-" {
        let what = "cannot use PostgreSQL options with a stream";
        return Err(Error::new(ErrorKind::Usage, what)
            .hint("write it to a file first: the facts about the cluster are at its end"));
    }
    let what = format!(
        "cannot use PostgreSQL options with {:?}: it is not a backup of a cluster",
        restore.from
    );
    Err(Error::new(ErrorKind::Usage, what)
        .hint("leave out the options that `fullbore restore --help` lists under PostgreSQL"))
}

/// Makes the plan, and refuses all that can be refused before anything is written.
///
/// # Errors
/// [`ErrorKind::Usage`] for invalid options, [`ErrorKind::Exists`] if the target has a cluster.
pub(crate) fn plan(
    restore: &Restore,
    archive: &Archive,
    selection: &Selection,
) -> Result<ClusterPlan> {
    let Some(cluster) = &archive.root.postgres else {
        return check_not_postgres(restore).map(|()| ClusterPlan::default());
    };
    refuse_target(restore, selection)?;
    let is_whole = selection.holds(PG_CONTROL);
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
    plan.notes.push(archived.note);
    Ok(plan)
}

/// Writes the WAL that a cluster needs to be consistent, if its backup left it to the archive.
///
/// # Errors
/// The storage's, or the system's; [`ErrorKind::Corrupt`] for damage.
pub(crate) fn write_archived_wal(
    restore: &Restore,
    plan: &ClusterPlan,
    archive: &Archive,
    tree: &Arc<TargetTree>,
) -> Result<()> {
    let (Some(cluster), false) = (&archive.root.postgres, plan.archived_segments.is_empty()) else {
        return Ok(());
    };
    let (location, _) = place(&restore.from)?;
    let objects = restore.storages.objects(&location)?;
    let wal = WalArchive::new(objects, &cluster.system_identifier)
        .preferring(restore.postgres.recovery.wal_from.clone());
    let mut writer = TargetWriter::new(tree);
    let root = archive.find(b"")?;
    let owner = root.first().map(|item| item.entry.owner.clone());
    let owner = owner.unwrap_or_default();
    for segment in &plan.archived_segments {
        let content = read_segment(&wal, *segment)?;
        let path = format!("pg_wal/{segment}");
        write_text(&mut writer, new_entry(path.as_bytes(), &owner), &content)?;
    }
    Ok(())
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
    let below = Selection::new(&[PREPARED])?;
    // Unreadable files are reported by the restore itself.
    let files = archive
        .records(&below, false)
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
    let is_own = |path: &[u8]| {
        path.strip_prefix(b"pg_tblspc/")
            .and_then(relation::number)
            .is_some()
    };
    let is_linked = |path: &[u8]| cluster.tablespaces.iter().any(|space| space.path() == path);
    let below = Selection::new(&[b"pg_tblspc"])?;
    // Unreadable pages are reported by the restore itself.
    let directories = archive
        .records(&below, false)
        .flatten()
        .filter(|item| item.entry.kind == EntryKind::Directory);
    Ok(directories
        .map(|item| item.entry.path.clone())
        .find(|path| is_own(path) && !is_linked(path)))
}

/// Returns the places of all files, with the bytes for each place.
pub(crate) fn layout(
    restore: &Restore,
    archive: &Archive,
    selection: &Selection,
    plan: &ClusterPlan,
) -> TargetLayout {
    let totals = &archive.root.totals;
    let mut layout = TargetLayout {
        mounts: plan.mounts.clone(),
        hint: tablespaces::HINT,
        last: plan.last.clone(),
        ..TargetLayout::plain(&restore.to)
    };
    if !selection.paths().is_empty() {
        return layout;
    }
    if plan.mounts.is_empty() && plan.restores_all_databases() {
        // `bytes` includes holes; the sum includes headers and the bytes kept in other backups.
        // Each is at least the bytes to be written.
        layout.bytes = totals
            .bytes
            .min(totals.plain_bytes.saturating_add(totals.kept_bytes));
        return layout;
    }
    // Unreadable pages are reported by the restore itself.
    for item in archive
        .records(selection, false)
        .flatten()
        .filter(|item| item.from == 0)
    {
        let path = &item.entry.path;
        let mount = layout
            .mounts
            .iter_mut()
            .find(|mount| entry::is_within(path, &mount.at));
        if plan.fate(path) != Fate::Restored {
            continue;
        }
        let bytes = mount.map_or(&mut layout.bytes, |mount| &mut mount.bytes);
        sizes::add(bytes, item.entry.data_len());
    }
    layout
}

/// Writes the settings and the signal file of a recovery.
///
/// # Errors
/// The system's, with the path; [`ErrorKind::Corrupt`] if the backup's settings are damaged.
pub(crate) fn write_files(
    plan: &ClusterPlan,
    archive: &Archive,
    tree: &Arc<TargetTree>,
    report: &Report,
) -> Result<()> {
    if !plan.recovery.changes_settings() {
        return Ok(());
    }
    let mut writer = TargetWriter::new(tree);
    let root = archive.find(b"")?;
    let owner = root.first().map(|item| item.entry.owner.clone());
    let owner = owner.unwrap_or_default();
    let old = match small_file(archive, AUTO_CONF) {
        Err(error) if error.kind == ErrorKind::Corrupt => {
            report.add((error, vec![AUTO_CONF.to_vec()]))?;
            None
        }
        other => other?,
    };
    let (entry, old) = old.unwrap_or_else(|| (new_entry(AUTO_CONF, &owner), Vec::new()));
    let text = conf::amend(&old, &plan.recovery.settings, &archive.root.id);
    write_text(&mut writer, entry, &text)?;
    if let Some(path) = plan.recovery.signal {
        write_text(&mut writer, new_entry(path, &owner), b"")?;
    }
    Ok(())
}

/// Returns the entry of a file that only its owner may read and write.
fn new_entry(path: &[u8], owner: &Owner) -> Entry {
    Entry {
        path: path.to_vec(),
        mode: 0o600,
        owner: owner.clone(),
        ..Entry::default()
    }
}

/// Writes `text` as the content of `entry`, with the current time.
fn write_text(writer: &mut TargetWriter, entry: Entry, text: &[u8]) -> Result<()> {
    let kind = EntryKind::File {
        size: text.len() as u64,
        map: None,
    };
    let mtime = now();
    writer.file(
        &Entry {
            kind,
            mtime,
            ..entry
        },
        text,
    )
}

fn now() -> Time {
    let since = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    Time {
        seconds: since.as_secs() as i64,
        nanos: since.subsec_nanos(),
    }
}

/// Notes and steps for the operator, shown at the end.
#[derive(Debug, Default)]
pub(crate) struct ClosingNotes {
    pub(crate) notes: Vec<String>,
    pub(crate) next: Vec<String>,
    /// Number of the first steps that are needed before a server starts.
    pub(crate) needed: usize,
    /// True if `pg_control` keeps its temporary name.
    pub(crate) is_kept: bool,
}

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
pub(crate) fn finish(
    restore: &Restore,
    plan: &ClusterPlan,
    archive: &Archive,
    tree: &TargetTree,
    is_whole: bool,
) -> Result<ClosingNotes> {
    let Some(cluster) = &archive.root.postgres else {
        return Ok(ClosingNotes::default());
    };
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
    let step = |dir: &PathBuf| {
        format!(
            "let user {user:?} into {dir:?} (chmod o+x): without that the server does not start"
        )
    };
    closed.iter().map(step).collect()
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
/// only at the end is it known to be one.
pub(crate) fn stream_notes(cluster: &ClusterInfo, data: &Path) -> ClosingNotes {
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
