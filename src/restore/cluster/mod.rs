//! What a restore does for PostgreSQL besides writing files; for any other backup nothing.

pub(crate) mod choose_backup;
pub(crate) mod config;
pub(crate) mod tablespace_owner;

use super::{Restore, extraneous::extra};
use crate::archive::small_file::small_file;
use crate::{
    archive::{Archive, Selection},
    error::{Error, ErrorKind, Result, quoted},
    format::{
        entry::{self, Entry, EntryKind, Time},
        root::ClusterInfo,
        sizes,
    },
    platform::{self, dir::real_path, owner::OwnerNames},
    postgres::{
        inventory,
        layout::PREPARED,
        relation,
        restore::{
            advice, conf,
            plan::{
                AUTO_CONF, ClusterOptions, ClusterPlan, Fate, PG_CONTROL, PG_WAL, POSTMASTER_PID,
            },
            recovery::RecoveryFacts,
            tablespaces,
        },
        stopped::small_text,
    },
    report::damage::Report,
    target::{
        final_file::{FinalPlaced, UNFINISHED},
        layout::{TargetLayout, TargetMount},
        tree::TargetTree,
        writer::TargetWriter,
    },
    text::counted,
};
use choose_backup::ClusterBackups;
use config::Configuration;
use jiff::Timestamp;
use std::{
    collections::BTreeSet,
    ffi::OsStr,
    io,
    os::unix::{ffi::OsStrExt, fs::MetadataExt},
    path::Path,
    sync::Arc,
    time::{SystemTime, UNIX_EPOCH},
};

/// Whether a tablespace may be a directory in `pg_tblspc`, and the first version that has it.
const IN_PLACE: &str = "allow_in_place_tablespaces";
const IN_PLACE_SINCE: u32 = 15;
/// The first version that has `recovery_init_sync_method`.
const SYNCFS_SINCE: u32 = 14;
const WITHOUT_LABEL: &str = "\"global/pg_control\" is left out: a server that starts without \"backup_label\" corrupts its data";

/// What is for clusters only was not asked of anything else.
///
/// # Errors
/// [`ErrorKind::Usage`] if it was.
pub(crate) fn not_asked(restore: &Restore) -> Result<()> {
    if restore.postgres == ClusterOptions::default() {
        return Ok(());
    }
    if restore.from == "-" {
        let what = "cannot do for a stream what is only for clusters";
        return Err(Error::new(ErrorKind::Usage, what)
            .hint("write it into a file: what is said of the cluster stands at its end"));
    }
    let what = format!(
        "cannot do for {:?} what is only for clusters: it is not a backup of one",
        restore.from
    );
    Err(Error::new(ErrorKind::Usage, what)
        .hint("leave out the options that `fullbore restore --help` has under PostgreSQL"))
}

