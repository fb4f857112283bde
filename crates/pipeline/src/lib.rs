//! Adaptors over streams of frames. They use only the traits of sources, stages and sinks.
//!
//! Only [`ordered`] starts threads. Each adaptor holds at most its depth of frames, so a pipeline
//! holds at most the sum of its depths. No adaptor waits for memory, so a frame can never wait for
//! memory that a later frame holds.
//!
//! Belongs here: threads, order, and the limits of memory between a source and a sink. Does not
//! belong here: any particular source, stage or sink.

pub mod frame;
pub mod known;
pub mod lay;
pub mod level_choice;
pub mod liveness;
pub mod ordered;
pub mod pack;
pub mod pages;
pub mod read_ahead;
pub mod segment;
pub mod sink;
pub mod source;
pub mod stage;
pub mod thread_count;
pub mod workers;
