//! The second pass of a restore: hard links, and the metadata of directories.
//!
//! A directory gets its metadata after all that is below it and after links to it: a link that is made in it changes its times, and
//! its mode may forbid to go there. So whoever is done with the last that a directory waits for finishes that one as well.

use super::RestoreRun;
use crate::{
    error::{Error, ErrorKind, Result, quoted},
    format::{
        entry::{Entry, EntryKind, EntryPath, order, split},
        page::{EntryState, PageItem, describe_whole_file},
    },
    pipeline::workers::{self, WorkerLimit},
    queue::Locked,
    report::skipped::link_to_skipped_file,
    target::writer::TargetWriter,
    text::counted,
};
use std::{
    collections::{HashMap, HashSet},
    sync::{Mutex, MutexGuard, atomic::Ordering::Relaxed},
};

/// Entries that a worker gets at once.
const BATCH: usize = 32;

impl RestoreRun<'_> {
    /// Second pass, deepest first. What stands at the place of a damaged file, if anything, is something else.
    pub(super) fn links_and_directories(
        &self,
        hands: &WorkerLimit<'_>,
        damaged: &HashSet<EntryPath>,
    ) -> Result<()> {
        let (upwards, nameless) = (Upwards::default(), Mutex::new(Vec::new()));
        let lost = |path: &EntryPath| nameless.locked().push(path.clone());
        let all = |writer: &mut TargetWriter, mut entries: Vec<Entry>| {
            while let Some(entry) = entries.pop() {
                match &entry.kind {
                    EntryKind::HardLink(target) => self.link(
                        writer,
                        target,
                        &entry.path,
                        &Losses {
                            damaged,
                            lost: &lost,
                        },
                    )?,
                    _ => self.finish(writer, &entry)?,
                }
                self.meter.small.fetch_add(1, Relaxed);
                entries.extend(upwards.done(&self.entered(&entry)));
            }
            Ok(())
        };
        workers::work(
            hands,
            || TargetWriter::new(&self.tree),
            all,
            |send| {
                let mut batch = Vec::new();
                for item in self.archive.records(&self.selection, true) {
                    let item = match item {
                        Ok(item) => item,
                        // The first pass found the same.
                        Err(error) if self.report.has(&error.line()) => continue,
                        Err(error) => {
                            self.report.tolerate(Err(error))?;
                            continue;
                        }
                    };
                    let is_wanted = match item.entry.kind {
                        EntryKind::Directory => item.state != EntryState::Vanished,
                        EntryKind::HardLink(_) => {
                            item.state.is_stored() && !self.cluster.leaves_out(&item.entry.path)
                        }
                        _ => false,
                    };
                    batch.extend(
                        is_wanted
                            .then(|| upwards.meet(&item.entry, &self.entered(&item.entry)))
                            .flatten(),
                    );
                    if batch.len() == BATCH {
                        send(std::mem::take(&mut batch))?;
                    }
                }
                send(batch)
            },
        )?;
        self.lost_with_their_files(nameless.opened())
    }

    /// Other names of files that damage cost.
    fn lost_with_their_files(&self, mut names: Vec<EntryPath>) -> Result<()> {
        if names.is_empty() {
            return Ok(());
        }
        names.sort_by(|a, b| order(a, b));
        let what = format!(
            "lost with the files that they are names of: {}",
            counted(names.len() as u64, "hard link")
        );
        self.report.add((Error::corrupt(what), names))
    }

    /// The directories that this is done in: they must not get their metadata before.
    fn entered(&self, entry: &Entry) -> Vec<EntryPath> {
        let above = |path: &[u8]| (!path.is_empty()).then(|| split(path).0.to_vec());
        let target = match &entry.kind {
            EntryKind::HardLink(target) => {
                above(&self.stand_in_of(target).unwrap_or_else(|| target.clone()))
            }
            _ => None,
        };
        above(&entry.path).into_iter().chain(target).collect()
    }

    fn stand_in_of(&self, target: &EntryPath) -> Option<EntryPath> {
        self.stand_ins.locked().get(target).cloned()
    }

    fn finish(&self, writer: &mut TargetWriter, entry: &Entry) -> Result<()> {
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

    /// Only what was restored gets another name: where something may stand in its place, that would get it.
    fn link(
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
            false => match self.was_restored(target).and_then(|()| make(writer)) {
                Err(e) if e.kind == ErrorKind::NotFound && self.report.has("") => {
                    (losses.lost)(path);
                    Ok(())
                }
                Err(e) if e.kind == ErrorKind::NotFound => {
                    self.tree
                        .notes
                        .add("hard link", "what it is a name of is not there", path);
                    Ok(())
                }
                other => other,
            },
        };
        self.unless_refused(path, linked).map(drop)
    }

    /// Is it in the backup, so that what stands there, or in for it, if it is not damaged, is that? Of a page that is lost nobody
    /// knows what it described.
    fn was_restored(&self, target: &EntryPath) -> Result<()> {
        let is_doubtful = self.tree.options.overwrite && self.report.has("");
        let is_absent = self.absent.locked().contains(target)
            || is_doubtful
                && !self
                    .archive
                    .find(target)
                    .is_ok_and(|parts| is_stored(&parts));
        match is_absent {
            true => Err(Error::new(
                ErrorKind::NotFound,
                format!("{} was not restored", quoted(target)),
            )),
            false => Ok(()),
        }
    }
}