/// The plan; everything that can be refused before something is written is refused here.
///
/// # Errors
/// [`ErrorKind::Usage`] for what makes no sense, [`ErrorKind::Exists`] if there is a cluster in the target.
pub(crate) fn plan(
    restore: &Restore,
    archive: &Archive,
    selection: &Selection,
) -> Result<ClusterPlan> {
    let Some(cluster) = &archive.root.postgres else {
        return not_asked(restore).map(|()| ClusterPlan::default());
    };
    refuse_live(&restore.to)?;
    if selection.takes(PG_WAL.as_bytes()) {
        refuse_linked_wal(restore)?;
    }
    let is_whole = selection.holds(PG_CONTROL);
    if is_whole && restore.overwrite {
        refuse_another(&restore.to)?;
    }
    if !is_whole {
        refuse_parts(&restore.to, selection)?;
    }
    let conf = Configuration::read(archive, &restore.to)?;
    let kin = if is_whole {
        ClusterBackups::of(restore, cluster)
    } else {
        None
    };
    let fork = kin.as_ref().and_then(|kin| kin.fork(restore, cluster));
    let known = RecoveryFacts {
        stopped: archive.root.captured_at(),
        is_all: conf.is_whole(),
        archives: match conf.value("archive_mode") {
            Some(mode) => advice::archives(&mode),
            None => cluster.archives && !conf.is_whole(),
        },
        restore_command: conf.value("restore_command").is_some()
            || (cluster.has_restore_command && !conf.is_whole()),
        primary: conf.value("primary_conninfo").is_some(),
        now: Some(Timestamp::now()),
        fork: fork.as_ref(),
    };
    let mut plan = ClusterPlan::new(&restore.postgres, cluster, &known)?;
    plan.mounts.retain(|mount| selection.takes(&mount.at));
    refuse_tablespaces_of_another(restore, cluster, &plan)?;
    tablespace_owner::refuse_foreign(restore, archive, cluster, &mut plan)?;
    if is_whole && !plan.is_of_everything() {
        leave_out_prepared(archive, &mut plan)?;
    }
    // One that is not restored must not be taken out of the target either.
    plan.last = plan.last.filter(|_| is_whole);
    if is_whole {
        let stays = plan.recovery.signal.is_none();
        plan.notes.extend(
            kin.iter()
                .filter(|_| stays)
                .filter_map(|kin| kin.note_of_later(&archive.root, cluster)),
        );
        plan.notes.extend(
            kin.iter()
                .filter_map(|kin| kin.note_of_another(restore, &archive.root, cluster)),
        );
        plan.notes
            .extend(kin.and_then(|kin| kin.note(restore, &archive.root)));
        plan.notes.extend(conf.notes(cluster));
        plan.notes.extend(inventory::note(cluster));
        plan.before_start.extend(conf.before_start(cluster));
        let is_told = conf
            .value(IN_PLACE)
            .is_some_and(|value| value.eq_ignore_ascii_case("on"));
        let in_place = if is_told {
            None
        } else {
            in_place(archive, cluster, &plan)?
        };
        plan.in_place = in_place.is_some();
        plan.notes.extend(in_place.map(|path| {
            format!(
                "tablespace {} is a directory: a server recovers that only with {IN_PLACE} = on",
                quoted(&path)
            )
        }));
    } else {
        plan.notes.clear(); // there will be no server to speak of
    }
    Ok(plan)
}

/// Leave out the transactions that were prepared in databases that come back empty, and say how many.
fn leave_out_prepared(archive: &Archive, plan: &mut ClusterPlan) -> Result<()> {
    let below = Selection::new(&[PREPARED])?;
    // What cannot be read is reported by the restore itself.
    let files = archive
        .records(&below, false)
        .flatten()
        .filter(|item| item.entry.kind != EntryKind::Directory);
    let paths: Vec<_> = files.map(|item| item.entry.path.clone()).collect();
    let mut lost = 0;
    for path in paths {
        let content = small_file(archive, &path).ok().flatten();
        lost +=
            u64::from(content.is_some_and(|(_, content)| plan.leave_out_prepared(&path, &content)));
    }
    if lost > 0 {
        plan.notes.push(format!(
            "rolled back in databases that are left out: {}",
            counted(lost, "prepared transaction")
        ));
    }
    Ok(())
}

/// The first tablespace that was made in place, a directory where others have a link, if the server will recover and no option says
/// that such may be there.
fn in_place(
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
    // A page that cannot be read is reported by the restore itself.
    let directories = archive
        .records(&below, false)
        .flatten()
        .filter(|item| item.entry.kind == EntryKind::Directory);
    Ok(directories
        .map(|item| item.entry.path.clone())
        .find(|path| is_own(path) && !is_linked(path)))
}

/// A link to the WAL is followed only to where the operator says: in a copy of a data directory it leads to that of the live one.
fn refuse_linked_wal(restore: &Restore) -> Result<()> {
    let link = restore.to.join(PG_WAL);
    let Some(directory) = std::fs::read_link(&link)
        .ok()
        .filter(|_| restore.postgres.waldir.is_none())
    else {
        return Ok(());
    };
    let what = format!(
        "cannot restore to {:?}: {link:?} is a link to {directory:?}",
        restore.to
    );
    Err(Error::new(ErrorKind::Exists, what).hint(
        "--waldir DIR restores the WAL there; without the link it will be in the data directory",
    ))
}

