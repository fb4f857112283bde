//! The slices of a scan, with their content on its way.

use super::{
    fetch_queue::{FetchItem, FetchQueue},
    remote_tree::RemoteFiles,
    row_reader,
};
use fullbore_format::error::Result;
use fullbore_pipeline::{frame::Slice, source::Stream};
use fullbore_platform::{self as platform, queue};
use std::sync::{
    Arc,
    mpsc::{Receiver, SyncSender, sync_channel},
};

/// Bytes of slices that are known ahead of their readers, for each fetcher: so much that each
/// statement asks for as many windows as it may. Of these slices only names are in memory.
const AHEAD_BYTES: u64 = 64 << 20;
/// Slices that are known ahead, at most.
const MAX_SLICES: usize = 1024;

/// A slice, and the number of the last window that its reader needs.
type QueuedSlice = (Result<Slice>, u64);

/// Passes slices on, of which another thread has the content fetched: it lists directories while
/// the content of others arrives.
pub(super) struct FetchedSlices {
    queue: Arc<FetchQueue>,
    queued: Receiver<QueuedSlice>,
}

/// The thread that scans.
struct SliceScan {
    files: Arc<RemoteFiles>,
    slices: Stream<Slice>,
    queue: Arc<FetchQueue>,
    queued: SyncSender<QueuedSlice>,
    ahead_bytes: u64,
}

impl FetchedSlices {
    /// Starts the fetchers. Returns the slices as they are if nothing can be read ahead.
    pub(super) fn start(files: &Arc<RemoteFiles>, slices: Stream<Slice>) -> Stream<Slice> {
        let fetchers = files.data.fetchers();
        if fetchers == 0 || files.ahead_bytes == 0 {
            return slices;
        }
        let queue = Arc::new(FetchQueue::new(fetchers, files.ahead_bytes));
        if let Err(error) = start_fetchers(files, &queue, fetchers) {
            platform::debug(|| format!("nothing is read ahead: {}", error.line()));
            queue.stop();
            return slices;
        }
        files.set_fetched(Some(queue.clone()));
        let (sender, queued) = sync_channel(MAX_SLICES);
        let scan = SliceScan {
            files: files.clone(),
            slices,
            queue: queue.clone(),
            queued: sender,
            ahead_bytes: AHEAD_BYTES * fetchers as u64,
        };
        match queue::start(move || scan.run()) {
            Ok(_) => Box::new(Self { queue, queued }),
            Err(error) => Box::new(std::iter::once(Err(error))),
        }
    }
}

fn start_fetchers(
    files: &Arc<RemoteFiles>,
    queue: &Arc<FetchQueue>,
    fetchers: usize,
) -> Result<()> {
    for fetcher in 0..fetchers {
        let (queue, data) = (queue.clone(), files.data.clone());
        queue::start(move || queue.fetch(fetcher, &*data))?;
    }
    Ok(())
}

impl SliceScan {
    /// Queues all slices; ends early if they are not needed.
    fn run(mut self) {
        // The reader of a head looks at the slice behind it, so both are passed on together.
        let mut head: Option<QueuedSlice> = None;
        while self.queue.await_need(self.ahead_bytes) {
            let Some(slice) = self.slices.next() else {
                break;
            };
            let window = self.add(&slice);
            let head_before = head.take();
            let head_before = head_before.map(|(slice, its)| (slice, its.max(window)));
            let is_head = matches!(slice, Ok(Slice::Members(_, Some(_))));
            let mut ready: Vec<QueuedSlice> = head_before.into_iter().collect();
            match is_head {
                true => head = Some((slice, window)),
                false => ready.push((slice, window)),
            }
            if ready
                .into_iter()
                .any(|next| self.queued.send(next).is_err())
            {
                break;
            }
        }
        self.queue.close();
        if let Some(last) = head {
            _ = self.queued.send(last);
        }
        // A scan that ends early is no whole one.
        if let Some(error) = self.queue.failure() {
            _ = self.queued.send((Err(error), 0));
        }
    }

    /// Adds what the reader of a slice will take. Returns the number of the last window.
    fn add(&self, slice: &Result<Slice>) -> u64 {
        let mut window = 0;
        if let Ok(slice) = slice {
            let mut add = |item: FetchItem| window = self.queue.add(item);
            row_reader::items_of(&self.files, slice, &mut add);
        }
        window
    }
}

impl Iterator for FetchedSlices {
    type Item = Result<Slice>;

    fn next(&mut self) -> Option<Self::Item> {
        let (slice, window) = self.queued.recv().ok()?;
        // What its reader waits for must not wait for more slices.
        self.queue.flush(window);
        Some(slice)
    }
}

impl Drop for FetchedSlices {
    /// If the run ends early, the scan ends with its next slice.
    fn drop(&mut self) {
        if !self.queue.is_closed() {
            self.queue.stop();
        }
    }
}
