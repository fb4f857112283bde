//! Prints the backups of a repository, or the entries of a backup.

use super::show::tag;
use crate::archive::not_there;
use crate::text::source_text;
use crate::{
    archive::{Archive, Selection},
    error::{Error, ErrorKind, Result, quoted},
    format::{
        entry::{EntryKind, is_within},
        layout::NOTES,
        page::{EntryState, Record},
        root::{ClusterInfo, EntryName, Root, SourceInfo},
    },
    repo::{
        annotations::Annotations,
        open::{
            cut_off, ids_of, is_repository, listed_roots, named, open, read_repository,
            repository_at,
        },
        roots::{BackupFiles, BackupState, backup_files},
        scan::lost_roots_of,
        select::BackupFilter,
    },
    storage::Objects,
    text,
    verify::stream::{self, InspectedInput, look},
};
use serde::Serialize;
use std::{
    collections::BTreeMap,
    ffi::{OsStr, OsString},
    io::{Read, Write},
    os::unix::ffi::OsStrExt,
};

/// Hint for a lost root.
const LOST: &str = "`fullbore repair` rebuilds it, or tells how to proceed";

/// The backups or entries to list.
#[derive(Debug, Clone, Default)]
pub struct List {
    /// `FROM[@BACKUP]`, or `-` for standard input.
    pub from: OsString,
    /// Selects the backups to list, or those of which the latest is listed.
    pub filter: BackupFilter,
    /// Paths in the backup; empty for everything.
    pub paths: Vec<Vec<u8>>,
    /// Whether to print JSON, one object a line.
    pub json: bool,
}

impl List {
    /// Returns whether the command lists the backups of a repository, instead of the entries of
    /// one.
    pub fn is_of_backups(&self) -> bool {
        is_repository(&self.from) && self.paths.is_empty()
    }

    /// Prints the list to `out`. Returns the exit code: 4 if something is damaged, 1 if a root
    /// cannot be read for another reason; the list names that root.
    ///
    /// # Errors
    /// Those of opening FROM, of reading pages, and of `out`.
    pub fn run(&self, out: &mut dyn Write) -> Result<u8> {
        if self.is_of_backups() {
            return self.print_backups(out);
        }
        let selection = Selection::new(&self.paths)?;
        match look(&self.from, &self.filter)? {
            InspectedInput::Backup(archive) => self.print_entries(&archive, &selection, out)?,
            InspectedInput::Stream(input) => self.print_members(input, &selection, out)?,
        }
        Ok(0)
    }

    fn print_backups(&self, out: &mut dyn Write) -> Result<u8> {
        let repository = &repository_at(&self.from)?;
        let mut code = 0;
        let mut is_any = self.filter.is_empty();
        read_repository(&**repository)?;
        // One look serves for all that is listed.
        let files = backup_files(&**repository)?;
        for (id, mut root) in listed_roots(repository, ids_of(&files, BackupState::Listed)) {
            // The source of a damaged backup is unknown, so it is always listed.
            if root
                .as_mut()
                .is_ok_and(|root| !self.filter.selects_in(repository, root))
            {
                continue;
            }
            is_any = true;
            let has_notes = files.get(&id).is_some_and(|files| files.has(NOTES));
            let noted = match has_notes {
                true => root.and_then(|root| annotated(&**repository, &id, root)),
                false => root.map(|root| (root, false)),
            };
            code = noted.as_ref().err().map_or(0, Error::exit_code).max(code);
            match (self.json, noted) {
                (true, noted) => text::json(out, &BackupLine::new(&id, &noted))?,
                (false, Ok((root, pinned))) => text::line(out, &backup_line(&root, pinned))?,
                (false, Err(error)) => text::line(out, &format!("{id}  {}", error.line()))?,
            }
        }
        for id in lost_roots_of(repository, files.clone())? {
            code = 4;
            if self.json {
                let lost = Err(Error::corrupt("its root is lost").hint(LOST));
                text::json(out, &BackupLine::new(&id, &lost))?;
            } else {
                text::line(out, &format!("{id}  its root is lost: {LOST}"))?;
            }
        }
        // JSON lists only complete backups.
        if !self.json {
            is_any |= self.print_interrupted(&**repository, &files, out)?;
        }
        if is_any || code > 0 {
            Ok(code)
        } else {
            Err(self.filter.none_selected(repository)?)
        }
    }