/// Nor are the links of tablespaces: those that the cluster itself has, where it was, are its own.
fn refuse_tablespaces_of_another(
    restore: &Restore,
    cluster: &ClusterInfo,
    plan: &ClusterPlan,
) -> Result<()> {
    let data = Path::new(OsStr::from_bytes(&cluster.data_directory.0));
    let is_same =
        |a: &Path, b: &Path| matches!((real_path(a), real_path(b)), (Ok(a), Ok(b)) if a == b);
    if is_same(data, &restore.to) {
        return Ok(());
    }
    let untold = cluster
        .tablespaces
        .iter()
        .filter(|space| tablespaces::is_where_it_was(&restore.postgres, space));
    let places =
        untold.filter_map(|space| plan.mounts.iter().find(|mount| mount.at == space.path()));
    let link = |mount: &TargetMount| data.join(OsStr::from_bytes(&mount.at));
    let Some(used) = { places }.find(|mount| is_same(&link(mount), &mount.directory)) else {
        return Ok(());
    };
    let what = format!(
        "cannot restore to {:?} and {:?}: that is a tablespace of {data:?}",
        restore.to, used.directory
    );
    Err(Error::new(ErrorKind::Exists, what).hint(tablespaces::HINT))
}

/// Nobody writes below a server that runs (rule 33).
fn refuse_live(to: &Path) -> Result<()> {
    // Also where its file is gone, as all the others may be.
    if let Some(pid) = platform::process_in(to, "postgres") {
        let what = format!("cannot restore to {to:?}: a server runs there, process {pid}");
        return Err(Error::new(ErrorKind::Exists, what).hint("stop it"));
    }
    let path = to.join(OsStr::from_bytes(POSTMASTER_PID));
    let text = match small_text(&path) {
        Err(e)
            if matches!(
                e.kind(),
                io::ErrorKind::NotFound | io::ErrorKind::NotADirectory
            ) =>
        {
            return Ok(());
        }
        Err(e) => return Err(Error::io(format!("could not read {path:?}"), e)),
        Ok(text) => text,
    };
    // A server in single-user mode writes its number as a negative one.
    let pid = text
        .lines()
        .next()
        .and_then(|line| line.trim().parse::<i32>().ok())
        .map_or(0, i32::saturating_abs);
    if platform::process_is_alive(pid) {
        let what = format!("cannot restore to {to:?}: a server runs there, process {pid}");
        return Err(Error::new(ErrorKind::Exists, what).hint(format!(
            "stop it; if process {pid} is something else, remove {path:?}"
        )));
    }
    // A container has numbers of its own. From outside its processes can be seen, from within none but its own.
    if platform::sees_all_processes() {
        return Ok(());
    }
    let what = format!(
        "cannot restore to {to:?}: a server may run there, process {pid} of another container"
    );
    Err(Error::new(ErrorKind::Exists, what).hint(format!("if none does, remove {path:?}")))
}

/// What a backup does not hold would stay, and a server would take it for its own: the visibility map or the next
/// gigabyte of a table, newer WAL. A restore that was cut off has no `pg_control` and may be done again; see [`refuse_rest`].
fn refuse_another(to: &Path) -> Result<()> {
    if to
        .join(OsStr::from_bytes(PG_CONTROL))
        .symlink_metadata()
        .is_err()
    {
        return Ok(());
    }
    let what = format!(
        "cannot restore to {to:?}: a cluster is there, and what is newer than the backup would stay"
    );
    Err(Error::new(ErrorKind::Exists, what)
        .hint("--delta --delete says what does not belong, and removes it; or choose another --to"))
}

