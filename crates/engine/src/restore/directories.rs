//! The second pass of a restore: hard links, and the metadata of directories.
//!
//! A directory gets its metadata after everything below it and after all links to files in it: a
//! new link changes the times of its directory, and the mode of the directory may forbid access.
//! The worker that completes the last entry a directory waits for also finishes that directory.

use super::run::RestoreRun;
use crate::report::skipped::link_to_skipped_file;
use fullbore_format::{
    entry::{Entry, EntryKind, EntryPath, order, split},
    error::{Error, ErrorKind, Result, quoted},
    page::{EntryState, PageItem, describe_whole_file},
    text::counted,
};
use fullbore_pipeline::workers::{self, WorkerLimit};
use fullbore_platform::queue::Locked;
use fullbore_tree::write::writer::TargetWriter;
use std::{
    collections::{HashMap, HashSet},
    sync::{Mutex, MutexGuard, atomic::Ordering::Relaxed},
};

/// Number of entries that a worker gets at once.
const BATCH: usize = 32;

impl RestoreRun<'_> {
    /// Runs the second pass, deepest entries first. No link is made to a damaged file, because
    /// another file may be at the same path.
    pub(super) fn links_and_directories(
        &self,
        limit: &WorkerLimit<'_>,
        damaged: &HashSet<EntryPath>,
    ) -> Result<()> {
        let waiting = WaitingDirs::default();
        let nameless = Mutex::new(Vec::new());
        let losses = Losses {
            damaged,
            lost: &|path| nameless.locked().push(path.clone()),
        };
        workers::work(
            limit,
            || TargetWriter::new(&self.tree),
            |writer, entries| self.complete_entries(writer, entries, &waiting, &losses),
            |send| self.send_ready(&waiting, send),
        )?;
        self.report_lost_links(nameless.opened())
    }

    /// Makes links and finishes directories, and then the directories that waited for these.
    fn complete_entries(
        &self,
        writer: &mut TargetWriter,
        mut entries: Vec<Entry>,
        waiting: &WaitingDirs,
        losses: &Losses<'_>,
    ) -> Result<()> {
        while let Some(entry) = entries.pop() {
            match &entry.kind {
                EntryKind::HardLink(target) => {
                    self.make_link(writer, target, &entry.path, losses)?
                }
                _ => self.finish_directory(writer, &entry)?,
            }
            self.meter.small.fetch_add(1, Relaxed);
            entries.extend(waiting.complete(&self.waiting_dirs_of(&entry)));
        }
        Ok(())
    }

    /// Sends the links and directories that need not wait, in batches.
    fn send_ready(
        &self,
        waiting: &WaitingDirs,
        send: &mut dyn FnMut(Vec<Entry>) -> Result<()>,
    ) -> Result<()> {
        let mut batch = Vec::new();
        for item in self.archive.records(&self.selection, true) {
            let item = match item {
                Ok(item) => item,
                // The first pass has reported the same error.
                Err(error) if self.report.has(&error.line()) => continue,
                Err(error) => {
                    self.report.tolerate(Err(error))?;
                    continue;
                }
            };
            if self.needs_second_pass(&item) {
                let dirs = self.waiting_dirs_of(&item.entry);
                batch.extend(waiting.register(&item.entry, &dirs));
            }
            if batch.len() == BATCH {
                send(std::mem::take(&mut batch))?;
            }
        }
        send(batch)
    }

    fn needs_second_pass(&self, item: &PageItem) -> bool {
        match item.entry.kind {
            EntryKind::Directory => item.state != EntryState::Vanished,
            EntryKind::HardLink(_) => {
                item.state.is_stored() && !self.rules.leaves_out(&item.entry.path)
            }
            _ => false,
        }
    }

    /// Reports hard links to damaged files.
    fn report_lost_links(&self, mut names: Vec<EntryPath>) -> Result<()> {
        if names.is_empty() {
            return Ok(());
        }
        names.sort_by(|a, b| order(a, b));
        let message = format!(
            "{} lost because their files are damaged",
            counted(names.len() as u64, "hard link")
        );
        self.report.add((Error::corrupt(message), names))
    }

    /// Returns the directories that this entry changes or passes through: they must not get their
    /// metadata earlier.
    fn waiting_dirs_of(&self, entry: &Entry) -> Vec<EntryPath> {
        let parent = |path: &[u8]| (!path.is_empty()).then(|| split(path).0.to_vec());
        let target = match &entry.kind {
            EntryKind::HardLink(target) => {
                parent(&self.stand_in_of(target).unwrap_or_else(|| target.clone()))
            }
            _ => None,
        };
        parent(&entry.path).into_iter().chain(target).collect()
    }

    fn stand_in_of(&self, target: &EntryPath) -> Option<EntryPath> {
        self.stand_ins.locked().get(target).cloned()
    }

    fn finish_directory(&self, writer: &mut TargetWriter, entry: &Entry) -> Result<()> {
        let not_ours = self.not_ours.locked().contains(&entry.path);
        if self.refused.contains(&entry.path) {
            return Ok(());
        }
        if not_ours {
            return writer.keep_directory(&entry.path);
        }
        let finished = writer.finish_directory(entry);
        self.unless_refused(&entry.path, finished).map(drop)
    }

    /// Makes a hard link, but only to a restored file: the target may have another file at that
    /// path.
    fn make_link(
        &self,
        writer: &mut TargetWriter,
        target: &EntryPath,
        path: &EntryPath,
        losses: &Losses<'_>,
    ) -> Result<()> {
        let stand_in = self.stand_in_of(target);
        let name = stand_in.as_ref().unwrap_or(target);
        let is_itself = name == path;
        if losses.damaged.contains(name) {
            if !is_itself {
                (losses.lost)(path);
            }
            return Ok(());
        }
        let make = |writer: &mut TargetWriter| {
            if is_itself {
                Ok(())
            } else {
                writer.link(name, path)
            }
        };
        let linked = match self.refused.contains(name) {
            true if is_itself => Ok(()),
            true => Err(link_to_skipped_file(path, name)),
            false => match self.check_restored(target).and_then(|()| make(writer)) {
                Err(e) if e.kind == ErrorKind::NotFound && self.report.has("") => {
                    (losses.lost)(path);
                    Ok(())
                }
                Err(e) if e.kind == ErrorKind::NotFound => {
                    self.tree.notes.add(
                        "hard link",
                        "the file that it links to does not exist",
                        path,
                    );
                    Ok(())
                }
                other => other,
            },
        };
        self.unless_refused(path, linked).map(drop)
    }

    /// Checks that the link target was restored by this run. If a page is lost, files of that page
    /// are unknown and count as not restored.
    fn check_restored(&self, target: &EntryPath) -> Result<()> {
        let is_doubtful = self.tree.options.overwrite && self.report.has("");
        let is_absent = self.absent.locked().contains(target)
            || is_doubtful
                && !self
                    .archive
                    .find(target)
                    .is_ok_and(|parts| is_stored(&parts));
        if is_absent {
            Err(Error::new(
                ErrorKind::NotFound,
                format!("{} was not restored", quoted(target)),
            ))
        } else {
            Ok(())
        }
    }
}

