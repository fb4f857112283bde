//! Damage that was found, and the files lost by it.

use fullbore_format::{
    entry::EntryPath,
    error::{Error, ErrorKind, Result, quoted},
    page::{FrameAt, PageItem, SegmentId},
    root::Root,
    text::counted,
};
use fullbore_platform::queue::Locked;
use fullbore_repository::archive::{Archive, object::ObjectName};
use std::{
    collections::{BTreeSet, HashSet},
    sync::Mutex,
};

/// Maximum number of names in one line of an error.
const LISTED: usize = 5;

/// One damaged object, and the files that cannot be restored because of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Damage {
    /// The damaged object and the symptom.
    pub what: String,
    /// Further facts.
    pub detail: Vec<String>,
    /// Files that are not restored because of it.
    pub files: Vec<EntryPath>,
}

impl Damage {
    /// Returns whether this is a frame whose lost files are named.
    pub(crate) fn is_of_named_files(&self) -> bool {
        self.what.starts_with(FRAME_AT) && !self.files.is_empty()
    }
}

/// Returns the lines about damaged objects. Frames whose lost files are named elsewhere are only
/// counted, unless `is_verbose`.
pub fn damage_lines(damage: &[Damage], is_verbose: bool) -> Vec<String> {
    let is_hidden = |one: &&Damage| !is_verbose && one.is_of_named_files();
    let (hidden, told): (Vec<&Damage>, Vec<&Damage>) = damage.iter().partition(is_hidden);
    let mut lines = Vec::new();
    for one in told {
        lines.push(format!("damage: {}", one.what));
        lines.extend(one.detail.iter().map(|detail| format!("        {detail}")));
    }
    if !hidden.is_empty() {
        let frames = counted(hidden.len() as u64, "frame");
        lines.push(format!("damage: {frames}; -v says where"));
    }
    lines
}

/// The beginning of the text about a damaged frame.
const FRAME_AT: &str = "the frame at byte";

/// Note on a file in the target that is damaged in the backup and was not changed.
pub(crate) const LEFT: &str = "is unchanged: it is damaged in the backup";

/// Returns the error for a backup whose last volumes are missing; `None` if they are there.
pub fn missing_end(root: &Root) -> Option<Error> {
    let facts = root.volume.filter(|facts| !facts.is_last)?;
    let (part, media) = match root.tapes().is_empty() {
        true => ("volume", "volumes"),
        false => ("part", "tapes"),
    };
    let message = format!(
        "the backup is incomplete: it goes on behind {part} {}",
        facts.number
    );
    let reason = format!("later {media} are missing or damaged, or were never written");
    Some(Error::corrupt(message).because(reason))
}

/// Collects damage, or ends the run at the first damage.
#[derive(Debug, Default)]
pub struct Report {
    keep_going: bool,
    damage: Mutex<Vec<Damage>>,
    warnings: Mutex<Vec<String>>,
    /// Backups that stored damaged objects.
    stored_by: Mutex<BTreeSet<String>>,
}

impl Report {
    /// Makes an empty list. With `keep_going` damage does not end the run.
    pub fn new(keep_going: bool) -> Self {
        Self {
            keep_going,
            ..Self::default()
        }
    }

