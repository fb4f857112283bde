//! Reads small files into the page cache in batches, a window ahead of the threads that read them.
//!
//! Items pass in their order. If the files of a window are in the page cache already, the window
//! costs a look at a few of them. A file that cannot be opened here is passed over: its reader
//! reports why.

use crate::{frame::Scanned, known::Trust, source::OpenAhead};
use fullbore_format::error::Result;
use fullbore_platform as platform;
use fullbore_platform::batch_read::FileBatch;
use std::{collections::VecDeque, io, os::fd::OwnedFd, sync::Arc, vec};

/// Maximum size of a file that is read ahead. The reader of a larger file asks the disk for as much
/// with each call.
const SMALL_FILE: u64 = 1 << 20;

/// Maximum number of files that are read together. With 64 the disk gets 6 % more requests. With
/// 1,024 it gets 3 % more if the files were written in another order than that of their paths.
const MAX_FILES: usize = 2048;

/// Minimum number of files: fewer are not worth a look at the page cache.
const MIN_FILES: usize = 4;

/// Files of a window that are looked at to find out whether the window is in the page cache.
const PROBES: usize = 4;

/// Windows that were requested from the disk: while readers are in one, the disk reads the next.
const WINDOWS: usize = 2;

/// Bytes of names and attributes after which a window ends: an entry may have megabytes of them.
const MAX_TEXT_BYTES: usize = 2 << 20;

/// Entries of the first window, so that the first readers do not wait for a full one.
const FIRST_ENTRIES: usize = 64;

/// Maximum bytes of files in a window: some hundred milliseconds of a disk.
pub const MAX_WINDOW_BYTES: u64 = 32 << 20;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WindowLimits {
    /// Maximum number of items, of any kind.
    pub entries: usize,
    /// Maximum bytes of files, including files that are not read ahead: what was read ahead must
    /// not wait for long.
    pub file_bytes: u64,
}

impl WindowLimits {
    /// The limits where files are only compared, which holds a few records in memory.
    pub const COMPARE: Self = Self {
        entries: MAX_FILES,
        file_bytes: MAX_WINDOW_BYTES,
    };
}

/// The files behind the items of a window.
pub trait WindowFiles<T> {
    /// Returns the bytes of the file that will be read; 0 if there is no file or it is not read.
    fn read_bytes(&self, item: &T) -> u64;

    /// Returns the bytes of names and attributes that the item holds in memory.
    fn text_bytes(&self, item: &T) -> usize;

    /// Returns the inode number of the file. Most file systems store files in the order of inodes.
    fn inode(&mut self, item: &T) -> u64;

    /// Opens the file, without waiting.
    fn open(&mut self, item: &T) -> Option<OwnedFd>;

    /// Notes that the file was not in the page cache and was read ahead.
    fn note_read_ahead(&self, _item: &mut T) {}
}

pub struct ScannedFiles(pub Arc<dyn OpenAhead>);

impl WindowFiles<Scanned> for ScannedFiles {
    /// A file is read as a whole unless an earlier backup holds some of its content.
    fn read_bytes(&self, scanned: &Scanned) -> u64 {
        let is_read = scanned.entry.is_file()
            && scanned.state.is_stored()
            && scanned
                .known
                .as_ref()
                .is_none_or(|known| known.trust == Trust::Nothing && known.changed.is_none());
        if is_read { scanned.entry.size() } else { 0 }
    }

    fn text_bytes(&self, scanned: &Scanned) -> usize {
        let known = scanned.known.iter().flat_map(|known| known.parts.iter());
        let stored: usize = known.map(|part| part.entry.text_bytes()).sum();
        scanned.entry.text_bytes() + stored
    }

    fn inode(&mut self, scanned: &Scanned) -> u64 {
        scanned.entry.inode
    }

    fn open(&mut self, scanned: &Scanned) -> Option<OwnedFd> {
        self.0.open_ahead(scanned)
    }

    fn note_read_ahead(&self, scanned: &mut Scanned) {
        scanned.is_read_ahead = true;
    }
}

