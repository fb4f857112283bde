//! Decodes frames into the cache before a reader asks for them.
//!
//! If the threads are behind, nothing more is read ahead, so the queue is bounded.

use super::{backup_tree::BackupTree, open_file::OpenFile};
use fullbore_format::{error::Result, page::PageItem};
use fullbore_platform::{
    path_in_file_system,
    queue::{Locked, start},
};
use fullbore_repository::archive::frame_cache::FrameCache;
use rustix::fs::{major, minor};
use std::{
    fs,
    ops::Range,
    path::PathBuf,
    sync::{
        Arc, Mutex, Once,
        mpsc::{Receiver, SyncSender, sync_channel},
    },
};

/// Tasks that wait at most.
const WAITING: usize = 64;
/// KiB that the kernel reads ahead, where root can set it.
const KERNEL_AHEAD_KIB: &str = "1024";
/// Bytes of one task: about a frame.
const STEP_BYTES: u64 = 1 << 20;
/// Frames behind that of a small file which are decoded.
const NEXT_FRAMES: usize = 4;

enum AheadTask {
    Range(Arc<OpenFile>, Range<u64>),
    Frame(Arc<BackupTree>, Arc<FrameCache>, PageItem),
}

/// The threads that read ahead. They end when it is dropped.
pub(super) struct ReadAhead {
    tasks: SyncSender<AheadTask>,
}

impl ReadAhead {
    /// Starts `threads` threads.
    ///
    /// # Errors
    /// The system has no thread.
    pub(super) fn new(threads: usize) -> Result<Self> {
        let (tasks, waiting) = sync_channel(WAITING);
        let waiting = Arc::new(Mutex::new(waiting));
        for _ in 0..threads {
            let waiting = waiting.clone();
            start(move || work(&waiting))?;
        }
        Ok(Self { tasks })
    }

    /// Decodes the frames of a range of a file.
    pub(super) fn range(&self, file: &Arc<OpenFile>, range: Range<u64>) {
        let mut offset = range.start;
        while offset < range.end.min(file.file.size()) {
            let end = offset.saturating_add(STEP_BYTES).min(range.end);
            let _ = self
                .tasks
                .try_send(AheadTask::Range(file.clone(), offset..end));
            offset = end;
        }
    }

    /// Decodes the frames of the next files in the page of a small file, if they are not here.
    pub(super) fn next_files(
        &self,
        tree: &Arc<BackupTree>,
        frames: &Arc<FrameCache>,
        item: &PageItem,
    ) {
        let mut known = item.extents.last().map(|extent| extent.frame);
        let mut index = item.index();
        let mut found = 0;
        while found < NEXT_FRAMES {
            index += 1;
            let Some(next) = PageItem::new(item.page().clone(), index) else {
                return;
            };
            let frame = next.extents.first().map(|extent| extent.frame);
            if frame.is_none() || frame == known {
                continue;
            }
            known = frame;
            found += 1;
            let task = AheadTask::Frame(tree.clone(), frames.clone(), next);
            let _ = self.tasks.try_send(task);
        }
    }
}

fn work(waiting: &Mutex<Receiver<AheadTask>>) {
    loop {
        let task = waiting.locked().recv();
        match task {
            Ok(AheadTask::Range(file, range)) => {
                file.file.read_ahead(range.start, range.end - range.start);
            }
            Ok(AheadTask::Frame(tree, frames, item)) => {
                if let Some(extent) = item.extents.first() {
                    let segment = item.segment(&extent.frame);
                    // An error shows when the file is read.
                    let _ = frames.plain(tree.archive(), segment, &extent.frame, true);
                }
            }
            Err(_) => return,
        }
    }
}

/// Lets the kernel read ahead as much as a request can carry. Only root may, and it is only faster.
///
/// The kernel lowers the setting when it begins to ask, so it is raised with the first question. It is found without
/// a look at the mount: a process that is killed while it waits for its own answer would stay for ever.
pub(super) struct KernelReadAhead {
    raised: Once,
    /// The directory of the mount, without symbolic links.
    dir: PathBuf,
}

impl KernelReadAhead {
    pub(super) fn new(dir: PathBuf) -> Self {
        let raised = Once::new();
        Self { raised, dir }
    }

    pub(super) fn raise(&self) {
        self.raised.call_once(|| {
            let Ok((device, _)) = path_in_file_system(&self.dir) else {
                return;
            };
            let (major, minor) = (major(device), minor(device));
            let setting = format!("/sys/class/bdi/{major}:{minor}/read_ahead_kb");
            let _ = fs::write(setting, KERNEL_AHEAD_KIB);
        });
    }
}