    /// Adds damage with its files. Any other error ends the run, because it does not concern stored
    /// data.
    pub fn add(&self, (error, files): (Error, Vec<EntryPath>)) -> Result<()> {
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

    /// Adds a file whose frames are intact but whose content is wrong.
    pub(crate) fn file(&self, item: &PageItem, why: &str) -> Result<()> {
        let error = Error::corrupt(format!("file {} is damaged", quoted(&item.entry.path)))
            .because(why.to_owned());
        self.add((error, vec![item.entry.path.clone()]))
    }

    /// Adds the end of a backup whose last volumes are missing.
    pub(crate) fn missing_end(&self, root: &Root) -> Result<()> {
        match missing_end(root) {
            Some(error) => self.add((error, Vec::new())),
            None => Ok(()),
        }
    }

    /// Continues after damage if that is wanted; returns any other error.
    pub(crate) fn tolerate(&self, result: Result<()>) -> Result<()> {
        match result {
            Err(error) if error.kind == ErrorKind::Corrupt => self.add((error, Vec::new())),
            other => other,
        }
    }

    /// Adds damage that caused no loss.
    pub fn warn(&self, error: Error) {
        self.note(format!("{}; another copy is intact", error.line()));
    }

    /// Adds a damaged frame of which no requested data is lost.
    pub fn harmless(&self, archive: &Archive, frame: &(SegmentId, FrameAt), error: Error) {
        let (error, _) = frame_damage(archive, frame, error, Vec::new());
        self.note(format!("{}; no requested data is lost", error.line()));
    }

    /// Adds a note about damage without loss, or about the outcome for a file.
    pub(crate) fn note(&self, line: String) {
        self.warnings.locked().push(line);
    }

    /// Records that a damaged object was stored by this backup.
    pub(crate) fn mark_damaged_backup(&self, backup: &str) {
        self.stored_by.locked().insert(backup.to_owned());
    }

    /// Takes the backups that stored damaged objects, with or without loss.
    pub(crate) fn damaged_backups(&self) -> BTreeSet<String> {
        std::mem::take(&mut *self.stored_by.locked())
    }

    /// Adds a note on a file in the target that cannot be restored from the backup.
    pub(crate) fn note_outcome(&self, path: &[u8], what: &str) {
        self.note(format!("{} {what}", quoted(path)));
    }

    /// Returns the files that are not restored because of damage.
    pub(crate) fn files(&self) -> HashSet<EntryPath> {
        let damage = self.damage.locked();
        damage
            .iter()
            .flat_map(|damage| damage.files.iter().cloned())
            .collect()
    }

    /// Returns whether there is damage whose text starts with `what`.
    pub(crate) fn has(&self, what: &str) -> bool {
        self.damage
            .locked()
            .iter()
            .any(|damage| damage.what.starts_with(what))
    }

    /// Adds a line to damage whose text starts with `what`, once its consequences are known.
    pub(crate) fn detail(&self, what: &str, line: &str) {
        let mut damage = self.damage.locked();
        let those = damage
            .iter_mut()
            .filter(|damage| damage.what.starts_with(what));
        those.for_each(|damage| damage.detail.push(line.to_owned()));
    }

    /// Takes the notes, sorted.
    pub fn warnings(&self) -> Vec<String> {
        let mut lines = std::mem::take(&mut *self.warnings.locked());
        lines.sort();
        lines.dedup();
        lines
    }

    /// Takes the damage, sorted, so that the list does not depend on the number of workers.
    pub fn damage(&self) -> Vec<Damage> {
        let mut damage = std::mem::take(&mut *self.damage.locked());
        damage.sort_by(|a, b| (&a.what, &a.files).cmp(&(&b.what, &b.files)));
        damage
    }
}

/// Describes a damaged frame and the files that need it. Passes on an error that is not damage.
pub fn frame_damage(
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
    let message = format!(
        "{FRAME_AT} {} of {name}, backup {id:?}, is damaged",
        frame.offset
    );
    // The error "a frame is damaged: why" repeats the new text, so use only its cause.
    let why = error
        .source
        .as_ref()
        .map_or_else(|| error.what.clone(), |why| why.to_string());
    let all = counted(archive.root.totals.files, "file");
    let held = match files.len() {
        0 => "no file is lost with it".to_owned(),
        n => format!("it holds part of {n} of {all}: {}", names(&files)),
    };
    (
        Error::new(error.kind, message).because(why).detail(held),
        files,
    )
}

/// Returns the first few names, and the number of the others.
pub(crate) fn names(paths: &[EntryPath]) -> String {
    let few: Vec<String> = paths.iter().take(LISTED).map(|path| quoted(path)).collect();
    let more = paths.len().saturating_sub(LISTED);
    if more > 0 {
        format!("{} and {more} more", few.join(", "))
    } else {
        few.join(", ")
    }
}