/// Returns whether all parts of an entry are in the backup.
pub(super) fn is_stored(parts: &[PageItem]) -> bool {
    describe_whole_file(parts) && parts.iter().all(|part| part.state.is_stored())
}

/// Damaged files, and a function that records further losses.
struct Losses<'a> {
    damaged: &'a HashSet<EntryPath>,
    lost: &'a (dyn Fn(&EntryPath) + Sync),
}

/// Directories that wait for entries below them and for links to files in them. A directory's
/// record follows those of its entries.
#[derive(Default)]
struct WaitingDirs(Mutex<HashMap<EntryPath, WaitingLinks>>);

#[derive(Default)]
struct WaitingLinks {
    /// Number of entries it waits for; above 0, its parent waits for this directory.
    pending: usize,
    /// The entry of the directory, if its record was read.
    entry: Option<Entry>,
}

impl WaitingDirs {
    fn lock(&self) -> MutexGuard<'_, HashMap<EntryPath, WaitingLinks>> {
        self.0.locked()
    }

    /// Registers an entry that these directories wait for. Returns the entry if it need not wait
    /// itself.
    fn register(&self, entry: &Entry, entered: &[EntryPath]) -> Option<Entry> {
        let mut waiting = self.lock();
        if let Some(waits) = waiting.get_mut(&entry.path) {
            waits.entry = Some(entry.clone());
            return None;
        }
        for mut dir in entered.iter().map(|path| &path[..]) {
            loop {
                let waits = waiting.entry(dir.to_vec()).or_default();
                waits.pending += 1;
                if waits.pending > 1 || dir.is_empty() {
                    break;
                }
                dir = split(dir).0;
            }
        }
        Some(entry.clone())
    }

    /// Marks an entry as done. Returns the directories that waited only for this entry.
    fn complete(&self, entered: &[EntryPath]) -> Vec<Entry> {
        let mut waiting = self.lock();
        entered
            .iter()
            .filter_map(|dir| release(&mut waiting, dir))
            .collect()
    }
}