/// Of the files of a cluster none means anything beside those of another moment: only what a person writes may be replaced.
fn refuse_parts(to: &Path, selection: &Selection) -> Result<()> {
    if to
        .join(OsStr::from_bytes(PG_CONTROL))
        .symlink_metadata()
        .is_err()
    {
        return Ok(());
    }
    let Some(path) = selection.paths().iter().find(|path| is_the_servers(path)) else {
        return Ok(());
    };
    let what = format!(
        "cannot restore {} into {to:?}: a cluster is there, whose files are of one moment",
        quoted(path)
    );
    Err(Error::new(ErrorKind::Exists, what)
        .hint("choose another --to, or restore all of it with --delta --delete"))
}

/// Does the server write it?
fn is_the_servers(path: &[u8]) -> bool {
    let first = path.split(|c| *c == b'/').next().unwrap_or_default();
    let own = [
        &b"base"[..],
        b"global",
        b"PG_VERSION",
        b"backup_label",
        b"tablespace_map",
    ];
    own.contains(&first) || first.starts_with(b"pg_") && !first.contains(&b'.')
}

/// Nor may a restore that was cut off have been of another backup, for the same reason. What a dead server left of itself is
/// the next one's business.
///
/// # Errors
/// [`ErrorKind::Exists`] if something is in the target that neither the backup has nor this restore makes; those of [`extra`].
pub(crate) fn refuse_rest(
    restore: &Restore,
    archive: &Archive,
    selection: &Selection,
    plan: &ClusterPlan,
    layout: &TargetLayout,
) -> Result<()> {
    if !restore.overwrite || archive.root.postgres.is_none() || !selection.holds(PG_CONTROL) {
        return Ok(());
    }
    let is_made = |path: &[u8]| {
        entry::split(path).1 == UNFINISHED
            || plan.recovery.signal == Some(path)
            || path == POSTMASTER_PID
    };
    let mut rest = extra(archive, selection, plan, layout, restore.tricks)?.paths;
    rest.retain(|path| !is_made(path));
    let Some(first) = rest.iter().min() else {
        return Ok(());
    };
    let what = format!(
        "cannot restore to {:?}: {} is there, which is not in the backup",
        restore.to,
        quoted(first)
    );
    Err(Error::new(ErrorKind::Exists, what)
        .because("a server would take it for its own")
        .hint("empty the directory and its tablespaces first, or use --delta --delete, which says what it removes"))
}

/// Where everything will be, with the bytes each place gets if everything is restored.
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
    if plan.mounts.is_empty() && plan.is_of_everything() {
        // The first has holes in it, the second headers, and what other backups have; neither is less than what will be written.
        layout.bytes = totals
            .bytes
            .min(totals.plain_bytes.saturating_add(totals.kept_bytes));
        return layout;
    }
    // A page that cannot be read is reported by the restore itself.
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
        let bytes = if plan.fate(path) == Fate::Restored {
            item.entry.data_len()
        } else {
            0
        };
        sizes::add(
            mount.map_or(&mut layout.bytes, |mount| &mut mount.bytes),
            bytes,
        );
    }
    layout
}

/// Write the settings and the signal of a recovery.
///
/// # Errors
/// The system's, with the path; [`ErrorKind::Corrupt`] if the settings that were there are damaged.
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
    let owner = archive
        .find(b"")?
        .first()
        .map(|item| item.entry.owner.clone())
        .unwrap_or_default();
    let new = |path: &[u8]| Entry {
        path: path.to_vec(),
        mode: 0o600,
        owner: owner.clone(),
        ..Entry::default()
    };
    let old = match small_file(archive, AUTO_CONF) {
        Err(error) if error.kind == ErrorKind::Corrupt => {
            report.add((error, vec![AUTO_CONF.to_vec()]))?;
            None
        }
        other => other?,
    };
    let (entry, old) = old.unwrap_or_else(|| (new(AUTO_CONF), Vec::new()));
    let text = conf::amend(&old, &plan.recovery.settings, &archive.root.id);
    let signal = plan.recovery.signal.map(|path| (new(path), Vec::new()));
    for (entry, text) in [(entry, text)].into_iter().chain(signal) {
        let kind = EntryKind::File {
            size: text.len() as u64,
            map: None,
        };
        writer.file(
            &Entry {
                kind,
                mtime: now(),
                ..entry
            },
            &text,
        )?;
    }
    Ok(())
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

