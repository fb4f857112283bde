//! Damage that was found, and what it costs.

use crate::{
    archive::{Archive, object::ObjectName},
    error::{Error, ErrorKind, Result, quoted},
    format::{
        entry::EntryPath,
        page::{FrameAt, PageItem, SegmentId},
    },
    queue::Locked,
    text::counted,
};
use std::{
    collections::{BTreeSet, HashSet},
    sync::Mutex,
};

/// Names that one line of an error lists.
const LISTED: usize = 5;

/// One damaged thing, and the files that cannot be had because of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Damage {
    /// What is damaged and how that shows.
    pub what: String,
    /// Further facts.
    pub detail: Vec<String>,
    /// Files that are not restored because of it.
    pub files: Vec<EntryPath>,
}

/// What became of a file of the target that cannot be had from the backup, and of which nothing is lost.
pub(crate) const LEFT: &str = "is left as it was: it is damaged in the backup";

/// Collects damage, or ends the run with the first.
#[derive(Debug, Default)]
pub(crate) struct Report {
    keep_going: bool,
    damage: Mutex<Vec<Damage>>,
    warnings: Mutex<Vec<String>>,
    /// Backups that stored something that is damaged.
    stored_by: Mutex<BTreeSet<String>>,
}

impl Report {
    pub(crate) fn new(keep_going: bool) -> Self {
        Self {
            keep_going,
            ..Self::default()
        }
    }

    /// Damage with files. Any other error ends the run: it says nothing of what is stored.
    pub(crate) fn add(&self, (error, files): (Error, Vec<EntryPath>)) -> Result<()> {
        if !error.kind.is_loss() {
            return Err(error);
        }
        if !self.keep_going {
            return Err(error.hint(
                "`fullbore restore --keep-going` restores the rest and lists what is missing; the exit code stays 4",
            ));
        }
        let damage = Damage {
            what: error.line(),
            detail: error.detail,
            files,
        };
        self.damage.locked().push(damage);
        Ok(())
    }

    /// A file whose frames are whole and whose content is not.
    pub(crate) fn file(&self, item: &PageItem, why: &str) -> Result<()> {
        let error = Error::corrupt(format!("file {} is damaged", quoted(&item.entry.path)))
            .because(why.to_owned());
        self.add((error, vec![item.entry.path.clone()]))
    }

    /// Go on after damage if that is wanted; any other error is passed on.
    pub(crate) fn survive(&self, result: Result<()>) -> Result<()> {
        match result {
            Err(error) if error.kind == ErrorKind::Corrupt => self.add((error, Vec::new())),
            other => other,
        }
    }

    /// Damage that did no harm.
    pub(crate) fn warn(&self, error: Error) {
        self.note(format!("{}; another copy is whole", error.line()));
    }

    /// A frame is damaged by which nothing is lost that is wanted.
    pub(crate) fn harmless(&self, archive: &Archive, frame: &(SegmentId, FrameAt), error: Error) {
        let (error, _) = frame_damage(archive, frame, error, Vec::new());
        self.note(format!(
            "{}; all that is wanted of it is whole",
            error.line()
        ));
    }

    /// Say something of what is damaged without harm, or of what became of it.
    pub(crate) fn note(&self, line: String) {
        self.warnings.locked().push(line);
    }

    /// Something is damaged that this backup stored.
    pub(crate) fn stored_by(&self, backup: &str) {
        self.stored_by.locked().insert(backup.to_owned());
    }

    /// Who stored what is damaged, whether that does harm or not.
    pub(crate) fn storers(&self) -> BTreeSet<String> {
        std::mem::take(&mut *self.stored_by.locked())
    }

    /// Say what became of a file of the target that cannot be had from the backup.
    pub(crate) fn became(&self, path: &[u8], what: &str) {
        self.note(format!("{} {what}", quoted(path)));
    }

    /// Files that are not restored because of damage.
    pub(crate) fn files(&self) -> HashSet<EntryPath> {
        let damage = self.damage.locked();
        damage
            .iter()
            .flat_map(|damage| damage.files.iter().cloned())
            .collect()
    }

    /// Is there damage that begins so?
    pub(crate) fn has(&self, what: &str) -> bool {
        self.damage
            .locked()
            .iter()
            .any(|damage| damage.what.starts_with(what))
    }

    /// Add a line to damage that begins so, of which it is known only later what it costs.
    pub(crate) fn detail(&self, what: &str, line: &str) {
        let mut damage = self.damage.locked();
        let those = damage
            .iter_mut()
            .filter(|damage| damage.what.starts_with(what));
        those.for_each(|damage| damage.detail.push(line.to_owned()));
    }

    /// What did no harm, and what became of files; sorted.
    pub(crate) fn warnings(&self) -> Vec<String> {
        let mut lines = std::mem::take(&mut *self.warnings.locked());
        lines.sort();
        lines.dedup();
        lines
    }

    /// What was found, sorted, so that the same damage gives the same list whatever the number of workers.
    pub(crate) fn damage(&self) -> Vec<Damage> {
        let mut damage = std::mem::take(&mut *self.damage.locked());
        damage.sort_by(|a, b| (&a.what, &a.files).cmp(&(&b.what, &b.files)));
        damage
    }
}

/// Say which frame is damaged, and which files want it; an error that is no damage is passed on.
pub(crate) fn frame_damage(
    archive: &Archive,
    (segment, frame): &(SegmentId, FrameAt),
    error: Error,
    files: Vec<EntryPath>,
) -> (Error, Vec<EntryPath>) {
    if !error.kind.is_loss() {
        return (error, files);
    }
    let files: Vec<EntryPath> = files
        .into_iter()
        .collect::<BTreeSet<_>>()
        .into_iter()
        .collect();
    let name = archive.store().name(&ObjectName::Segment(segment.clone()));
    let id = if segment.backup.is_empty() {
        &archive.root.id
    } else {
        &segment.backup
    };
    let what = format!(
        "the frame at byte {} of {name}, backup {id:?}, is damaged",
        frame.offset
    );
    // "a frame is damaged: why" has said it already.
    let why = error
        .source
        .as_ref()
        .map_or_else(|| error.what.clone(), |why| why.to_string());
    let of = counted(archive.root.totals.files, "file");
    let held = match files.len() {
        0 => "no file is lost with it".to_owned(),
        n => format!("it holds part of {n} of {of}: {}", names(&files)),
    };
    (
        Error::new(error.kind, what).because(why).detail(held),
        files,
    )
}

/// The first few names, and how many there are besides.
pub(crate) fn names(paths: &[EntryPath]) -> String {
    let few: Vec<String> = paths.iter().take(LISTED).map(|path| quoted(path)).collect();
    let more = paths.len().saturating_sub(LISTED);
    if more > 0 {
        format!("{} and {more} more", few.join(", "))
    } else {
        few.join(", ")
    }
}