    /// Prints interrupted backups. Returns whether there are any.
    fn print_interrupted(
        &self,
        objects: &dyn Objects,
        files: &BTreeMap<String, BackupFiles>,
        out: &mut dyn Write,
    ) -> Result<bool> {
        let mut is_any = false;
        for root in cut_off(objects, files) {
            if self.filter.selects(&root) {
                is_any = true;
                let Root { id, time, .. } = &root;
                let source = source_text(&root.source);
                text::line(
                    out,
                    &format!("{id}  {time}  interrupted and incomplete, of {source}"),
                )?;
            }
        }
        Ok(is_any)
    }

    fn print_entries(
        &self,
        archive: &Archive,
        selection: &Selection,
        out: &mut dyn Write,
    ) -> Result<()> {
        for path in selection.paths() {
            if !archive.has(path)? {
                let error = not_there(archive, path);
                let backup = named(&self.from, OsStr::from_bytes(path));
                let is_backup =
                    is_repository(&self.from) && open(&backup, &BackupFilter::default()).is_ok();
                let hint = || format!("to list a backup, write {backup:?}");
                return Err(if is_backup { error.hint(hint()) } else { error });
            }
        }
        for item in archive.records(selection, false) {
            let item = item?;
            // A file that spans several pages is listed once, by the part with its digest.
            if item.more || !selection.holds(&item.entry.path) {
                continue;
            }
            self.print_entry(&item, out)?;
        }
        Ok(())
    }

    fn print_members(
        &self,
        input: impl Read + Send + 'static,
        selection: &Selection,
        out: &mut dyn Write,
    ) -> Result<()> {
        let mut missing: Vec<_> = selection.paths().iter().collect();
        stream::entries(input, |record| {
            let path = &record.entry.path;
            missing.retain(|wanted| !is_within(path, wanted));
            if selection.holds(path) {
                self.print_entry(record, out)
            } else {
                Ok(())
            }
        })?;
        match missing.first() {
            Some(path) => Err(Error::new(
                ErrorKind::NotFound,
                format!("could not find {} in the tar", quoted(path)),
            )),
            None => Ok(()),
        }
    }

    fn print_entry(&self, record: &Record, out: &mut dyn Write) -> Result<()> {
        if self.json {
            text::json(out, &EntryLine::new(record))
        } else {
            text::line(out, &entry_line(record))
        }
    }
}

/// Returns a root with its annotations, and whether the backup is pinned.
fn annotated(objects: &dyn Objects, id: &str, mut root: Root) -> Result<(Root, bool)> {
    let notes = Annotations::read(objects, id)?;
    notes.apply(&mut root);
    Ok((root, notes.pinned))
}

fn backup_line(root: &Root, pinned: bool) -> String {
    let totals = &root.totals;
    let entries = text::count(totals.entries);
    let bytes = text::bytes(totals.bytes);
    let stored = text::bytes(totals.stored_bytes);
    // A backup with bases stored only new data.
    let verb = if root.bases.is_empty() {
        "stored"
    } else {
        "added"
    };
    let missing = match totals.unreadable {
        0 => String::new(),
        n => format!("  ({} not captured)", text::count(n)),
    };
    let wrong = match totals.bad_pages {
        0 => String::new(),
        n => format!("  ({} with wrong page checksums)", text::count(n)),
    };
    let is_of_list = { root.left_out.iter() }.any(|option| option.starts_with("--files-from"));
    let part = if is_of_list { "  (in part)" } else { "" };
    let tags: String = root
        .tags
        .iter()
        .map(|(key, value)| format!("  {}", tag(key, value)))
        .collect();
    let source = source_text(&root.source);
    let pinned = if pinned { "  (pinned)" } else { "" };
    let cluster = root.postgres.as_ref().map_or_else(String::new, |cluster| {
        format!("  {}", cluster_text(root, cluster))
    });
    let noun = if totals.entries == 1 {
        "entry  "
    } else {
        "entries"
    };
    let sizes = format!("{entries:>11} {noun}  {bytes:>10}  {verb:>6} {stored:>10}");
    format!(
        "{}  {}  {sizes}  {source}{cluster}{part}{tags}{missing}{wrong}{pinned}",
        root.id, root.time
    )
}

