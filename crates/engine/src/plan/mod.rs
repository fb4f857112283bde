//! The description of a run as data: its destination, its stages and its resources.

mod destination;
mod stages;
mod tuning;

pub use destination::{OpenStorage, Recipients, SEALED_ENDING, SinkSpec};
pub use stages::{StageSpec, at_fast_level, chain};
pub use tuning::{Depths, Tuning};
