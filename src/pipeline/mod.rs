//! Adaptors over streams of frames. They know the three traits and nothing else.
//!
//! Only [`ordered`] and [`ahead`] start threads. Each adaptor holds at most its depth, so a pipeline holds at most the sum
//! of its depths; nothing waits for memory, and so nothing can wait for what a frame later in line holds.

pub mod climb;
pub mod filling;
pub mod lay;
pub mod meter;
pub mod ordered;
pub mod pack;
pub mod pages;

use crate::{error::Result, source::Stream};
use crossbeam_channel::bounded;

/// Run `input` on a thread of its own, at most `depth` items ahead of its reader.
pub fn ahead<T: Send + 'static>(input: impl Iterator<Item = Result<T>> + Send + 'static, depth: usize) -> Stream<T> {
    let (tx, rx) = bounded(depth);
    std::thread::spawn(move || input.into_iter().try_for_each(|item| tx.send(item)));
    Box::new(rx.into_iter())
}
