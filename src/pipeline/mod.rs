//! Adaptors over streams of frames. They know the three traits and nothing else.
//!
//! Only [`ordered`] starts threads. Each adaptor holds at most its depth, so a pipeline holds at most the sum
//! of its depths; nothing waits for memory, and so nothing can wait for what a frame later in line holds.

pub mod climb;
pub mod filling;
pub mod lay;
pub mod live;
pub mod meter;
pub mod ordered;
pub mod pace;
pub mod pack;
pub mod pages;
pub mod waits;
