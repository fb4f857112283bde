//! Has the small files of a scan read into the page cache in batches, a window of the scan ahead of those who read them.
//!
//! Entries pass in their order, unchanged but for [`Scanned::is_read_ahead`]. Where the files of a window are in the page cache
//! already, nothing is done for it. What cannot be opened or read here is passed over: the reader finds out, and says so.

use crate::{
    error::Result,
    frame::Scanned,
    known::Trust,
    platform::{self, batch_read::FileBatch},
    source::{OpenAhead, Stream},
};
use std::{collections::VecDeque, io, sync::Arc, vec};

/// Bytes of a file that is read ahead, at most: a reader of a larger one has the disk read as much with each call.
const SMALL_FILE: u64 = 1 << 20;

/// Files that are read together, at most: with 64 the disk has 6 % more requests, with 2,048 as many.
const MAX_FILES: usize = 1024;

/// Fewer are not worth a look at the page cache.
const MIN_FILES: usize = 4;

/// Files of a window that are looked at to learn whether the window is in the page cache.
const PROBES: usize = 4;

/// Windows that are read or being read: while readers are in one, the disk reads the next.
const WINDOWS: usize = 2;

/// How much a window may hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WindowLimits {
    /// Entries, whatever they are.
    pub entries: usize,
    /// Bytes of files, those that are not read ahead included: what was read ahead must not wait for long.
    pub file_bytes: u64,
}

/// Pass the entries of a scan on, and have small files among them read ahead.
pub fn read_ahead(
    entries: Stream<Scanned>,
    opener: Arc<dyn OpenAhead>,
    limits: WindowLimits,
) -> Stream<Scanned> {
    Box::new(ReadAhead {
        entries,
        opener,
        limits,
        windows: VecDeque::new(),
        next_entries: FIRST_ENTRIES,
        has_ended: false,
    })
}

/// Entries of the first window: the first readers do not wait for a whole one.
const FIRST_ENTRIES: usize = 64;

struct ReadAhead {
    entries: Stream<Scanned>,
    opener: Arc<dyn OpenAhead>,
    limits: WindowLimits,
    windows: VecDeque<vec::IntoIter<Result<Scanned>>>,
    /// Entries of the next window, at most.
    next_entries: usize,
    has_ended: bool,
}

impl Iterator for ReadAhead {
    type Item = Result<Scanned>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            while self.windows.len() < WINDOWS && !self.has_ended {
                let window = self.window();
                self.windows.push_back(window.into_iter());
            }
            match self.windows.front_mut()?.next() {
                Some(entry) => return Some(entry),
                None => _ = self.windows.pop_front(),
            }
        }
    }
}

impl ReadAhead {
    /// The next entries of the scan, with the small files among them on their way.
    fn window(&mut self) -> Vec<Result<Scanned>> {
        let mut window = Vec::new();
        let mut small = Vec::new();
        let mut file_bytes = 0;
        while window.len() < self.next_entries
            && small.len() < MAX_FILES
            && file_bytes < self.limits.file_bytes
        {
            let Some(entry) = self.entries.next() else {
                self.has_ended = true;
                break;
            };
            if let Ok(scanned) = &entry
                && is_read(scanned)
            {
                file_bytes = scanned.entry.size().saturating_add(file_bytes);
                if (1..=SMALL_FILE).contains(&scanned.entry.size()) {
                    small.push(window.len());
                }
            }
            window.push(entry);
        }
        self.next_entries = (4 * self.next_entries).min(self.limits.entries);
        if small.len() >= MIN_FILES
            && let Err(error) = self.read(&mut window, small)
        {
            platform::debug(|| format!("small files are not read ahead: {error}"));
        }
        window
    }

    /// Have small files of the window read, if one of a few of them is not in the page cache.
    ///
    /// Their order is that of the inodes, in which they lie on most disks.
    fn read(&self, window: &mut [Result<Scanned>], mut small: Vec<usize>) -> io::Result<()> {
        let probes = small.iter().step_by(small.len().div_ceil(PROBES));
        if self.open(window, probes)?.cold()?.is_empty() {
            return Ok(());
        }
        small.sort_unstable_by_key(|at| window[*at].as_ref().map_or(0, |one| one.entry.inode));
        let files = self.open(window, small.iter())?;
        for at in files.cold()? {
            if let Ok(scanned) = &mut window[at] {
                scanned.is_read_ahead = true;
            }
        }
        files.batch.read()
    }

    /// Those of some entries of a window that can be opened now.
    fn open<'a>(
        &self,
        window: &[Result<Scanned>],
        some: impl Iterator<Item = &'a usize> + Clone,
    ) -> io::Result<OpenedFiles> {
        let sizes = some.clone().flat_map(|at| &window[*at]);
        let room = sizes.map(|scanned| FileBatch::room_of(scanned.entry.size()));
        let mut opened = OpenedFiles {
            batch: FileBatch::with_room(room.sum())?,
            places: Vec::new(),
        };
        for at in some {
            if let Ok(scanned) = &window[*at]
                && let Some(file) = self.opener.open_ahead(scanned)
            {
                opened.batch.add(file, scanned.entry.size())?;
                opened.places.push(*at);
            }
        }
        Ok(opened)
    }
}

