//! Content that several sessions read ahead of the threads that need it.
//!
//! Items are collected in windows of 4 MiB, and window `n` is for fetcher `n` modulo their number. A fetcher
//! asks for several windows with one statement, so a slow line waits for one round trip in 32 MiB,
//! whatever the size of a frame. Rows are received one by one, and only while their window begins
//! within the budget behind the bytes that were taken. So memory is bounded. The first item that was
//! not taken always fits the budget, and items are taken in about the order in which they
//! were added; so no thread waits forever.

use super::{DataDir, FileRange, ROW_BYTES};
use fullbore_format::{
    entry::EntryPath,
    error::{Error, ErrorKind, Result},
};
use fullbore_platform::queue::{Locked, Monitor};
use std::{
    collections::{HashMap, VecDeque},
    sync::Mutex,
};

/// Bytes of a window, unless one item is larger.
const WINDOW_BYTES: u64 = 4 << 20;
/// Items of a window, at most.
const WINDOW_ITEMS: usize = 1024;
/// Windows that one statement asks for, at most.
const STATEMENT_WINDOWS: usize = 8;
/// Arrived bytes after which the threads that wait are told.
const TOLD_BYTES: u64 = 256 << 10;
/// Idle buffers, at most.
const MOST_SPARE: usize = 8;

/// Names an item: the path of its file, and where it begins.
pub(super) type ItemKey = (EntryPath, u64);

/// Ranges of one file that are read together.
#[derive(Debug, Clone)]
pub(super) struct FetchItem {
    pub(super) key: ItemKey,
    /// Offset and length of each range, of at most [`ROW_BYTES`].
    pub(super) ranges: Vec<(u64, u32)>,
    /// Whether zeros fill a range that is shorter than asked for. Otherwise the item ends there.
    pub(super) is_padded: bool,
}

/// The content of an item.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct FetchedContent {
    pub(super) bytes: Vec<u8>,
    /// Whether the file was not there.
    pub(super) is_missing: bool,
    /// Whether the file ended within a range.
    pub(super) is_short: bool,
}

/// The items of one scan.
pub(super) struct FetchQueue {
    state: Monitor<FetchState>,
    /// Bytes that may have arrived and not been taken, beside one window of each fetcher.
    budget: u64,
    /// Idle buffers: fresh memory costs as much as copying it.
    spare: Mutex<Vec<Vec<u8>>>,
}

struct FetchState {
    /// Windows that wait, for each fetcher.
    waiting: Vec<VecDeque<FetchWindow>>,
    /// The window that is being filled.
    open: FetchWindow,
    /// Bytes of all items that were added, and of those that were taken.
    added: u64,
    taken: u64,
    items: HashMap<ItemKey, ItemState>,
    /// Whether no more items will be added.
    is_closed: bool,
    is_stopped: bool,
    failed: Option<Error>,
}

/// Items that one fetcher receives one after the other.
#[derive(Debug, Default)]
struct FetchWindow {
    number: u64,
    /// Bytes of the items before it.
    begin: u64,
    bytes: u64,
    items: Vec<FetchItem>,
}

struct ItemState {
    /// Bytes that were asked for.
    asked: u64,
    content: Option<FetchedContent>,
}

impl FetchItem {
    pub(super) fn file_ranges(&self) -> impl Iterator<Item = FileRange<'_>> {
        self.ranges.iter().map(|(offset, len)| FileRange {
            path: &self.key.0,
            offset: *offset,
            len: *len,
        })
    }

    fn asked(&self) -> u64 {
        self.ranges.iter().map(|(_, len)| u64::from(*len)).sum()
    }
}

impl FetchQueue {
    pub(super) fn new(fetchers: usize, budget: u64) -> Self {
        Self {
            state: Monitor::new(FetchState {
                waiting: (0..fetchers).map(|_| VecDeque::new()).collect(),
                open: FetchWindow::default(),
                added: 0,
                taken: 0,
                items: HashMap::new(),
                is_closed: false,
                is_stopped: false,
                failed: None,
            }),
            budget,
            spare: Mutex::default(),
        }
    }

    /// Adds an item, which must have ranges. Returns the number of its window.
    pub(super) fn add(&self, item: FetchItem) -> u64 {
        let asked = item.asked();
        let mut state = self.state.lock();
        let open = &state.0.open;
        let is_full = open.bytes + asked > WINDOW_BYTES || open.items.len() >= WINDOW_ITEMS;
        let is_complete = is_full && !open.items.is_empty();
        if is_complete {
            state.0.close_window();
        }
        let number = state.0.add(item, asked);
        if is_complete {
            self.state.wake(state, true);
        }
        number
    }