/// Describes the points that recovery can start from: end of the backup and timeline.
fn cluster_text(root: &Root, cluster: &ClusterInfo) -> String {
    let ClusterInfo {
        major,
        timeline,
        stop_lsn,
        ..
    } = cluster;
    match (cluster.online, &*cluster.wal) {
        (false, _) => format!("(PostgreSQL {major}, shut down, timeline {timeline})"),
        (true, wal) => {
            let without = if wal == "included" {
                ""
            } else {
                ", without its WAL"
            };
            let ended = text::name(root.captured_at().as_bytes());
            format!(
                "(PostgreSQL {major}, ended {ended} at {}, timeline {timeline}{without})",
                text::name(stop_lsn.as_bytes())
            )
        }
    }
}

/// A backup as JSON; of a damaged one only the ID and the error.
#[derive(Serialize)]
struct BackupLine<'a> {
    id: &'a str,
    time: Option<&'a str>,
    finished: Option<&'a str>,
    source: Option<&'a SourceInfo>,
    entries: Option<u64>,
    files: Option<u64>,
    bytes: Option<u64>,
    stored_bytes: Option<u64>,
    /// The bases of the backup; with bases, `stored_bytes` counts only the data added.
    bases: Option<&'a [String]>,
    tags: Option<&'a std::collections::BTreeMap<String, String>>,
    pinned: Option<bool>,
    /// Options that excluded entries.
    left_out: Option<&'a [String]>,
    /// Number of entries that could not be captured, and of files with wrong page checksums.
    not_captured: Option<u64>,
    bad_pages: Option<u64>,
    /// The cluster, for a backup of PostgreSQL.
    postgres: Option<&'a ClusterInfo>,
    /// Whether every entry could be read during the backup, with correct page checksums.
    complete: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
}

impl<'a> BackupLine<'a> {
    fn new(id: &'a str, noted: &'a Result<(Root, bool)>) -> Self {
        let (noted, error) = (noted.as_ref().ok(), noted.as_ref().err().map(Error::line));
        let root = noted.map(|(root, _)| root);
        let totals = root.map(|root| &root.totals);
        Self {
            id,
            time: root.map(|root| &*root.time),
            finished: root.map(|root| &*root.finished),
            source: root.map(|root| &root.source),
            entries: totals.map(|totals| totals.entries),
            files: totals.map(|totals| totals.files),
            bytes: totals.map(|totals| totals.bytes),
            stored_bytes: totals.map(|totals| totals.stored_bytes),
            bases: root.map(|root| &root.bases[..]),
            tags: root.map(|root| &root.tags),
            pinned: noted.map(|(_, pinned)| *pinned),
            left_out: root.map(|root| &root.left_out[..]),
            not_captured: totals.map(|totals| totals.unreadable),
            bad_pages: totals.map(|totals| totals.bad_pages),
            postgres: root.and_then(|root| root.postgres.as_ref()),
            complete: totals.is_some_and(|totals| totals.is_complete()),
            error,
        }
    }
}