/// Small files of a window, and their places in it.
struct OpenedFiles {
    batch: FileBatch,
    places: Vec<usize>,
}

impl OpenedFiles {
    /// The places of those that are not in the page cache. The last page tells: small files are read from their beginning, and
    /// mostly as a whole.
    fn cold(&self) -> io::Result<Vec<usize>> {
        let cached = self.batch.cached_ends()?;
        let cold = self.places.iter().zip(cached).filter(|(_, cached)| !cached);
        Ok(cold.map(|(at, _)| *at).collect())
    }
}

/// Will all of the content be read, if it is a file?
fn is_read(scanned: &Scanned) -> bool {
    let is_new = scanned
        .known
        .as_ref()
        .is_none_or(|known| known.trust == Trust::Nothing && known.changed.is_none());
    is_new && scanned.entry.is_file() && scanned.state.is_stored()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        error::Error,
        format::{
            entry::{Entry, EntryKind},
            page::EntryState,
        },
        queue::Locked,
    };
    use std::{
        os::fd::OwnedFd,
        sync::{
            Mutex,
            atomic::{AtomicUsize, Ordering::Relaxed},
        },
    };

    const LIMITS: WindowLimits = WindowLimits {
        entries: 256,
        file_bytes: 8 << 20,
    };

    /// Notes the names that are asked for, and opens nothing.
    #[derive(Default)]
    struct Names(Mutex<Vec<Vec<u8>>>);

    impl OpenAhead for Names {
        fn open_ahead(&self, scanned: &Scanned) -> Option<OwnedFd> {
            self.0.locked().push(scanned.entry.path.clone());
            None
        }
    }

    fn file(name: usize, size: u64) -> Scanned {
        let kind = EntryKind::File { size, map: None };
        let entry = Entry {
            path: name.to_string().into(),
            kind,
            ..Entry::default()
        };
        Scanned::new(entry, EntryState::Whole)
    }

    fn through(entries: Vec<Result<Scanned>>, names: &Arc<Names>) -> Vec<Result<Scanned>> {
        read_ahead(Box::new(entries.into_iter()), names.clone(), LIMITS).collect()
    }

    #[test]
    fn entries_and_errors_keep_their_order() {
        let entry = |at: usize| match at % 7 {
            3 => Err(Error::corrupt(at.to_string())),
            _ => Ok(file(at, at as u64 * 100)),
        };
        let name = |entry: Result<Scanned>| {
            entry.map_or_else(
                |e| e.what.clone(),
                |s| String::from_utf8(s.entry.path).unwrap(),
            )
        };
        let out = through((0..3000).map(entry).collect(), &Arc::default());
        let out: Vec<String> = out.into_iter().map(name).collect();
        let all: Vec<String> = (0..3000).map(|at| name(entry(at))).collect();
        assert_eq!(out, all);
    }

    #[test]
    fn a_scan_is_at_most_two_windows_ahead() {
        let scanned = Arc::new(AtomicUsize::new(0));
        let count = scanned.clone();
        let entries = (0..).map(move |at| {
            count.fetch_add(1, Relaxed);
            Ok(file(at, 10))
        });
        let names: Arc<Names> = Arc::default();
        let delivered = read_ahead(Box::new(entries), names, LIMITS).take(5000);
        let ahead = delivered
            .enumerate()
            .map(|(at, _)| scanned.load(Relaxed) - at);
        assert_eq!(ahead.max(), Some(2 * LIMITS.entries));
    }

    #[test]
    fn only_small_files_that_are_read_are_opened() {
        let names: Arc<Names> = Arc::default();
        let mut unreadable = file(0, 10);
        unreadable.state = EntryState::Unreadable("why".into());
        let mut entries = vec![unreadable, file(1, 0), file(2, SMALL_FILE + 1)];
        entries.extend((3..8).map(|at| file(at, SMALL_FILE)));
        through(entries.into_iter().map(Ok).collect(), &names);
        let asked = names.0.locked().concat();
        assert!(asked.starts_with(b"3") && asked.iter().all(|name| b"34567".contains(name)));
    }

    #[test]
    fn a_large_file_ends_its_window() {
        let names: Arc<Names> = Arc::default();
        let sizes = [10, 10, 10, LIMITS.file_bytes, 10, 10, 10];
        let entries = sizes
            .iter()
            .enumerate()
            .map(|(at, size)| Ok(file(at, *size)));
        through(entries.collect(), &names);
        assert!(
            names.0.locked().is_empty(),
            "three files are not worth a look"
        );
    }
}