    /// Hands out the window that is being filled, if it is this one.
    pub(super) fn flush(&self, number: u64) {
        let mut state = self.state.lock();
        if state.0.open.number == number && !state.0.open.items.is_empty() {
            state.0.close_window();
            self.state.wake(state, true);
        }
    }

    /// Waits until less than `bytes` were added and not taken; returns false if nothing is needed any more.
    pub(super) fn await_need(&self, bytes: u64) -> bool {
        let state = self
            .state
            .sleep(|state| !state.is_over() && state.added - state.taken >= bytes);
        !state.0.is_over()
    }

    /// Returns the error of a fetcher, if there is one.
    pub(super) fn failure(&self) -> Option<Error> {
        let mut state = self.state.lock();
        let has_failed = state.0.failed.is_some();
        has_failed.then(|| state.0.end_reason())
    }

    /// Returns whether all items were added.
    pub(super) fn is_closed(&self) -> bool {
        self.state.lock().0.is_closed
    }

    /// No more items follow.
    pub(super) fn close(&self) {
        self.state.change(|state| {
            state.close_window();
            state.is_closed = true;
        });
    }

    /// Keeps a buffer for what is read next.
    pub(super) fn give_back(&self, buffer: Vec<u8>) {
        let mut spare = self.spare.locked();
        if spare.len() < MOST_SPARE && buffer.is_empty() {
            spare.push(buffer);
        }
    }

    /// Ends the fetchers; their items are not needed.
    pub(super) fn stop(&self) {
        self.state.change(|state| state.is_stopped = true);
    }

    /// Waits for an item and takes it. `None` if it was not added.
    ///
    /// # Errors
    /// The error of a fetcher.
    pub(super) fn take(&self, key: &ItemKey) -> Result<Option<FetchedContent>> {
        if !self.await_item(key)? {
            return Ok(None);
        }
        let taken = self.state.change(|state| {
            let item = state.items.remove(key);
            state.taken += item.as_ref().map_or(0, |item| item.asked);
            item
        });
        Ok(taken.and_then(|item| item.content))
    }

    /// Waits for an item; returns whether its file was missing. `None` if it was not added.
    ///
    /// # Errors
    /// The error of a fetcher.
    pub(super) fn is_missing(&self, key: &ItemKey) -> Result<Option<bool>> {
        if !self.await_item(key)? {
            return Ok(None);
        }
        let state = self.state.lock();
        let content = state
            .0
            .items
            .get(key)
            .and_then(|item| item.content.as_ref());
        Ok(content.map(|content| content.is_missing))
    }

    /// Waits until an item has arrived; returns false if it was not added.
    fn await_item(&self, key: &ItemKey) -> Result<bool> {
        let mut state = self.state.sleep(|state| {
            let is_expected = |item: &ItemState| item.content.is_none();
            !state.is_over() && state.items.get(key).is_some_and(is_expected)
        });
        let state = &mut state.0;
        match state.items.get(key) {
            None => Ok(false),
            Some(item) if item.content.is_some() => Ok(true),
            Some(_) => Err(state.end_reason()),
        }
    }

    /// Receives the windows of one fetcher until there are no more.
    pub(super) fn fetch(&self, fetcher: usize, data: &dyn DataDir) {
        while let Some(windows) = self.next_windows(fetcher) {
            let ranges: Vec<FileRange<'_>> = windows
                .iter()
                .flat_map(|window| &window.items)
                .flat_map(FetchItem::file_ranges)
                .collect();
            let mut filling = Filling::new(self, &windows);
            let read = data.read(&ranges, &mut |row| filling.add(row));
            if let Err(error) = read {
                self.state
                    .change(|state| state.failed.get_or_insert(error).kind);
                return;
            }
        }
    }

    /// Waits for windows that one statement asks for; `None` if there are no more.
    fn next_windows(&self, fetcher: usize) -> Option<Vec<FetchWindow>> {
        let mut state = self.state.sleep(|state| {
            !state.is_over() && !state.is_closed && state.waiting[fetcher].is_empty()
        });
        let state = &mut state.0;
        let waiting = &mut state.waiting[fetcher];
        let count = waiting.len().min(STATEMENT_WINDOWS);
        (count > 0 && !state.is_stopped).then(|| waiting.drain(..count).collect())
    }