/// Passes items on, with the small files among them read ahead; without tricks it only passes them
/// on.
pub struct ReadAhead<T, I, F> {
    items: I,
    files: F,
    /// `None` if nothing is read ahead.
    limits: Option<WindowLimits>,
    windows: VecDeque<vec::IntoIter<Result<T>>>,
    /// Maximum number of items of the next window.
    next_entries: usize,
    has_ended: bool,
}

impl<T, I, F> ReadAhead<T, I, F>
where
    I: Iterator<Item = Result<T>>,
    F: WindowFiles<T>,
{
    /// Creates the adaptor. It does nothing until the first item is requested.
    pub fn new(items: I, files: F, limits: WindowLimits) -> Self {
        Self::with_limits(items, files, platform::tricks().then_some(limits))
    }

    fn with_limits(items: I, files: F, limits: Option<WindowLimits>) -> Self {
        Self {
            items,
            files,
            limits,
            windows: VecDeque::new(),
            next_entries: FIRST_ENTRIES,
            has_ended: false,
        }
    }

    /// Collects the next items, and requests the small files among them from the disk.
    fn next_window(&mut self, limits: WindowLimits) -> Vec<Result<T>> {
        let mut window = Vec::new();
        let mut small = Vec::new();
        let mut file_bytes: u64 = 0;
        let mut text_bytes = 0;
        while window.len() < self.next_entries
            // Four bounds: entries, names, files and their bytes each take memory or cache of their
            // own.
            && text_bytes < MAX_TEXT_BYTES
            && small.len() < MAX_FILES
            && file_bytes < limits.file_bytes
        {
            let Some(item) = self.items.next() else {
                self.has_ended = true;
                break;
            };
            let bytes = item.as_ref().map_or(0, |item| self.files.read_bytes(item));
            file_bytes = file_bytes.saturating_add(bytes);
            text_bytes += item.as_ref().map_or(0, |item| self.files.text_bytes(item));
            if (1..=SMALL_FILE).contains(&bytes) {
                small.push(SmallFile {
                    at: window.len(),
                    bytes,
                });
            }
            window.push(item);
        }
        // The first window is small, so that the workers get their first frame early.
        self.next_entries = (4 * self.next_entries).min(limits.entries);
        if small.len() >= MIN_FILES
            && let Err(error) = self.read_small(&mut window, small)
        {
            platform::debug(|| format!("small files are not read ahead: {error}"));
        }
        window
    }

    /// Requests small files from the disk in the order of their inodes, if one of the probes is not
    /// in the page cache.
    fn read_small(
        &mut self,
        window: &mut [Result<T>],
        mut small: Vec<SmallFile>,
    ) -> io::Result<()> {
        let step = small.len().div_ceil(PROBES);
        if self
            .open(window, small.iter().step_by(step))?
            .cold()?
            .is_empty()
        {
            return Ok(());
        }
        let files = &mut self.files;
        small.sort_by_cached_key(|file| {
            window[file.at].as_ref().map_or(0, |item| files.inode(item))
        });
        let opened = self.open(window, small.iter())?;
        for index in opened.cold()? {
            if let Ok(item) = &mut window[index] {
                self.files.note_read_ahead(item);
            }
        }
        opened.batch.read()
    }

    /// Opens some files of a window. Skips files that cannot be opened.
    fn open<'a>(
        &mut self,
        window: &[Result<T>],
        some: impl Iterator<Item = &'a SmallFile> + Clone,
    ) -> io::Result<OpenedFiles> {
        let room = some
            .clone()
            .map(|file| FileBatch::room_of(file.bytes))
            .sum();
        let mut opened = OpenedFiles {
            batch: FileBatch::with_room(room)?,
            places: Vec::new(),
        };
        for SmallFile { at, bytes } in some {
            if let Ok(item) = &window[*at]
                && let Some(file) = self.files.open(item)
            {
                opened.batch.add(file, *bytes)?;
                opened.places.push(*at);
            }
        }
        Ok(opened)
    }
}

impl<T, I, F> Iterator for ReadAhead<T, I, F>
where
    I: Iterator<Item = Result<T>>,
    F: WindowFiles<T>,
{
    type Item = Result<T>;

    fn next(&mut self) -> Option<Self::Item> {
        let Some(limits) = self.limits else {
            return self.items.next();
        };
        loop {
            while self.windows.len() < WINDOWS && !self.has_ended {
                let window = self.next_window(limits);
                self.windows.push_back(window.into_iter());
            }
            match self.windows.front_mut()?.next() {
                Some(item) => return Some(item),
                None => _ = self.windows.pop_front(),
            }
        }
    }
}

