//! The second pass of a restore: hard links, and the metadata of directories.
//!
//! A directory gets its metadata after all that is below it: a link that is made in it changes its times, and its mode may forbid
//! to go there. So whoever is done with the last that is in a directory finishes that one as well.

use super::Run;
use crate::{
    command::{
        crew::{self, Hands},
        refused::alone_too,
    },
    error::{Kind as ErrorKind, Result},
    format::{
        entry::{Entry, Kind, Path, split},
        page::State,
    },
    sink::writer::Writer,
};
use std::{
    collections::HashMap,
    sync::{Mutex, MutexGuard},
};

/// Entries that a worker gets at once.
const BATCH: usize = 32;

impl Run<'_> {
    /// Second pass, deepest first.
    pub(super) fn links_and_directories(&self, hands: &Hands<'_>) -> Result<()> {
        let upwards = Upwards::default();
        let all = |writer: &mut Writer, entries: Vec<Entry>| {
            entries.into_iter().try_for_each(|entry| {
                let mut next = Some(entry);
                while let Some(entry) = next {
                    match &entry.kind {
                        Kind::HardLink(target) => self.link(writer, target, &entry.path)?,
                        _ => self.finish(writer, &entry)?,
                    }
                    next = upwards.done(&entry.path);
                }
                Ok(())
            })
        };
        crew::work(
            hands,
            || Writer::new(&self.tree),
            all,
            |send| {
                let mut batch = Vec::new();
                for item in self.archive.records(&self.selection, true) {
                    // A page that cannot be read was reported by the first pass.
                    let Ok(item) = item else { continue };
                    let is_wanted = match item.entry.kind {
                        Kind::Directory => item.state != State::Vanished,
                        Kind::HardLink(_) => item.state.is_stored(),
                        _ => false,
                    };
                    batch.extend(is_wanted.then(|| upwards.meet(&item.entry)).flatten());
                    if batch.len() == BATCH {
                        send(std::mem::take(&mut batch))?;
                    }
                }
                send(batch)
            },
        )
    }

    fn finish(&self, writer: &mut Writer, entry: &Entry) -> Result<()> {
        let not_ours = self.not_ours.lock().unwrap_or_else(|e| e.into_inner()).contains(&entry.path);
        if not_ours || self.refused.holds(&entry.path) {
            return Ok(());
        }
        let finished = writer.finish_directory(entry);
        self.unless_refused(&entry.path, finished).map(drop)
    }

    fn link(&self, writer: &mut Writer, target: &Path, path: &Path) -> Result<()> {
        let stand_in = self.stand_ins.lock().unwrap_or_else(|e| e.into_inner()).get(target).cloned();
        if stand_in.as_ref() == Some(path) {
            return Ok(());
        }
        let target = stand_in.as_ref().unwrap_or(target);
        let linked = match self.refused.holds(target) {
            true => Err(alone_too(path, target)),
            false => match writer.link(target, path) {
                Err(e) if e.kind == ErrorKind::NotFound => {
                    self.tree.notes.add("hard link", "what it is a name of is not there", path);
                    Ok(())
                }
                other => other,
            },
        };
        self.unless_refused(path, linked).map(drop)
    }
}

/// Directories that wait for links and directories in them. They are met after those.
#[derive(Default)]
struct Upwards(Mutex<HashMap<Path, Waiting>>);

#[derive(Default)]
struct Waiting {
    /// What is in it, was met and is not done.
    below: usize,
    /// Itself, if it was met.
    entry: Option<Entry>,
}

impl Upwards {
    fn lock(&self) -> MutexGuard<'_, HashMap<Path, Waiting>> {
        self.0.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// The next; it is given back if it need not wait.
    fn meet(&self, entry: &Entry) -> Option<Entry> {
        let mut waiting = self.lock();
        let (ready, first) = match waiting.get_mut(&entry.path) {
            // Of two records of one directory the earlier counts, which is met later.
            Some(waits) => (None, waits.entry.replace(entry.clone()).is_none()),
            None => (Some(entry.clone()), true),
        };
        if first && !entry.path.is_empty() {
            waiting.entry(split(&entry.path).0.to_vec()).or_default().below += 1;
        }
        ready
    }

    /// The one that `path` is in, if it waited only for this.
    fn done(&self, path: &[u8]) -> Option<Entry> {
        let mut waiting = self.lock();
        let above = split(path).0;
        let waits = waiting.get_mut(above).filter(|_| !path.is_empty())?;
        waits.below -= 1;
        if waits.below > 0 { None } else { waiting.remove(above)?.entry }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_is_finished_after_all_that_are_in_it() {
        let upwards = Upwards::default();
        let of = |path: &str| Entry { path: path.into(), kind: Kind::Directory, ..Entry::default() };
        let path = |entry: Option<Entry>| entry.map(|entry| String::from_utf8(entry.path).unwrap());
        let met = ["b", "a/y", "a/x/2"].map(|at| path(upwards.meet(&of(at))));
        assert_eq!(met.map(Option::unwrap), ["b", "a/y", "a/x/2"]);
        assert_eq!(path(upwards.done(b"a/x/2")), None);
        assert_eq!(path(upwards.meet(&of("a/x/1"))).as_deref(), Some("a/x/1"));
        assert_eq!(["a/x", "a", "a", ""].map(|at| path(upwards.meet(&of(at)))), [None, None, None, None]);
        assert_eq!(["b", "a/y"].map(|at| path(upwards.done(at.as_bytes()))), [None, None]);
        let up = ["a/x/1", "a/x", "a", ""].map(|at| path(upwards.done(at.as_bytes())));
        assert_eq!(up.each_ref().map(Option::as_deref), [Some("a/x"), Some("a"), Some(""), None]);
        assert!(upwards.lock().is_empty());
    }
}