/// Releases a directory. A directory whose record is lost is skipped, and its parent released.
fn release(waiting: &mut HashMap<EntryPath, WaitingLinks>, mut dir: &[u8]) -> Option<Entry> {
    loop {
        let waits = waiting.get_mut(dir)?;
        waits.pending -= 1;
        if waits.pending > 0 {
            return None;
        }
        let entry = waiting.remove(dir)?.entry;
        if entry.is_some() || dir.is_empty() {
            return entry;
        }
        dir = split(dir).0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(path: &str) -> Entry {
        Entry {
            path: path.into(),
            kind: EntryKind::Directory,
            ..Entry::default()
        }
    }

    fn waiting_dirs_of(path: &str, target: Option<&str>) -> Vec<EntryPath> {
        let paths = [Some(path).filter(|path| !path.is_empty()), target];
        paths
            .into_iter()
            .flatten()
            .map(|path| split(path.as_bytes()).0.to_vec())
            .collect()
    }

    fn register(waiting: &WaitingDirs, path: &str) -> bool {
        waiting
            .register(&of(path), &waiting_dirs_of(path, None))
            .is_some()
    }

    fn complete(waiting: &WaitingDirs, path: &str, target: Option<&str>) -> Vec<String> {
        let text = |entry: Entry| String::from_utf8(entry.path).unwrap();
        waiting
            .complete(&waiting_dirs_of(path, target))
            .into_iter()
            .map(text)
            .collect()
    }

    #[test]
    fn a_directory_is_finished_after_all_that_is_in_it() {
        let waiting = WaitingDirs::default();
        assert_eq!(
            ["b", "a/y", "a/x/2"].map(|place| register(&waiting, place)),
            [true; 3]
        );
        assert_eq!(complete(&waiting, "a/x/2", None), [""; 0]);
        assert!(register(&waiting, "a/x/1"));
        assert_eq!(
            ["a/x", "a", "a", ""].map(|place| register(&waiting, place)),
            [false; 4]
        );
        assert_eq!(
            ["b", "a/y"].map(|place| complete(&waiting, place, None)),
            [[""; 0]; 2]
        );
        for [path, next] in [["a/x/1", "a/x"], ["a/x", "a"], ["a", ""]] {
            assert_eq!(complete(&waiting, path, None), [next]);
        }
        assert_eq!(complete(&waiting, "", None), [""; 0]);
        assert!(waiting.lock().is_empty());
    }

    #[test]
    fn directories_wait_for_links_to_what_is_in_them_and_for_what_is_below_a_lost_one() {
        let waiting = WaitingDirs::default();
        assert!(
            waiting
                .register(&of("b/link"), &waiting_dirs_of("b/link", Some("a/f")))
                .is_some()
        );
        assert!(register(&waiting, "a/lost/deep"));
        assert_eq!(
            ["b", "a", ""].map(|path| register(&waiting, path)),
            [false; 3]
        );
        assert_eq!(complete(&waiting, "b/link", Some("a/f")), ["b"]);
        assert_eq!(complete(&waiting, "a/lost/deep", None), ["a"]);
        assert_eq!(complete(&waiting, "b", None), [""; 0]);
        assert_eq!(complete(&waiting, "a", None), [""]);
        assert!(waiting.lock().is_empty());
    }
}