    /// Waits until a window may arrive that begins at `begin`; returns false if it is not needed.
    fn await_room(&self, begin: u64) -> bool {
        let state = self
            .state
            .sleep(|state| !state.is_over() && begin >= state.taken + self.budget);
        !state.0.is_over()
    }

    fn arrive(&self, arrived: Vec<(ItemKey, FetchedContent)>) {
        self.state.change(|state| {
            for (key, content) in arrived {
                if let Some(item) = state.items.get_mut(&key) {
                    item.content = Some(content);
                }
            }
        });
    }
}

impl FetchState {
    fn is_over(&self) -> bool {
        self.is_stopped || self.failed.is_some()
    }

    fn add(&mut self, item: FetchItem, asked: u64) -> u64 {
        let expected = ItemState {
            asked,
            content: None,
        };
        self.items.insert(item.key.clone(), expected);
        self.added += asked;
        self.open.bytes += asked;
        self.open.items.push(item);
        self.open.number
    }

    fn close_window(&mut self) {
        let number = self.open.number;
        let next = FetchWindow {
            number: number + 1,
            begin: self.added,
            ..FetchWindow::default()
        };
        let window = std::mem::replace(&mut self.open, next);
        let fetcher = number as usize % self.waiting.len();
        self.waiting[fetcher].push_back(window);
    }

    /// The error of a fetcher, for the first thread that asks.
    fn end_reason(&mut self) -> Error {
        let what = "reading ahead has ended";
        match &mut self.failed {
            Some(error) => {
                let again = Error::new(ErrorKind::Bug, what);
                std::mem::replace(error, again)
            }
            None => Error::new(ErrorKind::Bug, what),
        }
    }
}

/// The answer to one statement, as it arrives.
struct Filling<'a> {
    queue: &'a FetchQueue,
    windows: &'a [FetchWindow],
    /// The window, the item and the range that come next.
    next: (usize, usize, usize),
    content: FetchedContent,
    /// Complete items that nobody was told of, and their bytes.
    arrived: Vec<(ItemKey, FetchedContent)>,
    arrived_bytes: u64,
    is_needed: bool,
}

impl<'a> Filling<'a> {
    fn new(queue: &'a FetchQueue, windows: &'a [FetchWindow]) -> Self {
        Self {
            queue,
            windows,
            next: (0, 0, 0),
            content: FetchedContent::default(),
            arrived: Vec::new(),
            arrived_bytes: 0,
            is_needed: true,
        }
    }

    /// Adds the bytes of the next range.
    fn add(&mut self, row: Option<&[u8]>) {
        let (at, item, range) = self.next;
        let window = &self.windows[at];
        if (item, range) == (0, 0) && self.is_needed {
            self.is_needed = self.queue.await_room(window.begin);
        }
        if !self.is_needed {
            return; // the rest of the answer is dropped
        }
        let wanted = &window.items[item];
        if range == 0 {
            let room = wanted.asked().min(u64::from(ROW_BYTES) + (1 << 20));
            if wanted.is_padded {
                self.content.bytes = self.queue.spare.locked().pop().unwrap_or_default();
            }
            self.content.bytes.reserve(room as usize);
        }
        self.add_row(row, wanted, wanted.ranges[range].1 as usize);
        self.next = (at, item, range + 1);
        if range + 1 == wanted.ranges.len() {
            self.end_item(window, wanted);
        }
    }

    fn add_row(&mut self, row: Option<&[u8]>, wanted: &FetchItem, len: usize) {
        let content = &mut self.content;
        let end = content.bytes.len() + len;
        content.is_missing |= row.is_none();
        content.is_short |= row.is_some_and(|row| row.len() < len);
        content.bytes.extend_from_slice(row.unwrap_or_default());
        if wanted.is_padded {
            content.bytes.resize(end, 0);
        }
    }

    fn end_item(&mut self, window: &FetchWindow, done: &FetchItem) {
        let (at, item, _) = self.next;
        self.arrived_bytes += done.asked();
        let content = std::mem::take(&mut self.content);
        self.arrived.push((done.key.clone(), content));
        let is_last = item + 1 == window.items.len();
        self.next = match is_last {
            true => (at + 1, 0, 0),
            false => (at, item + 1, 0),
        };
        if is_last || self.arrived_bytes >= TOLD_BYTES {
            self.arrived_bytes = 0;
            self.queue.arrive(std::mem::take(&mut self.arrived));
        }
    }
}

#[cfg(test)]
mod tests;
