//! A wrapper for storages that answer late: it reads ahead of readers that read an object from front to back.
//!
//! A restore reads frames of about a megabyte, in the order of the segment, from a few threads. One request each would leave
//! the line idle for most of the time. As soon as the reads of an object follow each other, windows behind them are requested, several at
//! the same time, and later reads are answered from these windows. Reads here and there are passed on as they are, so that one file of
//! many costs no more bytes than it has.
//!
//! Only bytes below an object that this process has not written or deleted are kept, and only until they were read.

use super::{
    Leased, ListedObject, LocalObjects, Objects, Put, PutIf, SealedObjects, StorageAbilities, Take,
    Upload, Version,
};
use fullbore_format::{error::Result, root::PART_BYTES};
use fullbore_platform::{
    debug,
    queue::{Locked, Monitor, start},
};
use std::{
    collections::{BTreeMap, VecDeque},
    mem,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

/// Bytes between two reads that still follow each other: to receive them takes less time than another request.
const MAX_GAP: u64 = 256 << 10;

/// Bytes by which a read may be before the end of the reads so far: several threads read frames that follow each other.
const MAX_BACK: u64 = 4 << 20;

/// Bytes of the smallest window.
const MIN_WINDOW: u64 = 1 << 20;

/// Bytes of the largest window.
///
/// A read of more bytes is a request of its own, and nothing is read ahead of it: several threads make such reads of one object.
const MAX_WINDOW: u64 = PART_BYTES;

/// Bytes that are ahead of one reader at first. They double each time that it has to wait.
const FIRST_AHEAD: u64 = 8 << 20;

/// Bytes that are ahead of all readers, at most.
const MAX_AHEAD: u64 = 48 << 20;

/// Objects that are read ahead in order. Clones share the windows.
#[derive(Debug, Clone)]
pub struct CoalescedObjects {
    inner: Arc<dyn Objects>,
    readers: Arc<Mutex<BTreeMap<String, SequentialReads>>>,
    /// Bytes of all windows.
    held_bytes: Arc<AtomicU64>,
}

/// The reads of one object.
#[derive(Debug)]
struct SequentialReads {
    /// Where the last of them ended.
    end: u64,
    /// Bytes that were read one behind the other.
    run_bytes: u64,
    /// Bytes of the object, once they matter.
    object_bytes: Option<u64>,
    ahead_bytes: u64,
    windows: VecDeque<Arc<Window>>,
}

/// A range of an object that was requested.
#[derive(Debug)]
struct Window {
    from: u64,
    len: u64,
    content: Monitor<WindowContent>,
    held_bytes: Arc<AtomicU64>,
}

#[derive(Debug)]
enum WindowContent {
    Requested,
    Here(Vec<u8>),
    Failed,
}

impl Window {
    fn end(&self) -> u64 {
        self.from + self.len
    }

    /// Waits for the window and appends its bytes of the range. Returns whether it had to wait; `None` if the window failed.
    fn append(&self, from: u64, to: u64, out: &mut Vec<u8>) -> Option<bool> {
        let mut has_waited = false;
        let content = self.content.sleep(|content| {
            let waits = matches!(content, WindowContent::Requested);
            has_waited |= waits;
            waits
        });
        let WindowContent::Here(bytes) = &content.0 else {
            return None;
        };
        let start = (from.max(self.from) - self.from) as usize;
        let end = (to.min(self.end()) - self.from) as usize;
        out.extend_from_slice(bytes.get(start..end)?);
        Some(has_waited)
    }
}

/// Delivers the content of a window when it is dropped, so that no reader waits for a thread that panicked.
struct WindowDelivery {
    window: Arc<Window>,
    content: WindowContent,
}

impl Drop for WindowDelivery {
    fn drop(&mut self) {
        let content = mem::replace(&mut self.content, WindowContent::Failed);
        self.window.content.change(|delivered| *delivered = content);
    }
}

impl Drop for Window {
    fn drop(&mut self) {
        self.held_bytes.fetch_sub(self.len, Relaxed);
    }
}

impl SequentialReads {
    fn new() -> Self {
        Self {
            end: 0,
            run_bytes: 0,
            object_bytes: None,
            ahead_bytes: FIRST_AHEAD,
            windows: VecDeque::new(),
        }
    }

    /// Notes a read. A read elsewhere begins anew.
    fn note(&mut self, from: u64, to: u64) {
        let follows = from <= self.end.saturating_add(MAX_GAP)
            && to.saturating_add(MAX_BACK) >= self.end
            && self.end > 0;
        if follows {
            self.run_bytes += to.saturating_sub(self.end);
            self.end = self.end.max(to);
        } else {
            self.run_bytes = 0;
            self.end = to;
            self.windows.clear();
        }
        let oldest = self.end.saturating_sub(MAX_BACK);
        while self
            .windows
            .front()
            .is_some_and(|window| window.end() <= oldest)
        {
            self.windows.pop_front();
        }
    }

    /// Returns the windows that have all bytes of a range; none if some are in no window.
    fn covering(&self, from: u64, to: u64) -> Vec<Arc<Window>> {
        let mut offset = from;
        let mut found = Vec::new();
        for window in &self.windows {
            if offset < to && window.from <= offset && offset < window.end() {
                offset = window.end();
                found.push(window.clone());
            }
        }
        if offset >= to { found } else { Vec::new() }
    }

    /// Returns the next window to request: no further ahead than was read in this run, so that little is read in vain.
    fn next_window(&self, object_bytes: u64) -> Option<(u64, u64)> {
        let start = self.windows.back().map_or(self.end, |last| last.end());
        let start = start.max(self.end);
        let ahead = start - self.end;
        let wanted = self.run_bytes.min(self.ahead_bytes);
        let len = (self.run_bytes / 2).clamp(MIN_WINDOW, MAX_WINDOW);
        let len = len.min(object_bytes.saturating_sub(start));
        (self.run_bytes >= MIN_WINDOW && ahead < wanted && len > 0).then_some((start, len))
    }
}

impl CoalescedObjects {
    /// Wraps a storage.
    pub fn new(inner: Arc<dyn Objects>) -> Self {
        Self {
            inner,
            readers: Arc::default(),
            held_bytes: Arc::default(),
        }
    }

    fn forget(&self, key: &str) {
        self.readers.locked().remove(key);
    }

    /// Notes the read, requests what follows it, and returns the windows that answer it.
    fn windows_for(&self, key: &str, from: u64, to: u64) -> Vec<Arc<Window>> {
        let mut readers = self.readers.locked();
        let reads = readers
            .entry(key.to_owned())
            .or_insert_with(SequentialReads::new);
        let answer = reads.covering(from, to);
        reads.note(from, to);
        if reads.run_bytes < MIN_WINDOW {
            return answer;
        }
        let Some(object_bytes) = reads.object_bytes else {
            // Other readers of this storage need not wait for the answer.
            drop(readers);
            let bytes = self.inner.stat(key).ok().flatten().unwrap_or(0);
            if let Some(reads) = self.readers.locked().get_mut(key) {
                reads.object_bytes = Some(bytes);
            }
            return answer;
        };
        while let Some((start, len)) = reads.next_window(object_bytes) {
            if self.held_bytes.load(Relaxed) + len > MAX_AHEAD {
                break;
            }
            let Some(window) = self.request(key, start, len) else {
                break;
            };
            reads.windows.push_back(window);
        }
        answer
    }

    /// Requests a window from another thread; `None` if there is none.
    fn request(&self, key: &str, from: u64, len: u64) -> Option<Arc<Window>> {
        self.held_bytes.fetch_add(len, Relaxed);
        let window = Arc::new(Window {
            from,
            len,
            content: Monitor::new(WindowContent::Requested),
            held_bytes: self.held_bytes.clone(),
        });
        let inner = self.inner.clone();
        let key = key.to_owned();
        let delivery = WindowDelivery {
            window: window.clone(),
            content: WindowContent::Failed,
        };
        let fetch = move || {
            let mut delivery = delivery; // all of it belongs to this thread
            let mut bytes = Vec::new();
            match inner.read_at(&key, from, len as usize, &mut bytes) {
                Ok(()) => delivery.content = WindowContent::Here(bytes),
                // A reader that needs these bytes asks again, and reports its own error.
                Err(error) => debug(|| format!("could not read ahead: {}", error.line())),
            }
        };
        start(fetch).ok().map(|_| window)
    }

    fn note_wait(&self, key: &str) {
        if let Some(reads) = self.readers.locked().get_mut(key) {
            reads.ahead_bytes = (2 * reads.ahead_bytes).min(MAX_AHEAD);
        }
    }
}

impl Objects for CoalescedObjects {
    fn list(&self, prefix: &str) -> Result<Vec<ListedObject>> {
        self.inner.list(prefix)
    }

    fn read_at(&self, key: &str, offset: u64, len: usize, out: &mut Vec<u8>) -> Result<()> {
        let is_own_request = len == 0 || len as u64 > MAX_WINDOW;
        let Some(end) = offset.checked_add(len as u64).filter(|_| !is_own_request) else {
            return self.inner.read_at(key, offset, len, out);
        };
        let windows = self.windows_for(key, offset, end);
        out.clear();
        let mut has_waited = false;
        for window in &windows {
            let start = offset + out.len() as u64;
            match window.append(start, end, out) {
                Some(waited) => has_waited |= waited,
                None => break,
            }
        }
        if has_waited {
            self.note_wait(key);
        }
        // A window that ended early or failed is no answer: the request for this range says why.
        if out.len() == len {
            return Ok(());
        }
        self.inner.read_at(key, offset, len, out)
    }

    fn get(&self, key: &str) -> Result<Option<(Vec<u8>, Version)>> {
        self.inner.get(key)
    }

    fn stat(&self, key: &str) -> Result<Option<u64>> {
        self.inner.stat(key)
    }

    fn put(&self, key: &str, bytes: &[u8], condition: &PutIf) -> Result<Put> {
        let put = self.inner.put(key, bytes, condition);
        self.forget(key);
        put
    }

    fn create(&self, key: &str) -> Result<Box<dyn Upload>> {
        self.forget(key);
        Ok(Box::new(CoalescedUpload {
            inner: self.inner.create(key)?,
            key: key.to_owned(),
            objects: self.clone(),
        }))
    }

    fn delete(&self, keys: &[String]) -> Result<()> {
        let deleted = self.inner.delete(keys);
        keys.iter().for_each(|key| self.forget(key));
        deleted
    }

    fn abort_uploads(&self, prefix: &str) -> Result<()> {
        self.inner.abort_uploads(prefix)
    }

    fn settle(&self, prefix: &str) -> Result<()> {
        self.inner.settle(prefix)
    }

    fn lease(&self, key: &str, body: &[u8], take: Take) -> Result<Leased> {
        self.inner.lease(key, body, take)
    }

    fn abilities(&self) -> StorageAbilities {
        self.inner.abilities()
    }

    fn answers_late(&self) -> bool {
        self.inner.answers_late()
    }

    fn describe(&self, key: &str) -> String {
        self.inner.describe(key)
    }

    fn as_local(&self) -> Option<&LocalObjects> {
        self.inner.as_local()
    }

    fn as_sealed(&self) -> Option<&SealedObjects> {
        self.inner.as_sealed()
    }
}

/// An upload that takes the place of an object which may have been read.
#[derive(Debug)]
struct CoalescedUpload {
    inner: Box<dyn Upload>,
    key: String,
    objects: CoalescedObjects,
}

impl Upload for CoalescedUpload {
    fn append(&mut self, bytes: &[u8]) -> Result<()> {
        self.inner.append(bytes)
    }

    fn amend(&mut self, offset: u64, bytes: &[u8]) -> Result<()> {
        self.inner.amend(offset, bytes)
    }

    fn finish(self: Box<Self>) -> Result<super::StoredObject> {
        let finished = self.inner.finish();
        self.objects.forget(&self.key);
        finished
    }

    fn abort(self: Box<Self>) {
        self.inner.abort();
    }
}