fn entry_line(record: &Record) -> String {
    let entry = &record.entry;
    let owner = |name: &str, number: u32| {
        if name.is_empty() {
            number.to_string()
        } else {
            text::name(name.as_bytes())
        }
    };
    let owners = format!(
        "{}/{}",
        owner(&entry.owner.user, entry.owner.uid),
        owner(&entry.owner.group, entry.owner.gid)
    );
    let size = match &entry.kind {
        EntryKind::CharDevice(device) | EntryKind::BlockDevice(device) => {
            format!("{},{}", device.major, device.minor)
        }
        _ => entry.size().to_string(),
    };
    let target = match &entry.kind {
        EntryKind::Symlink(target) => format!(" -> {}", text::name(target)),
        EntryKind::HardLink(target) => format!(" link to {}", text::name(target)),
        _ => String::new(),
    };
    let path = if entry.path.is_empty() {
        ".".to_owned()
    } else {
        text::name(&entry.path)
    };
    let mode = text::mode(entry);
    let time = text::local_minute(entry.mtime);
    format!(
        "{mode} {owners:<15} {size:>12} {time} {path}{target}{}",
        state_text(&record.state)
    )
}

fn state_text(state: &EntryState) -> String {
    match state {
        EntryState::Whole | EntryState::Noted => String::new(),
        EntryState::Changed => "  (changed while it was read)".to_owned(),
        EntryState::Unreadable(reason) => {
            format!("  (not captured: {})", text::name(reason.as_bytes()))
        }
        EntryState::Vanished => "  (not captured: vanished)".to_owned(),
        EntryState::BadPages(pages) => format!("  (wrong page checksums: {})", pages.len()),
    }
}

/// An entry as JSON.
#[derive(Serialize)]
struct EntryLine<'a> {
    path: EntryName,
    kind: &'static str,
    mode: String,
    uid: u32,
    gid: u32,
    user: &'a str,
    group: &'a str,
    size: u64,
    mtime: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    target: Option<EntryName>,
    #[serde(skip_serializing_if = "Option::is_none")]
    device: Option<(u32, u32)>,
    #[serde(skip_serializing_if = "Option::is_none")]
    digest: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    xattrs: Vec<EntryName>,
    state: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<&'a str>,
}

impl<'a> EntryLine<'a> {
    fn new(record: &'a Record) -> Self {
        let entry = &record.entry;
        let (kind, target, device) = kind_parts(&entry.kind);
        let (state, reason) = state_parts(&record.state);
        Self {
            path: EntryName(entry.path.clone()),
            kind,
            mode: format!("{:04o}", entry.mode),
            uid: entry.owner.uid,
            gid: entry.owner.gid,
            user: &entry.owner.user,
            group: &entry.owner.group,
            size: entry.size(),
            mtime: text::rfc3339(entry.mtime),
            target,
            device,
            digest: record.digest.map(|digest| digest.to_string()),
            xattrs: entry
                .xattrs
                .iter()
                .map(|(name, _)| EntryName(name.clone()))
                .collect(),
            state,
            reason,
        }
    }
}

/// Returns the name of the kind, the target of a link, and the number of a device.
pub(super) fn kind_parts(
    kind: &EntryKind,
) -> (&'static str, Option<EntryName>, Option<(u32, u32)>) {
    let target = |path: &[u8]| Some(EntryName(path.to_vec()));
    match kind {
        EntryKind::File { .. } => ("file", None, None),
        EntryKind::Directory => ("directory", None, None),
        EntryKind::Symlink(path) => ("symlink", target(path), None),
        EntryKind::HardLink(path) => ("hardlink", target(path), None),
        EntryKind::Fifo => ("fifo", None, None),
        EntryKind::CharDevice(device) => ("char-device", None, Some((device.major, device.minor))),
        EntryKind::BlockDevice(device) => {
            ("block-device", None, Some((device.major, device.minor)))
        }
        EntryKind::Socket => ("socket", None, None),
    }
}

fn state_parts(state: &EntryState) -> (&'static str, Option<&str>) {
    match state {
        EntryState::Whole => ("whole", None),
        EntryState::Changed => ("changed", None),
        EntryState::Unreadable(reason) => ("unreadable", Some(reason)),
        EntryState::Vanished => ("vanished", None),
        EntryState::Noted => ("noted", None),
        EntryState::BadPages(_) => ("wrong page checksums", None),
    }
}
