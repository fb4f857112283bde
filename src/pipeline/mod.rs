//! Adaptors over streams of frames. They know the three traits and nothing else.
//!
//! Only [`ordered`] starts threads. Each adaptor holds at most its depth, so a pipeline holds at most the sum
//! of its depths; nothing waits for memory, and so nothing can wait for what a frame later in line holds.

pub mod lay;
pub mod liveness;
pub mod ordered;
pub mod pack;
pub mod pages;
pub mod rate_limit;
pub mod read_ahead;
pub mod segment;
pub mod thread_count;
pub(crate) mod workers;
