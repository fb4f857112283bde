//! The resources of a run, and how they are divided.

use fullbore_format::{
    error::{Error, ErrorKind, Result},
    text::binary_bytes,
};
use fullbore_pipeline::{
    read_ahead::{MAX_WINDOW_BYTES, WindowLimits},
    thread_count::max_threads,
};
use fullbore_platform as platform;
use std::num::NonZeroUsize;

/// Limits on the resources of a run.
#[derive(Debug, Clone, Copy)]
pub struct Tuning {
    /// Threads that compute.
    pub workers: NonZeroUsize,
    /// Threads that read from each device; `None` adapts the number to the device.
    pub readers: Option<NonZeroUsize>,
    /// Bytes of all buffers together.
    pub memory_bytes: u64,
    /// Plain bytes of a frame: a power of two.
    pub frame_bytes: u32,
    /// Stored bytes of a segment.
    pub segment_bytes: u64,
}

/// The number of frames in a pipeline, so that all of them fit the memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Depths {
    /// Processors for computing.
    pub workers: NonZeroUsize,
    /// Threads that may compute at once. More than `workers` if that is all processors, because a
    /// thread may wait for its processor.
    pub permits: NonZeroUsize,
    /// Frames of a stream that are being read, computed or waiting for the sink.
    pub line: usize,
    /// Maximum threads of a stream.
    pub threads: usize,
    /// Limits of the windows in which each stream reads small files ahead.
    pub window: WindowLimits,
}

/// Open files besides those of frames: directories of the walk, the destination, a session.
const OTHER_FILES: u64 = 48;

impl Tuning {
    /// Divides the memory among `streams`.
    ///
    /// A stream holds the frames in its line and one frame in its sink; a worker holds a second
    /// buffer for its output. A quarter of the memory is left for codecs, directories and pages. A
    /// frame may hold two open files (a large one until all of it is stored, a small one while it
    /// is read) and a directory, so the limit of open files limits the frames too.
    ///
    /// # Errors
    /// [`ErrorKind::Usage`] if one worker does not fit.
    pub fn depths(&self, streams: usize) -> Result<Depths> {
        let streams = streams.max(1);
        let frames = (self.memory_bytes * 3 / 4 / u64::from(self.frame_bytes)) as usize;
        let line = |workers: usize| (frames.saturating_sub(workers) / streams).saturating_sub(1);
        let fits = |workers: &usize| line(*workers) * streams > *workers && line(*workers) >= 2;
        let most = |most: usize| (1..=most).rev().find(fits).and_then(NonZeroUsize::new);
        let workers = most(self.workers.get()).ok_or_else(|| self.too_little_memory(streams))?;
        let permits = if workers < platform::cores() {
            workers
        } else {
            most(2 * workers.get()).unwrap_or(workers)
        };
        let threads = max_threads(workers.get());
        let files =
            (platform::open_files_limit().saturating_sub(OTHER_FILES) / 3) as usize / streams;
        let line = line(permits.get())
            .min(threads + 2 * workers.get() + 2)
            .min(files.max(2));
        Ok(Depths {
            workers,
            permits,
            line,
            threads: threads.min(line),
            window: self.window(streams),
        })
    }

    /// Returns the same limits with less memory.
    #[must_use]
    pub fn less(&self, bytes: u64) -> Self {
        Self {
            memory_bytes: self.memory_bytes.saturating_sub(bytes),
            ..*self
        }
    }

    /// Returns the memory for what a far source sends ahead of the frames: what two streams leave of
    /// three quarters of the memory, and at most 64 MiB.
    pub fn ahead_bytes(&self) -> u64 {
        const STREAMS: usize = 2;
        let frames = self.depths(STREAMS).map_or(usize::MAX, |depths| {
            STREAMS * (depths.line + 1) + depths.permits.get()
        });
        let used = u64::from(self.frame_bytes).saturating_mul(frames as u64);
        (self.memory_bytes * 3 / 4)
            .saturating_sub(used)
            .min(64 << 20)
    }

    fn too_little_memory(&self, streams: usize) -> Error {
        let least = (streams as u64 * 3 + 1) * u64::from(self.frame_bytes) * 4 / 3;
        let memory = binary_bytes(self.memory_bytes);
        let message = format!("cannot run with {memory} of memory");
        Error::new(ErrorKind::Usage, message).hint(format!(
            "use --memory of at least {} MiB, or a smaller --frame-size",
            (least >> 20) + 1
        ))
    }
}

/// Memory of one entry in a window, about.
const ENTRY_BYTES: u64 = 512;

impl Tuning {
    /// Returns the limits of a window of each of `streams`, of which there are two. Their entries
    /// take 1/32 of the memory. Their files take at most half of it, in the page cache.
    fn window(&self, streams: usize) -> WindowLimits {
        let share = self.memory_bytes / streams as u64 / 2;
        WindowLimits {
            entries: ((share / 32 / ENTRY_BYTES) as usize).clamp(64, 4096),
            file_bytes: (share / 2).min(MAX_WINDOW_BYTES),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tuning(workers: usize, memory_mib: u64) -> Tuning {
        Tuning {
            workers: NonZeroUsize::new(workers).unwrap(),
            readers: None,
            memory_bytes: memory_mib << 20,
            frame_bytes: 1 << 20,
            segment_bytes: 1 << 30,
        }
    }

    #[test]
    fn frames_in_flight_fit_the_memory() {
        for (workers, memory, streams) in [
            (1, 16, 1),
            (2, 128, 1),
            (64, 128, 1),
            (2, 128, 8),
            (16, 1024, 3),
        ] {
            let depths = tuning(workers, memory).depths(streams).unwrap();
            let frames = streams * (depths.line + 1) + depths.permits.get();
            assert!(
                frames as u64 <= memory,
                "{workers} workers, {memory} MiB, {streams} streams: {depths:?}"
            );
        }
        assert_eq!(tuning(2, 128).depths(1).unwrap().workers.get(), 2);
        assert_eq!(tuning(8, 4).depths(1).unwrap_err().kind, ErrorKind::Usage);
    }
}