/// What the operator hears at the end.
#[derive(Debug, Default)]
pub(crate) struct ClosingNotes {
    pub(crate) notes: Vec<String>,
    pub(crate) next: Vec<String>,
    /// How many of these, the first, it takes before a server starts.
    pub(crate) needed: usize,
    /// Does `pg_control` keep its other name?
    pub(crate) is_kept: bool,
}

fn not_whole() -> String {
    format!(
        "\"global/pg_control\" is left out, as files of the cluster are missing, or may be: until somebody renames it who knows \
         which, it is {}",
        quoted(&entry::join(b"global", UNFINISHED))
    )
}

/// Everything is durable: put `global/pg_control` in place (rule 34), if the cluster `is_whole`.
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
    let (mut notes, mut next, mut needed) = (plan.notes.clone(), Vec::new(), 0);
    let placed = tree.put_last(is_whole)?;
    let left_out = match placed {
        FinalPlaced::Withheld => Some(WITHOUT_LABEL.to_owned()),
        FinalPlaced::Kept => Some(not_whole()),
        FinalPlaced::Done | FinalPlaced::Missing => None,
    };
    notes.extend(left_out);
    if placed == FinalPlaced::Done {
        next.extend(barred(restore, plan));
        next.extend(plan.before_start.clone());
        needed = next.len();
        next.push(match config::is_as_it_was(cluster, &restore.to) {
            true => "start the server as before: its configuration is where it was".to_owned(),
            false => start(cluster, &restore.to, plan.in_place),
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

/// Directories that keep the owner of the cluster from it: those that root makes above it are root's.
fn barred(restore: &Restore, plan: &ClusterPlan) -> Vec<String> {
    let Ok(owner) = restore
        .to
        .metadata()
        .map(|facts| (facts.uid(), facts.gid()))
    else {
        return Vec::new();
    };
    let enters = |facts: &std::fs::Metadata| match (facts.uid(), facts.gid()) {
        (uid, _) if uid == owner.0 => facts.mode() & 0o100,
        (_, gid) if gid == owner.1 => facts.mode() & 0o010,
        _ => facts.mode() & 0o001,
    };
    let places =
        std::iter::once(&restore.to).chain(plan.mounts.iter().map(|mount| &mount.directory));
    let mut closed = BTreeSet::new();
    for place in places
        .filter(|_| owner.0 != 0)
        .filter_map(|place| real_path(place).ok())
    {
        let above = place.ancestors().skip(1).map(Path::to_owned);
        closed.extend(above.filter(|dir| dir.metadata().is_ok_and(|facts| enters(&facts) == 0)));
    }
    let name = OwnerNames::default().user(owner.0);
    let user = if name.is_empty() {
        owner.0.to_string()
    } else {
        name.to_string()
    };
    closed
        .iter()
        .map(|dir| {
            format!(
                "let user {user:?} into {dir:?} (chmod o+x): without that the server does not start"
            )
        })
        .collect()
}

/// Everything is durable, and the server need not open and sync each file once more (rule 38).
fn start(cluster: &ClusterInfo, data: &Path, in_place: bool) -> String {
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

/// What is to be said of a whole cluster that came as a stream, as `tar` restores it: at the end it is known that it was one.
pub(crate) fn streamed(cluster: &ClusterInfo, data: &Path) -> ClosingNotes {
    let mut notes: Vec<_> = inventory::note(cluster).into_iter().collect();
    if cluster.tablespaces.is_empty() {
        return ClosingNotes {
            notes,
            next: vec![start(cluster, data, false)],
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
        "WARNING: tablespaces are restored below \"pg_tblspc\", and a server that starts there will write to {places}: \
         move them, and say where to in \"tablespace_map\"; a restore of a repository or an archive does that"
    ));
    ClosingNotes {
        notes,
        ..ClosingNotes::default()
    }
}