/// Is all of a file, or of what is none, in the backup?
pub(super) fn is_stored(parts: &[PageItem]) -> bool {
    describe_whole_file(parts) && parts.iter().all(|part| part.state.is_stored())
}

/// What damage cost, and who is to know of what it costs besides.
struct Losses<'a> {
    damaged: &'a HashSet<EntryPath>,
    lost: &'a (dyn Fn(&EntryPath) + Sync),
}

/// Directories that wait for what is below them, and for links to it. They are met after that.
#[derive(Default)]
struct Upwards(Mutex<HashMap<EntryPath, WaitingLinks>>);

#[derive(Default)]
struct WaitingLinks {
    /// What it waits for; while there is something the directory above waits for this one.
    for_so_many: usize,
    /// Itself, if it was met.
    entry: Option<Entry>,
}

impl Upwards {
    fn lock(&self) -> MutexGuard<'_, HashMap<EntryPath, WaitingLinks>> {
        self.0.locked()
    }

    /// The next, for which these directories wait; it is given back if it need not wait itself.
    fn meet(&self, entry: &Entry, entered: &[EntryPath]) -> Option<Entry> {
        let mut waiting = self.lock();
        if let Some(waits) = waiting.get_mut(&entry.path) {
            waits.entry = Some(entry.clone());
            return None;
        }
        for mut dir in entered.iter().map(|path| &path[..]) {
            loop {
                let waits = waiting.entry(dir.to_vec()).or_default();
                waits.for_so_many += 1;
                if waits.for_so_many > 1 || dir.is_empty() {
                    break;
                }
                dir = split(dir).0;
            }
        }
        Some(entry.clone())
    }

    /// It is done: the directories that waited only for this.
    fn done(&self, entered: &[EntryPath]) -> Vec<Entry> {
        let mut waiting = self.lock();
        entered
            .iter()
            .filter_map(|dir| release(&mut waiting, dir))
            .collect()
    }
}

/// One that was not met, as its record is lost, is passed over.
fn release(waiting: &mut HashMap<EntryPath, WaitingLinks>, mut dir: &[u8]) -> Option<Entry> {
    loop {
        let waits = waiting.get_mut(dir)?;
        waits.for_so_many -= 1;
        if waits.for_so_many > 0 {
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

    fn entered(path: &str, target: Option<&str>) -> Vec<EntryPath> {
        let paths = [Some(path).filter(|path| !path.is_empty()), target];
        paths
            .into_iter()
            .flatten()
            .map(|path| split(path.as_bytes()).0.to_vec())
            .collect()
    }

    fn meet(upwards: &Upwards, path: &str) -> bool {
        upwards.meet(&of(path), &entered(path, None)).is_some()
    }

    fn done(upwards: &Upwards, path: &str, target: Option<&str>) -> Vec<String> {
        let text = |entry: Entry| String::from_utf8(entry.path).unwrap();
        upwards
            .done(&entered(path, target))
            .into_iter()
            .map(text)
            .collect()
    }

    #[test]
    fn a_directory_is_finished_after_all_that_is_in_it() {
        let upwards = Upwards::default();
        assert_eq!(
            ["b", "a/y", "a/x/2"].map(|at| meet(&upwards, at)),
            [true; 3]
        );
        assert_eq!(done(&upwards, "a/x/2", None), [""; 0]);
        assert!(meet(&upwards, "a/x/1"));
        assert_eq!(
            ["a/x", "a", "a", ""].map(|at| meet(&upwards, at)),
            [false; 4]
        );
        assert_eq!(
            ["b", "a/y"].map(|at| done(&upwards, at, None)),
            [[""; 0]; 2]
        );
        for [path, next] in [["a/x/1", "a/x"], ["a/x", "a"], ["a", ""]] {
            assert_eq!(done(&upwards, path, None), [next]);
        }
        assert_eq!(done(&upwards, "", None), [""; 0]);
        assert!(upwards.lock().is_empty());
    }

    #[test]
    fn directories_wait_for_links_to_what_is_in_them_and_for_what_is_below_a_lost_one() {
        let upwards = Upwards::default();
        assert!(
            upwards
                .meet(&of("b/link"), &entered("b/link", Some("a/f")))
                .is_some()
        );
        assert!(meet(&upwards, "a/lost/deep"));
        assert_eq!(["b", "a", ""].map(|at| meet(&upwards, at)), [false; 3]);
        assert_eq!(done(&upwards, "b/link", Some("a/f")), ["b"]);
        assert_eq!(done(&upwards, "a/lost/deep", None), ["a"]);
        assert_eq!(done(&upwards, "b", None), [""; 0]);
        assert_eq!(done(&upwards, "a", None), [""]);
        assert!(upwards.lock().is_empty());
    }
}