struct SmallFile {
    /// Index in the window.
    at: usize,
    bytes: u64,
}

/// Small files of a window, with their indexes in it.
struct OpenedFiles {
    batch: FileBatch,
    places: Vec<usize>,
}

impl OpenedFiles {
    /// Returns the indexes of the files that are not in the page cache, judged by their last page:
    /// small files are read from the beginning, and usually as a whole.
    fn cold(&self) -> io::Result<Vec<usize>> {
        let cached = self.batch.cached_ends()?;
        let cold = self.places.iter().zip(cached).filter(|(_, cached)| !cached);
        Ok(cold.map(|(index, _)| *index).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fullbore_format::{
        entry::{Entry, EntryKind},
        error::Error,
        page::EntryState,
    };
    use fullbore_platform::queue::Locked;
    use std::sync::{
        Mutex,
        atomic::{AtomicUsize, Ordering::Relaxed},
    };

    const LIMITS: WindowLimits = WindowLimits {
        entries: 256,
        file_bytes: 8 << 20,
    };

    /// Records the names of the files that are to be opened, and opens none.
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
        let files = ScannedFiles(names.clone());
        ReadAhead::with_limits(entries.into_iter(), files, Some(LIMITS)).collect()
    }

    #[test]
    fn entries_and_errors_keep_their_order() {
        let entry = |index: usize| match index % 7 {
            3 => Err(Error::corrupt(index.to_string())),
            _ => Ok(file(index, index as u64 * 100)),
        };
        let name = |entry: Result<Scanned>| {
            entry.map_or_else(
                |e| e.what.clone(),
                |s| String::from_utf8(s.entry.path).unwrap(),
            )
        };
        let out = through((0..3000).map(entry).collect(), &Arc::default());
        let out: Vec<String> = out.into_iter().map(name).collect();
        let all: Vec<String> = (0..3000).map(|index| name(entry(index))).collect();
        assert_eq!(out, all);
    }

    #[test]
    fn entries_with_many_attributes_end_a_window() {
        let scanned = Arc::new(AtomicUsize::new(0));
        let count = scanned.clone();
        let entries = (0..).map(move |index| {
            count.fetch_add(1, Relaxed);
            let mut file = file(index, 10);
            file.entry.xattrs = vec![(b"user.fork".to_vec(), vec![0; 1 << 20])];
            Ok(file)
        });
        let files = ScannedFiles(Arc::<Names>::default());
        let mut ahead = ReadAhead::with_limits(entries, files, Some(LIMITS));
        for taken in 1..20 {
            ahead.next().unwrap().unwrap();
            assert!(scanned.load(Relaxed) <= taken + 4);
        }
    }

    #[test]
    fn a_scan_is_at_most_two_windows_ahead() {
        let scanned = Arc::new(AtomicUsize::new(0));
        let count = scanned.clone();
        let entries = (0..).map(move |index| {
            count.fetch_add(1, Relaxed);
            Ok(file(index, 10))
        });
        let files = ScannedFiles(Arc::<Names>::default());
        let delivered = ReadAhead::with_limits(entries, files, Some(LIMITS)).take(5000);
        let ahead = delivered
            .enumerate()
            .map(|(index, _)| scanned.load(Relaxed) - index);
        assert_eq!(ahead.max(), Some(2 * LIMITS.entries));
    }

    #[test]
    fn only_small_files_that_are_read_are_opened() {
        let names: Arc<Names> = Arc::default();
        let mut unreadable = file(0, 10);
        unreadable.state = EntryState::Unreadable("why".into());
        let mut entries = vec![unreadable, file(1, 0), file(2, SMALL_FILE + 1)];
        entries.extend((3..8).map(|index| file(index, SMALL_FILE)));
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
            .map(|(index, size)| Ok(file(index, *size)));
        through(entries.collect(), &names);
        assert!(
            names.0.locked().is_empty(),
            "three files are not worth a look"
        );
    }
}
